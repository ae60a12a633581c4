// The other process of the driver contract. It exposes memory as commands on a pipe tell it.
// Usage: memory_owner ADDRESS DRIVER [WORD...]
#include "rig_options.hpp"

#include <millrace/core/codec.hpp>
#include <millrace/core/digest.hpp>
#include <millrace/tests/support/exposed_matrix.hpp>
#include <millrace/tests/support/fabric_handler.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <iostream>
#include <map>
#include <sstream>

#if defined(__SANITIZE_THREAD__)
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);
#endif

using namespace millrace;
using namespace millrace::net;
using namespace millrace::testing;
using namespace millrace::transport;

namespace {

std::unique_ptr<fake_device> device; // all memory is this device's, if there is one
std::map<std::uint64_t, std::unique_ptr<exposed_matrix>> owned;

/// Who asks for a content has heard that the transfers have ended: from here, but by way of its own
/// process, which the thread sanitizer cannot follow. What this thread reads meanwhile is not
/// looked at.
struct ordered_elsewhere {
#if defined(__SANITIZE_THREAD__)
  ordered_elsewhere() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~ordered_elsewhere() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
#endif
};

void obey(const std::string& line) {
  std::istringstream words{line};
  std::string verb;
  words >> verb;
  std::uint64_t region = 0;
  if (verb == "expose") {
    matrix_shape shape;
    int how = 0;
    std::uint64_t salt = 0;
    words >> shape.rows >> shape.row_bytes >> shape.gap_bytes >> how >> salt;
    if (int sharing = 0; words >> sharing)
      shape.arena = static_cast<arena_sharing>(sharing);
    auto m =
      std::make_unique<exposed_matrix>(shape, static_cast<access_mode>(how), salt, device.get());
    auto bytes = encode(m->handle());
    std::cout << to_hex(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    owned[m->handle().region] = std::move(m);
  } else if (verb == "withdraw") {
    words >> region;
    owned.at(region)->withdraw();
  } else if (verb == "refill") {
    std::uint64_t salt = 0;
    words >> region >> salt;
    owned.at(region)->fill(salt);
  } else if (verb == "content") {
    words >> region;
    [[maybe_unused]] ordered_elsewhere unseen;
    auto bytes = owned.at(region)->dense();
    std::cout << digest(bytes.data(), bytes.size());
  }
  std::cout << std::endl;
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 3)
    return 2;
  auto said = [&](const std::string& word) {
    return std::find(argv + 3, argv + argc, word) != argv + argc;
  };
  if (said("device"))
    device = std::make_unique<fake_device>(fake_device_bytes);
  // A descriptor that is not a dma-buf.
  if (said("export"))
    device->export_as(open("/dev/null", O_RDWR));
  auto loop = io_loop::start({}).value();
  auto f = fabric::create(rig_options({argv + 2, argv + argc}), loop).value();
  promise<void> connected;
  connect(
    loop, argv[1], {.local_name = "client:" + std::to_string(getpid())},
    std::make_shared<fabric_handler>(f), [connected](result<std::shared_ptr<channel>> c) {
      connected.set(c ? result<void>{} : fail(c.error()));
    });
  connected.get_future().get();
  for (std::string line; std::getline(std::cin, line);)
    obey(line);
  owned.clear();
  loop->stop();
}

// A node with models and a pool for checkpoints, by the C functions. Used by the tests of the C
// ABI.
#pragma once

#include <millrace/tests/support/descriptors.hpp>
#include <millrace/tests/support/process.hpp>

#include <boost/test/unit_test.hpp>
#include <millrace.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace millrace::testing {

/// The codes of calls, with the text of the failure where a test expects none.
#define MUST(call) BOOST_REQUIRE_MESSAGE((call) == MILLRACE_OK, #call << ": " << millrace_error())

/// Checks that a call is refused with a text that has both parts.
#define REFUSED(call, function, argument)                                                          \
  do {                                                                                             \
    BOOST_TEST((call) == MILLRACE_INVALID_ARGUMENT, #call);                                        \
    std::string text = millrace_error();                                                           \
    BOOST_TEST(text.find(function ": ") != std::string::npos, text);                               \
    BOOST_TEST(text.find(argument) != std::string::npos, text);                                    \
  } while (false)

/// A matrix of 64 rows, with numbers of its own.
struct matrix {
  static constexpr std::uint64_t shape[] = {64, 32};
  std::vector<float> elements = std::vector<float>(64 * 32);

  explicit matrix(float first = 0) {
    for (auto& e : elements)
      e = first++;
  }

  millrace_tensor tensor(const char* name = "w") {
    millrace_tensor t{};
    t.name = name;
    t.data = elements.data();
    t.dtype = MILLRACE_F32;
    t.rank = 2;
    t.shape = shape;
    return t;
  }
};

template <class T>
T sized() {
  T value{};
  value.struct_size = sizeof(T);
  return value;
}

inline std::size_t threads() { return entries_of("/proc/self/task"); }

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MILLRACE_TEST_SANITIZED
#endif
#endif
#if defined(MILLRACE_TEST_SANITIZED) || defined(__SANITIZE_ADDRESS__)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

/// The mappings of this process: those of files and of shared memory, which only Millrace makes
/// here, and those of no file, which allocators make, too.
struct mapped {
  std::size_t files = 0;
  std::size_t anonymous = 0;

  static mapped now() {
    mapped out;
    std::ifstream maps{"/proc/self/maps"};
    for (std::string line; std::getline(maps, line);) {
      std::istringstream fields{line};
      std::string range, access, offset, device, inode;
      fields >> range >> access >> offset >> device >> inode;
      ++(inode == "0" ? out.anonymous : out.files);
    }
    return out;
  }
};

/// Checks that `cycle` leaves no thread running, no descriptor open and no memory mapped, however
/// often it runs. What is made once is there after the first runs.
template <class F>
void expect_nothing_left(int first_runs, int runs, const F& cycle) {
  auto ended = [](std::size_t threads_before, std::size_t descriptors_before) {
    return eventually(
      [&] { return threads() <= threads_before && open_descriptors() <= descriptors_before; });
  };
  auto threads_alone = threads(), descriptors_alone = open_descriptors();
  for (int i = 0; i < first_runs; ++i)
    cycle();
  constexpr std::size_t made_once = 8;
  BOOST_REQUIRE(ended(threads_alone + made_once, descriptors_alone + made_once));
  auto threads_before = threads(), descriptors_before = open_descriptors();
  auto before = mapped::now();
  for (int i = 0; i < runs; ++i) {
    cycle();
    // Objects end on other threads; no more than some do so at a time.
    if (i % 10 == 0)
      BOOST_REQUIRE(ended(threads_before, descriptors_before));
  }
  BOOST_TEST(ended(threads_before, descriptors_before));
  BOOST_TEST(eventually([&] { return mapped::now().files <= before.files; }), mapped::now().files);
  // The allocator may keep some heaps and stacks of threads; a mapping of each run would be seen.
  // Sanitizers map memory for their own use, more with every run.
  auto allowed = before.anonymous + static_cast<std::size_t>(std::max(40, runs / 4));
  BOOST_TEST(
    eventually([&] { return sanitized || mapped::now().anonymous <= allowed; }),
    mapped::now().anonymous);
}

struct c_node {
  scratch dir;
  std::string config;
  millrace_node* node = nullptr;
  millrace_client* client = nullptr;

  /// `more` are lines of the configuration.
  explicit c_node(const std::string& more = {}) {
    config = dir.write(
      "node.yaml",
      "node: { name: n0, listen: 'unix:" + dir / "n0.sock" + "' }\n" +
        "staging: { size: 16MiB }\n"
        "providers:\n"
        "  - { name: fast, capacity: 32MiB }\n"
        "  - { name: pool, group: pool, bucket: pmem, capacity: 32MiB, path: '" +
        dir / "pool" + "' }\n" + more);
    MUST(millrace_embed(config.c_str(), nullptr, &node));
    MUST(millrace_node_client(node, &client));
  }
  ~c_node() {
    millrace_release(client);
    if (node)
      millrace_node_stop(node, nullptr);
    millrace_node_release(node);
  }

  /// Writes the configuration of another node, and returns its path.
  std::string another() const {
    return dir.write(
      "other.yaml",
      "node: { name: n1, listen: 'unix:" + dir / "n1.sock" + "' }\n" +
        "staging: { size: 16MiB }\n"
        "providers:\n"
        "  - { name: p, capacity: 16MiB }\n"
        "  - { name: q, group: pool, bucket: pmem, capacity: 16MiB, path: '" +
        dir / "other-pool" + "' }\n");
  }

  millrace_client* connect() const {
    millrace_client* out = nullptr;
    MUST(millrace_connect(millrace_node_address(node), nullptr, &out));
    return out;
  }

  millrace_checkpointer* job(const millrace_tensor& tensor, const char* name = "run") const {
    auto options = sized<millrace_checkpoint_options>();
    options.name = name;
    millrace_checkpointer* out = nullptr;
    MUST(millrace_register(client, &options, &tensor, 1, &out));
    return out;
  }
};

} // namespace millrace::testing

// Changes the bytes of a pool and reads it: the check of its heap, and the index as salvage reads
// it.
#include <millrace/core/assert.hpp>
#include <millrace/storage/await.hpp>
#include <millrace/storage/pmem/index_reader.hpp>
#include <millrace/storage/pmem/medium/heap_check.hpp>
#include <millrace/storage/pmem/medium/pool_file.hpp>

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

using namespace millrace;
using namespace millrace::storage;
using namespace millrace::storage::pmem;

namespace {

constexpr std::uint64_t pool_bytes = 16u << 20;
constexpr auto deadline = std::chrono::seconds{30};

void store(bucket& models, const std::string& name, std::uint64_t size_bytes) {
  model_spec spec;
  spec.name = name;
  spec.tensors = layout{{{"w", dtype::u8, {size_bytes}}}};
  auto room = await<std::unique_ptr<reservation>>(
    deadline, [&](auto done) { models.reserve(spec, {}, std::move(done)); });
  MILLRACE_ASSERT(room);
  for (std::uint32_t i = 0; i < (*room)->window_count(); ++i) {
    MILLRACE_ASSERT(
      await<window>(deadline, [&](auto done) { (*room)->acquire(i, {}, std::move(done)); }));
    MILLRACE_ASSERT(await<void>(deadline, [&](auto done) { (*room)->commit(i, std::move(done)); }));
  }
  MILLRACE_ASSERT(
    await<std::uint64_t>(deadline, [&](auto done) { (*room)->publish({}, std::move(done)); }));
}

std::vector<char> make_pool_image() {
  auto pattern = (std::filesystem::temp_directory_path() / "pool-XXXXXX").string();
  MILLRACE_ASSERT(::mkdtemp(pattern.data()));
  pool_options options;
  options.path = pattern + "/pool";
  options.capacity_bytes = pool_bytes;
  options.create_if_missing = true;
  options.populate = false;
  {
    auto pool = open_pool(options);
    MILLRACE_ASSERT(pool);
    for (auto size : {10u, 5'000u, 70'000u, 900'000u, 3'000'000u})
      store(*(*pool)->models(), "m" + std::to_string(size), size);
    MILLRACE_ASSERT((*pool)->models()->close(10'000).ok());
    MILLRACE_ASSERT((*pool)->checkpoints()->close(10'000).ok());
  }
  std::ifstream file{options.path, std::ios::binary};
  std::vector<char> bytes{std::istreambuf_iterator<char>{file}, {}};
  std::filesystem::remove_all(pattern);
  return bytes;
}

void read_all_of(std::span<const std::byte> bytes) {
  pool_descriptor descriptor;
  std::memcpy(&descriptor, bytes.data() + 4096, sizeof descriptor);
  static_cast<void>(read_pending(bytes));
  static_cast<void>(check_heap(bytes, bytes.size() - heap_at, descriptor.root_offset));
  auto root = reinterpret_cast<const pool_root*>(bytes.data() + descriptor.root_offset);
  auto placed =
    descriptor.root_offset % 16 == 0 && descriptor.root_offset <= bytes.size() - sizeof(pool_root);
  pool_view view{bytes.data(), bytes.size(), placed ? root : nullptr, std::nullopt};
  auto index = read_pool_index(view, [](auto&) { return true; });
  for (auto& [name, m] : index.models)
    for (auto& [number, v] : m->versions)
      static_cast<void>(read_digests(bytes.data(), *v, 0));
}

} // namespace

// Four bytes are one change: where (in the 16 MiB of the pool), and which bits.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static auto image = make_pool_image();
  std::vector<std::pair<std::size_t, char>> before;
  for (std::size_t i = 0; i + 4 <= size && i < 4 * 64; i += 4) {
    auto at = data[i] | std::size_t{data[i + 1]} << 8 | std::size_t{data[i + 2]} << 16;
    before.emplace_back(at, image[at]);
    image[at] = static_cast<char>(image[at] ^ data[i + 3]);
  }
  read_all_of(std::as_bytes(std::span{image}));
  for (auto one = before.rbegin(); one != before.rend(); ++one)
    image[one->first] = one->second;
  return 0;
}

// Opening, making and inspecting pools. Called by a node and by the command line.
#include <millrace/core/assert.hpp>
#include <millrace/core/log.hpp>
#include <millrace/storage/pmem/care/erase.hpp>
#include <millrace/storage/pmem/care/verify.hpp>
#include <millrace/storage/pmem/pmem_bucket.hpp>
#include <millrace/storage/pmem/pmem_checkpoint_store.hpp>
#include <millrace/storage/pmem/pool.hpp>

#include <fcntl.h>
#include <sys/stat.h>

namespace millrace::storage {

using namespace pmem;

namespace {

std::string uuid_text(const std::array<std::uint8_t, 16>& bytes) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10)
      text += '-';
    text += digits[bytes[i] >> 4];
    text += digits[bytes[i] & 15];
  }
  return text;
}

pool_info info_of(const pool_root& root, const pool_file& file) {
  pool_info info;
  info.path = file.path;
  info.uuid = uuid_text(root.uuid);
  info.format_version = root.format_version;
  info.created_ns = root.created_ns;
  info.medium = file.medium;
  info.medium_note = medium_note(file.medium);
  info.size_bytes = file.size_bytes;
  return info;
}

void count(model& m, pool_info& info) {
  std::lock_guard guard{m.mutex};
  info.models += !m.shards.empty();
  auto stored = find_stored(m);
  info.repository_models += stored && !stored->spec.erased && !is_own_name(m.name);
  for (auto& [rank, s] : m.shards) {
    ++info.shards;
    for (auto& one : s->slots)
      info.versions += one.done();
  }
}

class pmem_pool final : public pool {
public:
  pmem_pool(std::shared_ptr<pool_state> state, io::file_handle shared)
    : state_(std::move(state)), shared_(std::move(shared)),
      store_(make_pmem_checkpoint_store(state_)), bucket_(make_pmem_bucket(state_)) {}
  /// Waits for the pool's own threads. Then only lent windows and open versions keep the mapping,
  /// and otherwise the pool can be opened again at once.
  ~pmem_pool() override {
    state_->bucket_operations.close();
    state_->operations.close();
    state_->stop();
  }

  pool_info info() const override {
    auto info = info_of(*state_->objects->root(), state_->file);
    info.direct_io = state_->direct;
    for (auto& m : state_->all())
      count(*m, info);
    std::lock_guard guard{state_->layout_mutex};
    auto free = state_->objects->probe_free();
    info.free_bytes = free.total_bytes;
    info.largest_free_bytes = free.largest_bytes;
    return info;
  }

  std::shared_ptr<checkpoint_store> checkpoints() override { return store_; }
  std::shared_ptr<bucket> models() override { return bucket_; }

  std::vector<file_mapping> mappings() const override {
    if (state_->direct)
      return {};
    return {{shared_.get(), 0, state_->objects->base(), state_->file.size_bytes}};
  }

private:
  std::shared_ptr<pool_state> state_;
  io::file_handle shared_;
  std::shared_ptr<checkpoint_store> store_;
  std::shared_ptr<bucket> bucket_;
};

status check_options(const pool_options& options) {
  auto wrong = [&](const std::string& what) {
    return status{errc::invalid_argument, "pool {}: {}", options.path, what};
  };
  if (options.path.empty())
    return {errc::invalid_argument, "a pool needs the path of a file or device"};
  if (options.io_threads < 1 || options.io_threads > 64)
    return wrong("io_threads must be 1 to 64");
  if (
    options.window_bytes < io::window_bytes_min || options.window_bytes % io::direct_io_bytes != 0)
    return wrong(
      fmt::format("window_bytes must be a multiple of 4096, at least {}", io::window_bytes_min));
  if (options.data_path == file_path::direct && options.staging == lent_memory::none)
    return wrong("direct I/O needs staging memory");
  return {};
}

// Opens the file anew for peers. The lock lives as long as any copy of its descriptor, and a job
// that outlives a killed service must not keep the lock.
result<io::file_handle> open_for_peers(const pool_file& file) {
  return io::open_file(fmt::format("/proc/self/fd/{}", file.file.get()), O_RDWR);
}

// `words`: as `check_headers` returned them.
result<std::unique_ptr<heap>> open_heap(
  const pool_file& file, heap_access access, const heap_words& words) {
  auto objects = heap::open(file.path, access, words);
  if (!objects)
    return objects;
  auto root = (*objects)->root();
  if (!root)
    return fail(damaged_pool(file.path, "it has no root object"));
  if (auto bad = check_root(*root, file.path, file.size_bytes); !bad.ok())
    return fail(std::move(bad));
  return objects;
}

bool is_missing(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) != 0 && errno == ENOENT;
}

/// A pool opened so that its file cannot change, unless it is a device.
struct looked_into {
  pool_file file;
  std::unique_ptr<heap> objects;
};

result<looked_into> look_into(const std::string& path) {
  auto file = open_pool_file(path, pool_medium::automatic);
  if (!file)
    return fail(file.error());
  auto words = check_headers(*file);
  if (!words)
    return fail(words.error());
  auto objects =
    open_heap(*file, file->device ? heap_access::read_write : heap_access::copy_on_write, *words);
  if (!objects)
    return fail(objects.error());
  return looked_into{std::move(*file), std::move(*objects)};
}

pool_view view_of(const looked_into& seen) {
  return pmem::view_of(*seen.objects, seen.file.size_bytes);
}

pool_info info_of(const looked_into& seen, const pool_index& index) {
  auto info = info_of(*seen.objects->root(), seen.file);
  info.direct_io = seen.file.medium == pool_medium::file && knows_direct_io(seen.file);
  for (auto& [name, m] : index.models)
    count(*m, info);
  auto free = seen.objects->probe_free();
  info.free_bytes = free.total_bytes;
  info.largest_free_bytes = free.largest_bytes;
  return info;
}

std::string version_name(const slot_owner& s, const slot& one) {
  auto name = describe(s.key);
  return s.key.kind == entry_kind::shard ? fmt::format("{}, step {}", name, one.step) : name;
}

class checker {
public:
  checker(const looked_into& seen, check_report& report, const progress_callback& progress)
    : seen_(seen), report_(report), progress_(progress) {}

  void verify(const pool_index& index) {
    for_each_version(index, [&](auto& s, auto&, auto) { total_ += s.shape->size_bytes; });
    for_each_version(
      index, [&](auto& s, auto& tensors, auto number) { verify_one(s, tensors, number); });
  }

private:
  template <class F>
  static void for_each_version(const pool_index& index, F f) {
    for (auto& [name, m] : index.models) {
      for (auto& [rank, s] : m->shards)
        for (std::size_t i = 0; i < s->slots.size(); ++i)
          if (s->slots[i].done())
            f(*s, s->spec.tensors, i);
      for (auto& [number, v] : m->versions)
        f(*v, v->spec.tensors, 0);
    }
  }

  void verify_one(const slot_owner& s, const layout& tensors, std::size_t number) {
    if (stopped_)
      return;
    auto& one = s.slots[number];
    auto digests = read_digests(seen_.objects->base(), s, number);
    MILLRACE_ASSERT(digests); // loading has read them
    if (digests->size() >= s.shape->digests) {
      for (auto tensor : differing_tensors(seen_.objects->base(), s, one, *digests))
        report_.problems.push_back(fmt::format(
          "{}: tensor {} does not match its checksums", version_name(s, one),
          tensors.tensors[tensor].name));
      if (auto bad = check_extra(seen_.objects->base(), s, one, *digests); !bad.ok())
        report_.problems.push_back(fmt::format("{}: {}", version_name(s, one), bad.detail()));
      report_.verified_bytes += s.shape->size_bytes + one.extra_bytes;
    }
    seen_bytes_ += s.shape->size_bytes;
    stopped_ = progress_ && !progress_(seen_bytes_, total_);
  }

  const looked_into& seen_;
  check_report& report_;
  const progress_callback& progress_;
  std::uint64_t seen_bytes_ = 0;
  std::uint64_t total_ = 0;
  bool stopped_ = false;
};

} // namespace

std::string_view to_string(pool_medium medium) noexcept {
  switch (medium) {
  case pool_medium::dax:
    return "dax";
  case pool_medium::memory:
    return "memory";
  case pool_medium::file:
    return "file";
  case pool_medium::automatic:
    break;
  }
  return "automatic";
}

result<pool_info> create_pool(const pool_options& options) {
  if (auto bad = check_options(options); !bad.ok())
    return fail(std::move(bad));
  if (auto bad = make_pool(options.path, options.capacity_bytes, options.medium); !bad.ok())
    return fail(std::move(bad));
  return inspect_pool(options.path);
}

result<pool_info> inspect_pool(const std::string& path) {
  auto seen = look_into(path);
  if (!seen)
    return fail(seen.error());
  status first;
  auto index = read_pool_index(view_of(*seen), [&](const std::string& problem) {
    first = {errc::corrupt_data, "pool {}: {}; see `millrace pool check`", path, problem};
    return false;
  });
  if (!first.ok())
    return fail(std::move(first));
  return info_of(*seen, index);
}

result<check_report> check_pool(
  const std::string& path, bool verify_bytes, const progress_callback& progress) {
  auto seen = look_into(path);
  if (!seen)
    return fail(seen.error());
  check_report report;
  auto index = read_pool_index(view_of(*seen), [&](const std::string& problem) {
    report.problems.push_back(problem);
    return true;
  });
  report.pool = info_of(*seen, index);
  report.versions = report.pool.versions + report.pool.repository_models;
  report.unreachable_bytes = report.problems.empty() ? index.unreachable_bytes : 0;
  if (verify_bytes)
    checker{*seen, report, progress}.verify(index);
  return report;
}

result<std::shared_ptr<pool>> open_pool(pool_options options) {
  if (auto bad = check_options(options); !bad.ok())
    return fail(std::move(bad));
  auto& path = options.path;
  if (options.create_if_missing && is_missing(path))
    if (auto bad = make_pool(path, options.capacity_bytes, pool_medium::automatic); !bad.ok())
      return fail(std::move(bad));
  auto file = open_pool_file(path, options.medium);
  if (!file)
    return fail(file.error());
  auto words = check_headers(*file);
  if (!words)
    return fail(words.error());
  if (options.capacity_bytes != 0 && file_bytes_of(options.capacity_bytes) != file->size_bytes)
    log().warn(
      "a pool keeps the size with which it was made path={} size_bytes={} configured_bytes={}",
      path, file->size_bytes, options.capacity_bytes);
  if (auto bad = fill_holes(*file); !bad.ok())
    return fail(std::move(bad));
  auto shared = open_for_peers(*file);
  if (!shared)
    return fail(shared.error().within("opening pool " + path + " for peers"));
  auto objects = open_heap(*file, heap_access::read_write, *words);
  if (!objects)
    return fail(objects.error());
  auto state =
    std::make_shared<pool_state>(std::move(options), std::move(*file), std::move(*objects));
  if (auto bad = state->load(); !bad.ok())
    return fail(std::move(bad));
  if (auto bad = finish_erasing(*state); !bad.ok())
    return fail(std::move(bad));
  if (state->options.data_path == file_path::direct && !state->direct)
    return fail(
      errc::unsupported,
      "pool {}: direct I/O is configured, but its file system does not support it",
      state->file.path);
  state->populate();
  return std::make_shared<pmem_pool>(std::move(state), std::move(*shared));
}

} // namespace millrace::storage

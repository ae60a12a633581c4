// Stores and loads 1 GiB through the RocksDB bucket, beside plain O_DIRECT I/O on the same file
// system.
// Run by hand: storage_floor DIRECTORY [rounds]; prints one JSON object.
#include <millrace/actors/staging/staging_lender.hpp>
#include <millrace/storage/rocksdb/rocksdb_bucket.hpp>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <mutex>
#include <vector>

using namespace millrace;
using actors::staging_lender;
using namespace millrace::storage;

namespace {

constexpr std::uint64_t block_bytes = 8u << 20;
constexpr std::uint64_t model_bytes = 1u << 30;
constexpr std::uint32_t blocks = 8;

/// Blocks that are touched once and used again, like the arena of a node.
class block_pool final : public memory_source, public std::enable_shared_from_this<block_pool> {
public:
  explicit block_pool(std::uint32_t blocks) : capacity_(blocks * block_bytes) {
    auto base = static_cast<std::byte*>(std::aligned_alloc(2u << 20, capacity_));
    ::madvise(base, capacity_, MADV_HUGEPAGE);
    std::memset(base, 1, capacity_);
    base_.reset(base);
    for (std::uint32_t i = 0; i < blocks; ++i)
      free_.push_back(base + i * block_bytes);
  }

  result<memory_block> allocate(std::uint64_t size_bytes, std::size_t) override {
    std::lock_guard guard{mutex_};
    if (free_.empty() || size_bytes > block_bytes)
      return fail(errc::no_space, "no block is free");
    auto data = free_.back();
    free_.pop_back();
    auto give_back = [self = shared_from_this()](std::byte* block) {
      std::lock_guard returning{self->mutex_};
      self->free_.push_back(block);
    };
    return memory_block{data, size_bytes, std::shared_ptr<std::byte>{data, give_back}};
  }

  bool contiguous() const noexcept override { return false; }
  std::uint64_t capacity_bytes() const noexcept override { return capacity_; }
  std::uint64_t used_bytes() const noexcept override {
    std::lock_guard guard{mutex_};
    return capacity_ - free_.size() * block_bytes;
  }

private:
  struct freed {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::uint64_t capacity_;
  std::unique_ptr<std::byte, freed> base_;
  mutable std::mutex mutex_;
  std::vector<std::byte*> free_;
};

double seconds_now() {
  using namespace std::chrono;
  return duration<double>(millrace::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "storage_floor: %s\n", why.c_str());
  std::exit(1);
}

template <class T>
T value_of(result<T> outcome) {
  if (!outcome)
    give_up(outcome.error().to_string());
  if constexpr (!std::is_void_v<T>)
    return std::move(*outcome);
}

template <class T, class F>
T await(F start) {
  std::promise<result<T>> promise;
  start([&](result<T> outcome) { promise.set_value(std::move(outcome)); });
  return value_of(promise.get_future().get());
}

/// Counts completions of the windows of one operation.
class countdown {
public:
  explicit countdown(std::size_t count) : left_(count) {}
  void done() {
    std::lock_guard guard{mutex_};
    if (--left_ == 0)
      changed_.notify_all();
  }
  void wait() {
    std::unique_lock guard{mutex_};
    changed_.wait(guard, [this] { return left_ == 0; });
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t left_;
};

double raw_io(const std::string& path, bool reads, std::byte* buffer) {
  auto fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT, 0600);
  if (fd < 0)
    give_up("cannot open " + path + " for direct I/O");
  auto began = seconds_now();
  for (std::uint64_t at = 0; at < model_bytes; at += block_bytes) {
    auto moved = reads ? ::pread(fd, buffer, block_bytes, static_cast<off_t>(at))
                       : ::pwrite(fd, buffer, block_bytes, static_cast<off_t>(at));
    if (moved != static_cast<ssize_t>(block_bytes))
      give_up("short transfer on " + path);
  }
  if (!reads)
    ::fdatasync(fd);
  auto took = seconds_now() - began;
  ::close(fd);
  return took;
}

model_spec ten_layers() {
  model_spec spec;
  spec.name = "model";
  for (auto i = 0; i < 10; ++i)
    spec.tensors.tensors.push_back(
      {"layer" + std::to_string(i), dtype::u8, {model_bytes / 10 / 64 * 64}});
  return spec;
}

double store(bucket& subject, staging_lender& staging, const std::byte* source) {
  auto began = seconds_now();
  auto room = await<std::unique_ptr<reservation>>(
    [&](auto done) { subject.reserve(ten_layers(), {}, std::move(done)); });
  countdown windows{room->window_count()};
  std::mutex one_call;
  auto fill = [&](std::uint32_t i, result<memory_block> memory) {
    std::lock_guard guard{one_call};
    auto w = await<window>(
      [&](auto done) { room->acquire(i, value_of(std::move(memory)), std::move(done)); });
    for (auto& p : w.pieces)
      std::memcpy(p.data, source, p.length);
    w.hold.reset();
    room->commit(i, [&](result<void> committed) {
      value_of(std::move(committed));
      windows.done();
    });
  };
  for (std::uint32_t i = 0; i < room->window_count(); ++i)
    staging.ask({}, room->window_bytes(), [&fill, i](auto memory) { fill(i, std::move(memory)); });
  windows.wait();
  await<std::uint64_t>([&](auto done) { room->publish({}, std::move(done)); });
  return seconds_now() - began;
}

double load(bucket& subject, staging_lender& staging) {
  auto began = seconds_now();
  auto model = await<std::shared_ptr<opened_model>>(
    [&](auto done) { subject.open("model", 0, std::move(done)); });
  std::vector<wanted> all;
  for (std::uint32_t i = 0; i < 10; ++i)
    all.push_back({i, 0, model_bytes / 10 / 64 * 64});
  auto plan = model->plan(all);
  countdown windows{plan.size()};
  for (auto& part : plan)
    staging.ask({}, model->window_bytes(), [&](result<memory_block> memory) {
      model->fetch(part, value_of(std::move(memory)), [&](result<window> filled) {
        value_of(std::move(filled)).hold.reset();
        windows.done();
      });
    });
  windows.wait();
  return seconds_now() - began;
}

double median_gbps(std::vector<double> took) {
  std::sort(took.begin(), took.end());
  return static_cast<double>(model_bytes) / took[took.size() / 2] / 1e9;
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 2)
    give_up("usage: storage_floor DIRECTORY [rounds]");
  auto directory = std::string{argv[1]} + "/storage_floor";
  auto rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  std::filesystem::create_directories(directory);
  auto staging = std::make_shared<staging_lender>(std::make_shared<block_pool>(blocks));
  auto source = std::make_shared<block_pool>(1);
  auto buffer = value_of(source->allocate(block_bytes, 4096));
  rocksdb_bucket_options options;
  options.path = directory + "/bucket";
  options.capacity_bytes = 4 * model_bytes;
  auto subject = value_of(open_rocksdb_bucket(options));
  auto raw = directory + "/raw";
  auto first = store(*subject, *staging, buffer.data);
  auto raw_first = raw_io(raw, false, buffer.data);
  store(*subject, *staging, buffer.data);
  std::vector<double> stores, loads, writes, reads;
  for (auto i = 0; i < rounds; ++i) {
    writes.push_back(raw_io(raw, false, buffer.data));
    stores.push_back(store(*subject, *staging, buffer.data));
    reads.push_back(raw_io(raw, true, buffer.data));
    loads.push_back(load(*subject, *staging));
  }
  nlohmann::json out{
    {"first_store_gbps", model_bytes / first / 1e9},
    {"first_raw_write_gbps", model_bytes / raw_first / 1e9},
    {"store_gbps", median_gbps(stores)},
    {"raw_write_gbps", median_gbps(writes)},
    {"store_ratio", median_gbps(stores) / median_gbps(writes)},
    {"load_gbps", median_gbps(loads)},
    {"raw_read_gbps", median_gbps(reads)},
    {"load_ratio", median_gbps(loads) / median_gbps(reads)}};
  std::printf("%s\n", out.dump(2).c_str());
  subject.reset();
  std::filesystem::remove_all(directory);
}

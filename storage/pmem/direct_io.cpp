// The slot by direct I/O: windows in staging memory, written to and read from the slot's extents in
// the file. Made by `slot_io.cpp`.
#include <millrace/core/kill_point.hpp>
#include <millrace/storage/io/io_buffer.hpp>
#include <millrace/storage/io/staged_reader.hpp>
#include <millrace/storage/io/staged_writer.hpp>
#include <millrace/storage/pmem/medium/extents.hpp>
#include <millrace/storage/pmem/slot_io.hpp>

#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace millrace::storage::pmem {

namespace {

// Uses contiguous memory where staging memory is not contiguous, see `io::io_buffer`.
std::byte* buffer_for(const pool_state& state, std::uint64_t length) noexcept {
  auto helps = state.options.staging != lent_memory::contiguous && length <= io::io_buffer_bytes;
  return helps ? io::io_buffer() : nullptr;
}

status write_run(const pool_state& state, const located_run& run, const std::byte* data) {
  if (auto* buffer = buffer_for(state, run.length))
    data = static_cast<std::byte*>(std::memcpy(buffer, data, run.length));
  return io::write_all(state.direct_file, data, run.length, run.offset, state.file.path);
}

status read_run(const pool_state& state, const located_run& run, std::byte* data) {
  auto* buffer = buffer_for(state, run.length);
  auto outcome = io::read_all(
    state.direct_file, buffer ? buffer : data, run.length, run.offset, state.file.path);
  if (buffer && outcome.ok())
    std::memcpy(data, buffer, run.length);
  return outcome;
}

class direct_windows final : public io::staged_writer {
public:
  explicit direct_windows(const leased_slot& slot) : slot_(slot) {}

  std::string doing() const override { return "saving model " + slot_.of->name; }
  const std::shared_ptr<pool_state>& home() const noexcept { return slot_.home; }

protected:
  const io::packing& packed() const override { return slot_.shape->packed; }
  io::io_pool& pool() const override { return slot_.home->pool; }

  jobs write_jobs(std::uint32_t index, const std::byte* data) override {
    jobs work;
    auto& w = packed().windows[index];
    for (auto& run : locate(slot_.extents, w.at, w.size_bytes, job_bytes_max))
      work.emplace_back([self = shared_from_this(), home = slot_.home, run, data] {
        MILLRACE_KILL_POINT("pmem.commit.before_write");
        return write_run(*home, run, data + run.from);
      });
    return work;
  }

private:
  leased_slot slot_;
};

class direct_writer final : public slot_writer {
public:
  explicit direct_writer(const leased_slot& slot)
    : windows_(std::make_shared<direct_windows>(slot)) {}

  std::uint32_t window_count() const noexcept override { return windows_->window_count(); }
  std::uint64_t window_bytes() const noexcept override { return windows_->window_bytes(); }
  void acquire(std::uint32_t index, memory_block staging, completion<window> done) override {
    windows_->acquire(index, std::move(staging), std::move(done));
  }
  void commit(std::uint32_t index, completion<void> done) override {
    windows_->commit(index, std::move(done));
  }
  status may_persist() const override { return windows_->finish(); }
  void persist(std::function<void(status)> done) override {
    auto home = windows_->home();
    auto& pool = home->pool;
    pool.post([home = std::move(home), done = std::move(done)](const status& stopped) {
      if (!stopped.ok())
        return done(stopped);
      // The bytes stored to the mapping, the version's record among them, are part of the file's
      // data.
      auto synced = ::fdatasync(home->direct_file.get()) == 0;
      done(synced ? status{} : status_from_errno(errno, "syncing " + home->file.path));
    });
  }

private:
  std::shared_ptr<direct_windows> windows_;
};

class direct_reading final : public io::staged_reader {
public:
  explicit direct_reading(const leased_slot& slot) : slot_(slot) {}

  std::uint64_t window_bytes() const override { return slot_.home->options.window_bytes; }

protected:
  bool is_in_memory() const override { return false; }
  // The lease keeps the slot, so a reader needs no ticket.
  result<gate::ticket> enter() const override { return nullptr; }
  const std::string& model_name() const override { return slot_.of->name; }
  const std::vector<std::uint64_t>& tensor_bytes() const override {
    return slot_.shape->tensor_bytes;
  }
  const io::packing& packed() const override { return slot_.shape->packed; }
  io::io_pool& pool() const override { return slot_.home->pool; }

  jobs read_jobs(const std::vector<io::read_run>& runs, std::byte* data) override {
    jobs work;
    for (auto& run : runs)
      for (auto& part : locate(slot_.extents, run.at, run.length, job_bytes_max))
        work.emplace_back(
          [self = shared_from_this(), home = slot_.home, part, to = data + run.memory + part.from] {
            return read_run(*home, part, to);
          });
    return work;
  }

private:
  leased_slot slot_;
};

class direct_reader final : public slot_reader {
public:
  explicit direct_reader(const leased_slot& slot)
    : reading_(std::make_shared<direct_reading>(slot)) {}

  std::vector<std::vector<wanted>> plan(const std::vector<wanted>& ranges) const override {
    return reading_->plan(ranges);
  }
  std::uint64_t window_bytes() const noexcept override { return reading_->window_bytes(); }
  void fetch(std::vector<wanted> ranges, memory_block staging, completion<window> done) override {
    reading_->fetch(std::move(ranges), std::move(staging), std::move(done));
  }

private:
  std::shared_ptr<direct_reading> reading_;
};

} // namespace

std::unique_ptr<slot_writer> make_direct_writer(const leased_slot& slot) {
  return std::make_unique<direct_writer>(slot);
}

std::unique_ptr<slot_reader> make_direct_reader(const leased_slot& slot) {
  return std::make_unique<direct_reader>(slot);
}

} // namespace millrace::storage::pmem

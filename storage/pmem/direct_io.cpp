// Windows of staging memory, written to and read from the slot's place in the file past the page cache.
#include <millrace/core/kill_point.hpp>
#include <millrace/storage/io/io_buffer.hpp>
#include <millrace/storage/model_check.hpp>
#include <millrace/storage/pmem/medium/extents.hpp>
#include <millrace/storage/pmem/slot_io.hpp>

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>

namespace millrace::storage::pmem {

namespace {

// Through contiguous memory where staging memory is not: see `io::io_buffer`.
std::byte* buffer_for(const core& c, std::uint64_t length) noexcept {
  auto helps = !c.options.staging->contiguous() && length <= io::io_buffer_bytes;
  return helps ? io::io_buffer() : nullptr;
}

status write_run(const core& c, const located_run& run, const std::byte* data) {
  if (auto* buffer = buffer_for(c, run.length))
    data = static_cast<std::byte*>(std::memcpy(buffer, data, run.length));
  return io::write_all(c.direct_file, data, run.length, run.offset, c.file.path);
}

status read_run(const core& c, const located_run& run, std::byte* data) {
  auto* buffer = buffer_for(c, run.length);
  auto outcome =
    io::read_all(c.direct_file, buffer ? buffer : data, run.length, run.offset, c.file.path);
  if (buffer && outcome.ok())
    std::memcpy(data, buffer, run.length);
  return outcome;
}

/// What a slot's windows and the jobs under way share.
struct window_table : std::enable_shared_from_this<window_table> {
  enum class phase : std::uint8_t { idle, asked, lent, committing, committed };
  struct entry {
    phase at = phase::idle;
    memory_block memory;
  };

  leased_slot slot;
  std::mutex mutex;
  std::vector<entry> windows;
  status failed; // the first window that could not be written

  bool advance(std::uint32_t index, phase from, phase to) {
    std::lock_guard guard{mutex};
    if (index >= windows.size() || windows[index].at != from)
      return false;
    windows[index].at = to;
    return true;
  }

  void acquire(std::uint32_t index, std::weak_ptr<void> asker, completion<window> done);
  void commit(std::uint32_t index, completion<void> done);

private:
  window lend(std::uint32_t index, memory_block memory);
  void written(std::uint32_t index, const status& outcome);
};

void window_table::acquire(
  std::uint32_t index, std::weak_ptr<void> asker, completion<window> done) {
  if (!advance(index, phase::idle, phase::asked))
    return done(
      fail(errc::invalid_argument, "window " + std::to_string(index) + " cannot be acquired now"));
  auto lent = [self = shared_from_this(), index,
               done = std::move(done)](result<memory_block> memory) {
    if (!memory) {
      self->advance(index, phase::asked, phase::idle);
      return done(fail(memory.error().within("saving model " + self->slot.of->name)));
    }
    done(self->lend(index, std::move(*memory)));
  };
  slot.home->staging->acquire(
    slot.shape->packed.windows[index].size_bytes, std::move(asker), std::move(lent));
}

window window_table::lend(std::uint32_t index, memory_block memory) {
  auto lent = io::lend(slot.shape->packed, index, memory);
  std::lock_guard guard{mutex};
  windows[index].memory = std::move(memory);
  windows[index].at = phase::lent;
  return lent;
}

void window_table::commit(std::uint32_t index, completion<void> done) {
  if (!advance(index, phase::lent, phase::committing))
    return done(
      fail(errc::invalid_argument, "window " + std::to_string(index) + " is not acquired"));
  auto data = windows[index].memory.data;
  auto& w = slot.shape->packed.windows[index];
  io::clear_gaps(slot.shape->packed, index, data);
  std::vector<std::function<status()>> jobs;
  for (auto& run : locate(slot.extents, w.at, w.size_bytes, job_bytes_max))
    jobs.emplace_back([self = shared_from_this(), run, data] {
      MILLRACE_KILL_POINT("pmem.commit.before_write");
      return write_run(*self->slot.home, run, data + run.from);
    });
  auto& pool = slot.home->pool;
  pool.post_all(
    std::move(jobs),
    [self = shared_from_this(), index, done = std::move(done)](status outcome) mutable {
      self->written(index, outcome);
      self.reset();
      outcome.ok() ? done({}) : done(fail(std::move(outcome)));
    });
}

void window_table::written(std::uint32_t index, const status& outcome) {
  memory_block returned; // after the lock
  std::lock_guard guard{mutex};
  returned = std::move(windows[index].memory);
  windows[index].at = phase::committed;
  if (failed.ok() && !outcome.ok())
    failed = outcome;
}

class direct_writer final : public slot_writer {
public:
  explicit direct_writer(const leased_slot& slot) {
    table_->slot = slot;
    table_->windows.resize(slot.shape->packed.windows.size());
  }

  std::uint32_t window_count() const noexcept override {
    return static_cast<std::uint32_t>(table_->windows.size());
  }
  void acquire(std::uint32_t index, completion<window> done) override {
    table_->acquire(index, asker_, std::move(done));
  }
  void commit(std::uint32_t index, completion<void> done) override {
    table_->commit(index, std::move(done));
  }
  void abandon() override {
    asker_.reset();
    table_->slot.home->staging->nudge();
  }
  status may_persist() const override {
    std::lock_guard guard{table_->mutex};
    for (auto& one : table_->windows)
      if (one.at != window_table::phase::committed)
        return {errc::invalid_argument, "a window is not committed"};
    return table_->failed;
  }
  void persist(std::function<void(status)> done) override {
    auto home = table_->slot.home;
    auto& pool = home->pool;
    pool.post([home = std::move(home), done = std::move(done)](const status& stopped) {
      if (!stopped.ok())
        return done(stopped);
      // What was stored to the mapping, the version's record among it, is written with the file's data.
      auto synced = ::fdatasync(home->direct_file.get()) == 0;
      done(synced ? status{} : status_from_errno(errno, "syncing " + home->file.path));
    });
  }

private:
  std::shared_ptr<window_table> table_ = std::make_shared<window_table>();
  std::shared_ptr<void> asker_ = std::make_shared<char>();
};

/// What a reader and its jobs share.
struct read_table : std::enable_shared_from_this<read_table> {
  leased_slot slot;
  std::uint64_t window_bytes = 0;

  status within(const status& why) const { return why.within("reading model " + slot.of->name); }
  void fetch(std::vector<wanted> ranges, std::weak_ptr<void> asker, completion<window> done);

private:
  void read(const io::read_plan& plan, memory_block memory, completion<window> done);
};

void read_table::fetch(
  std::vector<wanted> ranges, std::weak_ptr<void> asker, completion<window> done) {
  if (auto bad = check_ranges(slot.shape->tensor_bytes, ranges); !bad.ok())
    return done(fail(within(bad)));
  auto plan = io::plan_read(slot.shape->packed, ranges);
  if (plan.memory_bytes > window_bytes)
    return done(fail(within(
      {errc::invalid_argument,
       "the ranges need " + std::to_string(plan.memory_bytes) + " bytes, a window has " +
         std::to_string(window_bytes) + "; fetch them as `plan` cuts them"})));
  auto size = std::max(plan.memory_bytes, io::direct_io_bytes);
  auto lent = [self = shared_from_this(), plan = std::move(plan),
               done = std::move(done)](result<memory_block> memory) mutable {
    if (!memory)
      return done(fail(self->within(memory.error())));
    std::exchange(self, nullptr)->read(plan, std::move(*memory), std::move(done));
  };
  slot.home->staging->acquire(size, std::move(asker), std::move(lent));
}

void read_table::read(const io::read_plan& plan, memory_block memory, completion<window> done) {
  window filled{0, {}, memory.owner};
  filled.pieces.reserve(plan.pieces.size());
  for (auto& p : plan.pieces)
    filled.pieces.push_back({p.tensor, p.tensor_offset, memory.data + p.at, p.length});
  std::vector<std::function<status()>> jobs;
  for (auto& run : plan.runs)
    for (auto& part : locate(slot.extents, run.at, run.length, job_bytes_max))
      jobs.emplace_back(
        [self = shared_from_this(), part, to = memory.data + run.memory + part.from] {
          return read_run(*self->slot.home, part, to);
        });
  memory.owner.reset();
  auto home = slot.home;
  auto& pool = home->pool;
  pool.post_all(
    std::move(jobs),
    [self = shared_from_this(), filled = std::move(filled),
     done = std::move(done)](status outcome) mutable {
      if (!outcome.ok())
        outcome = self->within(outcome);
      self.reset();
      outcome.ok() ? done(std::move(filled)) : done(fail(std::move(outcome)));
    });
}

class direct_reader final : public slot_reader {
public:
  explicit direct_reader(const leased_slot& slot) {
    table_->slot = slot;
    table_->window_bytes = slot.home->options.window_bytes;
  }
  ~direct_reader() override {
    asker_.reset();
    table_->slot.home->staging->nudge();
  }

  std::vector<std::vector<wanted>> plan(const std::vector<wanted>& ranges) const override {
    return io::cut_ranges(table_->slot.shape->packed, ranges, table_->window_bytes);
  }
  void fetch(std::vector<wanted> ranges, completion<window> done) override {
    table_->fetch(std::move(ranges), asker_, std::move(done));
  }

private:
  std::shared_ptr<read_table> table_ = std::make_shared<read_table>();
  std::shared_ptr<void> asker_ = std::make_shared<char>();
};

} // namespace

std::unique_ptr<slot_writer> make_direct_writer(const leased_slot& slot) {
  return std::make_unique<direct_writer>(slot);
}

std::unique_ptr<slot_reader> make_direct_reader(const leased_slot& slot) {
  return std::make_unique<direct_reader>(slot);
}

} // namespace millrace::storage::pmem

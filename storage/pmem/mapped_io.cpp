// The slot by its mapping: one window that is the slot itself. Made by `slot_io.cpp`.
#include <millrace/storage/model_check.hpp>
#include <millrace/storage/pmem/medium/extents.hpp>
#include <millrace/storage/pmem/slot_io.hpp>

#include <mutex>

namespace millrace::storage::pmem {

namespace {

constexpr std::uint64_t flush_bytes = 4u << 20;

// Returns the pieces of the ranges in the mapping: one for each run of a range. Ranges are not
// joined.
std::vector<piece> pieces_of(const leased_slot& slot, const std::vector<wanted>& ranges) {
  std::vector<piece> pieces;
  for (auto& range : ranges) {
    auto first = pieces.size();
    for (auto& part : io::parts_of(slot.shape->packed, range)) {
      auto run = locate(slot.extents, part.at, part.length).front();
      auto data = slot.home->address(run.offset);
      auto joins = pieces.size() > first && pieces.back().data + pieces.back().length == data;
      if (joins)
        pieces.back().length += part.length;
      else
        pieces.push_back({part.tensor, part.tensor_offset, data, part.length});
    }
  }
  return pieces;
}

std::vector<wanted> everything(const shard_shape& shape) {
  std::vector<wanted> all;
  for (std::uint32_t i = 0; i < shape.tensor_bytes.size(); ++i)
    if (shape.tensor_bytes[i] > 0)
      all.push_back({i, 0, shape.tensor_bytes[i]});
  return all;
}

class mapped_writer final : public slot_writer {
public:
  explicit mapped_writer(const leased_slot& slot) : slot_(slot) {
    for (auto& e : slot_.extents)
      slot_.home->persist.bulk_begins(slot_.home->address(e.offset), e.length);
    if (slot_.extents.empty())
      at_ = phase::committed;
  }

  std::uint32_t window_count() const noexcept override { return slot_.extents.empty() ? 0 : 1; }

  std::uint64_t window_bytes() const noexcept override { return 0; }

  void acquire(std::uint32_t index, memory_block, completion<window> done) override {
    if (index >= window_count() || at_ != phase::idle)
      return done(fail(errc::invalid_argument, "window {} cannot be acquired", index));
    at_ = phase::lent;
    done(window{index, pieces_of(slot_, everything(*slot_.shape)), slot_.lease});
  }

  void commit(std::uint32_t index, completion<void> done) override {
    if (index >= window_count() || at_ != phase::lent)
      return done(fail(errc::invalid_argument, "window {} is not acquired", index));
    at_ = phase::committed;
    done({});
  }

  void written_back() override {
    written_back_ = slot_.home->persist.how() == write_back::cache_lines;
  }

  status may_persist() const override {
    return at_ == phase::committed ? status{}
                                   : status{errc::invalid_argument, "a window is not committed"};
  }

  void persist(std::function<void(status)> done) override {
    auto home = slot_.home;
    std::vector<std::function<status()>> jobs;
    for (auto& run : locate(slot_.extents, 0, slot_.shape->packed.stream_bytes, job_bytes()))
      if (written_back_)
        home->persist.bulk_written_back(home->address(run.offset), run.length);
      else
        jobs.emplace_back([home, run] {
          auto outcome = home->persist.bulk_flush(home->address(run.offset), run.length);
          // A fence covers the lines of its own thread only, not those of the thread that
          // publishes.
          home->persist.fence();
          return outcome;
        });
    auto& pool = home->pool;
    pool.post_all(
      std::move(jobs),
      [home = std::move(home), extents = slot_.extents, done = std::move(done)](status outcome) {
        home->persist.fence();
        if (outcome.ok())
          for (auto& e : extents)
            home->persist.bulk_persisted(home->address(e.offset), e.length);
        done(std::move(outcome));
      });
  }

private:
  enum class phase : std::uint8_t { idle, lent, committed };

  // msync is fastest on a whole range; cache lines are written back by several threads.
  std::uint64_t job_bytes() const {
    return slot_.home->persist.how() == write_back::msync ? ~0ull : flush_bytes;
  }

  leased_slot slot_;
  phase at_ = phase::idle;
  bool written_back_ = false;
};

class mapped_reader final : public slot_reader {
public:
  explicit mapped_reader(const leased_slot& slot) : slot_(slot) {}

  std::vector<std::vector<wanted>> plan(const std::vector<wanted>& ranges) const override {
    return plan_in_place(ranges);
  }

  std::uint64_t window_bytes() const noexcept override { return 0; }

  void fetch(std::vector<wanted> ranges, memory_block, completion<window> done) override {
    if (auto bad = check_ranges(slot_.shape->tensor_bytes, ranges); !bad.ok())
      return done(fail(bad.within("reading model " + slot_.of->name)));
    done(window{0, pieces_of(slot_, ranges), slot_.lease});
  }

private:
  leased_slot slot_;
};

} // namespace

std::unique_ptr<slot_writer> make_mapped_writer(const leased_slot& slot) {
  return std::make_unique<mapped_writer>(slot);
}

std::unique_ptr<slot_reader> make_mapped_reader(const leased_slot& slot) {
  return std::make_unique<mapped_reader>(slot);
}

} // namespace millrace::storage::pmem

// Bytes in a slot's object reach the medium by the mapping, also where tensors go by direct I/O.
// Made by saving and by opening.
#include <millrace/core/digest.hpp>
#include <millrace/core/rounding.hpp>
#include <millrace/storage/io/file_io.hpp>
#include <millrace/storage/io/packing.hpp>
#include <millrace/storage/pmem/extra_io.hpp>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace millrace::storage::pmem {

namespace {

// The most bytes of one window; a multiple of a digest's block.
std::uint64_t window_max(const pool_state& state) {
  return state.direct ? round_down(state.options.window_bytes, digest_block_bytes) : ~0ull;
}

class slot_extra_writer final : public extra_writer {
public:
  slot_extra_writer(const leased_slot& slot, const pmem::slot& version)
    : slot_(slot), at_(extra_at(version, *slot.shape)), size_bytes_(version.extra_bytes),
      each_bytes_(std::min(window_max(*slot.home), size_bytes_)),
      windows_((size_bytes_ + each_bytes_ - 1) / each_bytes_) {}

  std::uint32_t window_count() const noexcept override {
    return static_cast<std::uint32_t>(windows_.size());
  }

  std::uint64_t window_bytes() const noexcept override {
    return slot_.home->direct ? round_up(each_bytes_, io::direct_io_bytes) : 0;
  }

  void acquire(std::uint32_t index, memory_block staging, completion<window> done) override {
    if (index >= windows_.size() || windows_[index].at != phase::idle)
      return done(fail(errc::invalid_argument, "window {} cannot be acquired", index));
    auto& home = *slot_.home;
    auto from = index * each_bytes_, length = length_of(index);
    auto data = home.address(at_ + from);
    std::shared_ptr<void> hold = slot_.lease;
    if (home.direct) {
      if (auto bad = io::check_staging(staging, length); !bad.ok())
        return done(fail(std::move(bad)));
      data = staging.data;
      hold = staging.owner;
      windows_[index].staging = std::move(staging);
    } else {
      home.persist.bulk_begins(data, length);
    }
    windows_[index].at = phase::lent;
    done(window{index, {{0, from, data, length}}, std::move(hold)});
  }

  void commit(std::uint32_t index, completion<void> done) override {
    if (index >= windows_.size() || windows_[index].at != phase::lent)
      return done(fail(errc::invalid_argument, "window {} is not acquired", index));
    auto& one = windows_[index];
    one.at = phase::committed;
    slot_.home->pool.post([home = slot_.home, lease = slot_.lease, written = written_,
                           staging = std::exchange(one.staging, {}), length = length_of(index),
                           target = slot_.home->address(at_ + index * each_bytes_),
                           done = std::move(done)](const status& stopped) mutable {
      auto outcome = stopped.ok() ? write(*home, target, staging.data, length) : stopped;
      staging = {};
      lease.reset();
      if (!outcome.ok())
        return done(fail(std::move(outcome)));
      written->fetch_add(1, std::memory_order_release);
      done({});
    });
  }

  status may_persist() const override {
    if (written_->load(std::memory_order_acquire) == windows_.size())
      return {};
    return {errc::invalid_argument, "a window of the user's bytes is not committed"};
  }

private:
  enum class phase : std::uint8_t { idle, lent, committed };
  struct lent_window {
    phase at = phase::idle;
    memory_block staging;
  };

  std::uint64_t length_of(std::uint32_t index) const noexcept {
    return std::min(each_bytes_, size_bytes_ - index * each_bytes_);
  }

  // With direct I/O the mapping is synced together with the slot's data.
  static status write(
    const pool_state& home, std::byte* target, const std::byte* staged, std::uint64_t length) {
    if (home.direct) {
      home.persist.store(target, staged, length);
      return {};
    }
    auto outcome = home.persist.bulk_flush(target, length);
    home.persist.fence();
    if (outcome.ok())
      home.persist.bulk_persisted(target, length);
    return outcome;
  }

  leased_slot slot_;
  std::uint64_t at_, size_bytes_, each_bytes_;
  std::vector<lent_window> windows_;
  // Shared with the jobs that write them.
  std::shared_ptr<std::atomic<std::size_t>> written_ =
    std::make_shared<std::atomic<std::size_t>>(0);
};

} // namespace

std::unique_ptr<extra_writer> make_extra_writer(
  const leased_slot& slot, const pmem::slot& version) {
  return std::make_unique<slot_extra_writer>(slot, version);
}

extra_reader::extra_reader(leased_slot slot, const pmem::slot& version)
  : slot_(std::move(slot)), at_(extra_at(version, *slot_.shape)), size_bytes_(version.extra_bytes) {
}

void extra_reader::plan(const wanted& range, std::vector<std::vector<wanted>>& windows) const {
  auto most = window_max(*slot_.home);
  for (std::uint64_t from = 0; from < range.length; from += std::min(most, range.length - from))
    windows.push_back(
      {{range.tensor, range.tensor_offset + from, std::min(most, range.length - from)}});
}

void extra_reader::fetch(const wanted& range, memory_block staging, completion<window> done) const {
  if (range.tensor_offset > size_bytes_ || range.length > size_bytes_ - range.tensor_offset)
    return done(fail(
      errc::invalid_argument, "bytes {} to +{} of the user's {} bytes", range.tensor_offset,
      range.length, size_bytes_));
  auto data = slot_.home->address(at_ + range.tensor_offset);
  window lent{0, {{range.tensor, range.tensor_offset, data, range.length}}, slot_.lease};
  if (!slot_.home->direct)
    return done(std::move(lent));
  if (auto bad = io::check_staging(staging, range.length); !bad.ok())
    return done(fail(std::move(bad)));
  auto& pool = slot_.home->pool;
  pool.post([slot = slot_, lent = std::move(lent), staging = std::move(staging),
             done = std::move(done)](const status& stopped) mutable {
    if (!stopped.ok())
      return done(fail(stopped));
    auto& piece = lent.pieces.front();
    std::memcpy(staging.data, piece.data, piece.length);
    piece.data = staging.data;
    lent.hold = std::move(staging.owner);
    slot = {};
    done(std::move(lent));
  });
}

} // namespace millrace::storage::pmem

// Takes a lease for each system call, and uses a bounce buffer if the runs are too short for one
// call.
#include <millrace/transport/tcp/region_payload.hpp>

#include <algorithm>

namespace millrace::transport::tcp {

namespace {

constexpr std::uint64_t bounce_bytes = 64u << 10;
// If the runs of a strided tensor are shorter than this on average, they are gathered here instead
// of by the kernel.
constexpr std::uint64_t run_bytes_min = 256;

class region_payload : public payload {
public:
  region_payload(region_ref memory, std::vector<range> ranges, flow way)
    : memory_(std::move(memory)), ranges_(std::move(ranges)), way_(way) {}

  // *Problem*: withdrawing waits for leases, and must not wait for the network. So a lease lasts
  // for one system call that does not block.
  std::size_t iovecs(std::span<iovec> out, std::uint64_t bytes_max) override {
    if (kept_ > 0) {
      out[0] = {bounce_.data() + bounce_at_, std::min(kept_, bytes_max)};
      return 1;
    }
    auto lease = memory_.lease();
    if (!lease) {
      fail(lease.error());
      return 0;
    }
    lease_.emplace(std::move(*lease));
    std::uint64_t bytes = 0;
    auto n = gather(out, bytes_max, bytes);
    if (n * run_bytes_min <= bytes || bytes == bytes_max)
      return n;
    return bounce(out, bytes_max);
  }

  void passed(std::uint64_t size_bytes) override {
    if (kept_ > 0) {
      bounce_at_ += size_bytes;
      kept_ -= size_bytes;
    } else if (bounced_) {
      for_ranges(size_bytes, [&](std::uint64_t offset, std::uint64_t length) {
        lease_->memory().write(offset, bounce_.data() + bounce_at_, length, store_mode::cached);
        bounce_at_ += length;
      });
    } else {
      for_ranges(size_bytes, [](std::uint64_t, std::uint64_t) {});
    }
    bounced_ = false;
    lease_.reset();
  }

private:
  // Lists as many runs as fit.
  std::size_t gather(std::span<iovec> out, std::uint64_t bytes_max, std::uint64_t& bytes) const {
    std::size_t n = 0;
    auto at = at_;
    for (auto i = range_; i < ranges_.size() && n < out.size() && bytes < bytes_max; ++i, at = 0) {
      auto wanted = std::min(ranges_[i].length - at, bytes_max - bytes);
      auto given = lease_->memory().runs(ranges_[i].offset + at, wanted, out.subspan(n));
      n += given.count;
      bytes += given.size_bytes;
      if (given.size_bytes < wanted)
        break;
    }
    return n;
  }

  std::size_t bounce(std::span<iovec> out, std::uint64_t bytes_max) {
    bounce_.resize(bounce_bytes);
    bounce_at_ = 0;
    auto bytes = std::min(bounce_bytes, bytes_max);
    if (way_ == flow::in) {
      bounced_ = true;
      out[0] = {bounce_.data(), std::min(bytes, left())};
      return 1;
    }
    for_ranges(bytes, [&](std::uint64_t offset, std::uint64_t length) {
      lease_->memory().read(offset, bounce_.data() + kept_, length, store_mode::cached);
      kept_ += length;
    });
    lease_.reset();
    out[0] = {bounce_.data(), kept_};
    return 1;
  }

  std::uint64_t left() const {
    std::uint64_t sum = 0;
    for (auto i = range_; i < ranges_.size() && sum < bounce_bytes; ++i)
      sum += ranges_[i].length - (i == range_ ? at_ : 0);
    return sum;
  }

  // Calls `use` for the next `size_bytes`, or for what is left, and moves on.
  template <class F>
  void for_ranges(std::uint64_t size_bytes, F use) {
    while (range_ < ranges_.size()) {
      auto& r = ranges_[range_];
      auto length = std::min(r.length - at_, size_bytes);
      if (length > 0)
        use(r.offset + at_, length);
      at_ += length;
      size_bytes -= length;
      if (at_ < r.length)
        return;
      ++range_;
      at_ = 0;
    }
  }

  region_ref memory_;
  std::vector<range> ranges_;
  const flow way_;
  std::size_t range_ = 0;
  std::uint64_t at_ = 0; // in that range
  std::optional<region_lease> lease_;
  std::vector<std::byte> bounce_;
  std::uint64_t bounce_at_ = 0;
  std::uint64_t kept_ = 0; // bytes of the region in the bounce buffer that have not been sent
  bool bounced_ = false;   // the bytes given out are the bounce buffer's
};

} // namespace

result<std::unique_ptr<payload>> open_region(const unit_header& asked, unit_target target) {
  auto reads = asked.kind == unit_kind::read;
  auto memory =
    find_region(target.region, target.key, reads ? access_mode::read : access_mode::write);
  if (!memory)
    return fail(memory.error());
  auto outside = [&](std::uint64_t offset, std::uint64_t length) {
    return offset > memory->size_bytes() || length > memory->size_bytes() - offset;
  };
  auto bad = outside(asked.region_end, 0);
  for (auto& r : target.ranges)
    bad |= outside(r.offset, r.length);
  if (bad)
    return fail(
      errc::permission_denied, "a range, up to byte {}, lies outside the region of {} bytes",
      asked.region_end, memory->size_bytes());
  return std::make_unique<region_payload>(
    std::move(*memory), std::move(target.ranges), reads ? flow::out : flow::in);
}

} // namespace millrace::transport::tcp

// Cuts and watches the transfers of a provider's operations, and lends them the memory of windows.
#include <millrace/actors/operation.hpp>
#include <millrace/core/digest.hpp>

#include <caf/actor_clock.hpp>
#include <caf/actor_system.hpp>

#include <algorithm>
#include <iterator>
#include <vector>

namespace millrace::actors {

namespace {

using transport::transfer;
using transport::transfer_report;

// No network for bulk data is as slow as this.
constexpr std::uint64_t bytes_per_ms_min = 1u << 10;
constexpr std::uint64_t portion_bytes_max = 64u << 20;
// The portions of one transfer that move at the same time: while one ends, the next one is under
// way. With more of them each would get less of a slow network, and would exceed its time.
constexpr std::uint32_t portions_at_once = 2;

std::uint64_t op_bytes_of(const transfer& t) {
  std::uint64_t bytes = 0;
  for (auto& op : t.ops)
    bytes += op.length;
  return bytes;
}

// Returns how many bytes of an op go into a portion that has `room` left. Digest blocks stay whole,
// and the first bytes of an op may be in the middle of one.
std::uint64_t length_for(const transport::copy_op& op, std::uint64_t room) {
  auto border = (op.lead + room) / digest_block_bytes * digest_block_bytes;
  return op.length <= room ? op.length : border - std::min(border, op.lead);
}

// Cuts a transfer into portions, whose digests in order are those of the transfer.
std::vector<transfer> portions_of(const transfer& whole) {
  std::vector<std::vector<transport::copy_op>> lists(1);
  auto room = portion_bytes_max / 2; // movers take turns, so two equal portions would end together
  for (auto rest : whole.ops)
    while (true) {
      auto length = length_for(rest, room);
      if (length > 0 || rest.length == 0) {
        auto tail = length == rest.length ? rest.tail : 0;
        lists.back().push_back(
          {.remote_offset = rest.remote_offset,
           .local = rest.local,
           .length = length,
           .lead = rest.lead,
           .tail = tail});
      }
      room -= length;
      if (length == rest.length)
        break;
      rest.remote_offset += length;
      rest.local += length;
      rest.length -= length;
      rest.lead = length > 0 ? 0 : rest.lead;
      lists.emplace_back();
      room = portion_bytes_max;
    }
  std::vector<transfer> portions;
  for (auto& ops : lists) {
    portions.push_back(whole);
    portions.back().ops = std::move(ops);
  }
  return portions;
}

} // namespace

/// One long transfer under way. It ends with the outcome of its last portion, or after an error
/// when no portion is under way any more.
class operation_context::moving_portions : public std::enable_shared_from_this<moving_portions> {
public:
  moving_portions(
    operation_context& context, const transfer& whole, completion<transfer_report> done)
    : context_(context), portions_(portions_of(whole)), reports_(portions_.size()),
      done_(std::move(done)) {}

  void pump() {
    // A driver may end a portion before it returns.
    if (std::exchange(pumping_, true))
      return;
    auto at_once = std::min(portions_at_once, context_.bounds.windows_max);
    while (error_.ok() && next_ < portions_.size() && in_flight_ < at_once) {
      ++in_flight_;
      auto portion = std::exchange(portions_[next_], {});
      auto bytes = op_bytes_of(portion);
      context_.move_at_once(
        std::move(portion), bytes, [self = shared_from_this(), index = next_++](auto report) {
          self->on_moved(index, std::move(report));
        });
    }
    pumping_ = false;
    if (in_flight_ == 0)
      end();
  }

private:
  void on_moved(std::size_t index, result<transfer_report> report) {
    --in_flight_;
    if (report)
      reports_[index] = std::move(*report);
    else if (error_.ok())
      error_ = report.error();
    pump();
  }

  void end() {
    portions_.clear();
    auto done = std::exchange(done_, nullptr);
    if (!error_.ok())
      return done(fail(error_));
    auto all = std::move(reports_.front());
    for (std::size_t i = 1; i < reports_.size(); ++i) {
      auto& more = reports_[i];
      all.digests.insert(all.digests.end(), more.digests.begin(), more.digests.end());
      all.written_back &= more.written_back;
    }
    done(std::move(all));
  }

  operation_context& context_; // it calls all functions
  std::vector<transfer> portions_;
  std::vector<transfer_report> reports_;
  completion<transfer_report> done_;
  status error_;
  std::size_t next_ = 0;
  std::uint32_t in_flight_ = 0;
  bool pumping_ = false;
};

void operation_context::move(transfer t, completion<transfer_report> done) {
  auto bytes = op_bytes_of(t);
  if (bytes <= portion_bytes_max)
    return move_at_once(std::move(t), bytes, std::move(done));
  auto portions = std::make_shared<moving_portions>(*this, t, std::move(done));
  t = {};
  portions->pump();
}

void operation_context::move_at_once(
  transfer t, std::uint64_t bytes, completion<transfer_report> done) {
  auto time = std::chrono::milliseconds{bounds.progress_timeout_ms + bytes / bytes_per_ms_min};
  auto one = std::make_shared<move_under_way>(move_under_way{now() + time, std::move(done), {}});
  one->at = moves_.insert(moves_.end(), one);
  if (watch_)
    watch_();
  fabric->submit(std::move(t), home<transfer_report>([this, one](auto report) {
                   end(*one, std::move(report));
                 }));
}

void operation_context::end(move_under_way& one, result<transfer_report> report) {
  if (auto answer = std::exchange(one.done, nullptr)) {
    moves_.erase(one.at);
    answer(std::move(report));
  }
}

void operation_context::forget_moves() {
  for (auto& one : std::exchange(moves_, {}))
    one->done = nullptr;
  watch_ = nullptr;
}

time_point operation_context::now() const { return system().clock().now(); }

bool operation_context::give_up_stalled(time_point now) {
  // An answer may begin and end other transfers.
  std::vector<std::shared_ptr<move_under_way>> stalled;
  std::ranges::copy_if(
    moves_, std::back_inserter(stalled), [now](auto& one) { return one->deadline < now; });
  for (auto& one : stalled)
    end(
      *one,
      fail(
        errc::deadline_exceeded,
        "provider {}: the process that owns the memory did not move its bytes in time "
        "(limits.progress_timeout)",
        provider));
  return !moves_.empty();
}

void operation_context::ask_for_window(
  const staging_claim& claim, std::uint64_t size_bytes, completion<memory_block> granted) {
  if (size_bytes == 0)
    return granted(memory_block{});
  if (!staging)
    return granted(fail(errc::internal, "provider {} has no staging memory", provider));
  staging->ask(claim, size_bytes, home<memory_block>(std::move(granted)));
}

} // namespace millrace::actors

// Taking leases, and the work that is due when the last lease of a slot ends. Called by saving,
// storing and opening.
#include <millrace/core/log.hpp>
#include <millrace/core/planted_defect.hpp>
#include <millrace/storage/pmem/care/erase.hpp>
#include <millrace/storage/pmem/lease.hpp>
#include <millrace/storage/pmem/waiting.hpp>

#include <atomic>
#include <utility>

namespace millrace::storage::pmem {

namespace {

constinit std::atomic<std::size_t> leases = 0;

} // namespace

std::size_t leased_slots() noexcept { return leases.load(std::memory_order_relaxed); }

slot_lease::slot_lease(
  std::shared_ptr<pool_state> home, std::shared_ptr<model> of, std::shared_ptr<slot_owner> which,
  std::uint64_t number)
  : home_(std::move(home)), of_(std::move(of)), which_(std::move(which)), number_(number),
    changes_(which_->slots[number].changes) {
  leases.fetch_add(1, std::memory_order_relaxed);
}

slot_lease::~slot_lease() {
  leases.fetch_sub(1, std::memory_order_relaxed);
  waiting_saves waiting;
  auto last_of_erased = false;
  {
    std::lock_guard guard{of_->mutex};
    auto& one = which_->slots[number_];
    // Abandoned. The stored state stays `active` until the slot is filled again, as after a crash.
    auto abandoned =
      one.state == slot_state::active && one.changes == changes_ && one.writer.expired();
    if (abandoned)
      one.state = slot_state::empty;
    last_of_erased = which_->erased && !in_use(*which_);
    // Other ranks may have awaited the version that was abandoned.
    waiting = take_waiting(*of_, [&](auto& s) { return abandoned || s.key == which_->key; });
  }
  if (last_of_erased)
    remove();
  wake(*home_, std::move(waiting));
}

// If a publish waits for a disk, a thread of the pool does it, since the caller must not wait.
void slot_lease::remove() {
  auto work = [home = home_, of = of_, which = which_](const auto&) {
    std::lock_guard guard{of->mutex};
    if (in_use(*which))
      return;
    if (auto bad = remove_owner(*home, *of, *which); !bad.ok())
      log().warn(
        "an erased version keeps its space until the pool opens again: {}: {}",
        describe(which->key), bad.to_string());
  };
  if (home_->persist.how() == write_back::cache_lines)
    work(status{});
  else
    home_->pool.post(std::move(work));
}

namespace {

leased_slot loan(
  std::shared_ptr<pool_state> home, std::shared_ptr<model> of, std::shared_ptr<slot_owner> which,
  std::uint64_t number, std::shared_ptr<slot_lease> lease) {
  auto shape = which->shape;
  auto extents = which->slots[number].extents;
  return {std::move(home),  std::move(of),      std::move(which), number,
          std::move(shape), std::move(extents), std::move(lease)};
}

} // namespace

leased_slot lease_to_write(
  std::shared_ptr<pool_state> home, std::shared_ptr<model> of, std::shared_ptr<slot_owner> which,
  std::uint64_t number) {
  auto lease = std::make_shared<slot_lease>(home, of, which, number);
  which->slots[number].writer = lease;
  return loan(std::move(home), std::move(of), std::move(which), number, std::move(lease));
}

leased_slot lease_to_read(
  std::shared_ptr<pool_state> home, std::shared_ptr<model> of, std::shared_ptr<slot_owner> which,
  std::uint64_t number) {
  auto& readers = which->slots[number].readers;
  auto lease = std::static_pointer_cast<slot_lease>(readers.lock());
  if (!lease) {
    lease = std::make_shared<slot_lease>(home, of, which, number);
    readers = lease;
  }
  if (is_planted(defect::slot_lease_kept))
    static_cast<void>(new std::shared_ptr<slot_lease>{lease});
  return loan(std::move(home), std::move(of), std::move(which), number, std::move(lease));
}

} // namespace millrace::storage::pmem

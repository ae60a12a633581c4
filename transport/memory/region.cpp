// The table of exposed regions of this process.
// Movers and drivers look regions up here by number and key.
#include <millrace/core/planted_defect.hpp>
#include <millrace/core/process_mark.hpp>
#include <millrace/transport/memory/region.hpp>

#include <condition_variable>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace millrace::transport {

class region_entry {
public:
  region_entry(std::uint64_t number, const region_key& key, gather_list list, access_mode how)
    : number(number), key(key), how(how), list(std::move(list)) {}

  const std::uint64_t number;
  const region_key key;
  const access_mode how;
  const gather_list list;

  bool enter() {
    std::lock_guard guard{mutex_};
    users_ += withdrawn_ ? 0 : 1;
    return !withdrawn_;
  }

  void leave() {
    std::lock_guard guard{mutex_};
    if (--users_ == 0 && withdrawn_)
      quiet_.notify_all();
  }

  bool exposed() const {
    std::lock_guard guard{mutex_};
    return !withdrawn_;
  }

  // A second caller returns no earlier than the first, so that both can rely on the memory being
  // unreachable.
  void withdraw() {
    std::map<std::uint64_t, std::function<void()>> hooks;
    {
      std::unique_lock guard{mutex_};
      if (std::exchange(withdrawn_, true))
        return quiet_.wait(guard, [this] { return gone_; });
      quiet_.wait(guard, [this] { return users_ == 0; });
      hooks.swap(hooks_);
    }
    for (auto& [id, f] : hooks)
      f();
    std::lock_guard guard{mutex_};
    gone_ = true;
    quiet_.notify_all();
  }

  // Returns 0 once the region is withdrawn.
  std::uint64_t add_hook(std::function<void()> f) {
    std::lock_guard guard{mutex_};
    if (withdrawn_)
      return 0;
    hooks_.emplace(++last_hook_, std::move(f));
    return last_hook_;
  }

  void remove_hook(std::uint64_t id) {
    std::function<void()> dropped;
    std::lock_guard guard{mutex_};
    if (auto found = hooks_.find(id); found != hooks_.end()) {
      dropped = std::move(found->second);
      hooks_.erase(found);
    }
  }

private:
  mutable std::mutex mutex_;
  std::condition_variable quiet_;
  std::uint32_t users_ = 0;
  bool withdrawn_ = false;
  bool gone_ = false; // withdrawn, and the hooks have run
  std::uint64_t last_hook_ = 0;
  std::map<std::uint64_t, std::function<void()>> hooks_;
};

namespace {

struct region_table {
  std::mutex mutex;
  std::uint64_t next = 1;
  std::unordered_map<std::uint64_t, std::shared_ptr<region_entry>> entries;
};

region_table& all_regions() { return one_per_process<region_table>(); }

} // namespace

region expose(gather_list list, access_mode how) {
  auto& t = all_regions();
  std::lock_guard guard{t.mutex};
  auto number = t.next++;
  auto entry =
    std::make_shared<region_entry>(number, random_id<region_key>(), std::move(list), how);
  t.entries.emplace(number, entry);
  return region{std::move(entry)};
}

region& region::operator=(region&& other) noexcept {
  if (this != &other) {
    withdraw();
    entry_ = std::move(other.entry_);
  }
  return *this;
}

region::operator bool() const noexcept { return entry_ && entry_->exposed(); }

bulk_handle region::handle() const {
  bulk_handle h;
  h.owner = this_peer();
  h.region = entry_->number;
  h.key = entry_->key;
  h.allows = entry_->how;
  h.on_device = !entry_->list.on_host();
  h.length_bytes = entry_->list.size_bytes();
  return h;
}

region region::replace(gather_list list) {
  auto entry =
    std::make_shared<region_entry>(entry_->number, entry_->key, std::move(list), entry_->how);
  auto& t = all_regions();
  std::lock_guard guard{t.mutex};
  t.entries.insert_or_assign(entry->number, entry);
  return region{std::exchange(entry_, std::move(entry))};
}

void region::withdraw() noexcept {
  if (!entry_ || is_planted(defect::lost_withdrawal))
    return;
  {
    auto& t = all_regions();
    std::lock_guard guard{t.mutex};
    auto found = t.entries.find(entry_->number);
    if (found != t.entries.end() && found->second == entry_)
      t.entries.erase(found);
  }
  entry_->withdraw();
}

region_lease::~region_lease() {
  if (entry_)
    entry_->leave();
}

const gather_list& region_lease::memory() const noexcept { return entry_->list; }

std::uint64_t region_ref::size_bytes() const noexcept { return entry_->list.size_bytes(); }

std::byte* region_ref::dense() const noexcept { return entry_->list.dense_at(0, size_bytes()); }

const std::vector<std::shared_ptr<device_memory>>& region_ref::devices() const noexcept {
  return entry_->list.devices();
}

result<region_lease> region_ref::lease() const {
  if (!entry_->enter())
    return fail(errc::permission_denied, "the memory behind the handle was withdrawn");
  return region_lease{entry_};
}

result<std::uint64_t> region_ref::on_withdraw(std::function<void()> f) const {
  auto id = entry_->add_hook(std::move(f));
  if (id == 0)
    return fail(errc::permission_denied, "the memory behind the handle was withdrawn");
  return id;
}

void region_ref::forget(std::uint64_t hook) const { entry_->remove_hook(hook); }

result<region_ref> find_region(
  std::uint64_t number, const region_key& key, access_mode how, memory_reach reach) {
  auto& t = all_regions();
  std::lock_guard guard{t.mutex};
  auto found = t.entries.find(number);
  if (
    found == t.entries.end() || !equal_constant_time(found->second->key, key) ||
    found->second->how != how)
    return fail(
      errc::permission_denied, "the memory is not there any more, or may not be reached this way");
  if (auto& devices = found->second->list.devices();
      reach == memory_reach::host && !devices.empty())
    return fail(
      errc::unsupported, "the memory is that of {}, which this driver cannot reach",
      devices.front()->name());
  return region_ref{found->second};
}

std::size_t exposed_regions() noexcept {
  std::lock_guard guard{all_regions().mutex};
  return all_regions().entries.size();
}

} // namespace millrace::transport

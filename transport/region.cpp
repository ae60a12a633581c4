// The table of exposed regions of this process.
#include <millrace/transport/region.hpp>

#include <condition_variable>
#include <mutex>
#include <unordered_map>

namespace millrace::transport {

class region_entry {
public:
  region_entry(std::uint64_t number, gather_list list, access_mode how)
    : number(number), key(random_id<region_key>()), how(how), list(std::move(list)) {}

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

  void withdraw() {
    std::unique_lock guard{mutex_};
    withdrawn_ = true;
    quiet_.wait(guard, [this] { return users_ == 0; });
  }

private:
  std::mutex mutex_;
  std::condition_variable quiet_;
  std::uint32_t users_ = 0;
  bool withdrawn_ = false;
};

namespace {

struct region_table {
  std::mutex mutex;
  std::uint64_t next = 1;
  std::unordered_map<std::uint64_t, std::shared_ptr<region_entry>> entries;
};

region_table& table() {
  static region_table t;
  return t;
}

} // namespace

region expose(gather_list list, access_mode how) {
  auto& t = table();
  std::lock_guard guard{t.mutex};
  auto number = t.next++;
  auto entry = std::make_shared<region_entry>(number, std::move(list), how);
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

bulk_handle region::handle() const {
  bulk_handle h;
  h.owner = this_peer();
  h.region = entry_->number;
  h.key = entry_->key;
  h.allows = entry_->how;
  h.segments = {{0, entry_->list.size_bytes()}};
  return h;
}

void region::withdraw() noexcept {
  if (!entry_)
    return;
  {
    std::lock_guard guard{table().mutex};
    table().entries.erase(entry_->number);
  }
  entry_->withdraw();
  entry_.reset();
}

region_lease::~region_lease() {
  if (entry_)
    entry_->leave();
}

const gather_list& region_lease::memory() const noexcept { return entry_->list; }

std::uint64_t region_ref::size_bytes() const noexcept { return entry_->list.size_bytes(); }

result<region_lease> region_ref::lease() const {
  if (!entry_->enter())
    return fail(errc::permission_denied, "the memory behind the handle was withdrawn");
  return region_lease{entry_};
}

result<region_ref> find_region(std::uint64_t number, const region_key& key, access_mode how) {
  auto& t = table();
  std::lock_guard guard{t.mutex};
  auto found = t.entries.find(number);
  if (
    found == t.entries.end() || !equal_constant_time(found->second->key, key) ||
    found->second->how != how)
    return fail(errc::permission_denied, "the handle names no memory that may be reached this way");
  return region_ref{found->second};
}

std::size_t exposed_regions() noexcept {
  std::lock_guard guard{table().mutex};
  return table().entries.size();
}

} // namespace millrace::transport

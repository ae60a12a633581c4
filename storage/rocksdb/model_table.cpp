// Names, versions and the order of their use. Called by the bucket and its committer.
#include <millrace/storage/bucket.hpp>
#include <millrace/storage/model_check.hpp>
#include <millrace/storage/rocksdb/model_table.hpp>

namespace millrace::storage::rocksdb {

result<version_ptr> model_table::use(const std::string& name, std::uint64_t version) {
  std::lock_guard guard{mutex_};
  auto at = slots_.find(name);
  if (at == slots_.end())
    return fail(no_such_model(name, version, 0));
  auto newest = at->second.version->summary.version;
  if (version != 0 && version != newest)
    return fail(no_such_model(name, version, newest));
  used_.put(name, at->second.version->summary.erased);
  return at->second.version;
}

std::uint64_t model_table::newest(const std::string& name) const {
  std::lock_guard guard{mutex_};
  auto at = slots_.find(name);
  return at == slots_.end() ? 0 : at->second.version->summary.version;
}

version_ptr model_table::put(version_ptr version) {
  std::lock_guard guard{mutex_};
  auto& name = version->summary.name;
  used_.put(name, version->summary.erased);
  auto& slot = slots_[name];
  slot.pinned = version->summary.pinned;
  return std::exchange(slot.version, std::move(version));
}

version_ptr model_table::remove(const std::string& name) {
  std::lock_guard guard{mutex_};
  auto at = slots_.find(name);
  if (at == slots_.end())
    return nullptr;
  auto removed = std::move(at->second.version);
  used_.forget(name);
  slots_.erase(at);
  return removed;
}

void model_table::set_pinned(const std::string& name, bool pinned) {
  std::lock_guard guard{mutex_};
  if (auto at = slots_.find(name); at != slots_.end())
    at->second.pinned = pinned;
}

std::vector<std::string> model_table::victims(
  std::uint64_t size_bytes, std::uint64_t described_bytes, const layer_table& layers) const {
  std::vector<std::string> names;
  std::uint64_t freed = 0, freed_described = 0;
  std::lock_guard guard{mutex_};
  for (auto& name : used_.oldest_first()) {
    auto& slot = slots_.at(name);
    // The lock makes the count exact: a first copy of the pointer is made under the lock only.
    if (slot.pinned || slot.version.use_count() > 1)
      continue;
    names.push_back(name);
    auto& v = *slot.version;
    auto described = v.described.size_bytes() + layers.unshared_bytes(v.layers.ids());
    freed += v.space.charged_bytes() + described;
    freed_described += described;
    if (freed >= size_bytes && freed_described >= described_bytes)
      return names;
  }
  return {};
}

std::vector<model_summary> model_table::list(
  const std::string& prefix, const std::string& after, std::uint32_t count_max) const {
  std::vector<model_summary> page;
  std::lock_guard guard{mutex_};
  auto at = after < prefix ? slots_.lower_bound(prefix) : slots_.upper_bound(after);
  for (; at != slots_.end() && page.size() < count_max && at->first.starts_with(prefix); ++at) {
    page.push_back(at->second.version->summary);
    page.back().pinned = at->second.pinned;
  }
  return page;
}

std::uint64_t model_table::size() const {
  std::lock_guard guard{mutex_};
  return used_.size();
}

std::uint64_t model_table::marks() const {
  std::lock_guard guard{mutex_};
  return used_.marks();
}

record_ptr record_cache::find(std::uint64_t version) {
  std::lock_guard guard{mutex_};
  auto place = places_.find(version);
  if (place == places_.end())
    return nullptr;
  order_.splice(order_.end(), order_, place->second);
  return place->second->record;
}

void record_cache::put(record_ptr record, std::uint64_t size_bytes) {
  std::lock_guard guard{mutex_};
  auto version = record->model.version;
  remove(version);
  order_.push_back({std::move(record), size_bytes});
  places_.emplace(version, std::prev(order_.end()));
  size_bytes_ += size_bytes;
  while (size_bytes_ > size_bytes_max_)
    remove(order_.front().record->model.version);
}

void record_cache::remove(std::uint64_t version) {
  auto place = places_.find(version);
  if (place == places_.end())
    return;
  size_bytes_ -= place->second->size_bytes;
  order_.erase(place->second);
  places_.erase(place);
}

} // namespace millrace::storage::rocksdb

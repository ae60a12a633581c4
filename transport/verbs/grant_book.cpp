// Registers the memory that a peer may reach, makes keys for it, and revokes them.
// Called by `lending_side` for every `ask` of the peer.
#include <millrace/transport/memory/memory_distance.hpp>
#include <millrace/transport/verbs/grant_book.hpp>

#include <algorithm>
#include <utility>

namespace millrace::transport::verbs {

namespace {

// Checking every page would take as long as registering the pages. The beginnings of some ranges
// are enough.
constexpr std::size_t looked_at_max = 16;

std::uint64_t nodes_of(const grant::ranges& memory) {
  std::uint64_t out = 0;
  for (std::size_t i = 0; i < std::min(memory.size(), looked_at_max); ++i)
    out |= memory[i].device ? node_mask_of_pci(memory[i].device->pci_address())
                            : node_mask_of_memory(memory[i].data, 1);
  return out;
}

// Returns nothing unless all the memory, as far as it is checked, belongs to one GPU.
std::string gpu_of(const grant::ranges& memory) {
  std::string out;
  for (std::size_t i = 0; i < std::min(memory.size(), looked_at_max); ++i) {
    auto address = memory[i].device ? memory[i].device->pci_address() : std::string{};
    if (address.empty() || (i > 0 && address != out))
      return {};
    out = std::move(address);
  }
  return out;
}

distance distance_from(
  const device& port, const std::string& pci_address, std::uint64_t node_mask) {
  std::optional<distance> over_pci;
  if (!pci_address.empty())
    over_pci = distance_over_pci(ibv_get_device_name(port.context()->device), pci_address);
  return over_pci.value_or(distance_between(node_mask, port.node_mask()));
}

status withdrawn_error() {
  return {errc::permission_denied, "the memory behind the handle was withdrawn"};
}

} // namespace

// Holds the lock: if the peer goes while the region is withdrawn, two threads do this, and neither
// may return before it is done.
void grant::revoke() noexcept {
  std::lock_guard guard{mutex_};
  revoked_ = true;
  for (auto& weak : std::exchange(unanswered_, {}))
    if (auto key = weak.lock())
      key->revoke();
  auto pairs = std::exchange(pairs_, {});
  for (auto& p : pairs)
    for (auto& k : p.keys)
      k->revoke();
  registrations_.clear();
  // The bytes that the peer wrote must be visible to a thread that now learns that they are there.
  if (region_ && !pairs.empty())
    for (auto& device : region_->devices())
      device->settle();
}

bool grant::revoked() const {
  std::lock_guard guard{mutex_};
  return revoked_;
}

grant::~grant() {
  if (region_ && hook_ != 0)
    region_->forget(hook_);
  revoke();
}

result<grant_book::prepared> grant_book::prepare(
  std::uint64_t region, const region_ref& memory, direction dir,
  const std::vector<live_pair>& pairs) {
  // The lease makes withdrawing wait while the memory is being registered, and no longer.
  auto lease = memory.lease();
  if (!lease)
    return fail(lease.error());
  auto g = find_or_make(region, memory);
  if (!g)
    return fail(g.error());
  std::lock_guard guard{(*g)->mutex_};
  if ((*g)->revoked_)
    return fail(errc::peer_lost, "the connection is closed");
  if (!(*g)->made_) {
    if (auto bad = register_ranges(**g, lease->memory(), dir); !bad.ok()) {
      forget(region);
      return fail(bad);
    }
    (*g)->made_ = true;
  }
  prepared out{*g, {}};
  for (auto& over : pairs) {
    auto same = [&](auto& p) {
      return p.over.pair == over.pair && p.over.generation == over.generation;
    };
    if (std::any_of((*g)->pairs_.begin(), (*g)->pairs_.end(), same))
      continue;
    auto made = keys_over(**g, over, dir);
    if (!made)
      return fail(made.error());
    (*g)->unanswered_.insert((*g)->unanswered_.end(), made->keys.begin(), made->keys.end());
    out.unbound.push_back(std::move(*made));
  }
  return out;
}

result<std::shared_ptr<grant>> grant_book::find_or_make(
  std::uint64_t region, const region_ref& memory) {
  std::lock_guard guard{mutex_};
  if (closed_)
    return fail(errc::peer_lost, "the connection is closed");
  if (auto found = grants_.find(region); found != grants_.end())
    return found->second;
  if (grants_.size() >= options_.grants_max)
    return fail(
      errc::unsupported, "the peer has keys of {} regions; withdraw some or raise verbs.grants_max",
      grants_.size());
  auto g = std::make_shared<grant>();
  auto hook = memory.on_withdraw([book = weak_from_this(), weak = std::weak_ptr{g}, region] {
    if (auto mine = weak.lock())
      mine->revoke();
    if (auto self = book.lock()) {
      self->forget(region);
      self->gone_(region);
    }
  });
  if (!hook)
    return fail(hook.error());
  g->region_ = memory;
  g->hook_ = *hook;
  grants_.emplace(region, g);
  return g;
}

status grant_book::register_ranges(grant& g, const gather_list& list, direction dir) {
  auto ranges = list.dense_ranges();
  if (!ranges)
    return {errc::unsupported, "RDMA devices cannot reach strided memory"};
  if (ranges->size() > options_.windows_max)
    return {
      errc::unsupported, "{} ranges of memory are more than verbs.windows_max allows",
      ranges->size()};
  // If no device checks windows, every key has its own registration.
  auto shared = std::any_of(
    sources_.devices.begin(), sources_.devices.end(), [](auto& d) { return d->checks_windows(); });
  if (!shared)
    g.registrations_.resize(ranges->size());
  for (auto& r : shared ? *ranges : grant::ranges{}) {
    if (r.device) { // every key has its own registration, made by other means
      g.registrations_.push_back(nullptr);
      continue;
    }
    auto registered = registration_of(r);
    // Some kernels let a read-only mapping be registered for one key alone.
    auto read_only =
      !registered && registered.error().code() == errc::unsupported && dir == direction::read;
    if (!registered && !read_only) {
      g.registrations_.clear();
      return {errc::unsupported, registered.error().detail()};
    }
    g.registrations_.push_back(registered ? std::move(*registered) : nullptr);
  }
  if (sources_.devices.size() > 1) {
    g.node_mask_ = nodes_of(*ranges);
    g.pci_address_ = gpu_of(*ranges);
  }
  g.ranges_ = std::move(*ranges);
  g.region_bytes_ = list.size_bytes();
  return {};
}

// An arena is registered already, or will be used again.
result<std::shared_ptr<void>> grant_book::registration_of(const gather_list::dense_range& r) {
  if (auto place = find_arena(r.data, r.length))
    return sources_.arenas->add(place->in).map(
      [](auto&& m) { return std::static_pointer_cast<void>(m); });
  return sources_.cache->acquire(r.data, r.length);
}

result<pair_grant> grant_book::keys_over(const grant& g, const live_pair& over, direction dir) {
  if (windows_->load() + g.ranges_.size() > options_.windows_max)
    return fail(
      errc::unsupported, "the peer holds {} keys; raise verbs.windows_max", windows_->load());
  pair_grant out{over, {}};
  out.keys.reserve(g.ranges_.size());
  for (std::size_t i = 0; i < g.ranges_.size(); ++i) {
    auto* parent = static_cast<registered_memory*>(g.registrations_[i].get());
    remote_key::range what{g.ranges_[i].data,
                           g.ranges_[i].length,
                           dir,
                           parent ? parent->of(over.device_index) : nullptr,
                           g.registrations_[i],
                           g.ranges_[i].device};
    auto key = remote_key::make(over.port, std::move(what), windows_);
    if (!key)
      return fail(errc::unsupported, key.error().detail());
    out.keys.push_back(std::move(*key));
  }
  return out;
}

result<granted> grant_book::answer(const std::shared_ptr<grant>& g, std::vector<pair_grant> bound) {
  std::vector<pair_grant> old; // destroyed without the lock
  std::lock_guard guard{g->mutex_};
  if (g->revoked_) {
    old = std::move(bound);
    for (auto& p : old)
      for (auto& k : p.keys)
        k->revoke();
    return fail(withdrawn_error());
  }
  g->unanswered_.clear();
  for (auto& b : bound) {
    for (auto& p : g->pairs_)
      if (p.over.pair == b.over.pair)
        old.push_back(std::exchange(p, {}));
    std::erase_if(g->pairs_, [](auto& p) { return p.keys.empty(); });
    g->pairs_.push_back(std::move(b));
  }
  granted out;
  out.region_bytes = g->region_bytes_;
  for (auto& p : g->pairs_)
    out.pairs.push_back(
      {p.over.pair, p.over.generation,
       distance_from(*p.over.port, g->pci_address_, g->node_mask_)});
  for (std::size_t i = 0; i < g->ranges_.size(); ++i) {
    granted_range r{g->ranges_[i].length, reinterpret_cast<std::uintptr_t>(g->ranges_[i].data), {}};
    for (auto& p : g->pairs_)
      r.keys.push_back(p.keys[i]->key());
    out.ranges.push_back(std::move(r));
  }
  return out;
}

void grant_book::forget(std::uint64_t region) {
  std::shared_ptr<grant> dropped; // destroyed without the lock
  std::lock_guard guard{mutex_};
  if (auto found = grants_.find(region); found != grants_.end()) {
    dropped = std::move(found->second);
    grants_.erase(found);
  }
}

void grant_book::shut() {
  std::lock_guard guard{mutex_};
  closed_ = true;
}

void grant_book::clear() {
  std::map<std::uint64_t, std::shared_ptr<grant>> dropped;
  {
    std::lock_guard guard{mutex_};
    dropped.swap(grants_);
  }
  // Movers may still hold some of the grants. Their keys are revoked all the same.
  for (auto& [region, g] : dropped)
    g->revoke();
}

std::size_t grant_book::size() const {
  std::lock_guard guard{mutex_};
  return grants_.size();
}

} // namespace millrace::transport::verbs

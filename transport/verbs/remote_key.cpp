// Keys for peers: windows where the device has them.
// Made by grants, on movers.
#include <millrace/transport/verbs/queue_pair.hpp>
#include <millrace/transport/verbs/registered_memory.hpp>

#include <cerrno>

namespace millrace::transport::verbs {

namespace {

mr_ptr register_exactly(const device& d, const remote_key::range& what, int access) {
  return what.of ? register_directly(d, *what.of, what.data, what.length, access)
                 : mr_ptr{ibv_reg_mr(d.pd(), what.data, what.length, access)};
}

// Memory must be locally writable only if the peer writes it.
int access_of(direction dir) {
  return dir == direction::read ? IBV_ACCESS_REMOTE_READ
                                : IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
}

} // namespace

result<std::shared_ptr<remote_key>> remote_key::make(
  const std::shared_ptr<device>& d, range what, std::shared_ptr<std::atomic<std::uint64_t>> count) {
  std::shared_ptr<remote_key> k{new remote_key};
  k->device_ = d;
  k->what_ = std::move(what);
  // The kernel binds no windows over a dma-buf.
  if (d->has_windows() && !d->checks_windows() && !k->what_.of) {
    k->region_ = register_exactly(*d, k->what_, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    k->what_.parent = k->region_.get();
  }
  k->needs_binding_ = d->has_windows() && k->what_.parent;
  if (k->needs_binding_)
    k->window_.reset(ibv_alloc_mw(d->pd(), IBV_MW_TYPE_2));
  else
    k->region_ = register_exactly(*d, k->what_, access_of(k->what_.dir));
  if (k->needs_binding_ ? !k->window_ : !k->region_)
    return fail(registration_error(errno, *d, k->what_.length));
  k->key_ = k->needs_binding_ ? 0 : k->region_->rkey;
  k->count_ = std::move(count);
  ++*k->count_;
  return k;
}

// Freeing a bound window ends its access, and so does freeing a registration. Both wait until the
// device has finished with it.
void remote_key::revoke() noexcept {
  std::lock_guard guard{mutex_};
  window_.reset();
  region_.reset();
  what_.parent_owner.reset();
  if (count_)
    --*std::exchange(count_, nullptr);
}

} // namespace millrace::transport::verbs

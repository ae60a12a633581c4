// Registers memory with all devices or with none.
// Called by `arena_registry` and `registration_cache`.
#include <millrace/transport/memory/memory_distance.hpp>
#include <millrace/transport/verbs/registered_memory.hpp>

#include <fmt/core.h>

#include <cerrno>

namespace millrace::transport::verbs {

namespace {

direct_registrations& counts() {
  static direct_registrations c;
  return c;
}

} // namespace

const direct_registrations& registered_directly() noexcept { return counts(); }

mr_ptr register_directly(
  const device& d, device_memory& of, std::byte* data, std::uint64_t size_bytes, int access) {
  auto address = reinterpret_cast<std::uintptr_t>(data);
  if (auto range = of.export_range(data, size_bytes)) {
    mr_ptr made{
      ibv_reg_dmabuf_mr(d.pd(), range->offset, size_bytes, address, range->fd.get(), access)};
    if (made) {
      ++counts().by_dma_buf;
      return made;
    }
  } else {
    errno = EOPNOTSUPP;
  }
  if (!of.peer_memory())
    return nullptr;
  mr_ptr made{ibv_reg_mr(d.pd(), data, size_bytes, access)};
  counts().by_peer_memory += made ? 1 : 0;
  return made;
}

status registration_error(int why, const device& d, std::uint64_t size_bytes) {
  auto doing = fmt::format("registering {} bytes with {}", size_bytes, d.name());
  if (why == ENOMEM)
    return {
      errc::no_space,
      status_from_errno(why, doing).detail() +
        "; raise the limit of locked memory (ulimit -l, LimitMEMLOCK= of a service) or lower "
        "staging.size and verbs.cache_max"};
  if (why == EFAULT || why == EOPNOTSUPP || why == EINVAL || why == EPERM)
    return {errc::unsupported, status_from_errno(why, doing).detail()};
  return status_from_errno(why, doing);
}

result<std::shared_ptr<registered_memory>> registered_memory::add(
  const device_list& devices, std::byte* data, std::uint64_t size_bytes) {
  std::shared_ptr<registered_memory> m{new registered_memory};
  m->devices_ = devices;
  m->data_ = data;
  m->size_bytes_ = size_bytes;
  for (auto& d : devices) {
    int access = IBV_ACCESS_LOCAL_WRITE | (d->has_windows() ? IBV_ACCESS_MW_BIND : 0);
    mr_ptr made{ibv_reg_mr(d->pd(), data, size_bytes, access)};
    if (!made)
      return fail(registration_error(errno, *d, size_bytes));
    m->regions_.push_back(std::move(made));
  }
  if (devices.size() > 1)
    m->node_mask_ = node_mask_of_memory(data, size_bytes);
  return m;
}

} // namespace millrace::transport::verbs

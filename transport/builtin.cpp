// One line a driver, and one a kind of device memory.
#include <millrace/transport/builtin.hpp>
#ifdef MILLRACE_HAS_CUDA
#include <millrace/transport/cuda/cuda_memory.hpp>
#endif
#include <millrace/transport/local/local_driver.hpp>
#include <millrace/transport/shm/shm_driver.hpp>
#include <millrace/transport/staged/staged_driver.hpp>
#include <millrace/transport/tcp/tcp_driver.hpp>
#include <millrace/transport/verbs/verbs_driver.hpp>

namespace millrace::transport {

namespace {

// A driver without a device would reach nobody.
result<std::shared_ptr<driver>> make_verbs(const driver_deps& deps) {
  if (auto bad = check(deps.verbs); !bad.ok())
    return fail(bad);
  auto made = make_verbs_driver(deps.loop, deps.movers, deps.limits, deps.verbs);
  if (auto& why = made->devices().remark; !why.empty())
    return fail(errc::unavailable, why);
  return made;
}

} // namespace

result<std::shared_ptr<driver>> make_driver(const std::string& name, const driver_deps& deps) {
  if (name == "local")
    return make_local_driver(deps.movers, deps.limits);
  if (name == "shm")
    return make_shm_driver(
      deps.loop, deps.movers,
      {.limits = deps.limits, .granule_bytes = deps.granule_bytes, .bounds = deps.shm},
      deps.shared_arenas);
  if (name == "tcp")
    return make_tcp_driver(deps.loop, deps.tcp);
  if (name == "verbs")
    return make_verbs(deps);
  if (name == "staged")
    return make_staged_driver(deps.loop, deps.movers, deps.staged, deps.move);
  return fail(
    errc::invalid_argument,
    "no driver is called " + name + "; there are: local, shm, verbs, tcp, staged");
}

std::vector<std::shared_ptr<device_kind>> builtin_device_kinds() {
  std::vector<std::shared_ptr<device_kind>> kinds;
#ifdef MILLRACE_HAS_CUDA
  kinds.push_back(make_cuda_kind());
#endif
  return kinds;
}

} // namespace millrace::transport

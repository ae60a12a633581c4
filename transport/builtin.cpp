// One line a driver.
#include <millrace/transport/builtin.hpp>
#include <millrace/transport/local/local_driver.hpp>
#include <millrace/transport/shm/shm_driver.hpp>
#include <millrace/transport/tcp/tcp_driver.hpp>
#include <millrace/transport/verbs/verbs_driver.hpp>

namespace millrace::transport {

namespace {

// A driver without a device would reach nobody.
result<std::shared_ptr<driver>> make_verbs(const driver_deps& deps) {
  if (auto bad = check(deps.verbs); !bad.ok())
    return fail(bad);
  auto made =
    make_verbs_driver(deps.loop, deps.movers, deps.limits, deps.verbs, deps.shared_arenas);
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
      deps.loop, deps.movers, {.limits = deps.limits, .granule_bytes = deps.granule_bytes},
      deps.shared_arenas);
  if (name == "tcp")
    return make_tcp_driver(deps.loop, deps.tcp);
  if (name == "verbs")
    return make_verbs(deps);
  return fail(
    errc::invalid_argument, "no driver is called " + name + "; there are: local, shm, verbs, tcp");
}

} // namespace millrace::transport

// One line a driver.
#include <millrace/transport/builtin.hpp>
#include <millrace/transport/local/local_driver.hpp>
#include <millrace/transport/shm/shm_driver.hpp>
#include <millrace/transport/tcp/tcp_driver.hpp>

namespace millrace::transport {

result<std::shared_ptr<driver>> make_driver(const std::string& name, const driver_deps& deps) {
  if (name == "local")
    return make_local_driver(deps.movers, deps.limits);
  if (name == "shm")
    return make_shm_driver(
      deps.loop, deps.movers, {.limits = deps.limits, .granule_bytes = deps.granule_bytes},
      deps.shared_arenas);
  if (name == "tcp")
    return make_tcp_driver(deps.loop, deps.tcp);
  return fail(
    errc::invalid_argument, "no driver is called " + name + "; there are: local, shm, tcp");
}

} // namespace millrace::transport

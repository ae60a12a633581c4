// One line per driver and per kind of device memory.
#include <millrace/core/never_destroyed.hpp>
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

const std::vector<driver_kind>& builtin_drivers() {
  return never_destroyed([] {
    return std::vector<driver_kind>{
      driver_of("local", make_local_driver),   driver_of("shm", make_shm_driver),
      driver_of("verbs", make_verbs_driver),   driver_of("tcp", make_tcp_driver),
      driver_of("staged", make_staged_driver),
    };
  });
}

std::vector<std::shared_ptr<device_kind>> builtin_device_kinds() {
  std::vector<std::shared_ptr<device_kind>> kinds;
#ifdef MILLRACE_HAS_CUDA
  kinds.push_back(make_cuda_kind());
#endif
  return kinds;
}

} // namespace millrace::transport

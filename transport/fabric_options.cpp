// The keys of the section `transport`.
#include <millrace/core/durations.hpp>
#include <millrace/core/never_destroyed.hpp>
#include <millrace/transport/builtin.hpp>
#include <millrace/transport/fabric_options.hpp>

#include <array>

namespace millrace::transport {

std::vector<std::string> driver_names() {
  std::vector<std::string> names;
  for (auto& kind : builtin_drivers())
    names.emplace_back(kind.name);
  return names;
}

} // namespace millrace::transport

namespace millrace::config {

template <>
key_table<transport::fabric_options> keys_of() {
  using o = transport::fabric_options;
  const auto& drivers = never_destroyed([] {
    std::vector<std::string_view> names;
    for (auto& kind : transport::builtin_drivers())
      names.push_back(kind.name);
    return names;
  });
  const auto& rows = never_destroyed([&] {
    return std::to_array<bound_key<o>>({
      key<&o::prefer>({
        "prefer",
        key_type::choices,
        "the drivers to use, best first; drivers that do not work on this machine are left out",
        0,
        0,
        drivers,
      }),
      key<&o::movers>(
        expert(count("movers", 0, 64, "threads that copy; 0: one per core, at most 8"))),
      key<&o::limits, &transport::copy_limits::chunk_bytes>(expert(
        size("chunk", 64 * kib, gib, "part of a transfer that one thread copies at a time"))),
      key<&o::limits, &transport::copy_limits::near_memory>(expert(boolean(
        "bind_movers",
        "a thread that copies does so on the processors of the NUMA node whose memory it writes, "
        "among those that the process may use; on a machine with one node nothing is bound"))),
      key<&o::eager_bytes_max>(expert(size(
        "eager_max", 0, 64 * kib, "payloads up to this size travel inside a message; 0: none do"))),
      key<&o::device_threads>(expert(count(
        "device_threads", 1, 64,
        "threads that wait for copies to and from GPUs; they start with the first such copy"))),
      key<&o::retry_after_ms>(expert(ms(
        "retry_after", 10, hour_ms,
        "time for which a driver that failed with a peer is left out before it is tried again"))),
    });
  });
  return {rows};
}

} // namespace millrace::config

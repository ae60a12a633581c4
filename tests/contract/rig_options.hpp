// The options of the two processes of a driver rig, given as words.
// Used by the rig and by memory_owner.
#pragma once

#include <millrace/transport/fabric.hpp>
#include <millrace/transport/staged/staged_options.hpp>
#include <millrace/transport/tcp/tcp_options.hpp>
#include <millrace/transport/verbs/verbs_options.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace millrace::testing {

// Everything is cut small, so that modest transfers cross the borders.
inline constexpr std::uint64_t rig_arena_bytes = 192u << 20;
inline constexpr std::uint64_t rig_granule_bytes = 1u << 20;
// The size of the device whose memory the owner's matrices use when the words say so.
inline constexpr std::uint64_t fake_device_bytes = 512u << 20;

/// Reads the words: the driver's name, then any of these. device: the owner's memory is a fake
/// device's. export: that device exports a descriptor that no driver accepts. staged: bytes go
/// through staging memory where the driver cannot reach device memory. For tcp: listen, checksum,
/// encrypt, single (stream). For verbs: device=NAME, rdma_cm.
inline transport::fabric_options rig_options(const std::vector<std::string>& words) {
  auto said = [&](const char* word) { return std::count(words.begin(), words.end(), word) > 0; };
  transport::fabric_options options;
  options.prefer = {words.at(0)};
  if (said("staged"))
    options.prefer.push_back("staged");
  // Modest transfers need several chunks, more than exist at one time.
  auto& staged = options.drivers.edit<transport::staged_options>();
  staged.size_bytes = 6u << 20;
  staged.chunk_bytes = 1u << 20;
  staged.chunks_max = 3;
  options.movers = 2;
  options.granule_bytes = rig_granule_bytes;
  auto& tcp = options.drivers.edit<transport::tcp_options>();
  tcp.streams = said("single") ? 1 : 3;
  tcp.chunk_bytes = 256u << 10;
  tcp.small_bytes_max = 16u << 10;
  tcp.inflight_bytes_max = 512u << 10;
  tcp.checksum = said("checksum");
  tcp.encrypt = said("encrypt");
  auto& verbs = options.drivers.edit<transport::verbs_options>();
  for (auto& word : words)
    if (word.starts_with("device="))
      verbs.devices.push_back(word.substr(7));
  if (said("rdma_cm"))
    verbs.connect = transport::verbs_connect::rdma_cm;
  if (said("listen"))
    tcp.listen = {"127.0.0.1:0"};
  return options;
}

inline std::shared_ptr<transport::fabric> fabric_of(
  const std::shared_ptr<net::io_loop>& loop, const std::vector<std::string>& words) {
  return transport::fabric::create(rig_options(words), loop).value();
}

} // namespace millrace::testing

// Rules that every message of a peer must keep before anything is done with it.
// Called for each message that arrives.
#include <millrace/transport/is_direction.hpp>
#include <millrace/transport/verbs/messages.hpp>

#include <bit>

namespace millrace::transport::verbs {

namespace {

constexpr std::size_t address_bytes_max = 80;
constexpr std::uint32_t number_max = 0xff'ffff; // queue pairs and sequence numbers have 24 bits

status wrong(const char* what) { return {errc::protocol_error, what}; }

status check_pair(std::uint32_t pair) {
  return pair < rails_max ? status{} : wrong("no such pair");
}

status check(const rail_info& r) {
  if (r.mtu < 256 || r.mtu > 4096 || !std::has_single_bit(r.mtu))
    return wrong("a rail with an MTU that no device has");
  if (r.message_bytes_max < r.mtu)
    return wrong("a rail whose messages are smaller than its packets");
  if (r.reads_max > 65'535 || r.lid > 65'535)
    return wrong("a rail with limits that no device has");
  return {};
}

} // namespace

status check(const hello& m) {
  if (m.version != protocol_version)
    return {
      errc::unsupported_version, "the peer speaks version {} of the verbs driver's protocol",
      m.version};
  if (m.rails.size() > rails_max)
    return wrong("more rails than any machine has");
  for (auto& r : m.rails)
    if (auto bad = check(r); !bad.ok())
      return bad;
  return {};
}

status check(const connect& m) {
  if (m.pair >= rails_max || m.number > number_max || m.psn > number_max)
    return wrong("a queue pair with a number out of range");
  if (m.cm_address.size() > address_bytes_max)
    return wrong("an address longer than any");
  return check(m.rail);
}

status check(const ready& m) { return check_pair(m.pair); }
status check(const lost& m) { return check_pair(m.pair); }

status check(const ask& m) {
  return is_direction(m.dir) ? status{} : wrong("a grant has an unknown direction");
}

status check(const granted& m) {
  if (m.pairs.size() > rails_max)
    return wrong("a grant over too many rails");
  for (auto& p : m.pairs)
    if (p.pair >= rails_max)
      return wrong("a grant over a pair of rails that cannot be");
  std::uint64_t total = 0;
  for (auto& r : m.ranges) {
    if (r.length == 0 || r.length > m.region_bytes - total || r.address + r.length < r.address)
      return wrong("a grant whose ranges do not make up the region");
    if (r.keys.size() != m.pairs.size())
      return wrong("a grant with keys missing");
    total += r.length;
  }
  if (m.code == 0 && total != m.region_bytes)
    return wrong("a grant of a part of the region");
  return {};
}

} // namespace millrace::transport::verbs

// Ranks addresses by how far they can be routed.
// Called when a device is opened and when a queue pair is made.
#include <millrace/transport/verbs/gid_rule.hpp>

#include <arpa/inet.h>

#include <algorithm>

namespace millrace::transport::verbs {

namespace {

bool is_nil(const gid_bytes& gid) {
  return std::all_of(gid.begin(), gid.end(), [](auto b) { return b == 0; });
}

bool is_ipv4(const gid_bytes& gid) {
  return std::all_of(gid.begin(), gid.begin() + 10, [](auto b) { return b == 0; }) &&
    gid[10] == 0xff && gid[11] == 0xff;
}

bool is_link_local(const gid_bytes& gid) { return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80; }

struct rank {
  int order;
  const char* words;
};

rank rank_of(const gid_entry& e) {
  if (e.type == gid_type::roce_v2) {
    if (is_ipv4(e.gid))
      return {0, "RoCE v2 with an IPv4 address"};
    return is_link_local(e.gid) ? rank{2, "RoCE v2, link-local, as there is no routable address"}
                                : rank{1, "RoCE v2 with a global IPv6 address"};
  }
  if (e.type == gid_type::infiniband)
    return {3, "InfiniBand"};
  return {4, "RoCE v1, as there is nothing newer"};
}

} // namespace

result<gid_choice> choose_gid(
  std::span<const gid_entry> entries, std::optional<std::uint32_t> wanted) {
  std::optional<gid_choice> best;
  for (auto& e : entries) {
    if (is_nil(e.gid))
      continue;
    if (wanted && e.index == *wanted)
      return gid_choice{e, "set by gid_index"};
    auto better = !best || rank_of(e).order < rank_of(best->entry).order ||
      (rank_of(e).order == rank_of(best->entry).order && e.index < best->entry.index);
    if (!wanted && better)
      best = gid_choice{e, rank_of(e).words};
  }
  if (best)
    return *best;
  if (wanted)
    return fail(errc::not_found, "no address (GID) at index {}", *wanted);
  return fail(errc::not_found, "the port has no address (GID): give its interface an IP address");
}

std::string to_string(const gid_bytes& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(AF_INET6, gid.data(), text, sizeof(text));
  return text;
}

} // namespace millrace::transport::verbs

// Describes RDMA ports in sentences.
#include <millrace/tools/doctor/checks.hpp>
#include <millrace/tools/doctor/verbs_checks.hpp>

#include <fmt/format.h>

namespace millrace::tools::doctor {

namespace {

finding judge_port(const transport::verbs_port& p) {
  std::vector<std::string> facts{p.link_layer, p.active ? "active" : "not active"};
  if (p.mtu > 0)
    facts.push_back(fmt::format("mtu {}", p.mtu));
  if (!p.gid.empty())
    facts.push_back(fmt::format("gid {} {} ({})", p.gid_index, p.gid, p.gid_rule));
  if (!p.numa.empty())
    facts.push_back("near numa node " + p.numa);
  facts.push_back(fmt::format("{} pieces a request", p.sge_max));
  if (!p.windows)
    facts.emplace_back("no memory windows");
  auto f = p.remark.empty()
    ? ok(join(facts))
    : note(
        join(facts),
        fmt::format("not used: {}; verbs.devices and verbs.gid_index choose", p.remark));
  f.check = fmt::format("rdma {}:{}", p.device, p.port);
  return f;
}

finding judge_locked_memory(const std::string& limit) {
  auto f = limit == "unlimited"
    ? ok(limit)
    : note(
        limit + ", which bounds what can be registered with devices",
        "ulimit -l unlimited, or LimitMEMLOCK=infinity in the systemd unit");
  f.check = "rdma memory";
  return f;
}

} // namespace

std::vector<finding> examine_verbs(const transport::verbs_state& state) {
  std::vector<finding> all;
  for (auto& port : state.ports)
    all.push_back(judge_port(port));
  if (!all.empty())
    all.push_back(judge_locked_memory(state.locked_memory));
  return all;
}

} // namespace millrace::tools::doctor

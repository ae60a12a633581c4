// Composes the schema.
#include <millrace/actors/broadcast/group_options.hpp>
#include <millrace/actors/loader/data_options.hpp>
#include <millrace/actors/loader/read_options.hpp>
#include <millrace/config/load.hpp>
#include <millrace/config/units.hpp>
#include <millrace/core/never_destroyed.hpp>
#include <millrace/net/network_options.hpp>
#include <millrace/runtime/configuration.hpp>
#include <millrace/runtime/node/side_thread.hpp>
#include <millrace/storage/builtin.hpp>
#include <millrace/transport/builtin.hpp>
#include <millrace/transport/fabric_options.hpp>

#include <fmt/format.h>

#include <optional>

namespace millrace {

namespace {

// A request that is larger than all that may be under way would never be taken.
std::optional<config::misfit> check_requests(const config::settings& all) {
  auto& channel = all.options.of<net::network_options>().channel;
  if (channel.frame_bytes_max <= all.limits.requests_bytes_max)
    return {};
  return config::misfit{"channel.frame_max", "must not be above", "limits.requests_size"};
}

} // namespace

const config::schema& configuration_schema() {
  return never_destroyed([] {
    std::vector<config::section> sections{
      config::section_of<transport::fabric_options>("transport")};
    for (auto& kind : transport::builtin_drivers())
      if (kind.options)
        sections.push_back(*kind.options);
    sections.push_back(config::section_of<net::network_options>("channel"));
    sections.push_back(config::section_of<actors::data_options>("data"));
    sections.push_back(config::section_of<actors::read_options>("reading"));
    sections.push_back(config::section_of<actors::group_options>("groups"));
    std::vector<config::bucket_section> buckets;
    for (auto& kind : storage::builtin_buckets())
      buckets.push_back(kind.section);
    return config::schema{sections, std::move(buckets), check_requests};
  });
}

result<config::settings> load_configuration(const std::string& path) {
  if (auto why = runtime::refused_at_exit(); !why.ok())
    return fail(std::move(why));
  return config::load_file(path, configuration_schema());
}

result<config::settings> parse_configuration(std::string_view text, const std::string& file_name) {
  return config::parse(text, file_name, configuration_schema());
}

std::uint64_t bytes_for_peers(const config::settings& node) {
  std::uint64_t sum = 0;
  for (auto& [path, size] : configuration_schema().find(node, config::key_use::for_peers))
    sum += size.number;
  return sum;
}

std::string take_less_memory(const config::settings& node) {
  auto& schema = configuration_schema();
  std::string capacities;
  for (auto& p : node.providers) {
    auto* kind = schema.bucket(p.bucket);
    auto* key = schema.key_of(p, config::key_use::capacity);
    if (!kind || !key)
      continue;
    auto needs = kind->needs(p.options);
    if (needs.own_bytes > 0 || needs.file_bytes > 0)
      capacities += fmt::format("`{}` of provider {}, ", key->name, p.name);
  }
  if (node.options.of<actors::data_options>().capacity_bytes > 0)
    capacities += "`data.capacity`, ";
  return fmt::format(
    "lower one of {}`descriptions_max`, `staging.size`, `checkpoints.staging_pieces`, or raise the "
    "group's limit",
    capacities);
}

std::string give_peers_less_memory() {
  std::string keys;
  for (auto& [path, size] :
       configuration_schema().find(config::settings{}, config::key_use::for_peers))
    keys += fmt::format("{}`{}`", keys.empty() ? "" : ", ", path);
  return fmt::format("lower one of {}, or raise the group's limit", keys);
}

std::vector<std::string> warnings_about(const std::vector<config::provider_settings>& providers) {
  auto& schema = configuration_schema();
  std::vector<std::string> out;
  for (auto& p : providers)
    for (auto& key : schema.keys_of_kind(p))
      if (auto set = schema.find(p, key.name); set && set->number < key.advised_min)
        out.push_back(fmt::format(
          "provider {}: {} is {}; with less than {} {}", p.name, key.name,
          config::text_of(key, *set), config::text_of(key, {{}, key.advised_min, {}}),
          key.below_advised));
  return out;
}

} // namespace millrace

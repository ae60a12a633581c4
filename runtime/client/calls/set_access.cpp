// A part that is opened is mapped, or it is reached by the driver that the fabric would take next.
#include <millrace/core/gathering.hpp>
#include <millrace/runtime/client/calls/batch_memory.hpp>
#include <millrace/runtime/client/calls/set_access.hpp>
#include <millrace/runtime/client/calls/set_parts.hpp>
#include <millrace/runtime/client/calls/set_view.hpp>

#include <algorithm>
#include <utility>
#include <vector>

namespace millrace::runtime {

namespace {

constexpr auto mapped = "mapped";

using view_result = result<std::shared_ptr<set_view>>;

std::string driver_to(const client_core& core, const std::string& node) {
  auto paths = core.runs_on()->fabric()->paths();
  auto found =
    std::ranges::find_if(paths, [&](auto& path) { return path.peer == node && path.chosen; });
  return found == paths.end() ? "transfers" : found->driver;
}

struct part_place {
  std::string node;
  set_id id; // of the append that it belongs to; nil: of the preload
};

// Those of the preload, and then those of each append, which lie at the same nodes.
std::vector<part_place> parts_of(const client_core& core, const set_info& home) {
  auto nodes = nodes_of(core, home);
  std::vector<part_place> out;
  out.reserve(nodes.size() * (1 + home.appended.size()));
  auto add_all = [&](const set_id& id) {
    for (auto& node : nodes)
      out.push_back({node, id});
  };
  add_all({});
  for (auto& more : home.appended)
    add_all(more.id);
  return out;
}

part_access access_to(const client_core& core, const std::string& node, const view_result& view) {
  if (!view)
    return {node, {}, view.error()};
  return {node, (*view)->is_mapped() ? mapped : driver_to(core, node), {}};
}

result<set_access> with_processors(
  const client_core& core, std::vector<part_access> parts, const std::string& device) {
  auto is_remote =
    std::ranges::any_of(parts, [](auto& part) { return part.why.ok() && part.by != mapped; });
  return batch_memory::processors_for(*core.runs_on(), device, is_remote)
    .map([&](std::string text) {
      return set_access{std::move(parts), std::move(text)};
    });
}

} // namespace

void find_access(
  const std::shared_ptr<client_core>& core, const std::string& name, std::string device,
  completion<set_access> done) {
  describe_home(
    core, name, [core, name, device = std::move(device), done](const result<set_info>& home) {
      if (!home)
        return done(fail(home.error()));
      auto parts = parts_of(*core, *home);
      auto all = std::make_shared<gathering<part_access>>(
        parts.size(), [core, device, done](result<std::vector<part_access>> found) {
          done(found ? with_processors(*core, std::move(*found), device) : fail(found.error()));
        });
      for (std::size_t i = 0; i < parts.size(); ++i)
        set_view::open(
          core, parts[i].node, name, parts[i].id,
          [core, all, i, node = parts[i].node](const auto& view) {
            all->arrived(i, access_to(*core, node, view));
          });
    });
}

} // namespace millrace::runtime

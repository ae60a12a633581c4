// Asks the home first, and then the other nodes at once.
#include <millrace/core/gathering.hpp>
#include <millrace/runtime/client/calls/set_parts.hpp>

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

namespace millrace::runtime {

namespace {

using core_ptr = std::shared_ptr<client_core>;

bool is_missing(const status& why) { return why.code() == errc::not_found; }

// Unloads the parts of the nodes after the first one.
void unload_rest(const core_ptr& core, const set_info& set, completion<void> done) {
  std::vector<std::string> nodes{set.division.nodes.begin() + 1, set.division.nodes.end()};
  auto arrived = gathered(nodes.size(), std::move(done));
  for (std::size_t i = 0; i < nodes.size(); ++i)
    ask_data(*core, nodes[i], actors::unload_set_request{set.name, set.division.whole})
      .chain([arrived, name = set.name, node = nodes[i]](const result<actors::done_reply>& r) {
        if (r || is_missing(r.error()))
          return arrived({});
        arrived(fail(r.error().within(fmt::format(
          "working set {} is unloaded, but its part at node {} stays until the name is "
          "preloaded or unloaded again",
          name, node))));
      });
}

// Parts of sets that their homes do not have, or that have other homes.
void unload_leftovers(
  const core_ptr& core, const std::string& name, const status& otherwise, completion<void> done) {
  auto nodes = data_homes(*core, name).value_or(std::vector<std::string>{});
  auto left = std::make_shared<gathering<std::optional<set_info>>>(
    nodes.size(),
    [core, otherwise, done = std::move(done)](result<std::vector<std::optional<set_info>>> found) {
      std::vector<set_info> sets; // each whole once
      for (auto& one : *found)
        if (one && is_divided(*one) && std::ranges::none_of(sets, [&](auto& known) {
              return known.division.whole == one->division.whole;
            }))
          sets.push_back(*one);
      if (sets.empty())
        return done(fail(otherwise));
      auto arrived = gathered(sets.size(), done);
      for (auto& set : sets)
        unload_parts(core, set, arrived);
    });
  for (std::size_t i = 0; i < nodes.size(); ++i)
    describe_at(core, nodes[i], name).chain([left, i](const result<set_info>& found) {
      left->arrived(i, found ? std::optional{*found} : std::nullopt);
    });
}

} // namespace

future<set_info> describe_at(
  const core_ptr& core, const std::string& node, const std::string& name) {
  auto done = core->make_promise<set_info>();
  // The name itself is the first one that begins with it.
  ask_data(*core, node, actors::list_sets_request{name, {}, 1, true})
    .chain([core, done, name](const result<actors::set_list>& found) {
      if (!found)
        return static_cast<void>(done.set(fail(found.error())));
      if (found->sets.empty() || found->sets.front().name != name)
        return static_cast<void>(
          done.set(fail(errc::not_found, "there is no working set {}", name)));
      auto& set = found->sets.front();
      auto bad = validate(set);
      if (!bad.ok())
        bad = {errc::protocol_error, "{}", bad.detail()};
      else
        bad = check_nodes(*core, set);
      done.set(bad.ok() ? result<set_info>{set} : fail(std::move(bad)));
    });
  return done.get_future();
}

void describe_home(const core_ptr& core, const std::string& name, completion<set_info> done) {
  auto home = data_home(*core, name);
  if (!home)
    return done(fail(home.error()));
  describe_at(core, *home, name).chain([done = std::move(done)](const result<set_info>& found) {
    done(found);
  });
}

void unload_parts(const core_ptr& core, const set_info& set, completion<void> done) {
  auto divided = is_divided(set);
  auto home = divided ? set.division.nodes.front() : data_home(*core, set.name).value_or("");
  auto id = divided ? set.division.whole : set.id;
  ask_data(*core, home, actors::unload_set_request{set.name, id})
    .chain([core, set, divided, done = std::move(done)](const result<actors::done_reply>& r) {
      // Without the home's part, the others are what is left of the set.
      if (!r && !(divided && is_missing(r.error())))
        return done(fail(r.error()));
      divided ? unload_rest(core, set, done) : done({});
    });
}

void unload_set(const core_ptr& core, const std::string& name, completion<void> done) {
  auto home = data_home(*core, name);
  if (!home)
    return done(fail(home.error()));
  describe_at(core, *home, name)
    .chain([core, name, home = *home, done = std::move(done)](const result<set_info>& found) {
      if (found)
        return unload_parts(core, *found, done);
      if (!is_missing(found.error()))
        return done(fail(found.error()));
      ask_data(*core, home, actors::unload_set_request{name, {}})
        .chain([core, name, done](const result<actors::done_reply>& r) {
          if (r || !is_missing(r.error()))
            return done(r ? result<void>{} : fail(r.error()));
          unload_leftovers(core, name, r.error(), done);
        });
    });
}

} // namespace millrace::runtime

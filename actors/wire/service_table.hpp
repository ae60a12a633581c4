// The actors of a node, by service and by target. Sessions and local clients find here which actor
// to ask, and the node which actors have a part of its status.
#pragma once

#include <millrace/actors/provider_status.hpp>
#include <millrace/actors/vocabulary.hpp>
#include <millrace/actors/wire/wire_ends.hpp>

#include <caf/actor_cast.hpp>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::actors {

/// An actor that has a part of its provider's status.
using reporting_actor =
  caf::typed_actor<caf::replies_to<provider_status_request>::with<provider_status>>;

/// An actor that keeps something for a connection.
using connection_watcher = caf::typed_actor<caf::reacts_to<peer_gone>>;

/// True if `Handle` answers every message of `Narrower`.
template <class Handle, class Narrower>
inline constexpr bool answers_all_of =
  caf::detail::tl_subset_of<typename Narrower::signatures, typename Handle::signatures>::value;

/// Filled while a node starts. Afterwards any thread may read it.
class service_table {
public:
  /// Adds every service of the product, so that a request for one that is not here is refused by
  /// name.
  service_table();

  /// Adds an actor. `target`: the provider's name; empty for the node itself. An actor that also
  /// answers `provider_status_request` becomes a reporting actor; one that takes `peer_gone`, a
  /// watcher.
  template <class Service, class Handle>
  void add(const std::string& target, const Handle& actor) {
    if constexpr (answers_all_of<Handle, reporting_actor>)
      reporting_.push_back({target, actor});
    if constexpr (answers_all_of<Handle, connection_watcher>)
      watchers_.push_back(actor);
    know<Service>().actors[target] = {
      caf::actor_cast<caf::strong_actor_ptr>(actor), wire_ends<Service>::serve(actor)};
  }

  /// Says why a target has no actors. Its requests are refused with this error.
  void add_down(const std::string& target, status why) { down_[target] = std::move(why); }

  /// Returns null if there is none.
  template <class Service>
  actor_of<Service> find(const std::string& target) const {
    auto& actors = services_.at(Service::first_number).actors;
    auto found = actors.find(target);
    return found == actors.end() ? actor_of<Service>{}
                                 : caf::actor_cast<actor_of<Service>>(found->second.actor);
  }

  /// Returns the reader of a request frame.
  /// Errors:  `unsupported` for a number that belongs to no service; `not_found` naming target and
  ///          service; the error of `add_down`.
  result<const request_reader*> reader_of(std::uint16_t number, const std::string& target) const;

  struct reporting {
    std::string target;
    reporting_actor actor;
  };
  /// Returns the reporting actors in the order in which they were added.
  const std::vector<reporting>& reporting_actors() const noexcept { return reporting_; }
  const std::vector<connection_watcher>& watchers() const noexcept { return watchers_; }

private:
  struct entry {
    caf::strong_actor_ptr actor;
    std::shared_ptr<const request_reader> reader;
  };
  struct service_entry {
    std::string_view name;
    std::uint16_t end_number = 0;
    std::map<std::string, entry> actors;
  };

  template <class Service>
  service_entry& know() {
    return know(Service::first_number, {Service::name, Service::end_number, {}});
  }
  service_entry& know(std::uint16_t first_number, const service_entry& service);

  std::map<std::uint16_t, service_entry> services_; // by their first number
  std::map<std::string, status> down_;
  std::vector<reporting> reporting_;
  std::vector<connection_watcher> watchers_;
};

} // namespace millrace::actors

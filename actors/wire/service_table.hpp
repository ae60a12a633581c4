// The actors of a node, by service and by target. Sessions and local clients find here which actor
// to ask.
#pragma once

#include <millrace/actors/vocabulary.hpp>
#include <millrace/actors/wire/wire_end.hpp>

#include <caf/actor_cast.hpp>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace millrace::actors {

/// Filled while a node starts. Later the node replaces actors that have failed.
/// Threads: any.
class service_table {
public:
  /// Adds every service of the product, so that a request for one that is not here is refused by
  /// name.
  service_table();

  /// Adds an actor, or replaces the one that `target` has. `target`: the provider's name; empty for
  /// the node itself.
  template <class Service, class Handle>
  void add(const std::string& target, const Handle& actor) {
    entry added{caf::actor_cast<caf::strong_actor_ptr>(actor), wire_end<Service>::serve(actor)};
    std::lock_guard guard{mutex_};
    know<Service>().actors[target] = std::move(added);
  }

  /// Says why a target has no actors. Its requests are refused with this error.
  void add_down(const std::string& target, status why) {
    std::lock_guard guard{mutex_};
    down_[target] = std::move(why);
  }

  /// Returns null if there is none, and for a target that is down.
  template <class Service>
  actor_of<Service> find(const std::string& target) const {
    std::lock_guard guard{mutex_};
    auto& actors = services_.at(Service::first_number).actors;
    auto found = actors.find(target);
    if (found == actors.end() || down_.contains(target))
      return {};
    return caf::actor_cast<actor_of<Service>>(found->second.actor);
  }

  /// Returns the reader of a request frame.
  /// Errors:  `unsupported` for a number that belongs to no service; `not_found` naming target and
  ///          service; the error of `add_down`.
  result<std::shared_ptr<const request_reader>> reader_of(
    std::uint16_t number, const std::string& target) const;

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

  mutable std::mutex mutex_;
  std::map<std::uint16_t, service_entry> services_; // by their first number
  std::map<std::string, status> down_;
};

} // namespace millrace::actors

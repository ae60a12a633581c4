// How a driver of a kind is made from its options. builtin.cpp lists the kinds.
#pragma once

#include <millrace/config/section.hpp>
#include <millrace/transport/copy/copy_job.hpp>
#include <millrace/transport/driver.hpp>
#include <millrace/transport/fabric_options.hpp>
#include <millrace/transport/memory/arena.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

namespace millrace::transport {

/// The objects that a driver may use.
struct driver_deps {
  std::shared_ptr<net::io_loop> loop = nullptr;
  std::shared_ptr<mover_pool> movers = nullptr;
  copy_limits limits = {};
  /// Returns the arenas to announce to every peer as soon as it connects, so that no transfer waits
  /// for the mapping.
  std::function<std::vector<std::shared_ptr<arena>>()> shared_arenas = {};
  std::uint64_t granule_bytes = fabric_options{}.granule_bytes; // see `fabric_options`
  bool listens = true;                                          // the same
  /// Submits a transfer to the fabric to which the driver belongs.
  std::function<void(transfer, completion<transfer_report>)> move = {};
};

struct driver_kind {
  std::string_view name;
  /// The section of the configuration that has the kind's name; nothing if the kind has no options.
  std::optional<config::section> options;
  /// Makes a driver.
  /// Errors:  `invalid_argument` for options out of their bounds; `unavailable`, `unsupported` or
  ///          `not_found` for what this machine lacks. The fabric then does without the driver.
  std::function<result<std::shared_ptr<driver>>(const driver_deps&, const config::option_set&)>
    make;
};

inline driver_kind driver_of(
  std::string_view name, std::shared_ptr<driver> (*make)(const driver_deps&)) {
  return {name, std::nullopt, [make](const driver_deps& deps, auto&) { return make(deps); }};
}

/// Returns a kind with options; `keys_of<Options>()` are its keys.
template <class Options, class Driver>
driver_kind driver_of(
  std::string_view name,
  result<std::shared_ptr<Driver>> (*make)(const driver_deps&, const Options&)) {
  return {
    name, config::section_of<Options>(name),
    [name, make](
      const driver_deps& deps, const config::option_set& all) -> result<std::shared_ptr<driver>> {
      auto& options = all.of<Options>();
      if (auto bad = config::check_options(name, options); !bad.ok())
        return fail(bad);
      return make(deps, options);
    }};
}

} // namespace millrace::transport

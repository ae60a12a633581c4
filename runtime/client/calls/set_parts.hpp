// Where a working set lies: finding it, and unloading all of its parts.
// Internal, used by `working_set` and by preloads; needs CAF.
#pragma once

#include <millrace/runtime/client/calls/set_view.hpp>

#include <memory>
#include <string>

namespace millrace::runtime {

/// Describes what a node has under a name: a set, or any part of one.
/// Errors:  `not_found`; `protocol_error` for a description that lies; as `check_nodes`.
future<set_info> describe_at(
  const std::shared_ptr<client_core>& core, const std::string& node, const std::string& name);

/// Describes what the home of a name has. Errors: as `data_home` and `describe_at`.
void describe_home(
  const std::shared_ptr<client_core>& core, const std::string& name, completion<set_info> done);

/// Unloads a whole set by its id: at its home first, so that nobody opens a set that is not whole.
/// A part that is not there is none to unload.
/// Errors:  those of the home, and then nothing was unloaded; those of the other nodes, naming one.
void unload_parts(
  const std::shared_ptr<client_core>& core, const set_info& set, completion<void> done);

/// Unloads the set that has a name. If its home does not have it, what is left of it elsewhere.
/// Errors:  `not_found` if there is nothing; `busy`; those of `unload_parts`.
void unload_set(
  const std::shared_ptr<client_core>& core, const std::string& name, completion<void> done);

} // namespace millrace::runtime

// How this process reaches the parts of a set. Used by `working_set::access`.
// Internal; needs CAF.
#pragma once

#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/client/working_set.hpp>

#include <memory>
#include <string>

namespace millrace::runtime {

/// Opens every part, and says how; see `working_set::access`.
/// Threads: any.
void find_access(
  const std::shared_ptr<client_core>& core, const std::string& name, std::string device,
  completion<set_access> done);

} // namespace millrace::runtime

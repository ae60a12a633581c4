// Lists the models of a group.
// Internal, used by `repository`; needs CAF.
#pragma once

#include <millrace/core/future.hpp>
#include <millrace/core/model.hpp>
#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/client/listed.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace millrace::runtime {

/// Lists the models of every provider of a group page by page, and merges the lists. Then removes
/// the marks of erased models that no provider needs any more, 1,000 at most, see `listed::swept`.
/// Both end by the deadline. A provider that does not answer costs the search half of the time, and
/// the pages the rest.
future<listed<model_summary>> list_models(
  const std::shared_ptr<client_core>& core, const std::string& group, const std::string& prefix,
  std::uint32_t page);

} // namespace millrace::runtime

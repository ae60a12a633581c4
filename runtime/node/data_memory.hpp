// The memory of a node's data server: regions, and the words that say whose they are.
// Internal, used by `node`.
#pragma once

#include <millrace/actors/loader/data_options.hpp>
#include <millrace/actors/loader/data_server.hpp>
#include <millrace/runtime/node/provider.hpp>

namespace millrace::runtime {

/// Makes and touches the memory, all or none. It is for peers to map and read, not to write.
/// Errors:  those of `node_memory::make`.
result<actors::data_memory> make_data_memory(
  const actors::data_options& options, node_memory& memory);

} // namespace millrace::runtime

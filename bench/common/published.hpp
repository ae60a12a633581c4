// The tensors of published networks, and a shard's registration.
// Used by the checkpoint and training benchmarks.
#pragma once

#include <millrace/bench/common/model_table.hpp>
#include <millrace/runtime/client/checkpointer.hpp>
#include <millrace/runtime/client/client.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace millrace::bench {

/// Returns one of the published networks by its name, "GPT-350M" (the shard of one of four ranks),
/// or "small".
/// Errors:  throws `millrace::error` for another name.
model_table table_named(const std::string& name);

/// Registers `table` over `memory`.
/// Errors:  throws `millrace::error`.
checkpointer attach(
  const client& c, const model_table& table, std::span<std::byte> memory, std::uint32_t rank = 0,
  std::uint32_t world_size = 1);

} // namespace millrace::bench

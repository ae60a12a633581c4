// Lends memory from an arena that was touched and pinned at start. Used by nodes and clients for
// staging memory.
#pragma once

#include <millrace/core/memory.hpp>
#include <millrace/transport/memory/arena.hpp>

namespace millrace::transport {

/// Returns a concurrent allocator on one arena, which is touched and pinned once (DStore, sections
/// 3 and 6.5).
///
/// It uses best fit with coalescing, in units of 64 bytes. Memory lent keeps the arena alive.
/// Errors:  of `allocate`: `no_space` with the bytes asked for, the bytes free, and the largest
///          free run.
std::shared_ptr<memory_source> make_staging_pool(std::shared_ptr<arena> a);

} // namespace millrace::transport

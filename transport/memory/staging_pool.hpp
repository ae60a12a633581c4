// Lends memory out of arenas: one that was touched and pinned at start, or one made for each request.
#pragma once

#include <millrace/core/memory.hpp>
#include <millrace/transport/memory/arena.hpp>

namespace millrace::transport {

/// A concurrent allocator on one arena that is touched and pinned once (DStore, sections 3 and 6.5).
///
/// Best fit with coalescing, 64-byte units; memory lent keeps the arena alive.
/// Errors of `allocate`: `no_space` with the bytes asked for, free, and the largest free run.
std::shared_ptr<memory_source> make_staging_pool(std::shared_ptr<arena> a);

/// The comparison that shows what the pool is worth: allocates, touches and pins for every request.
/// `options.size_bytes` bounds what is lent at one time.
std::shared_ptr<memory_source> make_on_demand_source(const arena_options& options);

} // namespace millrace::transport

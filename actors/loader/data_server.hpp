// The actor of a node's data server: working sets are preloaded, opened and unloaded here.
// Asked by sessions and local clients; drives one pool of regions.
#pragma once

#include <millrace/actors/loader/data_messages.hpp>
#include <millrace/actors/operation.hpp>
#include <millrace/actors/vocabulary.hpp>
#include <millrace/core/fair_shares.hpp>
#include <millrace/storage/samples/sample_pool.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace millrace::actors {

using data_server_actor = actor_of<data_service>;

/// The target that requests to a node's data server name. No provider has such a name.
inline constexpr auto data_server_of_node = "/data";

/// What streams have of a data server: their number, and their leases, which are those of streams,
/// producers and readers. And what has passed through them since the start.
struct stream_use {
  std::atomic<std::uint64_t> streams = 0;
  std::atomic<std::uint64_t> leases = 0;
  std::atomic<std::uint64_t> appended = 0; // samples
  std::atomic<std::uint64_t> given = 0;    // samples, repeated ones, too
};

/// Clients that fill sets which others have reserved: how many there are, and how often one has
/// joined since the start.
struct join_use {
  std::atomic<std::uint64_t> now = 0;
  std::atomic<std::uint64_t> all = 0;
};

/// The memory of a data server. It outlives the actor, which can be started anew.
struct data_memory {
  std::shared_ptr<storage::samples::sample_pool> pool;
  std::shared_ptr<const transport::region> generations; // the words of all regions, readable
  std::shared_ptr<lent_places> leases;
  std::shared_ptr<stream_use> streams = std::make_shared<stream_use>();
  std::shared_ptr<join_use> joins = std::make_shared<join_use>();
};

struct data_server_deps {
  std::string name; // for errors: "n0/data"
  data_memory memory;
  std::shared_ptr<transport::fabric> fabric;
  operation_limits limits;
  std::uint64_t page_bytes_max = 1u << 20; // of a page of sets, unless one set alone has more
};

/// A lease, or a reservation, belongs to the connection through which it came. After a failure of
/// the actor none of them is known: readers go on with what they have mapped, whose generations say
/// whether it is still the set, and preloads begin anew.
data_server_actor spawn_data_server(caf::actor_system& system, data_server_deps deps);

} // namespace millrace::actors

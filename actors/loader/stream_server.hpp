// The actor of a node's stream server: streams are created, appended to, read and removed here.
// Asked by sessions and local clients; its memory is the data server's.
#pragma once

#include <millrace/actors/loader/data_server.hpp>
#include <millrace/actors/loader/stream_messages.hpp>

namespace millrace::actors {

using stream_server_actor = actor_of<stream_service>;

/// The target that requests to a node's stream server name. No provider has such a name.
inline constexpr auto stream_server_of_node = "/streams";

/// Makes the actor. `deps.name` is for errors: "n0/streams".
///
/// A lease belongs to the connection through which it came. When that ends, the memory is withdrawn
/// from the peer first; then the places that it wrote are free, and the samples that it read count
/// as given. Each lease has an exposure of its own, so nobody can write, or read, after its end.
///
/// After a failure of the actor there are no streams. Producers and readers get `not_found`.
stream_server_actor spawn_stream_server(caf::actor_system& system, data_server_deps deps);

} // namespace millrace::actors

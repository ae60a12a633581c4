// Both ends of the node service on the wire.
#include <millrace/actors/node/node_messages.hpp>
#include <millrace/actors/wire/wire_ends_of.hpp>

template struct millrace::actors::wire_ends<millrace::actors::node_service>;

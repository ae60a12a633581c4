// Both ends of the node service on the wire.
#include <millrace/actors/node/node_messages.hpp>
#include <millrace/actors/wire/wire_end_of.hpp>

template struct millrace::actors::wire_end<millrace::actors::node_service>;

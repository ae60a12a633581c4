// Both ends of the checkpoint service on the wire.
#include <millrace/actors/checkpoint/checkpoint_messages.hpp>
#include <millrace/actors/wire/wire_ends_of.hpp>

template struct millrace::actors::wire_ends<millrace::actors::checkpoint_service>;

// Both ends of the checkpoint service on the wire.
#include <millrace/actors/checkpoint/checkpoint_messages.hpp>
#include <millrace/actors/wire/wire_end_of.hpp>

template struct millrace::actors::wire_end<millrace::actors::checkpoint_service>;

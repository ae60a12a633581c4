// Both ends of the store service on the wire.
#include <millrace/actors/store/store_messages.hpp>
#include <millrace/actors/wire/wire_ends_of.hpp>

template struct millrace::actors::wire_ends<millrace::actors::store_service>;

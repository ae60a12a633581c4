// Both ends of the store service on the wire.
#include <millrace/actors/store/store_messages.hpp>
#include <millrace/actors/wire/wire_end_of.hpp>

template struct millrace::actors::wire_end<millrace::actors::store_service>;

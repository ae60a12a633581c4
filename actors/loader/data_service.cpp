// The data service's end of the wire.
#include <millrace/actors/loader/data_messages.hpp>
#include <millrace/actors/wire/wire_end_of.hpp>

template struct millrace::actors::wire_end<millrace::actors::data_service>;

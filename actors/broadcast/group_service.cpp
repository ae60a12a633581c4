// The group service's end of the wire.
#include <millrace/actors/broadcast/group_messages.hpp>
#include <millrace/actors/wire/wire_end_of.hpp>

template struct millrace::actors::wire_end<millrace::actors::group_service>;

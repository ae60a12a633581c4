// Both ends of the counters on the wire.
#include "counter_service.hpp"

#include <millrace/actors/wire/wire_ends_of.hpp>

template struct millrace::actors::wire_ends<millrace::testing::counter_service>;

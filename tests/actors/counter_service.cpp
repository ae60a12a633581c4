// Both ends of the counters on the wire.
#include "counter_service.hpp"

#include <millrace/actors/wire/wire_end_of.hpp>

template struct millrace::actors::wire_end<millrace::testing::counter_service>;

// Every bound of the tcp driver. The configuration's `tcp` section sets them.
#pragma once

namespace millrace::transport {

struct tcp_options {};

} // namespace millrace::transport

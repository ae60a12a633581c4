// Every bound of the verbs driver. The configuration's `verbs` section sets them.
#pragma once

namespace millrace::transport {

struct verbs_options {};

} // namespace millrace::transport

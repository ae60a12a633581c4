// Compiled as C++17 and as C++20, with every warning: both headers, and the layout.
#include "layout.c"

#include <millrace.hpp>

static_assert(MILLRACE_VERSION_NUMBER == 1000, "0.1.0");

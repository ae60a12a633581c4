// The choices of a bucket for a reservation that does not fit. Part of every kind's options.
#pragma once

#include <cstdint>

namespace millrace::storage {

enum class when_full : std::uint8_t {
  refuse, // `no_space`
  evict,  // drop unpinned models that are not open, least recently used first, until it fits
};

} // namespace millrace::storage

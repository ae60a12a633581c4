// The options of the toy driver: the section `toy` of the configuration sets them.
#pragma once

#include <millrace/config/keys.hpp>

#include <cstdint>

namespace millrace::transport {

struct toy_options {
  std::uint64_t transfer_bytes_max = 1u << 30; // larger transfers are left to other drivers
};

} // namespace millrace::transport

namespace millrace::config {
template <>
key_table<transport::toy_options> keys_of();
}

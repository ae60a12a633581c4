// A memory bucket whose memory is allocated, touched and pinned anew for every model. It shows by
// comparison what an arena that was made at start is worth.
#pragma once

#include <millrace/config/schema.hpp>
#include <millrace/storage/bucket.hpp>

#include <memory>

namespace millrace::bench {

struct on_demand_options {
  std::uint64_t capacity_bytes = 1u << 30; // most bytes lent at one time
};

inline config::memory_needs needs_of(const on_demand_options&) { return {}; }

result<std::shared_ptr<storage::bucket>> open_on_demand_bucket(
  on_demand_options options, std::shared_ptr<memory_source> unused);

} // namespace millrace::bench

namespace millrace::config {
template <>
key_table<bench::on_demand_options> keys_of();
}

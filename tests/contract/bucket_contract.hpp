// The promises of every bucket, as one suite.
// Registered by bucket_contract_test.cpp once for each kind and setting.
#pragma once

#include <millrace/core/memory.hpp>
#include <millrace/storage/bucket.hpp>
#include <millrace/storage/when_full.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace millrace::testing {

/// What a case needs from the bucket that it tests.
struct contract_settings {
  std::uint64_t capacity_bytes = 64u << 20;
  storage::when_full full = storage::when_full::refuse;
  std::uint64_t descriptions_max_bytes = 32u << 20;
  /// Lends memory for stored or staged bytes; for an in-place kind at least its capacity.
  std::shared_ptr<memory_source> memory{};
};

/// Opens an empty bucket. Anything else that it needs (a directory) lives as long as the bucket.
using bucket_factory =
  std::function<std::shared_ptr<storage::bucket>(const contract_settings& settings)>;

/// The promise of `bucket_capabilities::at_once_bytes_max`, a case of the suite.
void small_models_are_read_before_the_calls_return(const bucket_factory& factory);

/// Adds the suite `bucket_contract_NAME` to this test program, as tests of the calling file. Kinds
/// differ by their capabilities only.
bool add_bucket_contract(
  const std::string& name, bucket_factory factory, const char* file = __builtin_FILE());

} // namespace millrace::testing

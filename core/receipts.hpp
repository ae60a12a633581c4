// The receipts of stores and loads. Providers send them; programs get them from `repository`,
// `checkpoints` and `checkpointer`.
#pragma once

#include <millrace/core/inspect.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

/// Microseconds that a provider spent in each stage of a store or a load.
struct stage_times {
  std::uint64_t queued_us = 0;  // waiting behind other operations
  std::uint64_t reserve_us = 0; // store: until room was found; load: until the model was open
  std::uint64_t move_us = 0;    // from the first byte requested to the last one moved
  std::uint64_t finish_us = 0;  // store: written to the medium and published

  friend bool operator==(const stage_times&, const stage_times&) = default;
};
MILLRACE_INSPECT(stage_times, x.queued_us, x.reserve_us, x.move_us, x.finish_us)

/// What became of a store.
struct store_receipt {
  std::string model;
  std::uint64_t version = 0;    // the number of the version that was stored
  std::uint64_t size_bytes = 0; // of all tensors
  std::string provider;         // the name of the provider that keeps it
  bool durable = false;         // it survives `kill -9`, and power loss where the medium does
  bool checksums = false;       // they were stored with it
  std::string driver;           // that moved the bytes; "eager": the message did
  stage_times times;

  friend bool operator==(const store_receipt&, const store_receipt&) = default;
};
MILLRACE_INSPECT(
  store_receipt, x.model, x.version, x.size_bytes, x.provider, x.durable, x.checksums, x.driver,
  x.times)

/// What became of a load of a model, or of a version of a checkpoint's shard.
struct load_receipt {
  std::string model;
  std::uint64_t version = 0;    // of a checkpoint: its step
  std::uint64_t size_bytes = 0; // what was loaded
  std::string provider;         // the name of the provider that has it
  bool verified = false;        // checksums were stored and matched
  std::string driver;           // that moved the bytes; "eager": the message did
  stage_times times;
  /// When the version was stored, in nanoseconds of the provider's wall clock; 0: a provider of an
  /// older build does not say.
  std::uint64_t stored_at_ns = 0;
  std::uint64_t extra_bytes = 0;   // the size of the user's bytes of a checkpoint's version
  std::vector<std::uint8_t> extra; // those bytes, where the call gives them

  friend bool operator==(const load_receipt&, const load_receipt&) = default;
};

} // namespace millrace

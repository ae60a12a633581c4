// The receipts of registrations, saves and verifications of checkpoints. Providers send them;
// programs get them from `checkpointer` and `checkpoints`.
#pragma once

#include <millrace/core/checkpoint.hpp>
#include <millrace/core/inspect.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

/// What happens to a save while another save of the shard is in flight, or while no slot can be
/// filled: every one is being read, or has a version that other ranks have yet to complete.
enum class when_saving : std::uint8_t {
  wait = 0,   // it waits, for `checkpoints.slot_wait` of the provider at most
  refuse = 1, // it fails with `busy` at once
};

/// What a provider had when a shard was registered.
struct enroll_receipt {
  std::uint64_t registration = 0; // its number in later requests; cannot be guessed
  std::string provider;           // the name of the provider that keeps the shard
  bool durable = false; // versions survive `kill -9`, and power loss where the medium does
  bool resumed = false; // the shard was known, and its versions are there
  checkpoint_summary model;
  std::uint64_t run = 0; // the number of the job's run, in which the shard takes part
  /// The most bytes of the user that a save may bring (`checkpoints.extra_max`); 0 from providers
  /// of an older build, which keep none.
  std::uint64_t extra_bytes_max = 0;

  friend bool operator==(const enroll_receipt&, const enroll_receipt&) = default;
};
MILLRACE_INSPECT(
  enroll_receipt, x.registration, x.provider, x.durable, x.resumed, x.model, x.run,
  x.extra_bytes_max)

/// Microseconds that a save spent in each stage.
/// Source:  Portus, figure 13.
struct save_times {
  std::uint64_t queued_us = 0;  // waiting behind another save
  std::uint64_t begin_us = 0;   // until a slot was picked and marked active
  std::uint64_t pull_us = 0;    // while the bytes were pulled
  std::uint64_t persist_us = 0; // until the version was written back and marked done
  /// The part of `begin_us` while no slot could be filled: other ranks had yet to complete a step,
  /// or versions were being read. 0 from providers of an older build.
  std::uint64_t slot_us = 0;

  friend bool operator==(const save_times&, const save_times&) = default;
};
MILLRACE_INSPECT(save_times, x.queued_us, x.begin_us, x.pull_us, x.persist_us, x.slot_us)

/// What became of a save.
struct save_receipt {
  std::string model;
  std::uint32_t rank = 0;
  std::uint64_t step = 0;
  std::uint64_t size_bytes = 0; // of all tensors
  std::string provider;         // the name of the provider that keeps the version
  /// The version is done, and the provider's medium is durable. Always false in the receipt of
  /// `pending_save::staged`.
  bool durable = false;
  bool complete = false; // all shards of the step are done now
  std::string driver;    // the driver that moved the bytes
  std::string path;      // "direct" to the slot, or "staged"
  save_times times;
  std::uint64_t run = 0; // the number of the job's run, in which the version is saved

  friend bool operator==(const save_receipt&, const save_receipt&) = default;
};
MILLRACE_INSPECT(
  save_receipt, x.model, x.rank, x.step, x.size_bytes, x.provider, x.durable, x.complete, x.driver,
  x.path, x.times, x.run)

/// What reading a stored version again has found.
struct verify_receipt {
  std::uint64_t size_bytes = 0; // of all tensors
  /// The names of the tensors whose checksums do not match, and "the user's bytes".
  std::vector<std::string> corrupt;

  friend bool operator==(const verify_receipt&, const verify_receipt&) = default;
};
MILLRACE_INSPECT(verify_receipt, x.size_bytes, x.corrupt)

} // namespace millrace

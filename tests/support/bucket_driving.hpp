// Stores and loads whole models through the bucket interface.
// Used by contract, storage and crash tests.
#pragma once

#include <millrace/storage/bucket.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace millrace::testing {

/// Returns a spec of u8 tensors "t0", "t1", ... of the given sizes.
model_spec spec_of(std::string name, const std::vector<std::uint64_t>& tensor_bytes);

/// Fills memory with the content of test models, a function of seed, tensor and offset (a multiple
/// of 8).
void fill(
  std::byte* data, std::uint64_t length, std::uint64_t seed, std::uint32_t tensor,
  std::uint64_t tensor_offset);
bool is_filled(
  const std::byte* data, std::uint64_t length, std::uint64_t seed, std::uint32_t tensor,
  std::uint64_t tensor_offset);

result<std::unique_ptr<storage::reservation>> reserve(
  storage::bucket& subject, model_spec spec, std::vector<described_layer> layers = {});
result<std::shared_ptr<storage::opened_model>> open(
  storage::bucket& subject, std::string name, std::uint64_t version = 0);
status erase(storage::bucket& subject, std::string name, std::uint64_t version = 0);

/// Lend heap memory for a window, as much as it needs, and wait for the window.
result<storage::window> acquire(storage::window_space& room, std::uint32_t index);
result<storage::window> fetch(storage::opened_model& model, std::vector<storage::wanted> ranges);

/// Acquires, fills and commits every window, in an order that the seed determines.
status fill_windows(storage::window_space& room, std::uint64_t seed);

/// Returns the digests of the content, as a client would compute them.
std::vector<std::uint64_t> digests_of(const layout& tensors, std::uint64_t seed);

/// Reserves, fills and publishes; returns the version.
result<std::uint64_t> store(
  storage::bucket& subject, model_spec spec, std::uint64_t seed,
  std::vector<described_layer> layers = {});

/// Returns ranges that cover a whole model.
std::vector<storage::wanted> everything(const layout& tensors);

/// Fetches ranges and compares them with the content.
/// Errors:  `corrupt_data` naming the first difference.
status check_ranges(
  storage::opened_model& model, const std::vector<storage::wanted>& ranges, std::uint64_t seed);
/// Opens the newest version and compares all of it, including the digests.
status check_model(storage::bucket& subject, std::string name, std::uint64_t seed);

/// Waits until the bucket's used bytes are `used_bytes`: space returns when the last job releases
/// it.
bool settles_at(storage::bucket& subject, std::uint64_t used_bytes);

} // namespace millrace::testing

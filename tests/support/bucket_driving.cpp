// Waits for every step of a call to a bucket.
#include "bucket_driving.hpp"

#include "held_completion.hpp"

#include <millrace/core/digest.hpp>
#include <millrace/storage/io/file_io.hpp>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

namespace millrace::testing {

using namespace storage;

model_spec spec_of(std::string name, const std::vector<std::uint64_t>& tensor_bytes) {
  model_spec spec;
  spec.name = std::move(name);
  for (std::size_t i = 0; i < tensor_bytes.size(); ++i)
    spec.tensors.tensors.push_back({"t" + std::to_string(i), dtype::u8, {tensor_bytes[i]}});
  return spec;
}

namespace {

std::uint64_t word(std::uint64_t seed, std::uint32_t tensor, std::uint64_t offset) {
  auto x = seed * 0x9e3779b97f4a7c15u + tensor * 0xbf58476d1ce4e5b9u + offset;
  x = (x ^ (x >> 30)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

} // namespace

void fill(
  std::byte* data, std::uint64_t length, std::uint64_t seed, std::uint32_t tensor,
  std::uint64_t tensor_offset) {
  for (std::uint64_t i = 0; i < length; i += 8) {
    auto value = word(seed, tensor, tensor_offset + i);
    std::memcpy(data + i, &value, std::min<std::uint64_t>(8, length - i));
  }
}

bool is_filled(
  const std::byte* data, std::uint64_t length, std::uint64_t seed, std::uint32_t tensor,
  std::uint64_t tensor_offset) {
  for (std::uint64_t i = 0; i < length; i += 8) {
    auto value = word(seed, tensor, tensor_offset + i);
    if (std::memcmp(data + i, &value, std::min<std::uint64_t>(8, length - i)) != 0)
      return false;
  }
  return true;
}

result<std::unique_ptr<reservation>> reserve(
  bucket& subject, model_spec spec, std::vector<described_layer> layers) {
  return await<std::unique_ptr<reservation>>(
    [&](auto done) { subject.reserve(std::move(spec), std::move(layers), std::move(done)); });
}

result<std::shared_ptr<opened_model>> open(
  bucket& subject, std::string name, std::uint64_t version) {
  return await<std::shared_ptr<opened_model>>(
    [&](auto done) { subject.open(std::move(name), version, std::move(done)); });
}

status erase(bucket& subject, std::string name, std::uint64_t version) {
  auto outcome =
    await<void>([&](auto done) { subject.erase(std::move(name), version, std::move(done)); });
  return outcome ? status{} : outcome.error();
}

namespace {

memory_block lent(std::uint64_t window_bytes) {
  return window_bytes == 0 ? memory_block{} : io::heap_block(window_bytes);
}

} // namespace

result<window> acquire(window_space& room, std::uint32_t index) {
  return await<window>(
    [&](auto done) { room.acquire(index, lent(room.window_bytes()), std::move(done)); });
}

result<window> fetch(opened_model& model, std::vector<wanted> ranges) {
  return await<window>([&](auto done) {
    model.fetch(std::move(ranges), lent(model.window_bytes()), std::move(done));
  });
}

status fill_windows(window_space& room, std::uint64_t seed) {
  std::vector<std::uint32_t> order(room.window_count());
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), std::mt19937_64{seed});
  for (auto index : order) {
    auto lent = acquire(room, index);
    if (!lent)
      return lent.error();
    for (auto& p : lent->pieces)
      fill(p.data, p.length, seed, p.tensor, p.tensor_offset);
    lent->hold.reset();
    auto committed = await<void>([&](auto done) { room.commit(index, std::move(done)); });
    if (!committed)
      return committed.error();
  }
  return {};
}

std::vector<std::uint64_t> digests_of(const layout& tensors, std::uint64_t seed) {
  std::vector<std::uint64_t> digests;
  std::vector<std::byte> block(digest_block_bytes);
  for (std::uint32_t i = 0; i < tensors.tensors.size(); ++i) {
    auto size = *size_bytes(tensors.tensors[i]);
    for (std::uint64_t at = 0; at < size; at += digest_block_bytes) {
      auto length = std::min(digest_block_bytes, size - at);
      fill(block.data(), length, seed, i, at);
      digests.push_back(digest(block.data(), length));
    }
  }
  return digests;
}

result<std::uint64_t> store(
  bucket& subject, model_spec spec, std::uint64_t seed, std::vector<described_layer> layers) {
  auto digests = digests_of(spec.tensors, seed);
  auto room = reserve(subject, std::move(spec), std::move(layers));
  if (!room)
    return fail(room.error());
  if (auto bad = fill_windows(**room, seed); !bad.ok())
    return fail(bad);
  return await<std::uint64_t>(
    [&](auto done) { (*room)->publish(std::move(digests), std::move(done)); });
}

std::vector<wanted> everything(const layout& tensors) {
  std::vector<wanted> ranges;
  for (std::uint32_t i = 0; i < tensors.tensors.size(); ++i)
    ranges.push_back({i, 0, *size_bytes(tensors.tensors[i])});
  return ranges;
}

namespace {

status difference(const std::string& what, std::uint32_t tensor, std::uint64_t offset) {
  return {
    errc::corrupt_data,
    what + " in tensor " + std::to_string(tensor) + " at byte " + std::to_string(offset)};
}

// Walks along the requested ranges while pieces arrive, and checks that they are in order and
// complete.
class range_checker {
public:
  range_checker(const std::vector<wanted>& ranges, std::uint64_t seed) : seed_(seed) {
    for (auto& range : ranges)
      if (range.length > 0)
        left_.push_back(range);
  }

  status check(const piece& p) {
    if (at_ == left_.size())
      return difference("bytes that were not asked for", p.tensor, p.tensor_offset);
    auto& range = left_[at_];
    if (
      p.tensor != range.tensor || p.tensor_offset != range.tensor_offset || p.length > range.length)
      return difference("another piece than the next", p.tensor, p.tensor_offset);
    if (!is_filled(p.data, p.length, seed_, p.tensor, p.tensor_offset))
      return difference("other bytes than were stored", p.tensor, p.tensor_offset);
    range.tensor_offset += p.length;
    range.length -= p.length;
    at_ += range.length == 0;
    return {};
  }

  status finish() const {
    return at_ == left_.size()
      ? status{}
      : difference("missing bytes", left_[at_].tensor, left_[at_].tensor_offset);
  }

private:
  std::vector<wanted> left_;
  std::size_t at_ = 0;
  std::uint64_t seed_;
};

} // namespace

status check_ranges(opened_model& model, const std::vector<wanted>& ranges, std::uint64_t seed) {
  range_checker checker{ranges, seed};
  for (auto& part : model.plan(ranges)) {
    auto filled = fetch(model, part);
    if (!filled)
      return filled.error();
    for (auto& p : filled->pieces)
      if (auto bad = checker.check(p); !bad.ok())
        return bad;
  }
  return checker.finish();
}

status check_model(bucket& subject, std::string name, std::uint64_t seed) {
  auto model = open(subject, std::move(name));
  if (!model)
    return model.error();
  auto& record = (*model)->record();
  if (record.digests != digests_of(record.spec.tensors, seed))
    return {errc::corrupt_data, "other digests than were stored"};
  return check_ranges(**model, everything(record.spec.tensors), seed);
}

bool settles_at(bucket& subject, std::uint64_t used_bytes) {
  auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds{10};
  while (subject.stats().used_bytes != used_bytes) {
    if (std::chrono::steady_clock::now() > deadline)
      return false;
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  return true;
}

} // namespace millrace::testing

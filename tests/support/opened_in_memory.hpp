// Opens a version as a store would. Its content follows from model, rank and step.
// Used by flush tests.
#pragma once

#include <millrace/core/digest.hpp>
#include <millrace/tests/support/tensors_in_memory.hpp>

#include <thread>

namespace millrace::testing {

/// Returns the tensors of one shard at one step.
inline tensors_in_memory shard_at(
  std::uint32_t rank, std::uint64_t step, std::uint64_t bytes = 700'000) {
  tensors_in_memory all;
  auto seed = step * 1000 + rank + 1;
  all.add({"w." + std::to_string(rank), dtype::u8, {bytes}}, seed);
  all.add({"b", dtype::bf16, {3, 5}}, seed);
  all.add({"none", dtype::f32, {0}}, seed);
  all.say("run", "seven");
  return all;
}

class opened_in_memory final : public storage::opened_model {
public:
  opened_in_memory(tensors_in_memory content, std::uint64_t step, std::uint64_t saved_at_ns)
    : content_(std::move(content)) {
    record_.spec.name = "model";
    record_.spec.tensors = content_.tensors();
    record_.spec.metadata = content_.metadata();
    record_.version = step;
    record_.stored_at_ns = saved_at_ns;
    for (std::size_t i = 0; i < content_.tensors().tensors.size(); ++i) {
      auto& bytes = content_.bytes(i);
      for (std::uint64_t at = 0; at < bytes.size(); at += digest_block_bytes)
        record_.digests.push_back(
          digest(bytes.data() + at, std::min(digest_block_bytes, bytes.size() - at)));
    }
  }

  /// Makes one block differ from its digest.
  void damage() { record_.digests.at(1) ^= 1; }
  /// Leaves every fetch without an answer.
  void be_silent() { silent_ = true; }

  const model_record& record() const noexcept override { return record_; }

  // One window per block, so that readers see many.
  std::vector<std::vector<storage::wanted>> plan(
    const std::vector<storage::wanted>& ranges) const override {
    std::vector<std::vector<storage::wanted>> windows;
    for (auto& range : ranges)
      for (std::uint64_t at = 0; at < range.length; at += digest_block_bytes)
        windows.push_back(
          {{range.tensor, range.tensor_offset + at,
            std::min(digest_block_bytes, range.length - at)}});
    return windows;
  }

  // Every other fetch is answered later, by another thread.
  std::uint64_t window_bytes() const noexcept override { return 0; }
  void fetch(
    std::vector<storage::wanted> ranges, memory_block, completion<storage::window> done) override {
    if (silent_)
      return;
    storage::window w;
    auto copy = std::make_shared<std::vector<std::byte>>();
    auto& one = ranges.at(0);
    auto& bytes = content_.bytes(one.tensor);
    copy->assign(
      bytes.begin() + static_cast<std::ptrdiff_t>(one.tensor_offset),
      bytes.begin() + static_cast<std::ptrdiff_t>(one.tensor_offset + one.length));
    w.pieces.push_back({one.tensor, one.tensor_offset, copy->data(), one.length});
    w.hold = copy;
    if (++fetches_ % 2 == 0)
      done(std::move(w));
    else
      std::thread{[w = std::move(w), done = std::move(done)] { done(w); }}.detach();
  }

private:
  tensors_in_memory content_;
  model_record record_;
  bool silent_ = false;
  unsigned fetches_ = 0;
};

} // namespace millrace::testing

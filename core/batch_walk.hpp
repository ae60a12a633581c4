// The batches of one rank in the order in which it gets them, epoch after epoch. Used by loaders,
// which read them ahead.
#pragma once

#include <millrace/core/batch_plan.hpp>
#include <millrace/core/sample_order.hpp>

#include <cstdint>
#include <vector>

namespace millrace {

/// A batch of one rank, or the end of an epoch.
struct batch_step {
  std::uint64_t epoch = 0;
  std::uint64_t position = 0; // of the batch of all ranks; at the end of an epoch: behind the last
  bool ends_epoch = false;
  std::vector<std::uint64_t> samples;
  std::uint64_t padding = 0; // places after the samples that have none

  std::uint64_t rows() const noexcept { return samples.size() + padding; }
};

/// Every epoch is as many batches as the plan has, and its end.
/// Threads: pure; any.
class batch_walk {
public:
  /// `of`: the set and the seed; its epoch is the first one.
  batch_walk(
    const batch_plan& plan, std::uint64_t rank, const sample_order::key& of,
    shuffle_kind shuffle) noexcept;

  /// Goes to a position of an epoch.
  void go_to(std::uint64_t epoch, std::uint64_t position) noexcept;
  /// Goes to another order, too.
  void go_to(
    std::uint64_t epoch, std::uint64_t position, std::uint64_t seed, shuffle_kind shuffle) noexcept;

  const batch_plan& plan() const noexcept { return plan_; }
  std::uint64_t epoch() const noexcept { return key_.epoch; }
  std::uint64_t position() const noexcept { return position_; }
  std::uint64_t seed() const noexcept { return key_.seed; }
  shuffle_kind shuffle() const noexcept { return shuffle_; }

  /// Returns what comes next, and goes behind it.
  batch_step next();

private:
  batch_plan plan_;
  std::uint64_t rank_;
  sample_order::key key_;
  shuffle_kind shuffle_;
  sample_order order_;
  std::uint64_t position_ = 0;
};

} // namespace millrace

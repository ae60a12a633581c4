// The order of an epoch is made once, when the walk enters it.
#include <millrace/core/batch_walk.hpp>

namespace millrace {

batch_walk::batch_walk(
  const batch_plan& plan, std::uint64_t rank, const sample_order::key& of,
  shuffle_kind shuffle) noexcept
  : plan_(plan), rank_(rank), key_(of), shuffle_(shuffle), order_(plan.samples, of, shuffle) {}

void batch_walk::go_to(std::uint64_t epoch, std::uint64_t position) noexcept {
  key_.epoch = epoch;
  position_ = position;
  order_ = {plan_.samples, key_, shuffle_};
}

void batch_walk::go_to(
  std::uint64_t epoch, std::uint64_t position, std::uint64_t seed, shuffle_kind shuffle) noexcept {
  key_.seed = seed;
  shuffle_ = shuffle;
  go_to(epoch, position);
}

batch_step batch_walk::next() {
  batch_step out;
  out.epoch = key_.epoch;
  out.position = position_;
  if (plan_.batches_from(position_) == 0) {
    out.ends_epoch = true;
    go_to(key_.epoch + 1, 0);
    return out;
  }
  auto mine = plan_.slice(position_, rank_);
  out.samples.reserve(mine.count);
  for (std::uint64_t i = 0; i < mine.count; ++i)
    out.samples.push_back(order_.at(mine.first + i));
  out.padding = mine.padding;
  position_ = plan_.after(position_);
  return out;
}

} // namespace millrace

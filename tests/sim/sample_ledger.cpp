// Compares what the ranks got with the order that the seed gives.
#include <millrace/tests/sim/sample_ledger.hpp>
#include <millrace/tests/support/npy_file.hpp>
#include <millrace/tests/support/pattern.hpp>
#include <millrace/tests/support/seeds.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace millrace::sim {

using testing::demand;

bool sample_files::is_sample(std::span<const std::byte> bytes, std::uint64_t id) const {
  return bytes.size() == size_of(id) && testing::is_pattern(bytes, id * bytes_max, salt);
}

void sample_files::write(const std::string& directory) {
  paths = {write_some(directory, 0, samples - appended)};
  if (appended > 0)
    more = {write_some(directory + "-more", samples - appended, appended)};
}

std::string sample_files::write_some(
  const std::string& directory, std::uint64_t first, std::uint64_t count) const {
  std::filesystem::create_directories(directory);
  auto all = testing::pattern((first + count) * bytes_max, salt);
  auto bytes = std::span<const std::byte>{all}.subspan(first * bytes_max);
  if (!varies)
    return testing::write_npy(directory + "/x.npy", {"x", dtype::u8, {count, bytes_max}}, bytes);
  for (auto id = first; id < first + count; ++id)
    std::ofstream{fmt::format("{}/{:06}", directory, id), std::ios::binary}.write(
      reinterpret_cast<const char*>(all.data() + id * bytes_max),
      static_cast<std::streamsize>(size_of(id)));
  return directory;
}

sample_ledger::sample_ledger(
  std::uint64_t samples, remainder_kind remainder, std::uint64_t seed, shuffle_kind shuffle)
  : samples_(samples), remainder_(remainder), seed_(seed), shuffle_(shuffle) {}

void sample_ledger::begin(const job_shape& shape, const std::optional<loader_state>& at) {
  shape_ = shape;
  partly_.clear();
  ended_.clear();
  reached_.clear();
  auto epoch = at ? at->epoch : 0;
  std::erase_if(read_, [&](auto& one) { return one.first > epoch; });
  if (read_.contains(epoch))
    read_[epoch].resize(std::min<std::uint64_t>(read_[epoch].size(), at ? at->position : 0));
  if (at)
    reached_.push_back(*at);
}

void sample_ledger::got(
  std::uint64_t rank, std::uint64_t set_identity, const batch& b, const loader_state& after) {
  place at{b.epoch(), b.position()};
  demand_none_left_out(rank, at);
  demand(b.ids().size() <= shape_.batch_size, "a batch has as many samples as were asked for");
  auto& step = partly_[at];
  if (step.parts.empty())
    step.after = after;
  demand(step.after == after, "all ranks have the same state after the same batch");
  auto is_new = step.parts.emplace(rank, ids_type{b.ids().begin(), b.ids().end()}).second;
  demand(is_new, "no batch comes twice");
  while (!partly_.empty() && partly_.begin()->second.parts.size() == shape_.world_size) {
    auto first = partly_.extract(partly_.begin());
    put_together(first.key(), first.mapped(), set_identity);
  }
}

void sample_ledger::put_together(const place& at, const step& whole, std::uint64_t set_identity) {
  auto [epoch, position] = at;
  auto& read = read_[epoch];
  demand(
    position == read.size(),
    fmt::format(
      "epoch {}: the batch at {} follows {} samples: some were left out or came twice", epoch,
      position, read.size()));
  sample_order order{samples_, {set_identity, seed_, epoch}, shuffle_};
  for (auto& [rank, ids] : whole.parts)
    for (auto id : ids) {
      auto next = read.size();
      demand(
        next < samples_ && id == order.at(next),
        fmt::format("epoch {}: the sample at {} is the same for all, not {}", epoch, next, id));
      read.push_back(id);
    }
  ++batches_;
  reached_.push_back(whole.after);
  if (reached_.size() > 4)
    reached_.erase(reached_.begin());
}

void sample_ledger::demand_none_left_out(std::uint64_t rank, const place& before) const {
  for (auto& [at, step] : partly_)
    demand(
      at >= before || step.parts.contains(rank),
      fmt::format("epoch {}: samples at {} were left out by rank {}", at.first, at.second, rank));
}

bool sample_ledger::is_far_ahead(std::uint64_t rank) const {
  return std::ranges::count_if(
           partly_, [&](auto& one) { return one.second.parts.contains(rank); }) > 8;
}

void sample_ledger::ended(std::uint64_t rank, std::uint64_t epoch) {
  demand_none_left_out(rank, {epoch + 1, 0});
  auto& by = ended_[epoch];
  by.insert(rank);
  if (by.size() < shape_.world_size)
    return;
  check_epoch(epoch);
  ended_.erase(epoch);
}

void sample_ledger::check_epoch(std::uint64_t epoch) const {
  auto found = read_.find(epoch);
  auto ids = found == read_.end() ? ids_type{} : found->second;
  std::ranges::sort(ids);
  demand(std::ranges::adjacent_find(ids) == ids.end(), "no sample comes twice in an epoch");
  auto missing = samples_ - ids.size();
  auto may_miss =
    remainder_ == remainder_kind::drop ? shape_.batch_size * shape_.world_size - 1 : 0;
  demand(missing <= may_miss, fmt::format("epoch {}: {} samples were left out", epoch, missing));
}

} // namespace millrace::sim

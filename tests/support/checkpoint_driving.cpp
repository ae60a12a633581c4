// Saves and reads whole shards, window by window.
#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/checkpoint_driving.hpp>
#include <millrace/tests/support/held_completion.hpp>

#include <algorithm>
#include <functional>
#include <iterator>

namespace millrace::testing {

using namespace storage;

shard_spec shard_of(
  std::string model, const std::vector<std::uint64_t>& tensor_bytes, std::uint32_t rank,
  std::uint32_t world_size, std::uint32_t keep) {
  shard_spec shard;
  shard.tensors = spec_of(model, tensor_bytes).tensors;
  shard.model = std::move(model);
  shard.rank = rank;
  shard.world_size = world_size;
  shard.keep = keep;
  return shard;
}

std::uint64_t content_seed(const std::string& model, std::uint32_t rank, std::uint64_t step) {
  auto seed = std::uint64_t{1469598103934665603u};
  for (auto c : model)
    seed = (seed ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return (seed ^ rank) * 1099511628211u + step * 0x9e3779b97f4a7c15u;
}

result<enrolled_shard> enroll(checkpoint_store& subject, shard_spec shard) {
  return await<enrolled_shard>(
    [&](auto done) { subject.enroll(std::move(shard), std::move(done)); });
}

result<std::unique_ptr<pending_version>> begin(
  checkpoint_store& subject, std::string model, std::uint32_t rank, std::uint64_t step,
  std::function<void()> freed) {
  return begin(subject, {std::move(model), rank, step}, std::move(freed));
}

result<std::unique_ptr<pending_version>> begin(
  checkpoint_store& subject, save_spec what, std::function<void()> freed) {
  return await<std::unique_ptr<pending_version>>(
    [&](auto done) { subject.begin(std::move(what), std::move(freed), std::move(done)); });
}

result<std::shared_ptr<opened_model>> open_version(
  checkpoint_store& subject, std::string model, std::uint32_t rank,
  std::optional<std::uint64_t> step) {
  return await<std::shared_ptr<opened_model>>(
    [&](auto done) { subject.open(std::move(model), rank, {step}, std::move(done)); });
}

std::uint64_t extra_seed(const shard_spec& shard, std::uint64_t step) {
  return ~content_seed(shard.model, shard.rank, step);
}

result<std::uint64_t> finish(
  pending_version& pending, const shard_spec& shard, std::uint64_t step,
  std::uint64_t extra_bytes) {
  auto seed = content_seed(shard.model, shard.rank, step);
  if (auto bad = fill_windows(pending, seed); !bad.ok())
    return fail(bad);
  auto digests = digests_of(shard.tensors, seed);
  if (auto* room = pending.extra()) {
    auto of_extra = extra_seed(shard, step);
    if (auto bad = fill_windows(*room, of_extra); !bad.ok())
      return fail(bad);
    std::ranges::copy(
      digests_of({{extra_tensor(extra_bytes)}}, of_extra), std::back_inserter(digests));
  }
  return await<std::uint64_t>(
    [&](auto done) { pending.publish(std::move(digests), std::move(done)); });
}

result<std::uint64_t> save(
  checkpoint_store& subject, const shard_spec& shard, std::uint64_t step,
  std::uint64_t extra_bytes) {
  auto pending = begin(
    subject, {.model = shard.model, .rank = shard.rank, .step = step, .extra_bytes = extra_bytes});
  if (!pending)
    return fail(pending.error());
  return finish(**pending, shard, step, extra_bytes);
}

status check_extra(
  checkpoint_store& subject, const shard_spec& shard, std::uint64_t step,
  std::uint64_t extra_bytes) {
  auto opened = await<std::shared_ptr<opened_model>>([&](auto done) {
    subject.open(shard.model, shard.rank, {step, 0, version_part::extra}, std::move(done));
  });
  if (!opened)
    return opened.error();
  auto& record = (*opened)->record();
  if (record.extra_bytes != extra_bytes)
    return {errc::corrupt_data, "it has {} bytes of the user", record.extra_bytes};
  layout expected;
  if (extra_bytes > 0)
    expected.tensors.push_back(extra_tensor(extra_bytes));
  auto seed = extra_seed(shard, step);
  if (record.spec.tensors != expected || record.digests != digests_of(expected, seed))
    return {errc::corrupt_data, "the record is of other bytes of the user"};
  return check_ranges(**opened, everything(expected), seed);
}

status check_version(
  checkpoint_store& subject, const shard_spec& shard, std::optional<std::uint64_t> step) {
  auto opened = open_version(subject, shard.model, shard.rank, step);
  if (!opened)
    return opened.error();
  auto& record = (*opened)->record();
  auto seed = content_seed(shard.model, shard.rank, record.version);
  if (step && record.version != *step)
    return {errc::corrupt_data, "another step was opened"};
  if (record.spec.name != shard.model || record.spec.tensors != shard.tensors)
    return {errc::corrupt_data, "the record is another model's"};
  if (record.digests != digests_of(shard.tensors, seed))
    return {errc::corrupt_data, "the digests differ"};
  return check_ranges(**opened, everything(shard.tensors), seed);
}

result<std::uint64_t> newest_step(
  checkpoint_store& subject, std::string model, std::uint32_t rank) {
  auto opened = open_version(subject, std::move(model), rank);
  if (!opened)
    return fail(opened.error());
  return (*opened)->record().version;
}

std::vector<checkpoint_summary> list_all(checkpoint_store& subject) {
  auto models = await<std::vector<checkpoint_summary>>(
    [&](auto done) { subject.list("", "", 100'000, std::move(done)); });
  return models ? *models : std::vector<checkpoint_summary>{};
}

checkpoint_summary summary_of(checkpoint_store& subject, const std::string& model) {
  for (auto& one : list_all(subject))
    if (one.model == model)
      return one;
  return {};
}

status erase(checkpoint_store& subject, std::string model, std::optional<std::uint64_t> step) {
  auto outcome =
    await<void>([&](auto done) { subject.erase(std::move(model), step, std::move(done)); });
  return outcome ? status{} : outcome.error();
}

result<repack_report> repack(checkpoint_store& subject) {
  return await<repack_report>([&](auto done) { subject.repack({}, std::move(done)); });
}

} // namespace millrace::testing

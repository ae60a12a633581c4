// Reads what a flusher wrote, and compares it with the descriptions. Called to restore from a
// directory.
#include <millrace/core/digest.hpp>
#include <millrace/storage/archive/formats.hpp>
#include <millrace/storage/archive/origin.hpp>
#include <millrace/storage/flush/flushed_step.hpp>
#include <millrace/storage/flush/model_directory.hpp>

#include <fmt/format.h>

#include <filesystem>

namespace millrace::storage::flush {

using namespace archive;

namespace {

status verify_shard(tensor_source& source, const shard_description& about) {
  std::vector<std::byte> buffer;
  auto& tensors = source.tensors().tensors;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    running_digest running;
    auto bad = for_each_step(source, i, buffer, [&](std::uint64_t, auto bytes) {
      running.add(bytes.data(), bytes.size());
      return status{};
    });
    if (!bad.ok())
      return bad;
    if (running.value() != about.digests[i].second)
      return {
        errc::corrupt_data, "{}, tensor {}: the bytes do not match their checksum",
        about.shard.file, tensors[i].name};
  }
  return {};
}

} // namespace

result<shard_description> flushed_step::describe(std::uint32_t rank) const {
  auto found = std::find_if(manifest_.shards.begin(), manifest_.shards.end(), [&](auto& shard) {
    return shard.rank == rank;
  });
  if (found == manifest_.shards.end())
    return fail(
      errc::not_found, "{} has {} ranks, and no rank {}", path_, manifest_.world_size, rank);
  auto at = path_.rfind('/');
  auto about = model_directory::in(path_.substr(0, at))
                 .description(path_.substr(at + 1), rank, manifest_.world_size);
  if (about && about->shard != *found)
    return fail(
      errc::corrupt_data, "{}: the description of rank {} differs from the manifest", path_, rank);
  return about;
}

result<std::unique_ptr<tensor_source>> flushed_step::open(const shard_description& about) const {
  auto file = path_ + "/" + about.shard.file;
  auto source = open_archive(file, archive_format::safetensors);
  if (!source)
    return source;
  auto& tensors = (*source)->tensors().tensors;
  std::error_code why;
  bool same = std::filesystem::file_size(file, why) == about.shard.size_bytes &&
    tensors.size() == about.digests.size();
  for (std::size_t i = 0; same && i < tensors.size(); ++i)
    same = tensors[i].name == about.digests[i].first;
  if (!same)
    return fail(errc::corrupt_data, "{} does not match its description", file);
  return std::make_unique<labelled_source>(std::move(*source), about.metadata);
}

result<std::unique_ptr<tensor_source>> flushed_step::open_shard(std::uint32_t rank) const {
  auto about = describe(rank);
  return about ? open(*about) : fail(about.error());
}

status flushed_step::verify() const {
  if (manifest_.shards.size() != manifest_.world_size)
    return {errc::corrupt_data, "{}: the manifest lacks shards", path_};
  for (auto& shard : manifest_.shards) {
    auto about = describe(shard.rank);
    if (!about)
      return about.error();
    auto source = open(*about);
    if (!source)
      return source.error();
    if (auto bad = verify_shard(**source, *about); !bad.ok())
      return bad;
  }
  return {};
}

result<flushed_step> open_flushed(
  const std::string& directory, const std::string& model, std::optional<std::uint64_t> step) {
  auto from = model_directory::at(directory, model);
  std::string name, there;
  for (auto& place : from.steps())
    if (place.whole) {
      there += fmt::format("{}{}", there.empty() ? "" : ", ", place.step);
      if (step == place.step)
        name = place.name; // the newest directory of the step comes last
    }
  if (!step) {
    auto latest = from.latest();
    if (!latest)
      return fail(latest.error().within("the latest step of " + model));
    name = *latest;
  }
  if (name.empty())
    return fail(
      errc::not_found, "{} has no step {} of {}{}", directory, *step, model,
      there.empty() ? "; it has no step" : "; it has " + there);
  auto manifest = from.manifest(name);
  if (!manifest)
    return fail(manifest.error());
  flushed_step opened;
  opened.path_ = from.path() + "/" + name;
  opened.manifest_ = std::move(*manifest);
  return opened;
}

} // namespace millrace::storage::flush

// Writes a shard's file and its description, in the order that `model_directory` prescribes. Called
// by the step flusher.
#include <millrace/core/digest.hpp>
#include <millrace/core/kill_point.hpp>
#include <millrace/core/log.hpp>
#include <millrace/storage/archive/opened_source.hpp>
#include <millrace/storage/archive/origin.hpp>
#include <millrace/storage/flush/model_directory.hpp>
#include <millrace/storage/flush/version_flusher.hpp>
#include <millrace/storage/io/file_io.hpp>

#include <filesystem>

namespace millrace::storage::flush {

using namespace archive;

namespace {

std::string shard_file(const flush_request& what) {
  return shard_file_stem(what.rank, what.world_size) + ".safetensors";
}

/// Forwards a source and computes the digests of its tensors. Each tensor is read whole and in
/// order.
class digesting_source final : public tensor_source {
public:
  explicit digesting_source(tensor_source& inner) : inner_(inner) {
    digests_.resize(inner.tensors().tensors.size(), digest(nullptr, 0));
  }

  const layout& tensors() const noexcept override { return inner_.tensors(); }
  const text_pairs& metadata() const noexcept override { return inner_.metadata(); }

  status read(std::uint32_t tensor, std::uint64_t offset, std::span<std::byte> into) override {
    if (auto bad = inner_.read(tensor, offset, into); !bad.ok())
      return bad;
    if (offset == 0)
      running_ = std::make_unique<running_digest>();
    running_->add(into.data(), into.size());
    digests_[tensor] = running_->value();
    return {};
  }
  result<std::vector<std::byte>> extra() override { return inner_.extra(); }

  std::vector<std::pair<std::string, std::uint64_t>> digests() const {
    std::vector<std::pair<std::string, std::uint64_t>> named;
    for (std::size_t i = 0; i < digests_.size(); ++i)
      named.emplace_back(tensors().tensors[i].name, digests_[i]);
    return named;
  }

private:
  tensor_source& inner_;
  std::unique_ptr<running_digest> running_;
  std::vector<std::uint64_t> digests_;
};

// Looks up what became of the shard: another process may have finished the step, or removed it
// again.
flush_receipt receipt_of(
  const model_directory& directory, const flush_request& what,
  const std::optional<std::string>& place) {
  flush_receipt receipt;
  auto latest = directory.latest();
  auto step = what.version->record().version;
  for (auto& one : directory.steps())
    if (place ? one.name == *place : one.step == step && one.whole) {
      receipt.file = directory.path() + "/" + one.name + "/" + shard_file(what);
      receipt.whole = one.whole;
      receipt.is_latest = latest && *latest == one.name;
    }
  return receipt;
}

/// Returns the version with its origin among the metadata, as it is written to a file.
std::unique_ptr<tensor_source> source_of(
  const flush_request& what, std::uint32_t read_deadline_ms) {
  auto& record = what.version->record();
  return std::make_unique<labelled_source>(
    make_opened_source(what.version, read_deadline_ms),
    with_origin(
      record.spec.metadata, {what.model, record.version, what.rank, what.world_size, what.axes}));
}

// Finishes the steps that a dead process left unfinished.
status finish_all(const flush_options& options) {
  std::error_code why;
  for (std::filesystem::directory_iterator at{options.directory, why}, end; !why && at != end;
       at.increment(why)) {
    if (!at->is_directory(why))
      continue;
    auto model = model_directory::in(at->path().string());
    if (model.steps().empty())
      continue;
    if (auto bad = model.settle(options.keep, options.lock_deadline_ms); !bad.ok())
      return bad;
  }
  return why ? status_from_errno(why.value(), "listing " + options.directory) : status{};
}

} // namespace

result<version_flusher> version_flusher::open(flush_options options) {
  if (options.directory.empty() || options.keep == 0)
    return fail(
      errc::invalid_argument, "flushing needs a directory, and at least one step to keep");
  if (auto bad = io::make_directories(options.directory); !bad.ok())
    return fail(bad);
  // A damaged model must not prevent the others from being flushed.
  if (auto bad = finish_all(options); !bad.ok())
    log().warn("flushing to {}: {}", options.directory, bad.to_string());
  return version_flusher{std::move(options)};
}

result<flush_receipt> version_flusher::flush(
  const flush_request& what, const std::atomic<bool>& stopping) const {
  auto& record = what.version->record();
  auto directory = model_directory::make(options_.directory, what.model);
  if (!directory)
    return fail(directory.error());
  auto place = directory->place_for(
    {what.rank, shard_file(what), 0, record.stored_at_ns}, record.version, what.world_size,
    options_.lock_deadline_ms);
  if (!place)
    return fail(place.error());
  if (*place)
    if (auto bad = write(*directory, **place, what, stopping); !bad.ok()) {
      directory->give_up(**place);
      return fail(bad.within("flushing " + what.model));
    }
  if (auto bad = directory->settle(options_.keep, options_.lock_deadline_ms); !bad.ok())
    return fail(bad.within("flushing " + what.model));
  return receipt_of(*directory, what, *place);
}

status version_flusher::write(
  model_directory& directory, const std::string& place, const flush_request& what,
  const std::atomic<bool>& stopping) const {
  auto& record = what.version->record();
  auto source = source_of(what, options_.read_deadline_ms);
  digesting_source passing{*source};
  auto path = directory.path() + "/" + place + "/" + shard_file(what);
  MILLRACE_KILL_POINT("flush.before_shard");
  archive_options how{.replace = true, .progress = [&stopping](auto, auto) { return !stopping; }};
  if (auto bad = write_archive(archive_format::safetensors, path, passing, how); !bad.ok())
    return bad;
  MILLRACE_KILL_POINT("flush.after_shard");
  std::error_code why;
  auto size_bytes = std::filesystem::file_size(path, why);
  if (why)
    return status_from_errno(why.value(), "examining " + path);
  auto bad = directory.describe(
    place,
    {what.model,
     record.version,
     what.world_size,
     {what.rank, shard_file(what), size_bytes, record.stored_at_ns},
     what.axes,
     record.spec.metadata,
     passing.digests()});
  MILLRACE_KILL_POINT("flush.after_description");
  return bad;
}

} // namespace millrace::storage::flush

// One thread and a bounded queue; the order of writes is that of `model_directory`.
#include <millrace/core/digest.hpp>
#include <millrace/core/kill_point.hpp>
#include <millrace/core/log.hpp>
#include <millrace/storage/archive/opened_source.hpp>
#include <millrace/storage/flush/model_directory.hpp>
#include <millrace/storage/flush/version_flusher.hpp>
#include <millrace/storage/io/file_io.hpp>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <mutex>
#include <thread>

namespace millrace::storage {

namespace {

/// Passes a source on and takes the digests of tensors as they go by, whole and from the front.
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

class background_flusher final : public version_flusher {
public:
  explicit background_flusher(flush_options options)
    : options_(std::move(options)), worker_([this] { work(); }) {}

  ~background_flusher() override { static_cast<void>(close(0)); }

  void flush(flush_request what, completion<flush_receipt> done) override {
    {
      std::lock_guard guard{mutex_};
      if (!closing_ && waiting_.size() < options_.queue_max) {
        waiting_.push_back({std::move(what), std::move(done)});
        changed_.notify_all();
        return;
      }
    }
    auto name = "flushing " + what.model;
    done(
      closing_ ? fail(errc::unavailable, name + ": shutting down")
               : fail(
                   errc::busy,
                   name + ": " + std::to_string(options_.queue_max) + " versions wait already; " +
                     options_.directory + " is slower than the saves"));
  }

  status close(std::uint32_t deadline_ms) override {
    std::unique_lock guard{mutex_};
    closing_ = true;
    changed_.notify_all();
    bool drained = changed_.wait_for(
      guard, std::chrono::milliseconds{deadline_ms}, [this] { return waiting_.empty() && !busy_; });
    cancelled_ = true;
    guard.unlock();
    if (worker_.joinable())
      worker_.join();
    return drained ? status{}
                   : status{errc::deadline_exceeded, "versions were left to flush at the end"};
  }

private:
  struct job {
    flush_request what;
    completion<flush_receipt> done;
  };

  void work() {
    std::unique_lock guard{mutex_};
    for (;;) {
      changed_.wait(guard, [this] { return closing_ || !waiting_.empty(); });
      if (waiting_.empty())
        return;
      auto next = std::move(waiting_.front());
      waiting_.pop_front();
      busy_ = true;
      guard.unlock();
      auto outcome = cancelled_
        ? fail(errc::cancelled, "flushing " + next.what.model + ": shutting down")
        : copy(next.what);
      next.what.version.reset(); // before anybody is told
      next.done(std::move(outcome));
      next = {};
      guard.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

  result<flush_receipt> copy(const flush_request& what) {
    auto& record = what.version->record();
    auto directory = model_directory::make(options_.directory, what.model);
    if (!directory)
      return fail(directory.error());
    auto place =
      directory->place_for(record.version, what.rank, what.world_size, record.stored_at_ns);
    if (!place)
      return fail(place.error());
    if (*place)
      if (auto bad = write(*directory, **place, what); !bad.ok())
        return fail(bad.within("flushing " + what.model));
    if (auto bad = directory->settle(options_.keep, options_.lock_deadline_ms); !bad.ok())
      return fail(bad.within("flushing " + what.model));
    return receipt_of(*directory, what, *place);
  }

  status write(model_directory& directory, const std::string& place, const flush_request& what) {
    auto& record = what.version->record();
    auto source = make_opened_source(what.version, options_.read_deadline_ms);
    digesting_source passing{*source};
    flushed_shard shard{what.rank, shard_file_stem(what.rank, what.world_size) + ".safetensors",
                        0,         record.stored_at_ns,
                        what.axes, record.spec.metadata,
                        {}};
    auto path = directory.path() + "/" + place + "/" + shard.file;
    MILLRACE_KILL_POINT("flush.before_shard");
    archive_options how{.replace = true, .progress = [this](auto, auto) { return !cancelled_; }};
    if (auto bad = write_archive(archive_format::safetensors, path, passing, how); !bad.ok())
      return bad;
    MILLRACE_KILL_POINT("flush.after_shard");
    std::error_code why;
    shard.size_bytes = std::filesystem::file_size(path, why);
    if (why)
      return status_from_errno(why.value(), "examining " + path);
    shard.digests = passing.digests();
    auto bad = directory.describe(place, record.version, what.world_size, std::move(shard));
    MILLRACE_KILL_POINT("flush.after_description");
    return bad;
  }

  // What became of it: another process may have been the one to finish the step, and to remove it again.
  static result<flush_receipt> receipt_of(
    const model_directory& directory, const flush_request& what,
    const std::optional<std::string>& place) {
    flush_receipt receipt;
    auto latest = directory.latest();
    auto step = what.version->record().version;
    for (auto& one : directory.steps())
      if (place ? one.name == *place : one.step == step && one.whole) {
        receipt.file = directory.path() + "/" + one.name + "/" +
          shard_file_stem(what.rank, what.world_size) + ".safetensors";
        receipt.whole = one.whole;
        receipt.is_latest = latest && *latest == one.name;
      }
    return receipt;
  }

  flush_options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<job> waiting_;
  bool busy_ = false;
  std::atomic<bool> closing_ = false;
  std::atomic<bool> cancelled_ = false;
  std::thread worker_; // last: it uses all of the above
};

// What a process that died left to do.
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

result<std::unique_ptr<version_flusher>> version_flusher::open(flush_options options) {
  if (options.directory.empty() || options.keep == 0 || options.queue_max == 0)
    return fail(
      errc::invalid_argument, "flushing needs a directory, and at least one step to keep");
  if (auto bad = io::make_directories(options.directory); !bad.ok())
    return fail(bad);
  // One damaged model must not keep the others from being flushed.
  if (auto bad = finish_all(options); !bad.ok())
    log().warn("flushing to {}: {}", options.directory, bad.to_string());
  return std::make_unique<background_flusher>(std::move(options));
}

} // namespace millrace::storage

// Opens a pool that no service has open, in the command's own process.
#include <millrace/core/digest.hpp>
#include <millrace/storage/archive/opened_source.hpp>
#include <millrace/storage/await.hpp>
#include <millrace/storage/pmem/pool.hpp>
#include <millrace/tools/checkpoints/access.hpp>

#include <algorithm>
#include <cstring>
#include <span>

namespace millrace::tools {

namespace {

using storage::await;

// These bounds are generous: each wait ends with the disk's own work.
constexpr auto short_wait = std::chrono::minutes{1};
constexpr auto long_wait = std::chrono::hours{24};
constexpr std::uint32_t list_page = 1000;

/// Fills a version's windows from a source and computes the digests at the same time.
class version_filler {
public:
  version_filler(
    storage::pending_version& version, storage::archive::tensor_source& source,
    std::span<const std::byte> extra, const storage::progress_callback& progress)
    : version_(version), source_(source), extra_(extra), progress_(progress),
      total_(size_bytes(source.tensors())) {
    for (auto& tensor : source.tensors().tensors) {
      first_digest_.push_back(digests_.size());
      digests_.resize(digests_.size() + digest_count(size_bytes(tensor).value_or(0)));
    }
  }

  status fill() {
    auto outcome = fill(version_, [this](auto& piece) { return this->fill(piece); });
    if (auto* room = version_.extra(); room && outcome.ok())
      outcome = fill(*room, [this](auto& piece) {
        std::memcpy(piece.data, extra_.data() + piece.tensor_offset, piece.length);
        return status{};
      });
    if (!outcome.ok())
      return outcome;
    for (std::uint64_t at = 0; at < extra_.size(); at += digest_block_bytes)
      digests_.push_back(digest(
        extra_.data() + at, std::min<std::uint64_t>(digest_block_bytes, extra_.size() - at)));
    auto published = await<std::uint64_t>(
      long_wait, [&](auto done) { version_.publish(digests_, std::move(done)); });
    return published ? status{} : published.error();
  }

private:
  template <class FillPiece>
  static status fill(storage::window_space& room, FillPiece fill_piece) {
    for (std::uint32_t i = 0; i < room.window_count(); ++i) {
      auto window = await<storage::window>(
        short_wait, [&](auto done) { room.acquire(i, {}, std::move(done)); });
      if (!window)
        return window.error();
      for (auto& piece : window->pieces)
        if (auto bad = fill_piece(piece); !bad.ok())
          return bad;
      window = {};
      auto written = await<void>(long_wait, [&](auto done) { room.commit(i, std::move(done)); });
      if (!written)
        return written.error();
    }
    return {};
  }

  // Goes block by block, so that the bytes are still in the cache when they are digested.
  status fill(const storage::piece& piece) {
    for (std::uint64_t at = 0; at < piece.length; at += digest_block_bytes) {
      auto bytes = std::min(digest_block_bytes, piece.length - at);
      auto offset = piece.tensor_offset + at;
      if (auto bad = source_.read(piece.tensor, offset, {piece.data + at, bytes}); !bad.ok())
        return bad;
      digests_[first_digest_[piece.tensor] + offset / digest_block_bytes] =
        digest(piece.data + at, bytes);
      done_ += bytes;
      if (progress_ && !progress_(done_, total_))
        return {errc::cancelled, "stopped on request"};
    }
    return {};
  }

  storage::pending_version& version_;
  storage::archive::tensor_source& source_;
  std::span<const std::byte> extra_;
  const storage::progress_callback& progress_;
  std::uint64_t total_;
  std::uint64_t done_ = 0;
  std::vector<std::size_t> first_digest_;
  std::vector<std::uint64_t> digests_;
};

class pool_access final : public checkpoint_access {
public:
  pool_access(std::string path, std::shared_ptr<storage::pool> pool)
    : path_(std::move(path)), pool_(std::move(pool)), store_(pool_->checkpoints()) {}

  ~pool_access() override {
    static_cast<void>(
      store_->close(static_cast<std::uint32_t>(std::chrono::milliseconds{short_wait}.count())));
  }

  result<listed<checkpoint_summary>> list(const std::string& prefix) override {
    listed<checkpoint_summary> all;
    for (;;) {
      auto after = all.found.empty() ? std::string{} : all.found.back().model;
      auto page = await<std::vector<checkpoint_summary>>(
        short_wait, [&](auto done) { store_->list(prefix, after, list_page, std::move(done)); });
      if (!page)
        return fail(page.error());
      for (auto& model : *page)
        all.found.push_back({std::move(model), {}});
      if (page->size() < list_page)
        return all;
    }
  }

  // A listing whose prefix is a model's name begins with that model.
  result<checkpoint_summary> describe(
    const std::string& model, std::optional<std::uint64_t>) override {
    auto page = await<std::vector<checkpoint_summary>>(
      short_wait, [&](auto done) { store_->list(model, {}, 1, std::move(done)); });
    if (!page)
      return fail(page.error());
    if (page->empty() || page->front().model != model)
      return fail(errc::not_found, "there are no checkpoints of {} in {}", model, path_);
    return std::move(page->front());
  }

  result<shard_spec> describe_shard(
    const std::string& model, std::uint32_t rank, std::optional<std::uint64_t>) override {
    return await<shard_spec>(
      short_wait, [&](auto done) { store_->describe(model, rank, std::move(done)); });
  }

  result<std::unique_ptr<storage::archive::tensor_source>> open(
    const std::string& model, std::uint32_t rank, std::uint64_t step) override {
    return open_one(model, rank, {step});
  }

  result<verified_version> verify(
    const std::string& model, std::uint32_t rank, const version_summary& version,
    const storage::progress_callback& progress) override {
    auto source = open_one(model, rank, {version.step, version.saved_at_ns});
    if (!source)
      return fail(source.error());
    verified_version seen;
    std::vector<std::byte> buffer(4u << 20);
    auto all = size_bytes((*source)->tensors());
    auto& tensors = (*source)->tensors().tensors;
    for (std::uint32_t i = 0; i < tensors.size(); ++i) {
      auto total = size_bytes(tensors[i]).value_or(0);
      for (std::uint64_t at = 0; at < total; at += buffer.size()) {
        auto step_bytes = std::min<std::uint64_t>(buffer.size(), total - at);
        auto bad = (*source)->read(i, at, {buffer.data(), step_bytes});
        if (bad.code() == errc::corrupt_data) {
          seen.corrupt.push_back(tensors[i].name);
          break;
        }
        if (!bad.ok())
          return fail(bad);
        if (progress && !progress(seen.size_bytes + at + step_bytes, all))
          return fail(errc::cancelled, "stopped on request");
      }
      seen.size_bytes += total;
    }
    auto extra = (*source)->extra();
    if (!extra && extra.error().code() != errc::corrupt_data)
      return fail(extra.error());
    if (!extra)
      seen.corrupt.emplace_back("the user's bytes");
    else
      seen.size_bytes += extra->size();
    return seen;
  }

  status import(
    shard_spec shard, std::uint64_t step, storage::archive::tensor_source& source,
    const storage::progress_callback& progress) override {
    auto finished = is_finished(describe(shard.model, std::nullopt), shard.rank);
    shard.life = life_of_imports;
    auto enrolled = await<storage::enrolled_shard>(
      short_wait, [&](auto done) { store_->enroll(shard, std::move(done)); });
    if (!enrolled)
      return enrolled.error();
    auto bad = fill(shard, step, source, progress);
    store_->leave(shard.model, shard.rank, finished);
    return bad;
  }

  status erase(const std::string& model, std::optional<std::uint64_t> step) override {
    auto gone =
      await<void>(short_wait, [&](auto done) { store_->erase(model, step, std::move(done)); });
    return gone ? status{} : gone.error();
  }

  std::vector<result<std::pair<std::string, repack_report>>> repack(
    const storage::progress_callback& progress) override {
    auto report = await<repack_report>(
      long_wait, [&](auto done) { store_->repack(progress, std::move(done)); });
    return {report.map([&](auto& r) { return std::pair{path_, r}; })};
  }

private:
  result<std::unique_ptr<storage::archive::tensor_source>> open_one(
    const std::string& model, std::uint32_t rank, storage::version_choice which) {
    which.part = storage::version_part::all;
    auto version = await<std::shared_ptr<storage::opened_model>>(
      short_wait, [&](auto done) { store_->open(model, rank, which, std::move(done)); });
    if (!version)
      return fail(version.error());
    return storage::archive::make_opened_source(std::move(*version));
  }

  status fill(
    const shard_spec& shard, std::uint64_t step, storage::archive::tensor_source& source,
    const storage::progress_callback& progress) {
    auto extra = source.extra();
    if (!extra)
      return extra.error();
    auto version = await<std::unique_ptr<storage::pending_version>>(short_wait, [&](auto done) {
      store_->begin(
        {.model = shard.model, .rank = shard.rank, .step = step, .extra_bytes = extra->size()}, {},
        std::move(done));
    });
    return version ? version_filler{**version, source, *extra, progress}.fill() : version.error();
  }

  std::string path_;
  std::shared_ptr<storage::pool> pool_;
  std::shared_ptr<storage::checkpoint_store> store_;
};

} // namespace

tl::expected<std::unique_ptr<checkpoint_access>, failure> open_pool_access(
  const std::string& path) {
  storage::pool_options options;
  options.path = path;
  options.populate = false;
  auto pool = storage::open_pool(std::move(options));
  if (!pool)
    return tl::unexpected{failure{pool.error()}};
  return std::make_unique<pool_access>(path, std::move(*pool));
}

} // namespace millrace::tools

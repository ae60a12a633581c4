// Reads and writes checkpoints of a running service, through the client.
#include <millrace/core/assert.hpp>
#include <millrace/tools/checkpoints/access.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>

namespace millrace::tools {

namespace {

/// A version in this process. One transfer brought all of it, so no save came between its tensors.
class loaded_source final : public storage::archive::tensor_source {
public:
  explicit loaded_source(shard_spec shard) : shard_(std::move(shard)) {
    for (auto& tensor : shard_.tensors.tensors)
      held_.emplace_back(size_bytes(tensor).value_or(0));
  }

  /// Returns the memory for its tensors.
  std::vector<tensor_view> targets() {
    std::vector<tensor_view> out;
    for (std::size_t i = 0; i < held_.size(); ++i)
      if (!held_[i].empty())
        out.push_back({shard_.tensors.tensors[i], held_[i].data(), {}});
    return out;
  }

  const layout& tensors() const noexcept override { return shard_.tensors; }
  const storage::archive::text_pairs& metadata() const noexcept override { return shard_.metadata; }
  result<std::vector<std::byte>> extra() override { return extra_; }
  void set_extra(const std::vector<std::uint8_t>& bytes) {
    auto view = std::as_bytes(std::span{bytes});
    extra_.assign(view.begin(), view.end());
  }

  status read(std::uint32_t tensor, std::uint64_t offset, std::span<std::byte> into) override {
    auto& held = held_.at(tensor);
    MILLRACE_ASSERT(offset <= held.size() && into.size() <= held.size() - offset);
    if (!into.empty())
      std::memcpy(into.data(), held.data() + offset, into.size());
    return {};
  }

private:
  shard_spec shard_;
  std::vector<std::vector<std::byte>> held_;
  std::vector<std::byte> extra_;
};

class service_access final : public checkpoint_access {
public:
  service_access(client service, std::string group)
    : client_(std::move(service)), group_(std::move(group)), all_(client_.checkpoints(group_)) {}

  result<listed<checkpoint_summary>> list(const std::string& prefix) override {
    return all_.list(prefix).result();
  }
  result<checkpoint_summary> describe(
    const std::string& model, std::optional<std::uint64_t> step) override {
    return all_.describe(model, step).result();
  }
  result<shard_spec> describe_shard(
    const std::string& model, std::uint32_t rank, std::optional<std::uint64_t> step) override {
    return all_.describe_shard(model, rank, step).result();
  }

  result<std::unique_ptr<storage::archive::tensor_source>> open(
    const std::string& model, std::uint32_t rank, std::uint64_t step) override {
    auto known = describe(model, step);
    if (!known)
      return fail(known.error());
    if (auto bad = check_step(*known, rank, step); !bad.ok())
      return fail(bad);
    auto shard = describe_shard(model, rank, step);
    if (!shard)
      return fail(shard.error());
    auto source = std::make_unique<loaded_source>(std::move(*shard));
    auto loaded = all_.load(model, rank, step, source->targets()).result();
    if (!loaded)
      return fail(loaded.error());
    source->set_extra(loaded->extra);
    return source;
  }

  result<verified_version> verify(
    const std::string& model, std::uint32_t rank, const version_summary& version,
    const storage::progress_callback& progress) override {
    auto outcome =
      outcome_of(all_.verify(model, rank, version.step, {}, version.saved_at_ns), progress);
    return outcome.map([](const auto& receipt) {
      return verified_version{receipt.size_bytes, receipt.corrupt};
    });
  }

  // The provider pulls from this process, so the whole shard is in memory here.
  status import(
    shard_spec shard, std::uint64_t step, storage::archive::tensor_source& source,
    const storage::progress_callback& progress) override {
    std::vector<std::vector<std::byte>> memory;
    std::vector<tensor_view> views;
    if (auto bad = read_all(source, memory, views, progress); !bad.ok())
      return bad;
    auto extra = source.extra();
    if (!extra)
      return extra.error();
    auto finished = is_finished(describe(shard.model, std::nullopt), shard.rank);
    checkpoint_options options{
      .model = shard.model,
      .rank = shard.rank,
      .world_size = shard.world_size,
      .keep = shard.keep,
      .axes = shard.axes,
      .metadata = shard.metadata,
      .group = group_,
      .life = life_of_imports,
      .places = shard.places};
    auto saver = client_.checkpointer(options, std::move(views)).result();
    if (!saver)
      return saver.error();
    auto saved = saver->save(step, save_mode::direct, *extra).durable.result();
    // `close` reports the failure of the save again.
    auto closed = saver->close(finished);
    return saved ? closed : saved.error();
  }

  status erase(const std::string& model, std::optional<std::uint64_t> step) override {
    auto gone = all_.erase(model, step).result();
    return gone ? status{} : gone.error();
  }

  std::vector<result<std::pair<std::string, repack_report>>> repack(
    const storage::progress_callback& progress) override {
    auto answers = outcome_of(all_.repack(), progress);
    if (!answers)
      return {fail(answers.error())};
    return std::move(*answers);
  }

private:
  // The service does not report its progress, so the line shows only that time passes.
  template <class T>
  static result<T> outcome_of(future<T> coming, const storage::progress_callback& progress) {
    constexpr auto redraw = std::chrono::milliseconds{100};
    while (!coming.wait_for(redraw))
      if (progress && !progress(0, 0))
        coming.cancel();
    return std::move(coming).result();
  }

  static status check_step(
    const checkpoint_summary& model, std::uint32_t rank, std::uint64_t step) {
    std::string there;
    for (auto& shard : model.shards) {
      if (shard.rank != rank)
        continue;
      for (auto& slot : shard.slots)
        if (slot.state == slot_state::done) {
          if (slot.step == step)
            return {};
          there += fmt::format("{}{}", there.empty() ? "; it has " : ", ", slot.step);
        }
    }
    return {errc::not_found, "rank {} of {} has no step {}{}", rank, model.model, step, there};
  }

  static status read_all(
    storage::archive::tensor_source& source, std::vector<std::vector<std::byte>>& memory,
    std::vector<tensor_view>& views, const storage::progress_callback& progress) {
    auto& tensors = source.tensors().tensors;
    auto total = size_bytes(source.tensors());
    constexpr std::uint64_t step = 4u << 20;
    std::uint64_t done = 0;
    for (std::uint32_t i = 0; i < tensors.size(); ++i) {
      auto bytes = size_bytes(tensors[i]).value_or(0);
      auto& into = memory.emplace_back(bytes);
      for (std::uint64_t at = 0; at < bytes; at += step) {
        auto length = std::min(step, bytes - at);
        if (auto bad = source.read(i, at, {into.data() + at, length}); !bad.ok())
          return bad;
        done += length;
        if (progress && !progress(done, total))
          return {errc::cancelled, "stopped on request"};
      }
      views.push_back({tensors[i], into.data(), {}});
    }
    return {};
  }

  client client_;
  std::string group_;
  checkpoints all_;
};

} // namespace

tl::expected<std::unique_ptr<checkpoint_access>, failure> open_service_access(
  const checkpoint_place& place) {
  auto client = connect_to(place);
  if (!client)
    return tl::unexpected{client.error()};
  return std::make_unique<service_access>(std::move(*client), place.group);
}

} // namespace millrace::tools

// The calls of the store: each passes the gate, and runs on the pool's threads where it may wait.
// Called by the checkpoint actors.
#include <millrace/storage/pmem/calls.hpp>
#include <millrace/storage/pmem/care/erase.hpp>
#include <millrace/storage/pmem/care/repack.hpp>
#include <millrace/storage/pmem/enroll.hpp>
#include <millrace/storage/pmem/opening.hpp>
#include <millrace/storage/pmem/pmem_checkpoint_store.hpp>
#include <millrace/storage/pmem/saving.hpp>

namespace millrace::storage::pmem {

namespace {

class pmem_checkpoint_store final : public checkpoint_store {
public:
  explicit pmem_checkpoint_store(std::shared_ptr<pool_state> state) : state_(std::move(state)) {}

  checkpoint_capabilities capabilities() const noexcept override {
    auto medium = state_->file.medium;
    return {
      .durable = medium != pool_medium::memory,
      .in_place = !state_->direct,
      .cpu_flush = state_->persist.how() == write_back::cache_lines};
  }

  void enroll(shard_spec shard, completion<enrolled_shard> done) override {
    // Reclaiming reads the versions that stay, so it runs on the pool's threads.
    auto reclaims = state_->options.low_space == when_low_space::reclaim;
    run_call<enrolled_shard>(
      state_, state_->operations, std::move(done),
      [shard = std::move(shard)](auto& state, auto&) { return enroll_shard(*state, shard); },
      reclaims ? call_place::pool : call_place::by_medium);
  }

  void leave(std::string model, std::uint32_t rank, bool finished) override {
    auto ticket = state_->operations.enter();
    if (!ticket)
      return;
    if (auto s = leave_shard(*state_, model, rank, finished))
      run<void>(
        [](auto) {},
        [model = std::move(model), s](auto& state, auto&) -> result<void> {
          mark_finished(*state, model, s);
          return {};
        });
  }

  void begin(
    save_spec what, std::function<void()> freed,
    completion<std::unique_ptr<pending_version>> done) override {
    run<std::unique_ptr<pending_version>>(
      std::move(done),
      [what = std::move(what), freed = std::move(freed)](auto& state, auto& ticket) mutable {
        return begin_version(state, what, std::move(freed), std::move(ticket));
      });
  }

  void open(
    std::string model, std::uint32_t rank, version_choice which,
    completion<std::shared_ptr<opened_model>> done) override {
    run<std::shared_ptr<opened_model>>(
      std::move(done), [model = std::move(model), rank, which](auto& state, auto&) {
        return open_version(state, model, rank, which);
      });
  }

  void list(
    std::string prefix, std::string after, std::uint32_t count_max,
    completion<std::vector<checkpoint_summary>> done) override {
    auto ticket = state_->operations.enter();
    if (!ticket)
      return done(fail(closed_status(*state_)));
    done(list_models(prefix, after, count_max));
  }

  void describe(std::string model, std::uint32_t rank, completion<shard_spec> done) override {
    auto ticket = state_->operations.enter();
    done(ticket ? describe_shard(model, rank) : fail(closed_status(*state_)));
  }

  void erase(std::string model, std::optional<std::uint64_t> step, completion<void> done) override {
    run<void>(
      std::move(done), [model = std::move(model), step](auto& state, auto&) -> result<void> {
        if (auto bad = erase_model(*state, model, step); !bad.ok())
          return fail(std::move(bad));
        return {};
      });
  }

  void repack(progress_callback progress, completion<repack_report> done) override {
    auto ticket = state_->operations.enter();
    if (!ticket)
      return done(fail(closed_status(*state_)));
    start_repack(state_, std::move(progress), std::move(ticket), std::move(done));
  }

  bucket_stats stats() const override {
    bucket_stats out;
    auto size = state_->file.size_bytes, models = state_->stored->used_bytes();
    out.capacity_bytes = size > models ? size - models : 0; // without the repository
    for (auto& m : state_->all()) {
      std::lock_guard guard{m->mutex};
      out.models += !m->shards.empty();
      for (auto& [rank, s] : m->shards)
        for (auto& one : s->slots)
          out.used_bytes += one.reserved_bytes;
    }
    return out;
  }

  status close(std::uint32_t deadline_ms) override {
    state_->operations.close();
    state_->stopping = true; // ends a repack at its next window
    auto left =
      state_->operations.wait_empty(steady_clock::now() + std::chrono::milliseconds{deadline_ms});
    if (left > 0)
      return {
        errc::deadline_exceeded, "closing pool {}: {} operations were still running after {} ms",
        state_->file.path, left, deadline_ms};
    state_->stop();
    return {};
  }

private:
  template <class T, class Work>
  void run(completion<T> done, Work work) {
    run_call<T>(state_, state_->operations, std::move(done), std::move(work));
  }

  result<std::vector<checkpoint_summary>> list_models(
    const std::string& prefix, const std::string& after, std::uint32_t count_max) const {
    std::vector<checkpoint_summary> page;
    for (auto& m : state_->all()) {
      if (page.size() == count_max)
        break;
      if (m->name <= after || !m->name.starts_with(prefix))
        continue;
      std::lock_guard guard{m->mutex};
      auto summary = summarize(*m);
      if (!summary.shards.empty())
        page.push_back(std::move(summary));
    }
    return page;
  }

  result<shard_spec> describe_shard(const std::string& name, std::uint32_t rank) const {
    auto m = state_->find(name);
    if (!m)
      return fail(no_such_model(name));
    std::lock_guard guard{m->mutex};
    auto s = find_shard(*m, rank);
    if (!s)
      return fail(no_such_shard(name, rank));
    return s->spec;
  }

  std::shared_ptr<pool_state> state_;
};

} // namespace

std::shared_ptr<checkpoint_store> make_pmem_checkpoint_store(std::shared_ptr<pool_state> state) {
  return std::make_shared<pmem_checkpoint_store>(std::move(state));
}

} // namespace millrace::storage::pmem

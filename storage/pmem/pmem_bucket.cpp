// The calls of the bucket: each passes the gate and locks its model. Called by a provider's
// `tensor_store`.
#include <millrace/core/kill_point.hpp>
#include <millrace/storage/model_check.hpp>
#include <millrace/storage/pmem/calls.hpp>
#include <millrace/storage/pmem/care/erase.hpp>
#include <millrace/storage/pmem/catalog.hpp>
#include <millrace/storage/pmem/opening.hpp>
#include <millrace/storage/pmem/pmem_bucket.hpp>
#include <millrace/storage/pmem/repository_space.hpp>
#include <millrace/storage/pmem/storing.hpp>

namespace millrace::storage::pmem {

namespace {

/// The version of a name, with its model locked; null when the name has none.
struct locked_version {
  std::shared_ptr<model> of;
  std::unique_lock<std::mutex> lock;
  std::shared_ptr<stored_version> version;
};

locked_version lock_stored(const pool_state& state, const std::string& name) {
  locked_version found{state.find(name), {}, nullptr};
  if (found.of) {
    found.lock = std::unique_lock{found.of->mutex};
    found.version = find_stored(*found.of);
  }
  return found;
}

status erase_stored(pool_state& state, const std::string& name, std::uint64_t version) {
  auto at = lock_stored(state, name);
  auto newest = at.version ? at.version->number() : 0;
  if (newest == 0 || (version != 0 && version != newest))
    return storage::no_such_model(name, version, newest);
  if (auto bad = erase_owner(state, *at.of, *at.version, at.version->flags()); !bad.ok())
    return bad;
  forget_stored(state, name);
  return {};
}

status pin_stored(pool_state& state, const std::string& name, bool pinned) {
  auto at = lock_stored(state, name);
  if (!at.version)
    return storage::no_such_model(name, 0, 0);
  auto& spec = at.version->spec;
  auto was = std::exchange(spec.pinned, pinned);
  change mark{*state.objects};
  set_flags(state, mark, *at.version, at.version->flags());
  auto outcome = state.publish(mark);
  MILLRACE_KILL_POINT("pmem.pin.after_publish");
  if (!outcome.ok())
    spec.pinned = was;
  return outcome;
}

result<void> as_result(status outcome) {
  if (!outcome.ok())
    return fail(std::move(outcome));
  return {};
}

class pmem_bucket final : public bucket {
public:
  explicit pmem_bucket(std::shared_ptr<pool_state> state) : state_(std::move(state)) {}

  std::string_view kind() const noexcept override { return "pmem"; }
  bucket_capabilities capabilities() const noexcept override {
    return {
      .durable = state_->file.medium != pool_medium::memory,
      .in_place = !state_->direct,
      .evicts = state_->options.models_full == when_full::evict};
  }

  void reserve(
    model_spec spec, std::vector<described_layer> layers,
    completion<std::unique_ptr<reservation>> done) override {
    run<std::unique_ptr<reservation>>(
      std::move(done),
      [spec = std::move(spec), layers = std::move(layers)](auto& state, auto& ticket) mutable {
        return reserve_model(state, std::move(spec), layers, std::move(ticket));
      });
  }

  void open(std::string name, std::uint64_t version, completion<std::shared_ptr<opened_model>> done)
    override {
    run<std::shared_ptr<opened_model>>(
      std::move(done), [name = std::move(name), version](auto& state, auto&) {
        return open_stored(state, name, version);
      });
  }

  void erase(std::string name, std::uint64_t version, completion<void> done) override {
    run<void>(std::move(done), [name = std::move(name), version](auto& state, auto&) {
      return as_result(erase_stored(*state, name, version));
    });
  }

  void pin(std::string name, bool pinned, completion<void> done) override {
    run<void>(std::move(done), [name = std::move(name), pinned](auto& state, auto&) {
      return as_result(pin_stored(*state, name, pinned));
    });
  }

  void list(
    std::string prefix, std::string after, std::uint32_t count_max,
    completion<std::vector<model_summary>> done) override {
    run<std::vector<model_summary>>(
      std::move(done),
      [prefix = std::move(prefix), after = std::move(after),
       count_max](auto& state, auto&) -> result<std::vector<model_summary>> {
        return list_stored(*state, prefix, after, count_max);
      });
  }

  void resolve(std::vector<layer_id> ids, completion<std::vector<described_layer>> done) override {
    auto ticket = state_->bucket_operations.enter();
    done(ticket ? state_->layers->resolve(ids) : fail(closed_status(*state_)));
  }

  bucket_stats stats() const override {
    bucket_stats out;
    {
      std::lock_guard guard{state_->models_mutex};
      out.models = state_->stored_models.size();
      out.marks = state_->stored_models.marks();
    }
    out.capacity_bytes = capacity_of(*state_);
    out.used_bytes = state_->stored->used_bytes();
    out.descriptions_bytes = state_->descriptions->used_bytes();
    out.evictions = state_->evictions;
    return out;
  }

  status close(std::uint32_t deadline_ms) override {
    auto& operations = state_->bucket_operations;
    operations.close();
    auto left = operations.wait_empty(steady_clock::now() + std::chrono::milliseconds{deadline_ms});
    if (left == 0)
      return {};
    return {
      errc::deadline_exceeded,
      "closing the models of pool {}: {} operations were still running after {} ms",
      state_->file.path, left, deadline_ms};
  }

private:
  template <class T, class Work>
  void run(completion<T> done, Work work) {
    run_call<T>(state_, state_->bucket_operations, std::move(done), std::move(work));
  }

  static std::vector<model_summary> list_stored(
    const pool_state& state, const std::string& prefix, const std::string& after,
    std::uint32_t count_max) {
    std::vector<model_summary> page;
    for (auto& m : state.all()) {
      if (page.size() == count_max)
        break;
      if (m->name <= after || !m->name.starts_with(prefix))
        continue;
      std::lock_guard guard{m->mutex};
      if (auto v = find_stored(*m))
        page.push_back(summarize(*v));
    }
    return page;
  }

  std::shared_ptr<pool_state> state_;
};

} // namespace

std::shared_ptr<bucket> make_pmem_bucket(std::shared_ptr<pool_state> state) {
  return std::make_shared<pmem_bucket>(std::move(state));
}

} // namespace millrace::storage::pmem

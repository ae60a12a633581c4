// Stores a version's objects, its entry in the table and its number, and frees the version before
// it, in one publish. Called by the bucket.
#include <millrace/core/clock.hpp>
#include <millrace/core/kill_point.hpp>
#include <millrace/storage/model_check.hpp>
#include <millrace/storage/pmem/care/erase.hpp>
#include <millrace/storage/pmem/catalog.hpp>
#include <millrace/storage/pmem/repository_space.hpp>
#include <millrace/storage/pmem/slot_filling.hpp>
#include <millrace/storage/pmem/storing.hpp>

#include <algorithm>
#include <utility>

namespace millrace::storage::pmem {

namespace {

/// A model of the repository that is being stored. No other code has its version until it is
/// published.
class storing final : public slot_filling {
public:
  storing(
    leased_slot slot, gate::ticket ticket, std::shared_ptr<stored_version> version,
    byte_buffer body)
    : slot_filling(std::move(slot), std::move(ticket)), home_(lent().home), of_(lent().of),
      version_(std::move(version)), body_(std::move(body)) {}
  ~storing() override {
    std::lock_guard guard{of_->mutex};
    --of_->coming;
    drop_if_empty(*home_, *of_);
  }

  status within(const status& why) const override {
    return why.within("storing model " + of_->name);
  }

protected:
  status check_digests(const std::vector<std::uint64_t>& digests) const override {
    return storage::check_digests(lent().shape->tensor_bytes, digests);
  }
  status prepare(std::vector<std::uint64_t> digests) override {
    digests_ = std::move(digests);
    return {};
  }
  result<std::uint64_t> finish() override;

private:
  status write(table_map& next, std::uint64_t& table, stored_version* old);

  std::shared_ptr<pool_state> home_;
  std::shared_ptr<model> of_;
  std::shared_ptr<stored_version> version_;
  byte_buffer body_;
  std::vector<std::uint64_t> digests_;
};

// Assembles the whole change, or returns an error. An old version that is being read is only marked
// as erased.
status storing::write(table_map& next, std::uint64_t& table, stored_version* old) {
  auto& state = *home_;
  auto& v = *version_;
  auto& into = *v.reserved;
  if (auto bad = write_record(state, v, 0, v.slots[0], digests_); !bad.ok())
    return bad;
  if (auto bad = fill_object(state, v.index, index_bytes(v, 0, v.flags(), body_)); !bad.ok())
    return bad;
  next.emplace(v.key, v.index);
  if (old && in_use(*old)) {
    set_flags(state, into, *old, old->flags() | flag_erased);
  } else if (old) {
    next.erase(old->key);
    free_owner(into, *old);
  }
  auto written = write_table(state, into, next);
  if (!written)
    return written.error();
  table = *written;
  auto root = state.objects->root();
  into.set(root->last_version, root->id, word_kind::version, 0, v.number());
  return {};
}

result<std::uint64_t> storing::finish() {
  auto& state = *home_;
  auto& v = *version_;
  std::lock_guard guard{of_->mutex};
  std::lock_guard layout{state.layout_mutex};
  auto old = find_stored(*of_);
  auto next = state.table;
  std::uint64_t table = 0;
  auto& one = v.slots[0];
  auto after = std::max(state.last_version, std::exchange(v.spec.version_after, 0));
  v.key.number = one.step = one.sequence = after + 1;
  one.saved_at_ns = wall_clock_ns();
  one.state = slot_state::done;
  if (auto bad = write(next, table, old.get()); !bad.ok())
    return fail(std::move(bad));
  MILLRACE_KILL_POINT("pmem.store.before_publish");
  if (auto bad = state.publish(*v.reserved); !bad.ok())
    return fail(std::move(bad));
  MILLRACE_KILL_POINT("pmem.store.after_publish");
  v.reserved.reset();
  state.table = std::move(next);
  state.table_object = table;
  state.last_version = v.number();
  if (old) {
    old->erased = true;
    if (!state.table.contains(old->key)) {
      old->index = 0;
      of_->versions.erase(old->number());
    }
  }
  of_->versions.emplace(v.number(), version_);
  touch_stored(state, v);
  return v.number();
}

result<std::shared_ptr<stored_version>> describe_version(
  pool_state& state, model_spec spec, const std::vector<described_layer>& layers) {
  auto checked = check_spec(spec);
  if (!checked)
    return fail(checked.error());
  if (auto bad = check_possible(state, checked->size_bytes); !bad.ok())
    return fail(bad.within("storing model " + spec.name));
  auto made = std::make_shared<stored_version>();
  made->key = {entry_kind::stored, spec.name, 0};
  made->id = random_id();
  made->window_bytes = state.options.window_bytes;
  made->shape = std::make_shared<const shard_shape>(shape_of(spec.tensors, made->window_bytes));
  made->size_bytes = checked->size_bytes;
  made->spec = std::move(spec);
  if (auto bad = take_descriptions(state, *made, *checked, layers); !bad.ok())
    return fail(bad.within("storing model " + made->spec.name));
  return made;
}

result<byte_buffer> encode_body(const pool_state& state, const stored_version& v) {
  auto layers = state.layers->resolve(v.layers.ids());
  if (!layers)
    return fail(layers.error());
  return encode(stored_body{v.spec, std::move(*layers)});
}

// Keeps a model in the map while a version of it is being stored.
std::shared_ptr<model> expect_version(pool_state& state, const std::string& name) {
  for (;;) {
    auto m = state.find_or_make(name);
    std::lock_guard guard{m->mutex};
    if (m->gone)
      continue;
    ++m->coming;
    return m;
  }
}

} // namespace

result<std::unique_ptr<reservation>> reserve_model(
  const std::shared_ptr<pool_state>& state, model_spec spec,
  const std::vector<described_layer>& layers, gate::ticket ticket) {
  auto version = describe_version(*state, std::move(spec), layers);
  if (!version)
    return fail(version.error());
  auto& v = **version;
  auto context = "storing model " + v.spec.name;
  auto body = encode_body(*state, v);
  if (!body)
    return fail(body.error().within(context));
  if (auto bad = take_space(*state, v, body->size()); !bad.ok())
    return fail(bad.within(context));
  auto slot = lease_to_write(state, expect_version(*state, v.spec.name), *version, 0);
  return hand_out(std::make_shared<storing>(
    std::move(slot), std::move(ticket), std::move(*version), std::move(*body)));
}

} // namespace millrace::storage::pmem

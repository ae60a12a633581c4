// Checkpoints on the heap, with all the states of a real store. It answers when the test says so.
// Used by tests of actors.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/core/digest.hpp>
#include <millrace/storage/checkpoint_store.hpp>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <optional>

namespace millrace::testing {

class fake_checkpoint_store : public storage::checkpoint_store,
                              public std::enable_shared_from_this<fake_checkpoint_store> {
public:
  storage::checkpoint_capabilities can = {.durable = true, .in_place = true, .cpu_flush = true};
  std::uint64_t capacity_bytes = 1 << 24;
  std::uint64_t window_bytes = 0; // of staging memory, for reads
  bool window_per_tensor = false; // for saves and reads; else one window for the whole shard

  /// Calls to hold back until the test releases them, oldest first.
  bool hold_enroll = false, hold_begin = false, hold_publish = false, hold_repack = false;
  bool hold_answer = false;            // to a begin that was tried
  std::vector<std::uint64_t> run_mins; // of the saves, in their order
  bool hold_table = false;             // for listing, describing, erasing
  std::deque<std::function<void()>> held;
  void release() {
    auto f = std::move(held.front());
    held.pop_front();
    f();
  }

  /// The registrations that ended: (model, finished).
  std::vector<std::pair<std::string, bool>> left;
  std::uint64_t written_back = 0; // publishes that did not have to flush
  std::uint64_t repacks = 0;
  std::uint64_t freed_by_repack = 0;
  status publish_fails;

  struct slot {
    version_summary state;
    std::vector<std::byte> bytes;
    std::vector<std::uint64_t> digests; // those of `extra` last
    std::vector<std::byte> extra;       // the user's bytes
    std::weak_ptr<void> in_use;         // a window or readers
    // One per shard. Shared, since a user of the slot may outlive the store.
    std::shared_ptr<std::function<void()>> freed;

    /// Keeps the slot from being filled anew.
    std::shared_ptr<void> use() {
      auto kept = in_use.lock();
      if (!kept)
        in_use = kept = {freed.get(), [freed = freed](void*) {
                           if (auto tell = std::exchange(*freed, nullptr))
                             tell();
                         }};
      return kept;
    }
  };
  struct shard {
    shard_spec spec;
    bool registered = false;
    bool finished = false;
    std::vector<std::shared_ptr<slot>> slots;
    std::shared_ptr<std::function<void()>> freed = std::make_shared<std::function<void()>>();
  };
  std::map<std::pair<std::string, std::uint32_t>, shard> shards;

  /// Returns the slot of a step that is in a state, or null.
  slot* find(const std::string& model, std::uint32_t rank, std::uint64_t step, slot_state state) {
    for (auto& s : shards[{model, rank}].slots)
      if (s->state.step == step && s->state.state == state)
        return s.get();
    return nullptr;
  }
  std::size_t count(const std::string& model, std::uint32_t rank, slot_state state) {
    auto& slots = shards[{model, rank}].slots;
    return static_cast<std::size_t>(
      std::count_if(slots.begin(), slots.end(), [&](auto& s) { return s->state.state == state; }));
  }

  storage::checkpoint_capabilities capabilities() const noexcept override { return can; }

  void enroll(shard_spec spec, completion<storage::enrolled_shard> done) override {
    answer(hold_enroll, [this, spec = std::move(spec), done = std::move(done)] {
      done(try_enroll(spec));
    });
  }

  void leave(std::string model, std::uint32_t rank, bool finished) override {
    left.emplace_back(model, finished);
    auto& s = shards[{model, rank}];
    *s.freed = nullptr;
    s.registered = false;
    s.finished = finished;
  }

  void begin(
    storage::save_spec what, std::function<void()> freed,
    completion<std::unique_ptr<storage::pending_version>> done) override {
    answer(
      hold_begin, [this, what = std::move(what), freed = std::move(freed), done = std::move(done)] {
        run_mins.push_back(what.run_min);
        auto outcome = std::make_shared<result<std::unique_ptr<storage::pending_version>>>(
          try_begin(what, freed));
        answer(hold_answer, [outcome, done] { done(std::move(*outcome)); });
      });
  }

  void open(
    std::string model, std::uint32_t rank, storage::version_choice which,
    completion<std::shared_ptr<storage::opened_model>> done) override {
    done(try_open(model, rank, which));
  }

  void list(
    std::string prefix, std::string after, std::uint32_t count_max,
    completion<std::vector<checkpoint_summary>> done) override {
    answer(
      hold_table,
      [this, prefix = std::move(prefix), after = std::move(after), count_max,
       done = std::move(done)] { done(try_list(prefix, after, count_max)); });
  }

  void describe(std::string model, std::uint32_t rank, completion<shard_spec> done) override {
    answer(hold_table, [this, model = std::move(model), rank, done = std::move(done)] {
      auto found = shards.find({model, rank});
      done(
        found == shards.end() ? result<shard_spec>{fail(errc::not_found, "no shard of " + model)}
                              : found->second.spec);
    });
  }

  void erase(std::string model, std::optional<std::uint64_t> step, completion<void> done) override {
    answer(hold_table, [this, model = std::move(model), step, done = std::move(done)] {
      auto bad = try_erase(model, step);
      bad.ok() ? done({}) : done(fail(bad));
    });
  }

  void repack(storage::progress_callback progress, completion<repack_report> done) override {
    ++repacks;
    answer(hold_repack, [this, progress = std::move(progress), done = std::move(done)] {
      repack_report report;
      report.stopped_early = !progress(0, 1);
      if (!report.stopped_early)
        report.freed_bytes = freed_by_repack;
      capacity_bytes += report.freed_bytes;
      done(report);
    });
  }

  storage::bucket_stats stats() const override {
    return {shards.size(), capacity_bytes, used(), 0};
  }
  status close(std::uint32_t) override { return {}; }

private:
  class extra_space : public storage::window_space {
  public:
    extra_space(std::vector<std::byte>& bytes, std::shared_ptr<void> use)
      : bytes_(bytes), use_(std::move(use)) {}
    std::uint32_t window_count() const noexcept override { return 1; }
    std::uint64_t window_bytes() const noexcept override { return 0; }
    void acquire(std::uint32_t, memory_block, completion<storage::window> done) override {
      done(storage::window{0, {{0, 0, bytes_.data(), bytes_.size()}}, use_});
    }
    void commit(std::uint32_t, completion<void> done) override { done({}); }

  private:
    std::vector<std::byte>& bytes_;
    std::shared_ptr<void> use_;
  };

  class pending : public storage::pending_version {
  public:
    pending(
      std::shared_ptr<fake_checkpoint_store> store, std::string model, std::shared_ptr<slot> s,
      layout tensors)
      : store_(std::move(store)), model_(std::move(model)), slot_(std::move(s)), use_(slot_->use()),
        tensors_(std::move(tensors)) {
      if (!slot_->extra.empty())
        extra_.emplace(slot_->extra, use_);
      for (auto& all : everything(tensors_))
        if (windows_.empty() || store_->window_per_tensor)
          windows_.push_back({all});
        else
          windows_.back().push_back(all);
    }
    ~pending() override {
      *given_up_ = true;
      if (slot_->state.state == slot_state::active)
        slot_->state = {};
    }

    std::uint32_t window_count() const noexcept override {
      return static_cast<std::uint32_t>(windows_.size());
    }
    std::uint64_t window_bytes() const noexcept override { return 0; }
    void acquire(std::uint32_t index, memory_block, completion<storage::window> done) override {
      done(storage::window{index, pieces_of(*slot_, tensors_, windows_[index]), use_});
    }
    void commit(std::uint32_t, completion<void> done) override { done({}); }
    void publish(std::vector<std::uint64_t> digests, completion<std::uint64_t> done) override {
      auto finish = [store = store_, slot = slot_, flushed = flushed_, digests = std::move(digests),
                     given_up = given_up_, done = std::move(done)] {
        if (!store->publish_fails.ok())
          return done(fail(store->publish_fails));
        // The slot may be another version's by now.
        if (*given_up)
          return done(fail(errc::cancelled, "abandoned"));
        store->written_back += flushed ? 1 : 0;
        slot->digests = digests;
        slot->state.state = slot_state::done;
        // Later versions are newer, whatever the clock does.
        slot->state.saved_at_ns = store->last_saved_ns_ =
          std::max(store->last_saved_ns_ + 1, wall_clock_ns());
        done(slot->state.step);
      };
      store_->answer(store_->hold_publish, std::move(finish));
    }
    void written_back() override { flushed_ = true; }
    storage::window_space* extra() noexcept override { return extra_ ? &*extra_ : nullptr; }
    std::uint64_t run() const noexcept override { return 7; }
    bool complete() const noexcept override {
      return store_->is_complete(model_, slot_->state.step);
    }

  private:
    std::shared_ptr<fake_checkpoint_store> store_;
    std::string model_;
    std::shared_ptr<slot> slot_;
    std::shared_ptr<void> use_;
    layout tensors_;
    std::vector<std::vector<storage::wanted>> windows_;
    std::optional<extra_space> extra_;
    bool flushed_ = false;
    std::shared_ptr<bool> given_up_ = std::make_shared<bool>(false);
  };

  class opened : public storage::opened_model {
  public:
    opened(
      std::shared_ptr<slot> s, model_record record, bool window_per_range,
      std::uint64_t window_bytes)
      : slot_(std::move(s)), use_(slot_->use()), record_(std::move(record)),
        window_per_range_(window_per_range), window_bytes_(window_bytes) {}
    const model_record& record() const noexcept override { return record_; }
    std::vector<std::vector<storage::wanted>> plan(
      const std::vector<storage::wanted>& ranges) const override {
      std::vector<std::vector<storage::wanted>> windows;
      for (auto& range : ranges)
        if (windows.empty() || window_per_range_)
          windows.push_back({range});
        else
          windows.back().push_back(range);
      return windows;
    }
    std::uint64_t window_bytes() const noexcept override { return window_bytes_; }
    void fetch(
      std::vector<storage::wanted> ranges, memory_block staging,
      completion<storage::window> done) override {
      auto hold =
        std::make_shared<std::pair<std::shared_ptr<void>, memory_block>>(use_, std::move(staging));
      auto& tensors = record_.spec.tensors;
      if (!tensors.tensors.empty() && tensors.tensors.back() == extra_tensor(slot_->extra.size()))
        return done(storage::window{0, pieces_with_extra(ranges), std::move(hold)});
      done(storage::window{0, pieces_of(*slot_, tensors, ranges), std::move(hold)});
    }

  private:
    std::vector<storage::piece> pieces_with_extra(const std::vector<storage::wanted>& ranges) {
      std::vector<storage::piece> out;
      for (auto& r : ranges) {
        auto is_extra = r.tensor + 1 == record_.spec.tensors.tensors.size();
        auto* data = slot_->extra.data() + r.tensor_offset;
        if (is_extra)
          out.push_back({r.tensor, r.tensor_offset, data, r.length});
        else
          out.push_back(pieces_of(*slot_, record_.spec.tensors, {r}).front());
      }
      return out;
    }

    std::shared_ptr<slot> slot_;
    std::shared_ptr<void> use_;
    model_record record_;
    bool window_per_range_;
    std::uint64_t window_bytes_;
  };

  static std::vector<storage::wanted> everything(const layout& tensors) {
    std::vector<storage::wanted> all;
    for (std::uint32_t i = 0; i < tensors.tensors.size(); ++i)
      if (auto bytes = *size_bytes(tensors.tensors[i]); bytes > 0)
        all.push_back({i, 0, bytes});
    return all;
  }

  static std::vector<storage::piece> pieces_of(
    slot& s, const layout& tensors, const std::vector<storage::wanted>& ranges) {
    std::vector<storage::piece> out;
    for (auto& r : ranges) {
      std::uint64_t at = r.tensor_offset;
      for (std::uint32_t i = 0; i < r.tensor; ++i)
        at += *size_bytes(tensors.tensors[i]);
      out.push_back({r.tensor, r.tensor_offset, s.bytes.data() + at, r.length});
    }
    return out;
  }

  void answer(bool hold, std::function<void()> f) {
    if (hold)
      held.push_back(std::move(f));
    else
      f();
  }

  std::uint64_t used() const {
    std::uint64_t bytes = 0;
    for (auto& [key, s] : shards)
      for (auto& one : s.slots)
        bytes += one->bytes.size();
    return bytes;
  }

  std::vector<checkpoint_summary> try_list(
    const std::string& prefix, const std::string& after, std::uint32_t count_max) const {
    std::vector<checkpoint_summary> out;
    for (auto& [key, s] : shards)
      if (key.first.starts_with(prefix) && key.first > after)
        if (out.empty() || out.back().model != key.first)
          if (out.size() < count_max)
            out.push_back(summarize(key.first));
    return out;
  }

  status try_erase(const std::string& model, std::optional<std::uint64_t> step) {
    bool found = false;
    for (auto i = shards.begin(); i != shards.end();) {
      if (i->first.first != model) {
        ++i;
        continue;
      }
      if (i->second.registered)
        return {errc::busy, model + " has a job"};
      for (auto& s : i->second.slots)
        if (step && s->state.step == *step && s->state.state == slot_state::done) {
          s->state = {};
          found = true;
        }
      found |= !step;
      i = step ? std::next(i) : shards.erase(i);
    }
    return found ? status{} : status{errc::not_found, "nothing of " + model};
  }

  result<storage::enrolled_shard> try_enroll(const shard_spec& spec) {
    auto key = std::pair{spec.model, spec.rank};
    auto found = shards.find(key);
    bool resumed = found != shards.end();
    if (resumed && found->second.registered)
      return fail(errc::busy, spec.model + " has a job");
    if (resumed && found->second.spec.tensors != spec.tensors)
      return fail(errc::invalid_argument, spec.model + " has another layout");
    auto bytes = size_bytes(spec.tensors);
    if (!resumed && used() + bytes * spec.keep > capacity_bytes)
      return fail(errc::no_space, "asked for " + std::to_string(bytes * spec.keep));
    auto& s = shards[key];
    s.spec = spec;
    s.registered = true;
    while (s.slots.size() < spec.keep) {
      s.slots.push_back(std::make_shared<slot>());
      s.slots.back()->bytes.resize(bytes);
      s.slots.back()->freed = s.freed;
    }
    return storage::enrolled_shard{summarize(spec.model), resumed};
  }

  result<std::unique_ptr<storage::pending_version>> try_begin(
    const storage::save_spec& what, const std::function<void()>& freed) {
    auto& model = what.model;
    auto found = shards.find({model, what.rank});
    if (found == shards.end())
      return fail(errc::not_found, "no shard of " + model);
    *found->second.freed = nullptr;
    std::shared_ptr<slot> best;
    std::shared_ptr<slot> newest;
    for (auto& s : found->second.slots)
      if (s->state.state == slot_state::done)
        if (!newest || s->state.saved_at_ns > newest->state.saved_at_ns)
          newest = s;
    for (auto& s : found->second.slots)
      if (s != newest && s->in_use.expired() && s->state.state != slot_state::active)
        if (!best || s->state.saved_at_ns < best->state.saved_at_ns)
          best = s;
    if (!best) {
      *found->second.freed = freed;
      return fail(errc::busy, "every slot of " + model + " is in use");
    }
    best->state = {slot_state::active, what.step, 0, false};
    best->extra.assign(what.extra_bytes, std::byte{0});
    return std::make_unique<pending>(shared_from_this(), model, best, found->second.spec.tensors);
  }

  result<std::shared_ptr<storage::opened_model>> try_open(
    const std::string& model, std::uint32_t rank, const storage::version_choice& which) {
    auto step = which.step;
    auto summary = summarize(model);
    if (!step && !summary.complete_steps.empty())
      step = summary.complete_steps.back();
    auto found = shards.find({model, rank});
    if (found != shards.end() && step)
      for (auto& s : found->second.slots)
        if (
          s->state.state == slot_state::done && s->state.step == *step &&
          (which.saved_at_ns == 0 || which.saved_at_ns == s->state.saved_at_ns)) {
          auto part = which.part;
          auto tensors =
            s->digests.end() - static_cast<std::ptrdiff_t>(digest_count(s->extra.size()));
          model_record record;
          record.spec.name = model;
          if (part != storage::version_part::extra)
            record.spec.tensors = found->second.spec.tensors;
          if (part != storage::version_part::tensors && !s->extra.empty())
            record.spec.tensors.tensors.push_back(extra_tensor(s->extra.size()));
          record.version = *step;
          record.stored_at_ns = s->state.saved_at_ns;
          record.digests = {
            part == storage::version_part::extra ? tensors : s->digests.begin(),
            part == storage::version_part::tensors ? tensors : s->digests.end()};
          record.extra_bytes = s->extra.size();
          return std::make_shared<opened>(s, std::move(record), window_per_tensor, window_bytes);
        }
    return fail(errc::not_found, "no such version of " + model);
  }

  std::uint64_t last_saved_ns_ = 0;

  bool is_complete(const std::string& model, std::uint64_t step) const {
    auto steps = summarize(model).complete_steps;
    return std::binary_search(steps.begin(), steps.end(), step);
  }

  checkpoint_summary summarize(const std::string& model) const {
    checkpoint_summary out;
    out.model = model;
    std::map<std::uint64_t, std::uint32_t> done;
    for (auto& [key, s] : shards) {
      if (key.first != model)
        continue;
      out.world_size = s.spec.world_size;
      auto& shown = out.shards.emplace_back();
      shown.rank = key.second;
      shown.tensors = s.spec.tensors.tensors.size();
      shown.size_bytes = size_bytes(s.spec.tensors);
      shown.registered = s.registered;
      shown.finished = s.finished;
      shown.axes = s.spec.axes;
      for (auto& one : s.slots) {
        shown.slots.push_back(one->state);
        if (one->state.state == slot_state::done)
          ++done[one->state.step];
      }
    }
    for (auto& [step, ranks] : done)
      if (ranks == out.world_size)
        out.complete_steps.push_back(step);
    return out;
  }
};

} // namespace millrace::testing

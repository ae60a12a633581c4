// Nothing that may run code of the program, or return a place of the ring, happens under the lock.
#include <millrace/core/checkpoint.hpp>
#include <millrace/core/planted_defect.hpp>
#include <millrace/core/planted_fault.hpp>
#include <millrace/core/rounding.hpp>
#include <millrace/runtime/client/calls/batch_loader.hpp>
#include <millrace/runtime/client/calls/whole_set.hpp>
#include <millrace/runtime/client/calls/window_reading.hpp>

#include <algorithm>
#include <new>
#include <utility>

namespace millrace::runtime {

namespace {

constexpr std::uint64_t batch_size_max = std::uint64_t{1} << 31;
constexpr std::uint32_t prefetch_max = 64;
constexpr std::uint32_t held_max = 2;              // batches beside those that are read ahead
constexpr std::uint64_t in_turn_bytes = 64u << 20; // work for many movers

status check(const loader_options& o) {
  if (o.batch_size < 1 || o.batch_size > batch_size_max)
    return {errc::invalid_argument, "batch_size {}: 1 to {}", o.batch_size, batch_size_max};
  if (o.world_size < 1 || o.rank >= o.world_size)
    return {
      errc::invalid_argument, "rank {} of world_size {}: ranks are counted from 0", o.rank,
      o.world_size};
  if (o.world_size > world_size_max)
    return {errc::invalid_argument, "world_size {}: 1 to {}", o.world_size, world_size_max};
  if (o.prefetch < 1 || o.prefetch > prefetch_max)
    return {errc::invalid_argument, "prefetch {}: 1 to {} batches", o.prefetch, prefetch_max};
  return {};
}

result<std::vector<std::size_t>> fields_of(const set_info& set, const loader_options& options) {
  std::vector<std::size_t> out;
  for (auto& name : options.fields) {
    auto found = std::ranges::find(set.fields, name, [](auto& f) { return f.sample.name; });
    if (found == set.fields.end())
      return fail(errc::invalid_argument, "working set {} has no field {}", set.name, name);
    auto index = static_cast<std::size_t>(found - set.fields.begin());
    if (std::ranges::find(out, index) != out.end())
      return fail(
        errc::invalid_argument, "a loader of {}: the field {} is given twice", set.name, name);
    out.push_back(index);
  }
  for (std::size_t i = 0; options.fields.empty() && i < set.fields.size(); ++i)
    out.push_back(i);
  return out;
}

result<std::uint64_t> place_bytes(
  const set_info& set, const std::vector<std::size_t>& fields, const loader_options& options) {
  constexpr auto alignment = loaded_batch::field_alignment;
  std::uint64_t all = 0;
  for (auto i : fields) {
    std::uint64_t bytes = 0, ring = 0;
    auto too_many = __builtin_mul_overflow(set.fields[i].bytes, options.batch_size, &bytes) ||
      __builtin_add_overflow(bytes, alignment, &bytes) ||
      __builtin_add_overflow(all, round_down(bytes, alignment), &all) ||
      __builtin_mul_overflow(all, options.prefetch + held_max, &ring);
    if (too_many)
      return fail(
        errc::no_space, "{} batches of {} samples are more bytes than 64 bits count",
        options.prefetch + held_max, options.batch_size);
  }
  return all;
}

std::vector<std::size_t> varying_of(const set_info& set, const std::vector<std::size_t>& fields) {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < fields.size(); ++i)
    if (set.fields[fields[i]].varies)
      out.push_back(i);
  return out;
}

} // namespace

result<std::shared_ptr<batch_loader>> batch_loader::make(
  const std::shared_ptr<client_core>& core, const set_reader& reader,
  const loader_options& options) {
  if (auto refused = core->refusal(); !refused.ok())
    return fail(refused);
  auto& set = reader.info();
  if (auto bad = check(options); !bad.ok())
    return fail(bad.within("a loader of " + set.name));
  auto fields = fields_of(set, options);
  if (!fields)
    return fail(fields.error());
  auto bytes = place_bytes(set, *fields, options);
  if (!bytes)
    return fail(bytes.error());
  auto places = batch_memory::make(
    *core->runs_on(),
    {.device = options.device,
     .is_remote = !reader.view_->is_mapped(),
     .places = options.prefetch + held_max,
     .fillings = options.prefetch,
     .place_bytes = *bytes});
  if (!places)
    return fail(places.error().within("a loader of " + set.name));
  std::shared_ptr<batch_loader> out{
    new batch_loader{core, reader, options, std::move(*fields), std::move(*places)}};
  out->memory_.when_freed([weak = std::weak_ptr{out}] {
    if (auto self = weak.lock())
      self->go_on();
  });
  out->go_on();
  return out;
}

batch_loader::batch_loader(
  std::shared_ptr<client_core> core, set_reader reader, const loader_options& options,
  std::vector<std::size_t> fields, batch_memory places)
  : core_(std::move(core)), reader_(std::move(reader)), fields_(std::move(fields)),
    varying_(varying_of(reader_.info(), fields_)),
    plan_{reader_.info().samples, options.batch_size, options.world_size, options.remainder},
    in_turn_(reader_.view_->is_mapped() && !is_window(reader_.info())), memory_(std::move(places)),
    options_(options), walk_(
                         plan_, options.rank,
                         {reader_.info().identity, options.seed, options.epoch}, options.shuffle) {}

future<batch_loader::outcome> batch_loader::next() {
  if (auto refused = core_->refused<outcome>())
    return *refused;
  auto done = core_->make_promise<outcome>();
  std::uint64_t number = 0;
  {
    std::lock_guard guard{mutex_};
    stopped_ = false;
    number = ++last_call_;
    auto waits = !calls_.empty() || ahead_.empty() || !ahead_.front()->ready;
    calls_.push_back({done, number, waits, steady_clock::now()});
  }
  // It is too late if the batch came at once.
  static_cast<void>(done.on_cancel([weak = weak_from_this(), number] {
    if (auto self = weak.lock())
      self->forget(number);
  }));
  go_on();
  return done.get_future();
}

void batch_loader::go_on() {
  if (!core_->refusal().ok())
    return;
  hand_out();
  while (!read_ahead())
    hand_out();
  hand_out();
}

// Returns false if there was no memory for a batch that is in the queue: who waits for it is to
// hear so, and the next one is to be read.
bool batch_loader::read_ahead() {
  auto all_begun = true;
  try {
    while (auto one = begin_one())
      if (one->data && !begin_reading(one))
        all_begun = false;
  } catch (const std::bad_alloc&) {
    answer_without_memory();
  }
  return all_begun;
}

bool batch_loader::begin_reading(const entry_ptr& one) {
  try {
    read(one);
    return true;
  } catch (const std::bad_alloc&) {
    end_reading(one, without_memory());
    return false;
  }
}

// Later steps run when something has come. Without memory for one, the batch has failed.
template <class Step>
void batch_loader::go_on_with(const entry_ptr& one, Step step) {
  try {
    step();
  } catch (const std::bad_alloc&) {
    arrived(one, without_memory());
  }
}

status batch_loader::without_memory() const {
  return {
    errc::no_space, "a batch of {} of {}: this process has no memory left", plan_.batch_size,
    reader_.info().name};
}

// The walk goes on only when the batch is in the queue: without memory for it, nothing is lost.
batch_loader::entry_ptr batch_loader::begin_one() {
  batch_memory::lent places; // return without the lock, if they must
  std::lock_guard guard{mutex_};
  auto enough = batches_ahead() >= options_.prefetch || ahead_.size() >= 2 * options_.prefetch;
  if (stopped_ || enough || reads_enough())
    return nullptr;
  auto ends = plan_.batches_from(walk_.position()) == 0;
  if (!ends && !memory_.lend(places))
    return nullptr;
  auto walk = walk_;
  auto step = walk.next();
  auto one = std::make_shared<entry>();
  one->epoch = step.epoch;
  one->position = step.position;
  one->ready = ends;
  if (!ends)
    give_memory(*one, std::move(step), places);
  ahead_.push_back(one);
  walk_ = walk;
  return one;
}

// When the samples are needed again: in the next epoch. Null if no window asks for it.
std::shared_ptr<const sample_uses> batch_loader::uses_of(const batch_step& step) const {
  if (!is_window(reader_.info()))
    return nullptr;
  return std::make_shared<const sample_uses>(sample_uses{
    reader_.order(walk_.seed(), step.epoch + 1, walk_.shuffle()), plan_.samples - step.position,
    step.samples.size(), fields_.front()});
}

// Without memory nothing is begun before the next call: places that return would else try again and
// again.
void batch_loader::give_memory(entry& to, batch_step step, const batch_memory::lent& places) {
  try {
    to.uses = uses_of(step);
    to.data = memory_.make_batch(std::move(step), places);
  } catch (const std::bad_alloc&) {
    stopped_ = true;
    throw;
  }
}

// Calls that wait for batches that could not be begun. The next call tries again.
void batch_loader::answer_without_memory() {
  std::deque<call> unanswered;
  {
    std::lock_guard guard{mutex_};
    if (ahead_.empty())
      unanswered.swap(calls_);
  }
  for (auto& one : unanswered)
    one.done.set(fail(without_memory()));
}

// Asks where samples lie that vary, if there are any.
void batch_loader::read(const entry_ptr& one) {
  MILLRACE_PLANTED_FAULT(typeid(loaded_batch));
  one->where.resize(fields_.size());
  if (varying_.empty())
    return make_room(one);
  std::vector<future<std::vector<sample_entry>>> asked;
  asked.reserve(varying_.size());
  for (auto i : varying_)
    asked.push_back(reader_.entries(fields_[i], one->data->step().samples));
  when_all(asked).chain([self = shared_from_this(),
                         one](const result<std::vector<result<std::vector<sample_entry>>>>& all) {
    self->go_on_with(one, [&] {
      for (std::size_t i = 0; i < all->size(); ++i) {
        auto& found = (*all)[i];
        if (!found)
          return self->arrived(one, found.error());
        one->where[self->varying_[i]] = *found;
      }
      self->make_room(one);
    });
  });
}

// Memory is made on a mover: to touch its pages takes longer than the I/O loop has.
void batch_loader::make_room(const entry_ptr& one) {
  MILLRACE_PLANTED_FAULT(typeid(loaded_batch));
  std::vector<loaded_batch::lengths> of(fields_.size());
  for (auto i : varying_)
    for (auto& sample : one->where[i])
      of[i].push_back(sample.length);
  auto wanted = one->data->begins_of(reader_.info(), fields_, of).back();
  if (batch_memory::has_room(*one->data, wanted))
    return fill(one, of);
  core_->runs_on()->fabric()->movers()->submit(
    1,
    [self = shared_from_this(), one, wanted](std::uint32_t) {
      one->why = self->memory_.widen(*one->data, wanted);
    },
    [self = shared_from_this(), one, of] {
      if (!one->why.ok())
        return self->arrived(one, one->why.within("a batch of " + self->reader_.info().name));
      self->go_on_with(one, [&] { self->fill(one, of); });
    });
}

void batch_loader::fill(const entry_ptr& one, const std::vector<loaded_batch::lengths>& of) {
  auto& data = *one->data;
  data.lay_out(reader_.info(), fields_, of);
  data.clear_padding();
  note_bytes(*one);
  if (fields_.size() == 1) { // most sets: without the list of outcomes
    fill_field(*one, 0).chain([self = shared_from_this(), one](const result<void>& read) {
      self->filled(one, read ? status{} : read.error());
    });
    return;
  }
  fill_fields(one);
}

void batch_loader::note_bytes(entry& one) {
  std::lock_guard guard{mutex_};
  one.bytes = one.data->size_bytes();
}

// Where there is no memory to go on, nothing writes to the batch any more when this throws.
void batch_loader::fill_fields(const entry_ptr& one) {
  std::vector<future<void>> fields;
  fields.reserve(fields_.size());
  try {
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      MILLRACE_PLANTED_FAULT(typeid(loaded_batch));
      fields.push_back(fill_field(*one, i));
    }
    when_all(fields).chain(
      [self = shared_from_this(), one](const result<std::vector<result<void>>>& all) {
        status why;
        for (auto& field : *all)
          if (why.ok() && !field)
            why = field.error();
        self->filled(one, why);
      });
  } catch (const std::bad_alloc&) {
    for (auto& field : fields)
      field.cancel();
    throw;
  }
}

future<void> batch_loader::fill_field(const entry& one, std::size_t i) const {
  auto& data = *one.data;
  auto& samples = data.step().samples;
  return reader_.info().fields[fields_[i]].varies || one.uses
    ? reader_.read_at(fields_[i], samples, one.where[i], data.samples_of(i), one.uses)
    : reader_.read_batch(fields_[i], data.step().samples, data.samples_of(i));
}

void batch_loader::end_reading(const entry_ptr& one, const status& why) {
  std::lock_guard guard{mutex_};
  one->ready = true;
  one->why = why;
}

void batch_loader::filled(const entry_ptr& one, const status& why) {
  if (!memory_.device() || !why.ok())
    return arrived(one, why);
  go_on_with(one, [&] {
    memory_.device()->move(
      *core_->runs_on()->fabric()->movers(), one->data,
      [self = shared_from_this(), one](const result<void>& moved) {
        one->data->end_staging();
        self->arrived(
          one, moved ? status{} : moved.error().within("a batch of " + self->reader_.info().name));
      });
  });
}

void batch_loader::arrived(const entry_ptr& one, const status& why) {
  end_reading(one, why);
  go_on();
}

// What was handed out is dropped before the next one is: the places that come back then call
// `go_on`, which must find that this thread hands out.
void batch_loader::hand_out() {
  while (auto h = next_handing()) {
    settle(*h, h->to.done.set(std::move(h->what)));
    h.reset();
    std::lock_guard guard{mutex_};
    handing_out_ = false;
  }
}

std::optional<batch_loader::handing> batch_loader::next_handing() {
  std::lock_guard guard{mutex_};
  if (handing_out_ || calls_.empty())
    return std::nullopt;
  handing h;
  h.era = era_;
  if (ahead_.empty()) {
    if (*held_ < options_.prefetch + held_max)
      return std::nullopt; // a place comes back by itself
    h.what = fail(
      errc::no_space,
      "the program holds all {} batches of the loader's ring; release one, or raise prefetch",
      options_.prefetch + held_max);
  } else if (auto first = ahead_.front(); !first->ready) {
    return std::nullopt;
  } else if (!first->why.ok()) {
    take_error(h, *first);
  } else {
    if (first->data)
      h.what = outcome{batch{counted(first->data)}};
    h.from = std::move(first);
    ahead_.pop_front();
  }
  h.to = std::move(calls_.front());
  calls_.pop_front();
  stopped_ = stopped_ && calls_.empty();
  handing_out_ = true;
  h.before = counts_;
  count(h);
  return h;
}

// The program has it until the last copy of the pointer goes. The loader may have the batch itself
// a little longer.
std::shared_ptr<const loaded_batch> batch_loader::counted(
  std::shared_ptr<loaded_batch> data) const {
  ++*held_;
  auto* raw = data.get();
  auto release = [held = held_, device = memory_.device(),
                  data = std::move(data)](const loaded_batch*) mutable {
    --*held;
    if (device)
      device->give_back(std::move(data));
  };
  return {raw, std::move(release)};
}

// What was read behind the failed batch is read again after it.
void batch_loader::take_error(handing& h, const entry& failed) {
  h.what = fail(failed.why);
  walk_.go_to(failed.epoch, failed.position);
  h.dropped.swap(ahead_);
  ++era_;
  stopped_ = true;
}

// A batch that a cancelled call did not take is that of the next call.
void batch_loader::settle(const handing& h, bool taken) {
  if (taken)
    return;
  std::lock_guard guard{mutex_};
  counts_ = h.before;
  if (h.from && h.era == era_)
    ahead_.push_front(h.from);
}

void batch_loader::count(const handing& h) {
  if (h.to.waits) {
    ++counts_.waits;
    counts_.waited_ns += static_cast<std::uint64_t>(
      std::chrono::nanoseconds{steady_clock::now() - h.to.since}.count());
  }
  if (!h.from || !h.from->data)
    return;
  ++counts_.batches;
  counts_.samples += h.from->data->step().samples.size();
  counts_.bytes += h.from->data->size_bytes();
}

void batch_loader::forget(std::uint64_t number) {
  call gone; // its promise ends without the lock
  std::lock_guard guard{mutex_};
  auto found = std::ranges::find(calls_, number, &call::number);
  if (found == calls_.end())
    return;
  gone = std::move(*found);
  calls_.erase(found);
}

loader_state batch_loader::state() const {
  std::lock_guard guard{mutex_};
  auto reads_on = ahead_.empty() || is_planted(defect::resumed_behind_reads);
  loader_state out;
  out.set = reader_.info().identity;
  out.samples = reader_.info().samples;
  out.seed = options_.seed;
  out.shuffle = options_.shuffle;
  out.epoch = reads_on ? walk_.epoch() : ahead_.front()->epoch;
  out.position = reads_on ? walk_.position() : ahead_.front()->position;
  return out;
}

status batch_loader::seek(const loader_state& to) {
  auto& set = reader_.info();
  if (to.set != set.identity || to.samples != set.samples)
    return {
      errc::invalid_argument,
      "the state is that of a set of {} samples with the identity {:016x}; working set {} has {} "
      "samples and {:016x}",
      to.samples,
      to.set,
      set.name,
      set.samples,
      set.identity};
  if (to.position > set.samples)
    return {
      errc::invalid_argument, "the state is at position {}, and working set {} has {} samples",
      to.position, set.name, set.samples};
  return go_to(to.epoch, to.position, to.seed, to.shuffle);
}

status batch_loader::set_epoch(std::uint64_t epoch) {
  auto now = options();
  return go_to(epoch, 0, now.seed, now.shuffle);
}

status batch_loader::go_to(
  std::uint64_t epoch, std::uint64_t position, std::uint64_t seed, shuffle_kind how) {
  if (auto refused = core_->refusal(); !refused.ok())
    return refused;
  entries dropped;
  {
    std::lock_guard guard{mutex_};
    dropped.swap(ahead_);
    options_.seed = seed;
    options_.shuffle = how;
    walk_.go_to(epoch, position, seed, how);
    stopped_ = false;
    ++era_;
  }
  dropped.clear();
  go_on();
  return {};
}

loader_options batch_loader::options() const {
  std::lock_guard guard{mutex_};
  return options_;
}

std::uint64_t batch_loader::batches_left() const { return plan_.batches_from(state().position); }

loader_counts batch_loader::counts() const {
  std::lock_guard guard{mutex_};
  auto out = counts_;
  out.ring_bytes = memory_.size_bytes();
  out.samples_from_files = reader_.samples_from_files();
  out.samples_from_window = reader_.samples_from_window();
  auto remote = core_->reads()->counts();
  out.remote_limit_bytes = remote.limit_bytes;
  out.remote_inflight_bytes = remote.inflight_bytes;
  out.remote_inflight_stages = remote.inflight_stages;
  out.remote_stages = remote.stages;
  for (auto& one : ahead_)
    if (one->data)
      ++(one->ready ? out.ready : out.reading);
  out.held = *held_;
  return out;
}

// Movers take turns between jobs. If all batches were read at once, they would all come late; so
// the one that is needed first comes first. Reads from other hosts wait for the network, and those
// of files for the disk: they are begun together.
bool batch_loader::reads_enough() const {
  std::uint64_t bytes = 0;
  for (auto& one : ahead_)
    bytes += one->ready ? 0 : one->bytes;
  return in_turn_ && bytes >= in_turn_bytes;
}

// Of these and of the ends of epochs there are few.
std::size_t batch_loader::batches_ahead() const {
  return static_cast<std::size_t>(
    std::ranges::count_if(ahead_, [](auto& one) { return one->data != nullptr; }));
}

} // namespace millrace::runtime

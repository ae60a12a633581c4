// What was taken is released in every case: as read, or put back if nobody got it.
#include <millrace/core/codec.hpp>
#include <millrace/core/digest.hpp>
#include <millrace/core/planted_defect.hpp>
#include <millrace/core/rounding.hpp>
#include <millrace/runtime/client/calls/stream_reading.hpp>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace millrace::runtime {

namespace {

constexpr std::uint32_t batches_max = 64;
constexpr std::chrono::seconds handing_max{1}; // a continuation of the program may take its time

thread_local bool hands_out = false; // this thread does, and may be in code of the program
constexpr std::chrono::hours timeout_max{24 * 365}; // from here on as long as the stream lives
constexpr std::size_t places_of_message = 8192;     // of samples that are released
constexpr std::uint64_t frame_bytes_more = 1024;    // for what is no sample

result<std::uint64_t> place_bytes(const set_info& places, const stream_reader_options& options) {
  std::uint64_t all = 0, ring = 0;
  for (auto& field : places.fields)
    // The fields of all places are less than 63 bits count, and a batch has fewer.
    all += round_up(field.bytes * options.batch_size, loaded_batch::field_alignment);
  if (__builtin_mul_overflow(all, options.batches, &ring))
    return fail(errc::no_space, "{} batches of {} bytes", options.batches, all);
  return all;
}

status check_options(const stream_reader_options& o, std::uint64_t capacity) {
  if (o.batch_size < 1 || o.batch_size > capacity)
    return {
      errc::invalid_argument, "batch_size {}: 1 to {}, the capacity of the stream", o.batch_size,
      capacity};
  if (o.batches < 1 || o.batches > batches_max)
    return {errc::invalid_argument, "batches {}: 1 to {}", o.batches, batches_max};
  return {};
}

// The node names all samples of a batch in one answer, which must fit: its samples would be lost.
status check_answer(const client_core& core, std::uint64_t batch_size) {
  constexpr auto most = std::numeric_limits<std::uint64_t>::max();
  static const auto sample_bytes = encode(actors::given_sample{UINT32_MAX, most, most}).size();
  auto frame_bytes = core.runs_on()->channel_options().frame_bytes_max;
  auto fits = (frame_bytes - std::min<std::uint64_t>(frame_bytes, frame_bytes_more)) / sample_bytes;
  if (batch_size <= fits)
    return {};
  return {
    errc::invalid_argument,
    "batch_size {}: at most {}, whose names fit in a message of {} bytes; read smaller batches, or "
    "raise channel.frame_max of this client",
    batch_size, fits, frame_bytes};
}

} // namespace

result<std::shared_ptr<stream_reading>> stream_reading::make(
  std::shared_ptr<stream_view> view, const stream_reader_options& options) {
  auto where = "a reader of stream " + view->name();
  if (auto bad = check_options(options, view->places().samples); !bad.ok())
    return fail(bad.within(where));
  if (auto bad = check_answer(*view->core(), options.batch_size); !bad.ok())
    return fail(bad.within(where));
  auto bytes = place_bytes(view->places(), options);
  if (!bytes)
    return fail(bytes.error().within(where));
  auto memory = receive_ring::registered(view->core()->runs_on()->fabric());
  auto ring = receive_ring::make(memory, options.batches, *bytes);
  if (!ring)
    return fail(ring.error().within(where));
  return std::shared_ptr<stream_reading>{
    new stream_reading{std::move(view), std::move(*ring), options}};
}

stream_reading::stream_reading(
  std::shared_ptr<stream_view> view, std::shared_ptr<receive_ring> ring,
  const stream_reader_options& options)
  : view_(std::move(view)), ring_(std::move(ring)), options_(options),
    fields_(view_->places().fields.size()) {
  std::iota(fields_.begin(), fields_.end(), 0);
}

status stream_reading::check(std::uint64_t samples, std::chrono::milliseconds timeout) const {
  if (samples > options_.batch_size)
    return {
      errc::invalid_argument, "{} samples of stream {}: the reader was made for batches of {}",
      samples, view_->name(), options_.batch_size};
  if (timeout.count() < 0)
    return {
      errc::invalid_argument, "timeout {} ms for samples of stream {}: 0, which waits, or more",
      timeout.count(), view_->name()};
  return {};
}

future<stream_reading::outcome> stream_reading::next(
  std::uint64_t samples, std::chrono::milliseconds timeout) {
  if (auto refused = view_->core()->refused<outcome>())
    return *refused;
  if (auto bad = check(samples, timeout); !bad.ok())
    return ready_future<outcome>(fail(std::move(bad)));
  auto one = std::make_shared<call>();
  one->count = samples == 0 ? options_.batch_size : samples;
  auto has_end = timeout.count() > 0 && timeout < timeout_max;
  one->until = has_end ? steady_clock::now() + timeout : time_point::max();
  one->place = lend();
  if (!one->place)
    return ready_future<outcome>(fail(
      errc::no_space,
      "stream {}: the program has all {} batches of the reader, or waits for them; release one, or "
      "raise batches",
      view_->name(), options_.batches));
  one->done = view_->core()->make_promise<outcome>();
  auto out = one->done.get_future();
  auto give_up = [weak = weak_from_this(), which = std::weak_ptr{one}] {
    auto self = weak.lock();
    if (auto call = which.lock(); self && call)
      self->give_up(call);
  };
  // The caller does not have the future yet, so it cannot have cancelled.
  static_cast<void>(one->done.on_cancel(give_up));
  {
    std::lock_guard guard{mutex_};
    calls_.insert(one);
  }
  if (has_end)
    look_at_next_end();
  ask(one);
  return out;
}

// A thread that hands a batch out has its promise a little longer than the program has the batch.
std::shared_ptr<receive_ring::place> stream_reading::lend() {
  auto place = ring_->lend();
  if (place || hands_out)
    return place;
  {
    std::unique_lock lock{mutex_};
    handed_out_.wait_for(lock, handing_max, [this] { return handing_ == 0; });
  }
  return ring_->lend();
}

status stream_reading::late(const call& one) const {
  return {
    errc::deadline_exceeded, "stream {}: fewer than {} samples came in time", view_->name(),
    one.count};
}

// A timer for each call would stay until its end, also if its batch came at once. So one is for the
// next end of all calls, and looks for the others then.
void stream_reading::look_at_next_end() {
  auto next = time_point::max();
  {
    std::lock_guard guard{mutex_};
    for (auto& one : calls_)
      if (!*one->stop)
        next = std::min(next, one->until);
    if (next == time_point::max() || (!looks_.empty() && *looks_.begin() <= next))
      return;
    looks_.insert(next);
  }
  view_->core()->at(next, [weak = weak_from_this(), next] {
    if (auto self = weak.lock())
      self->end_late(next);
  });
}

void stream_reading::end_late(time_point looked_for) {
  std::vector<call_ptr> late_ones;
  {
    std::lock_guard guard{mutex_};
    looks_.erase(looked_for);
    auto now = steady_clock::now();
    for (auto& one : calls_)
      if (!*one->stop && one->until <= now)
        late_ones.push_back(one);
  }
  for (auto& one : late_ones) {
    give_up(one);
    one->done.set(fail(late(*one)));
  }
  look_at_next_end();
}

// Its place is free at once, unless it has been read to. What is on the way is put back. A request
// that waits at the server stays there for the next call.
void stream_reading::give_up(const call_ptr& one) {
  std::shared_ptr<receive_ring::place> place;
  std::lock_guard guard{mutex_};
  *one->stop = true;
  place = std::move(one->place);
  if (one->is_reading)
    return;
  for (auto& asked : asked_)
    if (asked->of == one)
      asked->of = nullptr;
  std::erase(unasked_, one);
  calls_.erase(one);
  leave_if_over();
}

std::uint32_t stream_reading::patience_of(const call& one) const {
  auto patience = std::chrono::milliseconds{view_->patience_ms()};
  if (one.until != time_point::max()) {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(one.until - steady_clock::now());
    patience = std::clamp(left, std::chrono::milliseconds{1}, patience);
  }
  return static_cast<std::uint32_t>(patience.count());
}

// Null: nothing is to be sent.
stream_reading::asking_ptr stream_reading::ask_for(const call_ptr& one) {
  std::lock_guard guard{mutex_};
  if (*one->stop)
    return nullptr;
  for (auto& asked : asked_)
    if (!asked->of && !asked->is_answered && asked->count == one->count) {
      asked->of = one;
      return nullptr;
    }
  if (asked_.size() >= actors::takes_of_reader_max) {
    unasked_.push_back(one);
    return nullptr;
  }
  return asked_.emplace_back(std::make_shared<asking>(asking{one->count, one}));
}

void stream_reading::ask(const call_ptr& one) {
  auto asked = ask_for(one);
  if (!asked)
    return;
  view_->ask(actors::take_samples_request{.count = one->count, .patience_ms = patience_of(*one)})
    .chain([self = shared_from_this(), asked](const result<actors::taken_samples>& answer) {
      self->answered(asked, answer);
    });
}

void stream_reading::answered(
  const asking_ptr& asked, const result<actors::taken_samples>& answer) {
  call_ptr one;
  {
    std::lock_guard guard{mutex_};
    asked->is_answered = true;
    one = std::exchange(asked->of, nullptr);
    if (one)
      one->is_reading = answer && !answer->samples.empty();
  }
  auto bad = answer ? check(asked->count, answer->samples) : answer.error();
  if (!bad.ok()) {
    view_->leave_after(bad, false);
    if (one)
      fail_with(one, answer ? bad : view_->explained(bad));
  } else if (one) {
    go_on(one, answer);
  } else if (!answer->samples.empty()) {
    release(answer->samples, true);
  }
  end_asking(asked);
}

void stream_reading::go_on(const call_ptr& one, const result<actors::taken_samples>& answer) {
  if (answer->is_over) {
    give_up(one);
    return static_cast<void>(one->done.set(outcome{}));
  }
  if (answer->samples.empty())
    return ask(one);
  std::shared_ptr<receive_ring::place> place;
  {
    std::lock_guard guard{mutex_};
    place = std::move(one->place);
  }
  auto t = std::make_shared<taking>(taking{one, answer->samples, nullptr, {}});
  if (place)
    return read(t, std::move(place));
  auto is_late = one->until <= steady_clock::now();
  t->why = is_late ? late(*one) : status{errc::cancelled, "cancelled by the caller"};
  arrived(t);
}

// The lease ends with the last request: what that one has put back is not lost.
void stream_reading::end_asking(const asking_ptr& asked) {
  call_ptr next;
  {
    std::lock_guard guard{mutex_};
    std::erase(asked_, asked);
    if (!unasked_.empty()) {
      next = std::move(unasked_.front());
      unasked_.pop_front();
    }
    leave_if_over();
  }
  if (next)
    ask(next);
}

status stream_reading::check(
  std::uint64_t count, const std::vector<actors::given_sample>& samples) const {
  auto lies = samples.size() > count ||
    std::ranges::any_of(samples, [&](auto& s) { return s.place >= view_->places().samples; });
  return lies
    ? status{errc::protocol_error, "stream {}: its node gave other samples than asked for", view_->name()}
    : status{};
}

void stream_reading::read(const taking_ptr& t, std::shared_ptr<receive_ring::place> place) {
  batch_step step;
  for (auto& one : t->samples)
    step.samples.push_back(one.number);
  t->data = std::make_shared<loaded_batch>(std::move(step), std::move(place));
  t->data->lay_out(view_->places(), fields_, std::vector<loaded_batch::lengths>(fields_.size()));
  view_->core()->reads()->read(
    parts_of(*t), [self = shared_from_this(), t](const result<void>& moved) {
      if (moved)
        return self->compare(t);
      t->why = self->view_->explained(moved.error());
      self->arrived(t);
    });
}

remote_read stream_reading::parts_of(const taking& t) const {
  remote_read out;
  auto& places = view_->places();
  for (auto f : fields_) {
    auto& field = places.fields[f];
    auto* to = t.data->samples_of(f).data();
    for (auto& one : t.samples)
      for_each_piece(
        places.region_bytes, field.base + one.place * field.bytes, field.bytes,
        [&](const set_piece& piece) {
          out.parts.push_back({&view_->region(piece.region), piece.offset, piece.length, to});
          to += piece.length;
        });
  }
  auto& place = t.data->place();
  out.into = {place.data, place.size_bytes};
  out.keep = view_;
  out.stop = t.of->stop;
  return out;
}

// On movers: a batch can be large, and the thread that has read it may be that of the I/O.
void stream_reading::compare(const taking_ptr& t) const {
  auto damaged = std::make_shared<std::atomic<std::uint64_t>>(t->samples.size());
  view_->core()->runs_on()->fabric()->movers()->submit(
    static_cast<std::uint32_t>(t->samples.size()),
    [t, damaged, fields = view_->places().fields](std::uint32_t i) {
      running_digest digest;
      for (std::size_t f = 0; f < fields.size(); ++f)
        digest.add(t->data->samples_of(f).data() + i * fields[f].bytes, fields[f].bytes);
      if (digest.value() != t->samples[i].digest)
        *damaged = i;
    },
    [self = const_cast<stream_reading*>(this)->shared_from_this(), t, damaged] {
      if (*damaged < t->samples.size())
        t->why = {
          errc::corrupt_data,
          "sample {} of stream {} is not as its producer has described it: another process has "
          "written to its place, or the way has damaged it",
          t->samples[*damaged].number, self->view_->name()};
      self->arrived(t);
    });
}

// Damaged samples do not come again; those that nobody got do. The promise has the batch as long as
// it lives, and a program that drops the batch may ask for its place at once. So nothing else keeps
// it.
void stream_reading::arrived(const taking_ptr& t) {
  auto data = std::move(t->data);
  auto done = t->of->done;
  {
    std::lock_guard guard{mutex_};
    calls_.erase(std::exchange(t->of, nullptr));
    ++releasing_;
    ++handing_;
  }
  auto outer = std::exchange(hands_out, true);
  auto taken = t->why.code() == errc::corrupt_data;
  if (t->why.ok()) {
    taken = done.set(outcome{batch{std::move(data)}});
  } else {
    data = nullptr;
    done.set(fail(t->why));
  }
  done = {};
  hands_out = outer;
  {
    std::lock_guard guard{mutex_};
    --handing_;
  }
  handed_out_.notify_all();
  release(t->samples, !taken && !is_planted(defect::late_samples_lost));
  std::lock_guard guard{mutex_};
  --releasing_;
  leave_if_over();
}

void stream_reading::release(const std::vector<actors::given_sample>& samples, bool put_back) {
  for (std::size_t first = 0; first < samples.size(); first += places_of_message) {
    actors::release_samples_request request;
    auto last = std::min(samples.size(), first + places_of_message);
    (put_back ? request.put_back : request.read).reserve(last - first);
    for (auto i = first; i < last; ++i)
      (put_back ? request.put_back : request.read).push_back(samples[i].place);
    // Who waits for the next batch must not wait for this answer.
    view_->ask(std::move(request)).then([view = view_](const result<actors::done_reply>& answer) {
      if (!answer)
        view->leave_after(answer.error(), true);
    });
  }
}

void stream_reading::fail_with(const call_ptr& one, const status& why) {
  {
    std::lock_guard guard{mutex_};
    one->is_reading = false; // what came cannot be read
  }
  give_up(one);
  one->done.set(fail(why));
}

// Under the lock.
void stream_reading::leave_if_over() {
  if (closed_ && calls_.empty() && asked_.empty() && releasing_ == 0)
    view_->leave();
}

void stream_reading::close() {
  if (!view_->core()->refusal().ok())
    return; // a thread of the parent may have the lock
  std::set<call_ptr> gone;
  {
    std::lock_guard guard{mutex_};
    closed_ = true;
    gone = calls_;
    if (gone.empty())
      leave_if_over();
  }
  for (auto& one : gone) {
    give_up(one);
    one->done.set(fail(errc::cancelled, "the reader of stream {} was destroyed", view_->name()));
  }
}

} // namespace millrace::runtime

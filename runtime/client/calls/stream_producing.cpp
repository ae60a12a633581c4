// Nothing that may run code of the program happens under the lock.
#include <millrace/core/digest.hpp>
#include <millrace/core/rounding.hpp>
#include <millrace/runtime/client/calls/stream_producing.hpp>
#include <millrace/transport/memory/gather_list.hpp>
#include <millrace/transport/submit_all.hpp>

#include <algorithm>
#include <map>
#include <utility>

namespace millrace::runtime {

namespace {

constexpr std::uint32_t in_flight_max = 1024;

// Where the fields begin in a block that has one sample, and where the last one ends.
std::vector<std::uint64_t> begins_of(const set_info& places) {
  std::vector<std::uint64_t> out{0};
  for (auto& field : places.fields)
    out.push_back(round_up(out.back() + field.bytes, sample_alignment));
  return out;
}

status check_tensor(const tensor_view& given, const tensor_desc& field) {
  if (given.desc.type == field.type && given.desc.shape == field.shape)
    return {};
  return {
    errc::invalid_argument, "field {} is {}, and the tensor is {}", field.name, describe(field),
    describe(given.desc)};
}

} // namespace

result<std::shared_ptr<stream_producing>> stream_producing::make(
  std::shared_ptr<stream_view> view, const producer_options& options) {
  if (options.in_flight < 1 || options.in_flight > in_flight_max)
    return fail(
      errc::invalid_argument, "in_flight {}: 1 to {} samples", options.in_flight, in_flight_max);
  auto begins = begins_of(view->places());
  std::uint64_t all = 0;
  if (__builtin_mul_overflow(begins.back(), options.in_flight, &all))
    return fail(errc::no_space, "{} samples of stream {}", options.in_flight, view->name());
  auto memory = receive_ring::registered(view->core()->runs_on()->fabric());
  auto ring = receive_ring::make(memory, options.in_flight, begins.back());
  if (!ring)
    return fail(ring.error().within("a producer of stream " + view->name()));
  return std::shared_ptr<stream_producing>{
    new stream_producing{std::move(view), std::move(*ring), std::move(begins)}};
}

// The digest is that of the fields' bytes, one field after the other.
status stream_producing::copy(const std::vector<tensor_view>& from, sample& to) const {
  auto& fields = view_->places().fields;
  if (from.size() != fields.size())
    return {
      errc::invalid_argument, "stream {} has {} fields, and {} tensors were given", view_->name(),
      fields.size(), from.size()};
  running_digest digest;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (auto bad = check_tensor(from[i], fields[i].sample); !bad.ok())
      return bad.within("stream " + view_->name());
    auto bytes = transport::gather_list::of({from[i]}, access_mode::read);
    if (!bytes)
      return bytes.error().within("field " + fields[i].sample.name);
    if (!bytes->on_host())
      return {
        errc::unsupported,
        "field {}: samples of streams come from host memory; copy it there first",
        fields[i].sample.name};
    auto* data = to.block->data + begins_[i];
    bytes->read(0, data, fields[i].bytes, transport::store_mode::cached);
    digest.add(data, fields[i].bytes);
  }
  to.digest = digest.value();
  return {};
}

future<void> stream_producing::append(const std::vector<tensor_view>& from) {
  if (auto refused = view_->core()->refused<void>())
    return *refused;
  auto one = std::make_shared<sample>();
  one->block = ring_->lend();
  if (!one->block)
    return ready_future<void>(fail(
      errc::busy,
      "stream {}: as many samples are under way as may be; wait for one, or raise "
      "in_flight",
      view_->name()));
  if (auto bad = copy(from, *one); !bad.ok())
    return ready_future<void>(fail(bad));
  one->done = view_->core()->make_promise<void>();
  auto out = one->done.get_future();
  // The caller does not have the future yet, so it cannot have cancelled.
  static_cast<void>(one->done.on_cancel([weak = weak_from_this(), which = std::weak_ptr{one}] {
    if (auto self = weak.lock())
      self->forget(which);
  }));
  {
    std::lock_guard guard{mutex_};
    if (closed_ || ending_)
      return ready_future<void>(
        fail(errc::invalid_argument, "the producer of stream {} has ended", view_->name()));
    under_way_.push_back(std::move(one));
  }
  go_on();
  return out;
}

void stream_producing::go_on() {
  while (auto what = next_exchange()) {
    auto shared = std::make_shared<exchange>(std::move(*what));
    // The program may compute meanwhile, and wait for none of its samples.
    view_->ask(shared->request)
      .then([self = shared_from_this(), shared](const result<actors::places_to_write>& answer) {
        self->answered(*shared, answer);
        self->go_on();
      });
  }
  leave_at_end();
}

// Samples are told in their order. Places for those that wait come with the same answer if they are
// there; if not, they are waited for.
std::optional<stream_producing::exchange> stream_producing::next_exchange() {
  exchange out;
  std::lock_guard guard{mutex_};
  if (closed_ || telling_)
    return std::nullopt;
  for (; !under_way_.empty(); under_way_.pop_front()) {
    auto& first = under_way_.front();
    if (first->now == state::written) {
      out.request.written.push_back({first->place, first->digest});
      out.told.push_back(first);
    } else if (first->now != state::failed) {
      break;
    }
  }
  out.request.unused = std::exchange(unused_, {});
  out.returns = !out.told.empty() || !out.request.unused.empty();
  auto queued = waiting_ ? 0 : count_queued();
  out.request.wanted = queued;
  if (out.returns) {
    telling_ = true;
    return out;
  }
  if (queued == 0)
    return std::nullopt;
  out.waits = waiting_ = true;
  out.request.patience_ms = view_->patience_ms();
  return out;
}

std::size_t stream_producing::count_queued() const {
  return static_cast<std::size_t>(std::ranges::count(under_way_, state::queued, &sample::now));
}

void stream_producing::answered(
  const exchange& what, const result<actors::places_to_write>& answer) {
  std::vector<sample_ptr> begun, refused;
  if (!answer)
    view_->leave_after(answer.error(), what.returns);
  {
    std::lock_guard guard{mutex_};
    (what.waits ? waiting_ : telling_) = false;
    if (!answer) {
      // The next ones would fail as well.
      std::erase_if(under_way_, [&](auto& one) {
        auto waits = one->now == state::queued;
        if (waits)
          refused.push_back(one);
        return waits;
      });
    } else {
      auto next = under_way_.begin();
      for (auto place : answer->places) {
        next =
          std::find_if(next, under_way_.end(), [](auto& one) { return one->now == state::queued; });
        if (next == under_way_.end() || place >= view_->places().samples) {
          unused_.push_back(place);
          continue;
        }
        (*next)->now = state::writing;
        (*next)->place = place;
        begun.push_back(*next);
      }
    }
  }
  auto outcome = answer ? result<void>{} : fail(view_->explained(answer.error()));
  for (auto& one : what.told)
    finish(*one, outcome);
  for (auto& one : refused)
    finish(*one, outcome);
  if (!begun.empty())
    write(begun);
}

// All pieces that go to one region are one transfer.
void stream_producing::write(const std::vector<sample_ptr>& some) {
  auto& places = view_->places();
  std::map<std::uint64_t, std::vector<transport::copy_op>> by_region;
  for (auto& one : some)
    for (std::size_t f = 0; f < places.fields.size(); ++f) {
      auto* local = one->block->data + begins_[f];
      auto& field = places.fields[f];
      for_each_piece(
        places.region_bytes, field.base + one->place * field.bytes, field.bytes,
        [&](const set_piece& piece) {
          by_region[piece.region].push_back(
            {.remote_offset = piece.offset, .local = local, .length = piece.length});
          local += piece.length;
        });
    }
  auto blocks = std::make_shared<std::vector<std::shared_ptr<receive_ring::place>>>();
  for (auto& one : some)
    blocks->push_back(one->block);
  std::vector<transport::transfer> transfers;
  for (auto& [region, ops] : by_region) {
    transport::transfer t;
    t.dir = transport::direction::write;
    t.remote = view_->region(region);
    t.ops = transport::copy_list{std::move(ops)};
    t.hold = blocks;
    transfers.push_back(std::move(t));
  }
  transport::submit_all(
    *view_->core()->runs_on()->fabric(), std::move(transfers),
    [self = shared_from_this(), some](const result<void>& outcome) {
      self->written(some, outcome);
      self->go_on();
    });
}

// One that was cancelled meanwhile has failed already.
void stream_producing::written(const std::vector<sample_ptr>& some, const result<void>& outcome) {
  {
    std::lock_guard guard{mutex_};
    for (auto& one : some) {
      if (!outcome)
        one->now = state::failed;
      if (one->now == state::failed)
        unused_.push_back(one->place);
      else
        one->now = state::written;
    }
  }
  for (auto& one : some)
    if (!outcome)
      finish(*one, fail(view_->explained(outcome.error())));
}

// The program may append the next one as soon as it hears of this one.
void stream_producing::finish(sample& one, const result<void>& outcome) {
  one.block = nullptr;
  one.done.set(outcome);
}

// One that was written already is told to the server in any case.
void stream_producing::forget(const std::weak_ptr<sample>& which) {
  {
    auto one = which.lock();
    std::lock_guard guard{mutex_};
    if (!one)
      return;
    if (one->now == state::queued)
      std::erase(under_way_, one);
    if (one->now == state::writing)
      one->now = state::failed;
  }
  go_on();
}

future<void> stream_producing::end() {
  if (auto refused = view_->core()->refused<void>())
    return *refused;
  auto done = view_->core()->make_promise<void>();
  {
    std::lock_guard guard{mutex_};
    if (closed_ || ending_)
      return ready_future<void>(
        fail(errc::invalid_argument, "the producer of stream {} has ended", view_->name()));
    ending_ = done;
  }
  go_on();
  return done.get_future();
}

void stream_producing::leave_at_end() {
  promise<void> done;
  {
    std::lock_guard guard{mutex_};
    if (!ending_ || closed_ || leaving_ || telling_ || !under_way_.empty())
      return;
    leaving_ = true;
    done = *ending_;
  }
  view_->ask(actors::leave_stream_request{.lease = 0, .ends = true})
    .chain([self = shared_from_this(), done](const result<actors::done_reply>& answer) {
      auto why = answer ? status{} : self->view_->explained(answer.error());
      self->left(answer ? status{} : answer.error());
      done.set(why.ok() ? result<void>{} : fail(why));
    });
}

// The producer still has its lease after other failures: it can end again, or be dropped.
void stream_producing::left(const status& outcome) {
  auto code = outcome.code();
  auto is_over = outcome.ok() || code == errc::not_found || code == errc::peer_lost;
  auto was_dropped = false;
  {
    std::lock_guard guard{mutex_};
    leaving_ = false;
    was_dropped = closed_;
    closed_ = closed_ || is_over;
    if (!is_over)
      ending_.reset();
  }
  if (was_dropped && !is_over)
    view_->leave();
}

void stream_producing::close() {
  if (!view_->core()->refusal().ok())
    return; // a thread of the parent may have the lock
  std::deque<sample_ptr> gone;
  std::optional<promise<void>> ending;
  {
    std::lock_guard guard{mutex_};
    if (std::exchange(closed_, true) || leaving_)
      return; // `left` leaves if the end fails
    gone.swap(under_way_);
    ending.swap(ending_);
  }
  status why{errc::cancelled, "the producer of stream {} was destroyed", view_->name()};
  for (auto& one : gone)
    one->done.set(fail(why)); // its block may still be read
  if (ending)
    ending->set(fail(why));
  view_->leave();
}

} // namespace millrace::runtime

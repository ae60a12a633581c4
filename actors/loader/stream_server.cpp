// Lists the messages. `stream_buffer` decides about places; this actor keeps who has which of them,
// and who waits.
#include <millrace/actors/loader/set_exposure.hpp>
#include <millrace/actors/loader/stream_server.hpp>
#include <millrace/actors/provider_actor.hpp>
#include <millrace/core/clock.hpp>
#include <millrace/core/codec.hpp>
#include <millrace/core/planted_defect.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <new>
#include <set>
#include <string_view>
#include <vector>

namespace millrace::actors {

namespace {

using storage::samples::set_filling;

constexpr std::uint32_t streams_of_page = 1000; // streams of one page
constexpr std::uint64_t lent_at_once = 1024;    // places of one answer
// A place needs at most so much heap. A stream may need as much as its samples, or so much.
constexpr std::uint64_t heap_bytes_of_place = 128;
constexpr std::uint64_t heap_bytes_free = 64u << 20;
// The pool has sets by their names, and streams by others: a set and a stream can share a name.
constexpr std::string_view places_mark = "of the stream ";

template <class Reply>
struct waiting {
  std::uint64_t lease = 0;
  std::uint64_t count = 0;
  time_point until;
  std::function<void(result<Reply>)> answer;
};

struct live_stream {
  stream_status state; // without the counts
  std::shared_ptr<set_filling> memory;
  std::shared_ptr<void> place; // of the leases
  stream_buffer buffer;
  std::deque<waiting<places_to_write>> appends;
  std::deque<waiting<taken_samples>> takes;

  const std::string& name() const noexcept { return state.name; }
  stream_status status_now() const {
    auto out = state;
    out.ended = buffer.has_ended();
    out.counts = buffer.counts();
    return out;
  }
};
using stream_ptr = std::shared_ptr<live_stream>;

using exposed_stream = exposed_memory<set_filling>;

struct stream_lease {
  peer_id peer;
  caf::actor_addr through; // the actor that asked for the connection; may be null
  std::shared_ptr<void> place;
  stream_ptr of;
  std::shared_ptr<exposed_stream> memory;
  bool writes = false;
  set_id mark;                         // see `open_stream_request`
  std::multiset<std::uint32_t> places; // a reader can have one twice
};

template <class Reply>
void give_up_waiting(std::deque<waiting<Reply>>& all, const status& why) {
  for (auto& one : std::exchange(all, {}))
    one.answer(fail(why));
}

template <class Reply>
void give_up_waiting(std::deque<waiting<Reply>>& all, std::uint64_t lease, const status& why) {
  for (auto i = all.begin(); i != all.end();) {
    if (i->lease == lease)
      i->answer(fail(why));
    i = i->lease == lease ? all.erase(i) : std::next(i);
  }
}

template <class Reply>
void answer_late(std::deque<waiting<Reply>>& all, time_point now) {
  for (auto i = all.begin(); i != all.end();) {
    auto is_late = i->until < now;
    if (is_late)
      i->answer(Reply{});
    i = is_late ? all.erase(i) : std::next(i);
  }
}

class stream_server : public provider_actor<stream_server_actor> {
public:
  stream_server(caf::actor_config& config, data_server_deps deps)
    : provider_actor(config, deps.name, deps.fabric, deps.limits), deps_(std::move(deps)) {}

  const char* name() const override { return "stream_server"; }

  behavior_type make_behavior() override {
    using self = stream_server;
    return handlers(
      &self::create, &self::open, &self::append, &self::take, &self::release, &self::leave,
      &self::end_stream, &self::remove, &self::list);
  }

protected:
  void give_up_all(const status& why) override {
    owed_.give_up_all(why);
    for (auto& [number, lease] : std::exchange(leases_, {}))
      withdraw_on_mover(*context_, std::move(lease.memory), {});
    streams_.clear();
  }

  bool give_up_late(time_point now) override {
    for (auto& [name, stream] : streams_) {
      answer_late(stream->appends, now);
      answer_late(stream->takes, now);
    }
    return std::ranges::any_of(streams_, [](auto& named) {
      return !named.second->appends.empty() || !named.second->takes.empty();
    });
  }

  void ended(const caf::actor_addr& actor, const status& why) override {
    for (auto i = leases_.begin(); i != leases_.end();)
      i = i->second.through == actor ? end_lease(i, why) : std::next(i);
  }

private:
  using lease_iterator = std::map<std::uint64_t, stream_lease>::iterator;

  caf::result<stream_status> create(create_stream_request& request) {
    if (auto bad = validate(request.options); !bad.ok())
      return to_caf_error(bad.within("stream " + request.name));
    if (auto found = streams_.find(request.name); found != streams_.end())
      return existing(*found->second, request.options);
    auto wanted = places_of(std::string{places_mark} + request.name, request.options);
    if (auto bad = check_heap(wanted); !bad.ok())
      return to_caf_error(bad);
    auto place = lend_place(request.from);
    if (!place)
      return to_caf_error(place.error());
    auto reserved = deps_.memory.pool->reserve(std::move(wanted), owner_of(request.from));
    if (!reserved)
      return to_caf_error(of_stream(reserved.error()));
    for (auto& name : reserved->evicted)
      log().info("working set evicted, as a stream needs its memory name={}", name);
    auto& memory = reserved->filling;
    if (!memory)
      return to_caf_error(
        {errc::already_exists, "stream {}: a working set has its memory", request.name});
    auto buffer = make_buffer(request);
    if (!buffer)
      return to_caf_error(buffer.error());
    stream_status state;
    state.name = request.name;
    state.id = memory->info().id;
    state.options = request.options;
    state.owner = memory->info().owner;
    state.created_at_ns = wall_clock_ns();
    state.size_bytes = memory->info().size_bytes;
    *place = counted(deps_.memory.streams->streams, std::move(*place));
    log().info(
      "stream created name={} policy={} capacity={} size={}", state.name,
      to_string(state.options.policy), state.options.capacity, state.size_bytes);
    auto made = std::make_shared<live_stream>(
      live_stream{state, memory, std::move(*place), std::move(*buffer), {}, {}});
    streams_.emplace(request.name, made);
    return made->status_now();
  }

  // The pool knows its places as a working set.
  static status of_stream(const status& why) {
    auto said = fmt::format("working set {}", places_mark);
    auto text = why.detail();
    if (auto at = text.find(said); at != std::string::npos)
      text.replace(at, said.size(), "stream ");
    return {why.code(), "{}", text};
  }

  // Each place needs some heap beside the pool, which nobody charges for.
  status check_heap(set_info wanted) const {
    wanted.region_bytes = deps_.memory.pool->stats().region_bytes;
    if (auto bad = place_fields(wanted); !bad.ok())
      return of_stream(bad);
    auto most = std::max(wanted.size_bytes, heap_bytes_free) / heap_bytes_of_place;
    if (wanted.samples <= most)
      return {};
    return {
      errc::invalid_argument,
      "stream {}: capacity {}: {} at most for samples that are so small; put several values into "
      "one sample",
      wanted.name.substr(places_mark.size()), wanted.samples, most};
  }

  static result<stream_buffer> make_buffer(const create_stream_request& request) {
    try {
      return stream_buffer{request.options};
    } catch (const std::bad_alloc&) {
      return fail(
        errc::no_space, "stream {}: the node has no memory for {} places", request.name,
        request.options.capacity);
    }
  }

  static caf::result<stream_status> existing(
    const live_stream& found, const stream_options& wanted) {
    if (found.state.options == wanted)
      return found.status_now();
    return to_caf_error(
      {errc::already_exists,
       "stream {} was created by {} with other options; remove it, or choose another name",
       found.name(), found.state.owner});
  }

  caf::result<opened_stream> open(const open_stream_request& request) {
    auto through = watch_asker();
    auto found = streams_.find(request.name);
    if (found == streams_.end())
      return to_caf_error(no_stream(request.name, "; create it"));
    auto stream = found->second;
    if (auto bad = request.writes ? check_producer(*stream) : status{}; !bad.ok())
      return to_caf_error(bad);
    auto place = lend_place(request.from);
    if (!place)
      return to_caf_error(place.error());
    auto memory = std::make_shared<exposed_stream>();
    memory->memory = stream->memory;
    auto regions = expose_regions(
      memory->memory->regions(), request.writes ? access_mode::write : access_mode::read);
    if (!regions)
      return to_caf_error(regions.error());
    memory->regions = std::move(*regions);
    ++(request.writes ? stream->state.producers : stream->state.readers);
    opened_stream out{stream->status_now(), stream->memory->info(), 0, handles_of(memory->regions)};
    out.lease = keep(
      {request.from.peer,
       through,
       std::move(*place),
       stream,
       std::move(memory),
       request.writes,
       request.mark,
       {}});
    return out;
  }

  static status check_producer(const live_stream& stream) {
    auto& state = stream.state;
    if (stream.buffer.has_ended())
      return ended_already(stream);
    auto most = state.options.producers;
    if (most > 0 && state.producers + state.producers_ended >= most)
      return {
        errc::busy,
        "stream {} has its {} producers: {} are open and {} have ended; one whose connection is "
        "lost makes room for another",
        state.name,
        most,
        state.producers,
        state.producers_ended};
    return {};
  }

  // What is written is appended, also if there is no place for more.
  caf::result<places_to_write> append(const append_samples_request& request) {
    auto found = find(request.lease, request.from, true);
    if (found == leases_.end())
      return to_caf_error(unknown(request.lease));
    auto& lease = found->second;
    auto& stream = *lease.of;
    std::vector<std::uint32_t> named = request.unused;
    for (auto& one : request.written)
      named.push_back(one.place);
    if (auto bad = give_back(lease, std::move(named)); !bad.ok())
      return to_caf_error(bad);
    auto over = stream.buffer.has_ended();
    for (auto& one : request.written)
      over ? stream.buffer.abandon(one.place)
           : static_cast<void>(stream.buffer.commit(one.place, one.digest));
    for (auto place : request.unused)
      stream.buffer.abandon(place);
    if (!over)
      deps_.memory.streams->appended += request.written.size();
    serve(stream);
    if (over)
      return to_caf_error(ended_already(stream));
    return lend_or_wait(request, lease);
  }

  caf::result<places_to_write> lend_or_wait(
    const append_samples_request& request, stream_lease& lease) {
    auto& stream = *lease.of;
    if (request.wanted == 0)
      return places_to_write{};
    if (stream.appends.empty())
      if (auto lent = lend(lease, request.wanted); !lent.places.empty())
        return lent;
    if (request.patience_ms == 0)
      return places_to_write{};
    auto same = [&](auto& one) { return one.lease == request.lease; };
    if (std::ranges::any_of(stream.appends, same))
      return to_caf_error(
        {errc::busy, "{}: a request of the producer waits for places of stream {} already",
         deps_.name, stream.name()});
    ++stream.state.append_waits;
    return wait(stream.appends, request.lease, request.wanted, request.patience_ms);
  }

  caf::result<taken_samples> take(const take_samples_request& request) {
    auto found = find(request.lease, request.from, false);
    if (found == leases_.end())
      return to_caf_error(unknown(request.lease));
    auto& lease = found->second;
    auto& stream = *lease.of;
    auto most = stream.state.options.capacity;
    if (request.count < 1 || request.count > most)
      return to_caf_error(
        {errc::invalid_argument, "{} samples of stream {}: 1 to {}, its capacity", request.count,
         stream.name(), most});
    if (stream.takes.empty()) {
      auto taken = give(lease, request.count);
      if (taken.is_over || !taken.samples.empty())
        return taken;
    }
    if (request.patience_ms == 0)
      return taken_samples{};
    auto same = [&](auto& one) { return one.lease == request.lease; };
    if (
      std::ranges::count_if(stream.takes, same) >= static_cast<std::ptrdiff_t>(takes_of_reader_max))
      return to_caf_error(
        {errc::busy, "{}: {} requests of the reader wait for samples of stream {}", deps_.name,
         takes_of_reader_max, stream.name()});
    ++stream.state.take_waits;
    return wait(stream.takes, request.lease, request.count, request.patience_ms);
  }

  caf::result<done_reply> release(const release_samples_request& request) {
    auto found = find(request.lease, request.from, false);
    if (found == leases_.end())
      return to_caf_error(unknown(request.lease));
    auto& lease = found->second;
    auto named = request.read;
    named.insert(named.end(), request.put_back.begin(), request.put_back.end());
    if (auto bad = give_back(lease, std::move(named)); !bad.ok())
      return to_caf_error(bad);
    for (auto place : request.read)
      lease.of->buffer.release(place);
    for (auto place : request.put_back)
      lease.of->buffer.put_back(place);
    serve(*lease.of);
    return done_reply{};
  }

  caf::result<done_reply> leave(const leave_stream_request& request) {
    auto found = find_lease(leases_, request.lease, request.mark, request.from);
    if (found == leases_.end())
      return to_caf_error(unknown(request.lease));
    auto stream = found->second.of;
    auto ends = request.ends && found->second.writes;
    end_lease(found, {errc::cancelled, "the asker has left stream {}", stream->name()});
    if (ends)
      count_ended(*stream);
    return done_reply{};
  }

  void count_ended(live_stream& stream) {
    ++stream.state.producers_ended;
    auto most = stream.state.options.producers;
    if (most > 0 && stream.state.producers_ended >= most)
      end(stream);
  }

  caf::result<done_reply> end_stream(const end_stream_request& request) {
    auto stream = of_owner(request.name, request.from);
    if (!stream)
      return to_caf_error(stream.error());
    end(**stream);
    return done_reply{};
  }

  caf::result<done_reply> remove(const remove_stream_request& request) {
    auto stream = of_owner(request.name, request.from);
    if (!stream)
      return to_caf_error(stream.error());
    status why{errc::not_found, "stream {} was removed", request.name};
    for (auto i = leases_.begin(); i != leases_.end();)
      i = i->second.of == *stream ? end_lease(i, why) : std::next(i);
    streams_.erase(request.name);
    // Another one may have the name at once. The memory is free once nothing can reach it.
    auto& memory = (*stream)->memory->info();
    auto freed =
      deps_.memory.pool->unload(memory.name, memory.id, storage::samples::process_owner());
    if (!freed.ok())
      log().warn(
        "the name of a removed stream is not free: {} name={}", freed.detail(), request.name);
    log().info("stream removed name={}", request.name);
    return done_reply{};
  }

  caf::result<stream_list> list(const list_streams_request& request) {
    auto most =
      request.count_max == 0 ? streams_of_page : std::min(request.count_max, streams_of_page);
    auto& prefix = request.prefix;
    auto& after = request.after;
    auto at = after < prefix ? streams_.lower_bound(prefix) : streams_.upper_bound(after);
    stream_list out;
    std::uint64_t bytes = 0;
    for (; at != streams_.end() && at->first.starts_with(prefix) && out.streams.size() < most;
         ++at) {
      auto one = at->second->status_now();
      bytes += encode(one).size();
      if (!out.streams.empty() && bytes > deps_.page_bytes_max)
        break; // the next page begins with it
      out.streams.push_back(std::move(one));
    }
    return out;
  }

  // Readers first: what they take was there before.
  void serve(live_stream& stream) {
    while (!stream.takes.empty()) {
      auto& first = stream.takes.front();
      auto taken = give(leases_.at(first.lease), first.count);
      if (!taken.is_over && taken.samples.empty())
        break;
      first.answer(std::move(taken));
      stream.takes.pop_front();
    }
    while (!stream.appends.empty()) {
      auto& first = stream.appends.front();
      auto lent = lend(leases_.at(first.lease), first.count);
      if (lent.places.empty())
        break;
      first.answer(std::move(lent));
      stream.appends.pop_front();
    }
  }

  taken_samples give(stream_lease& lease, std::uint64_t count) {
    taken_samples out;
    out.samples = lease.of->buffer.take(count);
    out.is_over = out.samples.empty() && lease.of->buffer.is_over();
    for (auto& one : out.samples)
      lease.places.insert(one.place);
    deps_.memory.streams->given += out.samples.size();
    return out;
  }

  // While readers wait for more samples, none that is there makes room for another one.
  static places_to_write lend(stream_lease& lease, std::uint64_t wanted) {
    places_to_write out;
    if (!lease.of->takes.empty())
      wanted = std::min(wanted, lease.of->buffer.free_places());
    while (out.places.size() < std::min(wanted, lent_at_once)) {
      auto place = lease.of->buffer.begin_write();
      if (!place)
        break;
      lease.places.insert(*place);
      out.places.push_back(*place);
    }
    return out;
  }

  template <class Reply>
  caf::result<Reply> wait(
    std::deque<waiting<Reply>>& among, std::uint64_t lease, std::uint64_t count,
    std::uint32_t patience_ms) {
    auto rp = this->template make_response_promise<Reply>();
    auto until = deadline_of(patience_ms, context_->bounds, now());
    among.push_back({lease, count, until, owed_.keep(rp)});
    watch();
    return rp;
  }

  // Checks that the lease has all of these places, and takes them from it.
  status give_back(stream_lease& lease, std::vector<std::uint32_t> places) const {
    std::ranges::sort(places);
    if (!std::ranges::includes(lease.places, places))
      return {
        errc::not_found, "{}: a place of stream {} is not one that this process has", deps_.name,
        lease.of->name()};
    for (auto place : places)
      lease.places.erase(lease.places.find(place));
    return {};
  }

  void end(live_stream& stream) {
    if (stream.buffer.has_ended())
      return;
    stream.buffer.end();
    log().info("stream ended name={}", stream.name());
    give_up_waiting(stream.appends, ended_already(stream));
    serve(stream);
  }

  // Returns the one behind it. The places return once nothing can reach them.
  lease_iterator end_lease(lease_iterator which, const status& why) {
    auto lease = std::move(which->second);
    auto& stream = *lease.of;
    --(lease.writes ? stream.state.producers : stream.state.readers);
    give_up_waiting(stream.appends, which->first, why);
    give_up_waiting(stream.takes, which->first, why);
    auto next = leases_.erase(which);
    if (is_planted(defect::stream_place_kept) && lease.writes)
      lease.places.clear();
    withdraw_on_mover(
      *context_, std::move(lease.memory),
      [this, of = lease.of, writes = lease.writes, places = std::move(lease.places)] {
        for (auto place : places)
          writes ? of->buffer.abandon(place) : of->buffer.release(place);
        serve(*of);
      });
    return next;
  }

  result<stream_ptr> of_owner(const std::string& name, const asker& from) {
    auto found = streams_.find(name);
    if (found == streams_.end())
      return fail(no_stream(name));
    auto who = owner_of(from);
    if (!storage::samples::may_change(found->second->state.owner, who))
      return fail(
        errc::permission_denied, "stream {} belongs to {}, and {} may not end or remove it", name,
        found->second->state.owner, who);
    return found->second;
  }

  // Counts as long as the place is held.
  std::shared_ptr<void> counted(std::atomic<std::uint64_t>& count, std::shared_ptr<void> place) {
    ++count;
    auto* raw = place.get();
    return {
      raw, [&count, place = std::move(place), use = deps_.memory.streams](void*) { --count; }};
  }

  result<std::shared_ptr<void>> lend_place(const asker& from) {
    return deps_.memory.leases->lend(from.holder).map([this](std::shared_ptr<void> place) {
      return counted(deps_.memory.streams->leases, std::move(place));
    });
  }

  std::uint64_t keep(stream_lease one) {
    auto number = unused_number(leases_);
    leases_.emplace(number, std::move(one));
    return number;
  }

  lease_iterator find(std::uint64_t number, const asker& from, bool writes) {
    auto found = leases_.find(number);
    auto theirs =
      found != leases_.end() && found->second.peer == from.peer && found->second.writes == writes;
    return theirs ? found : leases_.end();
  }

  static status no_stream(const std::string& name, const char* remedy = "") {
    return {errc::not_found, "there is no stream {}{}", name, remedy};
  }
  static status ended_already(const live_stream& stream) {
    return {
      errc::invalid_argument, "stream {} has ended, and nothing can be appended to it",
      stream.name()};
  }
  status unknown(std::uint64_t number) const {
    return {
      errc::not_found,
      "{} has no lease {} of this process: the stream was removed, or the connection was lost; "
      "open the stream again",
      deps_.name, number};
  }

  data_server_deps deps_;
  std::map<std::string, stream_ptr> streams_;
  std::map<std::uint64_t, stream_lease> leases_; // by random numbers
  open_answers owed_;
};

} // namespace

stream_server_actor spawn_stream_server(caf::actor_system& system, data_server_deps deps) {
  return system.spawn<stream_server>(std::move(deps));
}

} // namespace millrace::actors

// Asks the owner of a region to copy, and copies for peers that ask.
#include <millrace/core/codec.hpp>
#include <millrace/core/digest.hpp>
#include <millrace/core/gathering.hpp>
#include <millrace/core/log.hpp>
#include <millrace/net/loop/sweep_timer.hpp>
#include <millrace/transport/peer_links.hpp>
#include <millrace/transport/shm/peer_link.hpp>
#include <millrace/transport/shm/shm_driver.hpp>

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <map>

namespace millrace::transport {

namespace {

using namespace shm;

// Bytes of page table filled in one turn of a mover.
constexpr std::uint64_t populate_bytes = 2u << 20;
// How long memory is kept from reuse when the kernel cannot tell whether a lost peer still runs.
constexpr std::uint32_t quarantine_ms = 60'000;
constexpr std::uint32_t sweep_ms = 1000; // how soon lateness and freed arenas are noticed

// Returns the report of a transfer from the outcomes of its moves.
transfer_report report_of(std::vector<copied> parts) {
  transfer_report report{std::move(parts.front().digests), "shm", parts.front().written_back};
  for (std::size_t i = 1; i < parts.size(); ++i) {
    report.digests.insert(report.digests.end(), parts[i].digests.begin(), parts[i].digests.end());
    report.written_back &= parts[i].written_back;
  }
  return report;
}

// The memory that the ops of a move reach, each mapping once. A move may have a thousand times more
// ops.
struct reached_places {
  std::map<const std::byte*, reached_memory> all; // by the begin of the mapping
  const std::byte* last = nullptr;                // neighbouring ops mostly lie in the same mapping
  std::once_flag pinned;

  void add(reached_memory&& m) {
    if (auto* begin = m.begin(); begin != last) {
      last = begin;
      all.try_emplace(begin, std::move(m));
    }
  }

  void pin_for(const std::vector<std::shared_ptr<device_memory>>& devices) {
    std::call_once(pinned, [&] {
      for (auto& device : devices)
        for (auto& [begin, r] : all)
          if (r.arena)
            r.arena->pin_for(*device);
    });
  }

  // Fills page tables of files. Those of arenas are filled by `populate_soon`.
  status populate(const std::byte* local, std::uint64_t length, direction dir) const {
    auto& [begin, r] = *std::prev(all.upper_bound(local));
    return r.file ? r.file->populate(static_cast<std::uint64_t>(local - begin), length, dir)
                  : status{};
  }
};

// Returns for each move of a transfer the index at which its ops end.
std::vector<std::size_t> cut(const transfer& t) {
  std::vector<std::size_t> ends;
  std::size_t first = 0;
  std::uint64_t digests = 0;
  for (std::size_t i = 0; i < t.ops.size(); ++i) {
    auto more = t.digests ? digests_at_most(t.ops[i].length) : 0;
    if (i > first && (i - first == move_ops_max || digests + more > move_digests_max)) {
      ends.push_back(i);
      first = i;
      digests = 0;
    }
    digests += more;
  }
  ends.push_back(t.ops.size());
  return ends;
}

// A move that is ready to be sent.
struct prepared_move {
  shm::move request;
  pending_move pending;
};

class shm_driver : public peer_driver, public std::enable_shared_from_this<shm_driver> {
public:
  shm_driver(const driver_deps& deps, const shm_options& options)
    : deps_(deps), options_(options) {}

  std::string_view name() const noexcept override { return "shm"; }
  driver_capabilities capabilities() const noexcept override {
    return {.device_memory = true, .maps = true};
  }

  bool reaches(const peer_id& owner) const noexcept override { return link_to(owner) != nullptr; }

  void peer_opened(const std::shared_ptr<net::channel>& c) override {
    // A peer at a network address is on another host, or its channel carries no descriptors.
    if (c->peer().address)
      return;
    auto link = std::make_shared<peer_link>(c, deps_.granule_bytes, options_, mappings_);
    links_.add(*c, link);
    for (auto& a : deps_.shared_arenas())
      if (auto bad = link->asking.announce_arena(a); !bad.ok())
        log().warn("arena not announced peer={} why=\"{}\"", link->peer().name, bad.to_string());
    link->mapping.introduce();
    arm_sweep();
  }

  void peer_closed(net::channel& c, const status& why) override {
    if (auto link = links_.take(c)) {
      quarantine(link->peer(), link->close(why));
      unmap_soon(*link);
    }
  }

  void submit(transfer t, completion<transfer_report> done) override {
    auto link = link_to(t.remote.owner, t.channel);
    if (!link)
      return done(fail(errc::peer_lost, "no connection to the process that owns the memory"));
    // All moves are prepared before the first one is sent, so that unreachable memory fails before
    // a byte moves.
    std::vector<prepared_move> moves;
    std::size_t first = 0;
    for (auto end : cut(t)) {
      auto made = prepare(*link, t, {t.ops.data() + first, end - first});
      if (!made)
        return done(fail(made.error()));
      moves.push_back(std::move(*made));
      first = end;
    }
    t.hold.reset();
    auto all =
      std::make_shared<gathering<copied>>(moves.size(), [done = std::move(done)](auto parts) {
        done(std::move(parts).map(report_of));
      });
    for (std::size_t i = 0; i < moves.size(); ++i)
      moves[i].pending.done = [all, i](result<copied> outcome) {
        all->arrived(i, std::move(outcome));
      };
    bool held = false;
    for (auto& m : moves)
      held = link->asking.ask(std::move(m.request), std::move(m.pending)) || held;
    if (held)
      delays_.arm(weak_from_this(), &shm_driver::send_held);
  }

  void map(const bulk_handle& remote, access_mode how, completion<mapped_region> done) override {
    auto answers = [how](auto& link) { return link.is_open() && link.mapping.is_answered(how); };
    if (auto link = links_.to(remote.owner, answers))
      return link->mapping.ask(remote, how, std::move(done));
    if (auto link = link_to(remote.owner))
      return done(fail(
        errc::unsupported, "{} runs a version whose memory cannot be mapped", link->peer().name));
    done(fail(errc::peer_lost, "no connection to the process that owns the memory"));
  }

  void on_message(
    net::channel& c, std::span<const std::byte> body, std::vector<net::unique_fd> fds) override {
    auto link = links_.find(c);
    if (!link)
      return;
    auto bad = take_message<message_kind>(
      body, [&](auto kind, auto& reader) { return take(link, kind, reader, std::move(fds)); });
    if (!bad.ok())
      c.close(bad.within("a shm message"));
  }

private:
  std::shared_ptr<peer_link> link_to(
    const peer_id& owner, std::uint64_t channel = 0) const noexcept {
    return links_.to(
      owner, [](auto& link) { return link.is_open(); }, channel);
  }

  static result<prepared_move> prepare(
    peer_link& link, const transfer& t, std::span<const copy_op> ops) {
    prepared_move out;
    out.request.region = t.remote.region;
    out.request.key = t.remote.key;
    out.request.dir = static_cast<std::uint8_t>(t.dir);
    out.request.digests = t.digests;
    out.request.write_back = t.write_back;
    out.pending.hold = t.hold;
    out.request.ops.reserve(ops.size());
    arena_place place;
    for (auto& op : ops) {
      auto covered = op.lead + op.length + op.tail;
      auto bad = locate(op.local - op.lead, covered, place);
      if (bad.ok())
        bad = link.asking.offer(place, covered);
      if (!bad.ok())
        return fail(bad);
      out.request.ops.push_back(
        {op.remote_offset, place.in->id(), place.offset + op.lead, op.length, op.lead, op.tail});
      out.pending.bytes += op.length;
      out.pending.digests += t.digests ? digest_count(covered) : 0;
    }
    return out;
  }

  // Consecutive ops mostly share one arena. So `place` comes with the arena of the op before.
  static status locate(const std::byte* data, std::uint64_t length, arena_place& place) {
    if (
      place.in && data >= place.in->data() &&
      data + length <= place.in->data() + place.in->size_bytes()) {
      place.offset = static_cast<std::uint64_t>(data - place.in->data());
      return {};
    }
    auto found = find_arena(data, length);
    if (!found)
      return found.error();
    place = std::move(*found);
    return {};
  }

  status take(
    const std::shared_ptr<peer_link>& link, message_kind kind, wire_reader& reader,
    std::vector<net::unique_fd> fds) {
    switch (kind) {
    case message_kind::announce:
      return on_announce(*link, reader, fds);
    case message_kind::announce_file:
      return on_announce_file(*link, reader, fds);
    case message_kind::grant: {
      grant what;
      auto bad = reader(what) ? link->lending.take_grant(what) : status{};
      unmap_soon(*link);
      return bad;
    }
    case message_kind::forget: {
      forget gone;
      if (reader(gone))
        link->lending.unmap(gone.arena);
      unmap_soon(*link);
      return {};
    }
    case message_kind::asks: {
      asks all;
      status bad;
      if (reader(all))
        for (auto& request : all.moves)
          if (bad.ok())
            bad = on_move(link, std::move(request));
      return bad;
    }
    case message_kind::answers: {
      answers all;
      if (reader(all))
        link->asking.on_answers(std::move(all));
      return {};
    }
    case message_kind::abilities: {
      abilities theirs;
      if (reader(theirs))
        link->mapping.on_abilities(theirs);
      return {};
    }
    case message_kind::map: {
      map_question asked;
      if (reader(asked))
        link->answer(asked);
      return {};
    }
    case message_kind::mapped: {
      map_answer answer;
      return reader(answer) ? on_mapped(*link, std::move(answer)) : status{};
    }
    }
    return {}; // a message kind of a later version
  }

  status on_announce(peer_link& link, wire_reader& reader, std::vector<net::unique_fd>& fds) {
    announce what;
    if (!reader(what))
      return {};
    if (fds.size() != 1)
      return {errc::protocol_error, "an arena announced without its descriptor"};
    auto asked = sharing_of(what) != arena_sharing::transfers;
    auto bad = asked ? link.mapping.count_arena() : status{};
    return bad.ok() ? link.lending.map(what, fds.front().get()) : bad;
  }

  status on_mapped(peer_link& link, map_answer answer) {
    auto arena = link.mapping.on_answer(std::move(answer), link.lending);
    if (arena && *arena)
      populate_soon(*arena);
    return arena ? status{} : arena.error();
  }

  // Fills the page tables with the first move or region that uses an arena, since this costs as
  // much as copying all of it once. A process that restores from a pool's file never needs the
  // staging arena.
  void populate_soon(const std::shared_ptr<mapped_arena>& arena) {
    if (!arena->first_use())
      return;
    auto chunks = (arena->size_bytes() + populate_bytes - 1) / populate_bytes;
    deps_.movers->submit(
      static_cast<std::uint32_t>(chunks),
      [arena](std::uint32_t i) { arena->populate(i * populate_bytes, populate_bytes); }, [] {},
      job_class::background);
  }

  // The mappings may have many gigabytes and be pinned for a device, so a mover unmaps them.
  void unmap_soon(peer_link& link) {
    auto gone = std::make_shared<std::vector<std::shared_ptr<void>>>(link.lending.take_unmapped());
    if (!gone->empty())
      deps_.movers->submit(
        1, [gone](std::uint32_t) { gone->clear(); }, [] {});
  }

  static status on_announce_file(
    peer_link& link, wire_reader& reader, std::vector<net::unique_fd>& fds) {
    announce_file what;
    if (!reader(what))
      return {};
    if (fds.size() != 1)
      return {errc::protocol_error, "a file announced without its descriptor"};
    return link.lending.map_file(what, std::move(fds.front()));
  }

  status on_move(const std::shared_ptr<peer_link>& link, shm::move request) {
    if (auto bad = check(request); !bad.ok())
      return bad;
    auto weight = weigh(request);
    auto busy = link->lending.began(weight);
    auto answer = [weak = weak_from_this(), link, weight,
                   number = request.number](result<copied> outcome) {
      moved m;
      m.number = number;
      if (outcome) {
        m.digests = std::move(outcome->digests);
        m.written_back = outcome->written_back;
      } else {
        m.code = static_cast<std::uint8_t>(outcome.error().code());
        m.detail = outcome.error().detail();
      }
      auto self = link->lending.ended(std::move(m), weight) ? weak.lock() : nullptr;
      if (self)
        self->delays_.arm(weak, &shm_driver::send_held);
    };
    auto job = busy.ok() ? job_for(*link, request) : fail(busy);
    if (job)
      run_copy_job(*deps_.movers, deps_.limits, std::move(*job), std::move(answer));
    else
      answer(fail(job.error()));
    return {};
  }

  result<copy_job> job_for(peer_link& link, const shm::move& request) {
    auto dir = static_cast<direction>(request.dir);
    auto memory = find_region(request.region, request.key, access_for(dir), memory_reach::any);
    if (!memory)
      return fail(memory.error());
    auto reached = std::make_shared<reached_places>();
    copy_job job{
      .dir = dir,
      .memory = *memory,
      .ops = {},
      .digests = request.digests,
      .write_back = request.write_back,
      .hold = reached,
      .abandoned = link.lending.abandoned(),
      .prepare = {}};
    job.ops.reserve(request.ops.size());
    bool files = false;
    for (auto& op : request.ops) {
      auto local = link.lending.resolve(op);
      if (!local)
        return fail(local.error());
      job.ops.push_back(
        {.remote_offset = op.remote_offset,
         .local = local->data,
         .length = op.length,
         .lead = op.lead,
         .tail = op.tail});
      files |= local->file != nullptr;
      reached->add(std::move(*local));
    }
    if (auto bad = check_ops(job.ops, memory->size_bytes()); !bad.ok())
      return fail(bad);
    for (auto& [begin, r] : reached->all)
      if (r.arena)
        populate_soon(r.arena);
    if (files || !memory->devices().empty())
      job.prepare = [reached = reached.get(), dir,
                     memory = *memory](std::byte* local, std::uint64_t length) {
        reached->pin_for(memory.devices());
        return reached->populate(local, length, dir);
      };
    return job;
  }

  // *Problem*: a peer that was only silent (stopped, for example) may wake up and go on copying
  // into memory that was lent again meanwhile. So the memory that a lost peer could still touch is
  // kept until the peer's process is gone.
  void quarantine(const net::peer_info& peer, std::vector<std::shared_ptr<void>> touched) {
    if (touched.empty())
      return;
    auto kept = std::make_shared<std::vector<std::shared_ptr<void>>>(std::move(touched));
    int fd = peer.pid > 0 ? static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)) : -1;
    if (fd < 0 && errno == ESRCH && peer.pid > 0)
      return;
    if (fd < 0) {
      deps_.loop->run_after(quarantine_ms, [kept] { kept->clear(); });
      return;
    }
    auto owned = std::make_shared<net::unique_fd>(fd);
    // `kept` may hold the last reference to the loop.
    auto watched = deps_.loop->watch(
      fd, EPOLLIN, [kept, owned, weak = std::weak_ptr{deps_.loop}](std::uint32_t) {
        if (auto loop = weak.lock())
          loop->unwatch(owned->get());
        kept->clear();
      });
    if (!watched.ok())
      deps_.loop->run_after(quarantine_ms, [kept] { kept->clear(); });
  }

  void arm_sweep() { sweeps_.arm(weak_from_this(), &shm_driver::sweep); }

  void sweep() {
    auto links = links_.all();
    for (auto& link : links) {
      link->asking.forget_freed();
      link->asking.expire(steady_clock::now());
      link->mapping.expire(steady_clock::now());
    }
    if (!links.empty())
      arm_sweep();
  }

  void send_held() {
    for (auto& link : links_.all())
      link->send_held();
  }

  const driver_deps deps_;
  const shm_options options_;
  const std::shared_ptr<lent_places> mappings_ =
    std::make_shared<lent_places>(options_.mapped_max, "mappings of peers (shm.mapped_max)");
  peer_links<peer_link> links_;
  net::sweep_timer sweeps_{deps_.loop, sweep_ms};
  net::sweep_timer delays_{deps_.loop, options_.batch_delay_ms};
};

} // namespace

result<std::shared_ptr<peer_driver>> make_shm_driver(
  const driver_deps& deps, const shm_options& options) {
  return std::make_shared<shm_driver>(deps, options);
}

} // namespace millrace::transport

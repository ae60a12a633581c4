// Asks the owner of a region to copy, and copies for peers that ask.
#include <millrace/core/codec.hpp>
#include <millrace/core/digest.hpp>
#include <millrace/core/log.hpp>
#include <millrace/transport/shm/peer_link.hpp>
#include <millrace/transport/shm/shm_driver.hpp>

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace millrace::transport {

namespace {

using namespace shm;

// Ops of one move: bounds the message, whatever the number of tensors.
constexpr std::size_t move_ops_max = 32768;
// Bytes of page table filled in one turn of a mover.
constexpr std::uint64_t populate_bytes = 16u << 20;
// How long memory is kept from reuse when the kernel cannot tell whether a lost peer still runs.
constexpr std::uint32_t quarantine_ms = 60'000;

// One submitted transfer, possibly cut into several moves.
struct gathering {
  std::mutex mutex;
  std::vector<std::vector<std::uint64_t>> digests;
  std::size_t missing = 0;
  status first_error;
  completion<transfer_report> done;

  void part(std::size_t index, result<std::vector<std::uint64_t>> outcome) {
    {
      std::lock_guard guard{mutex};
      if (outcome)
        digests[index] = std::move(*outcome);
      else if (first_error.ok())
        first_error = outcome.error();
      if (--missing > 0)
        return;
    }
    if (!first_error.ok())
      return done(fail(first_error));
    transfer_report report{std::move(digests.front()), "shm"};
    for (std::size_t i = 1; i < digests.size(); ++i)
      report.digests.insert(report.digests.end(), digests[i].begin(), digests[i].end());
    done(std::move(report));
  }
};

class shm_driver : public peer_driver, public std::enable_shared_from_this<shm_driver> {
public:
  shm_driver(
    std::shared_ptr<io_loop> loop, std::shared_ptr<mover_pool> movers,
    const shm_driver_options& options, std::function<std::vector<std::shared_ptr<arena>>()> shared)
    : loop_(std::move(loop)), movers_(std::move(movers)), options_(options),
      shared_(std::move(shared)) {}

  std::string_view name() const noexcept override { return "shm"; }
  driver_capabilities capabilities() const noexcept override { return {.same_host = true}; }

  bool reaches(const peer_id& owner) const noexcept override { return link_to(owner) != nullptr; }

  void peer_opened(const std::shared_ptr<channel>& c) override {
    auto link = std::make_shared<peer_link>(c);
    {
      std::lock_guard guard{mutex_};
      links_[c.get()] = link;
    }
    for (auto& a : shared_())
      if (auto bad = link->announce_arena(a); !bad.ok())
        log().warn("arena not announced peer={} why=\"{}\"", link->peer().name, bad.to_string());
    arm_sweep();
  }

  void peer_closed(channel& c, const status& why) override {
    std::shared_ptr<peer_link> link;
    {
      std::lock_guard guard{mutex_};
      auto found = links_.find(&c);
      if (found == links_.end())
        return;
      link = std::move(found->second);
      links_.erase(found);
    }
    quarantine(link->peer(), link->close(why));
  }

  void submit(transfer t, completion<transfer_report> done) override {
    auto link = link_to(t.remote.owner);
    if (!link)
      return done(fail(errc::peer_lost, "no connection to the process that owns the memory"));
    auto g = std::make_shared<gathering>();
    auto parts = std::max<std::size_t>((t.ops.size() + move_ops_max - 1) / move_ops_max, 1);
    g->missing = parts;
    g->digests.resize(parts);
    g->done = std::move(done);
    for (std::size_t i = 0; i < parts; ++i)
      submit_part(*link, t, i, g);
  }

  void on_message(
    channel& c, std::span<const std::byte> body, std::vector<unique_fd> fds) override {
    std::shared_ptr<peer_link> link;
    {
      std::lock_guard guard{mutex_};
      auto found = links_.find(&c);
      if (found == links_.end())
        return;
      link = found->second;
    }
    wire_reader reader{body};
    message_kind kind{};
    reader(kind);
    auto bad = take(link, kind, reader, std::move(fds));
    if (bad.ok() && !reader.ok())
      bad = {errc::protocol_error, reader.fault()};
    if (!bad.ok())
      c.close(bad.within("a shm message"));
  }

private:
  std::shared_ptr<peer_link> link_to(const peer_id& owner) const noexcept {
    std::lock_guard guard{mutex_};
    for (auto& [c, link] : links_)
      if (link->peer().id == owner && link->is_open())
        return link;
    return nullptr;
  }

  void submit_part(
    peer_link& link, const transfer& t, std::size_t part, const std::shared_ptr<gathering>& g) {
    shm::move request;
    request.region = t.remote.region;
    request.key = t.remote.key;
    request.dir = static_cast<std::uint8_t>(t.dir);
    request.digests = t.digests;
    pending_move pending;
    pending.hold = t.hold;
    pending.done = [g, part](result<std::vector<std::uint64_t>> outcome) {
      g->part(part, std::move(outcome));
    };
    auto first = part * move_ops_max;
    auto last = std::min(first + move_ops_max, t.ops.size());
    request.ops.reserve(last - first);
    arena_place place;
    for (auto i = first; i < last; ++i) {
      auto& op = t.ops[i];
      auto placed = place_of(op, place);
      auto bad = placed ? link.announce_arena(place.in) : placed.error();
      if (!bad.ok())
        return pending.done(fail(bad));
      request.ops.push_back(
        {op.remote_offset, place.in->id(), *placed, op.length, op.lead, op.tail});
      pending.digests += t.digests ? digest_count(op.lead + op.length + op.tail) : 0;
    }
    link.ask(std::move(request), std::move(pending));
  }

  // The op's offset in its arena; consecutive ops mostly share one.
  static result<std::uint64_t> place_of(const copy_op& op, arena_place& last) {
    if (
      last.in && op.local >= last.in->data() &&
      op.local + op.length <= last.in->data() + last.in->size_bytes())
      return static_cast<std::uint64_t>(op.local - last.in->data());
    auto found = find_arena(op.local, op.length);
    if (!found)
      return fail(found.error());
    last = std::move(*found);
    return last.offset;
  }

  status take(
    const std::shared_ptr<peer_link>& link, message_kind kind, wire_reader& reader,
    std::vector<unique_fd> fds) {
    switch (kind) {
    case message_kind::announce:
      return on_announce(*link, reader, fds);
    case message_kind::forget: {
      forget gone;
      if (reader(gone))
        link->unmap(gone.arena);
      return {};
    }
    case message_kind::move: {
      shm::move request;
      if (reader(request))
        on_move(link, std::move(request));
      return {};
    }
    case message_kind::moved: {
      moved answer;
      if (reader(answer))
        link->on_moved(std::move(answer));
      return {};
    }
    }
    return {}; // a kind of a later version
  }

  status on_announce(peer_link& link, wire_reader& reader, std::vector<unique_fd>& fds) {
    announce what;
    if (!reader(what))
      return {};
    if (fds.size() != 1)
      return {errc::protocol_error, "an arena announced without its descriptor"};
    auto mapped = link.map(what, fds.front().get());
    if (!mapped)
      return mapped.error();
    auto chunks = (what.size_bytes + populate_bytes - 1) / populate_bytes;
    movers_->submit(
      static_cast<std::uint32_t>(chunks),
      [arena = *mapped](std::uint32_t i) { arena->populate(i * populate_bytes, populate_bytes); },
      [] {});
    return {};
  }

  void on_move(const std::shared_ptr<peer_link>& link, shm::move request) {
    auto answer = [link, number = request.number](result<std::vector<std::uint64_t>> outcome) {
      moved m{number, 0, {}, {}};
      if (outcome)
        m.digests = std::move(*outcome);
      else
        m.code = static_cast<std::uint8_t>(outcome.error().code()),
        m.detail = outcome.error().detail();
      // A failure here means the channel is closing; the peer learns of that.
      static_cast<void>(link->send(message_kind::moved, m));
    };
    auto job = job_for(*link, request);
    if (!job)
      return answer(fail(job.error()));
    run_copy_job(*movers_, options_.limits, std::move(*job), std::move(answer));
  }

  result<copy_job> job_for(peer_link& link, const shm::move& request) {
    if (request.dir != 1 && request.dir != 2)
      return fail(errc::protocol_error, "a move in no known direction");
    auto dir = static_cast<direction>(request.dir);
    auto memory = find_region(
      request.region, request.key, dir == direction::read ? access_mode::read : access_mode::write);
    if (!memory)
      return fail(memory.error());
    copy_job job{dir, *memory, {}, request.digests, nullptr, link.abandoned()};
    auto keep = std::make_shared<std::vector<std::shared_ptr<void>>>();
    job.ops.reserve(request.ops.size());
    for (auto& op : request.ops) {
      auto local = link.resolve(op, *keep);
      if (!local)
        return fail(local.error());
      job.ops.push_back({op.remote_offset, *local, op.length, op.lead, op.tail});
    }
    if (auto bad = check_ops(job.ops, memory->size_bytes()); !bad.ok())
      return fail(bad);
    job.hold = std::move(keep);
    return job;
  }

  // *Problem*: a peer that was only silent (stopped, say) may wake up and go on copying into memory that has
  // been given to somebody else. What a lost peer could still touch stays away until its process is gone.
  void quarantine(const peer_info& peer, std::vector<std::shared_ptr<void>> touched) {
    if (touched.empty())
      return;
    auto kept = std::make_shared<std::vector<std::shared_ptr<void>>>(std::move(touched));
    int fd = peer.pid > 0 ? static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)) : -1;
    if (fd < 0 && errno == ESRCH && peer.pid > 0)
      return;
    if (fd < 0) {
      loop_->run_after(quarantine_ms, [kept] { kept->clear(); });
      return;
    }
    auto owned = std::make_shared<unique_fd>(fd);
    auto watched = loop_->watch(fd, EPOLLIN, [kept, owned, loop = loop_.get()](std::uint32_t) {
      kept->clear();
      loop->unwatch(owned->get());
    });
    if (!watched.ok())
      loop_->run_after(quarantine_ms, [kept] { kept->clear(); });
  }

  void arm_sweep() {
    if (sweeping_.exchange(true))
      return;
    loop_->run_after(options_.sweep_ms, [weak = weak_from_this()] {
      if (auto self = weak.lock())
        self->sweep();
    });
  }

  void sweep() {
    sweeping_ = false;
    std::vector<std::shared_ptr<peer_link>> links;
    {
      std::lock_guard guard{mutex_};
      for (auto& [c, link] : links_)
        links.push_back(link);
    }
    for (auto& link : links)
      link->forget_freed();
    if (!links.empty())
      arm_sweep();
  }

  std::shared_ptr<io_loop> loop_;
  std::shared_ptr<mover_pool> movers_;
  shm_driver_options options_;
  std::function<std::vector<std::shared_ptr<arena>>()> shared_;
  mutable std::mutex mutex_;
  std::unordered_map<channel*, std::shared_ptr<peer_link>> links_;
  std::atomic<bool> sweeping_ = false;
};

} // namespace

std::shared_ptr<peer_driver> make_shm_driver(
  std::shared_ptr<io_loop> loop, std::shared_ptr<mover_pool> movers,
  const shm_driver_options& options, std::function<std::vector<std::shared_ptr<arena>>()> shared) {
  return std::make_shared<shm_driver>(
    std::move(loop), std::move(movers), options, std::move(shared));
}

} // namespace millrace::transport

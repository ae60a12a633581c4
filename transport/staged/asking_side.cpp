// Asks for a chunk, lets the fabric move its content, then releases the chunk or has it committed.
#include <millrace/transport/driver_message.hpp>
#include <millrace/transport/staged/asking_side.hpp>

namespace millrace::transport::staged {

bool asking_side::ready() const {
  std::lock_guard guard{mutex_};
  return bounds_.has_value() && !closed_;
}

status asking_side::on_hello(const hello& m) {
  if (auto bad = check(m); !bad.ok())
    return bad;
  std::lock_guard guard{mutex_};
  if (bounds_)
    return {errc::protocol_error, "a second staged hello"};
  bounds_ = m;
  return {};
}

std::size_t asking_side::chunks() const {
  std::lock_guard guard{mutex_};
  return chunks_.size();
}

void asking_side::start(transfer t, completion<transfer_report> done) {
  status refused;
  {
    std::lock_guard guard{mutex_};
    if (!bounds_ || closed_)
      refused = {errc::peer_lost, "the connection to {} is closed", channel_->peer().name};
    else if (turns_.size() >= transfers_max_)
      refused = {
        errc::busy, "{} transfers wait for {} (staged.transfers_max)", turns_.size(),
        channel_->peer().name};
    else
      turns_.push_back(
        std::make_shared<running>(std::move(t), std::move(done), bounds_->chunk_bytes));
  }
  // `t` and `done` were moved only if the transfer was accepted.
  if (!refused.ok())
    return done(fail(refused)); // NOLINT(bugprone-use-after-move)
  pump();
}

void asking_side::pump() {
  while (auto request = next_request())
    if (auto sent = send(*channel_, message_kind::stage, *request); !sent.ok())
      settle(request->number, sent);
}

std::optional<stage> asking_side::next_request() {
  std::lock_guard guard{mutex_};
  if (closed_ || turns_.empty() || chunks_.size() >= bounds_->chunks_max)
    return std::nullopt;
  auto t = std::move(turns_.front());
  turns_.pop_front();
  lent_chunk c{t, t->digests.size(), t->cut.next(), phase::asked, steady_clock::now()};
  t->digests.emplace_back();
  ++t->under_way;
  stage m;
  m.number = next_++;
  m.region = t->what.remote.region;
  m.key = t->what.remote.key;
  m.dir = static_cast<std::uint8_t>(t->what.dir);
  m.region_end = t->cut.region_end();
  m.ranges = std::move(c.what.ranges);
  chunks_.emplace(m.number, std::move(c));
  if (!t->cut.at_end())
    turns_.push_back(std::move(t));
  return m;
}

void asking_side::on_staged(const staged& m) {
  transfer inner;
  bool wanted = false;
  {
    std::lock_guard guard{mutex_};
    auto found = chunks_.find(m.number);
    // A second answer for the same chunk is ignored, whatever it says.
    if (found != chunks_.end() && found->second.now != phase::asked)
      return;
    if (m.code == 0 && found != chunks_.end() && found->second.of->failure.ok()) {
      auto& c = found->second;
      auto& what = c.of->what;
      c.now = phase::moving;
      c.since = time_point::max();
      wanted = true;
      inner = {
        .dir = what.dir,
        .ops = std::move(c.what.ops),
        .digests = what.digests,
        .hold = what.hold,
        .write_back = what.write_back};
      inner.remote.owner = channel_->peer().id;
      inner.remote.region = m.region;
      inner.remote.key = m.key;
      inner.remote.allows = access_for(what.dir);
      inner.remote.length_bytes = c.what.bytes;
    }
  }
  if (wanted)
    return move_(
      std::move(inner),
      [self = shared_from_this(), number = m.number](result<transfer_report> outcome) {
        self->on_moved(number, std::move(outcome));
      });
  if (m.code != 0)
    return end(m.number, {errc_from_wire(m.code), m.detail});
  give_back(m.number, false);
  end(m.number, {});
}

void asking_side::on_moved(std::uint64_t number, result<transfer_report> outcome) {
  if (!outcome) {
    give_back(number, true);
    return end(number, outcome.error());
  }
  bool commits = false;
  {
    std::lock_guard guard{mutex_};
    auto& c = chunks_.at(number);
    note(c.of, c.index, std::move(*outcome));
    commits = c.of->what.dir == direction::write && c.of->failure.ok();
    if (commits) {
      c.now = phase::committing;
      c.since = steady_clock::now();
    }
  }
  if (!commits) {
    give_back(number, false);
    return end(number, {});
  }
  auto sent = send(*channel_, message_kind::commit, commit{number});
  if (sent.ok())
    return;
  give_back(number, false);
  end(number, sent);
}

void asking_side::note(const running_ptr& t, std::size_t index, transfer_report report) {
  t->digests[index] = std::move(report.digests);
  t->report.written_back &= report.written_back;
  t->report.carrier = report.driver;
}

void asking_side::on_committed(const committed& m) {
  {
    std::lock_guard guard{mutex_};
    auto found = chunks_.find(m.number);
    if (found == chunks_.end() || found->second.now != phase::committing)
      return;
  }
  end(m.number, m.code == 0 ? status{} : status{errc_from_wire(m.code), m.detail});
}

void asking_side::expire(time_point now) {
  std::vector<std::uint64_t> late;
  {
    std::lock_guard guard{mutex_};
    for (auto& [number, c] : chunks_)
      if (c.since < now && now - c.since > patience_)
        late.push_back(number);
  }
  for (auto number : late)
    end(
      number,
      {errc::deadline_exceeded,
       channel_->peer().name + " did not answer about its staging memory in time"});
}

void asking_side::close(const status& why) {
  std::vector<std::uint64_t> waiting;
  std::vector<running_ptr> unasked;
  {
    std::lock_guard guard{mutex_};
    closed_ = true;
    for (auto& [number, c] : chunks_)
      if (c.now != phase::moving)
        waiting.push_back(number);
    for (auto& t : std::vector<running_ptr>{turns_.begin(), turns_.end()}) {
      fail_locked(t, why);
      if (t->under_way == 0)
        unasked.push_back(t);
    }
  }
  for (auto number : waiting)
    end(number, why);
  for (auto& t : unasked)
    finish(t);
}

void asking_side::fail_locked(const running_ptr& t, const status& why) {
  if (t->failure.ok())
    t->failure = why;
  std::erase(turns_, t);
}

void asking_side::end(std::uint64_t number, const status& outcome) {
  settle(number, outcome);
  pump();
}

// The last chunk to end completes the transfer.
void asking_side::settle(std::uint64_t number, const status& outcome) {
  running_ptr over;
  {
    std::lock_guard guard{mutex_};
    auto found = chunks_.find(number);
    if (found == chunks_.end())
      return;
    auto t = std::move(found->second.of);
    chunks_.erase(found);
    --t->under_way;
    if (!outcome.ok())
      fail_locked(t, outcome);
    if (t->under_way == 0 && (!t->failure.ok() || t->cut.at_end()))
      over = std::move(t);
  }
  if (over)
    finish(over);
}

void asking_side::finish(const running_ptr& t) {
  t->what.hold.reset();
  if (!t->failure.ok())
    return t->done(fail(t->failure));
  for (auto& d : t->digests)
    t->report.digests.insert(t->report.digests.end(), d.begin(), d.end());
  t->done(std::move(t->report));
}

void asking_side::give_back(std::uint64_t number, bool broken) {
  send_or_close(*channel_, message_kind::release, release{number, broken});
}

} // namespace millrace::transport::staged

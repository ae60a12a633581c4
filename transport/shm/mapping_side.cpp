// Matches answers with questions, and answers those of the peer.
#include <millrace/transport/shm/mapping_side.hpp>
#include <millrace/transport/shm/peer.hpp>

#include <utility>

namespace millrace::transport::shm {

void mapping_side::introduce() {
  send_or_close(*channel_, message_kind::abilities, abilities{.maps = true, .maps_to_write = true});
}

void mapping_side::ask(const bulk_handle& remote, access_mode how, completion<mapped_region> done) {
  question q{std::move(done), how, size_bytes(remote), steady_clock::now()};
  std::uint64_t number = 0;
  if (auto refused = add(q, number); !refused.ok())
    return q.done(fail(refused));
  map_question asked{number, remote.region, remote.key, how == access_mode::write};
  if (auto sent = send(*channel_, message_kind::map, asked); !sent.ok())
    if (auto mine = take(number))
      mine.mapped().done(fail(sent));
}

// Moves `q` only if it is accepted.
status mapping_side::add(question& q, std::uint64_t& number) {
  std::lock_guard guard{mutex_};
  auto& peer = channel_->peer().name;
  if (closed_)
    return {errc::peer_lost, "the connection to {} is closed", peer};
  if (waiting_.size() >= options_.transfers_max)
    return {errc::busy, "{} regions wait for {} (shm.transfers_max)", waiting_.size(), peer};
  number = next_++;
  waiting_.emplace(number, std::move(q));
  return {};
}

status mapping_side::count_arena() {
  std::lock_guard guard{mutex_};
  if (++arenas_ < next_)
    return {};
  return {errc::protocol_error, "an arena announced to be mapped without being asked for"};
}

// Returns nothing if closing has already ended the question.
mapping_side::questions::node_type mapping_side::take(std::uint64_t number) {
  std::lock_guard guard{mutex_};
  return waiting_.extract(number);
}

result<std::shared_ptr<mapped_arena>> mapping_side::on_answer(
  map_answer answer, const lending_side& arenas) {
  auto mine = take(answer.number);
  if (!mine)
    return nullptr;
  auto& q = mine.mapped();
  if (answer.code != 0) {
    q.done(fail(errc_from_wire(answer.code), std::move(answer.detail)));
    return nullptr;
  }
  auto in = arenas.find_mapped(answer.arena, q.how);
  auto size = in ? (*in)->size_bytes() : 0;
  if (in && (answer.offset > size || answer.length > size - answer.offset))
    in = fail(errc::protocol_error, "a region that reaches outside its arena");
  if (in && answer.length != q.size_bytes)
    in =
      fail(errc::protocol_error, "a region of {} bytes instead of {}", answer.length, q.size_bytes);
  if (in) {
    auto* data = (*in)->data() + answer.offset;
    q.done(mapped_region{data, answer.length, *in, q.how == access_mode::write ? data : nullptr});
  } else {
    q.done(fail(in.error()));
  }
  // Memory that this process does not map is no fault of the peer.
  return in || in.error().code() == errc::protocol_error ? in : nullptr;
}

void mapping_side::expire(time_point now) {
  {
    std::lock_guard guard{mutex_};
    std::chrono::milliseconds patience{options_.answer_timeout_ms};
    if (waiting_.empty() || now - waiting_.begin()->second.asked <= patience)
      return;
  }
  channel_->close(
    {errc::deadline_exceeded,
     channel_->peer().name + " did not say where a region lies within shm.answer_timeout"});
}

void mapping_side::close(const status& why) {
  questions failed;
  {
    std::lock_guard guard{mutex_};
    closed_ = true;
    failed.swap(waiting_);
  }
  for (auto& [number, q] : failed)
    q.done(fail(why));
}

map_answer answer_to(const map_question& asked, asking_side& asking) {
  map_answer out;
  out.number = asked.number;
  auto how = asked.to_write ? access_mode::write : access_mode::read;
  auto found = find_mappable(asked.region, asked.key, how);
  if (auto bad = found ? asking.lend(found->place.in) : found.error(); !bad.ok()) {
    out.code = static_cast<std::uint8_t>(bad.code());
    out.detail = bad.detail();
    return out;
  }
  out.arena = found->place.in->id();
  out.offset = found->place.offset;
  out.length = found->size_bytes;
  return out;
}

} // namespace millrace::transport::shm

// Keeps the ways back of the requests under way, by their numbers.
#include <millrace/actors/supervision.hpp>
#include <millrace/actors/wire/envelope.hpp>
#include <millrace/actors/wire/reply_port.hpp>
#include <millrace/core/assert.hpp>

#include <caf/actor_config.hpp>
#include <caf/actor_system.hpp>
#include <caf/make_actor.hpp>

namespace millrace::actors {

void reply_path::answer(const byte_buffer& reply) const {
  auto c = channel.lock();
  if (!c)
    return;
  auto sent = c->send(net::frame_kind::reply, correlation, reply);
  // The reply is too large, or too many replies are queued. The peer must still get an answer.
  if (!sent.ok() && sent.code() != errc::peer_lost)
    sent = c->send(
      net::frame_kind::reply, correlation, encode_refusal(sent.within("sending the answer")));
  if (!sent.ok() && c->is_open())
    c->close(sent);
}

void reply_path::refuse(const status& why) const { answer(encode_refusal(why)); }

caf::strong_actor_ptr reply_port::make(caf::actor_system& system) {
  caf::actor_config config;
  return caf::make_actor<reply_port, caf::strong_actor_ptr>(
    system.next_actor_id(), system.node(), &system, config);
}

caf::message_id reply_port::keep(reply_path back, answer_function answer) {
  std::lock_guard guard{mutex_};
  if (free_.empty()) {
    MILLRACE_ASSERT(open_.size() >> entry_bits == 0);
    free_.reserve(open_.size() + 1); // so that giving an entry back cannot fail
    open_.emplace_back();
    free_.push_back(static_cast<std::uint32_t>(open_.size() - 1));
  }
  auto entry = free_.back();
  free_.pop_back();
  auto& kept = open_[entry];
  kept.back = std::move(back);
  kept.answer = answer;
  kept.turn = kept.turn % ((1ull << turn_bits) - 1) + 1; // never 0
  return caf::make_message_id(kept.turn << entry_bits | entry)
    .with_category(caf::message_id::normal_message_category);
}

reply_port::open_request reply_port::take(caf::message_id id) {
  auto number = id.request_id().integer_value();
  auto entry = static_cast<std::uint32_t>(number & ((1u << entry_bits) - 1));
  std::lock_guard guard{mutex_};
  if (entry >= open_.size() || !open_[entry].answer || open_[entry].turn != number >> entry_bits)
    return {};
  return free_entry(entry);
}

// Called with `mutex_` held.
reply_port::open_request reply_port::free_entry(std::uint32_t entry) {
  free_.push_back(entry);
  return {std::move(open_[entry].back), std::exchange(open_[entry].answer, nullptr)};
}

void reply_port::enqueue(caf::mailbox_element_ptr reply, caf::execution_unit*) {
  if (!reply->mid.is_response())
    return;
  auto asked = take(reply->mid);
  if (!asked.answer)
    return release();
  // What throws here must not end the actor that answers.
  try {
    asked.answer(asked.back, reply->content());
  } catch (...) {
    auto why = failure_of("sending an answer", "a reply", std::current_exception());
    log().error("{}", why.detail());
    if (auto c = asked.back.channel.lock())
      c->close(why);
  }
  release();
}

void reply_port::refuse_lost(
  caf::message_id id, const std::type_info& request, const std::exception_ptr& thrown) {
  if (auto asked = take(id); asked.answer)
    asked.back.refuse(failure_of("asking", name_of(request), thrown));
}

void reply_port::end(const status& why) {
  std::vector<open_request> unanswered;
  {
    std::lock_guard guard{mutex_};
    if (std::exchange(has_ended_, true))
      return;
    for (std::uint32_t entry = 0; entry < open_.size(); ++entry)
      if (open_[entry].answer)
        unanswered.push_back(free_entry(entry));
  }
  with_unit(home_system(), [&](caf::execution_unit* host) { cleanup(to_caf_error(why), host); });
  release();
}

// The thread sanitizer does not see the counts of references. So what each thread did here comes
// before the end of the port, on whichever thread that is.
void reply_port::release() noexcept {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(this);
#endif
}

void reply_port::on_destroy() {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(this);
#endif
  monitorable_actor::on_destroy();
}

} // namespace millrace::actors

// Asks actors on behalf of one connection's peer, and sends their replies back as frames. Used by
// sessions.
#pragma once

#include <millrace/actors/delivery.hpp>
#include <millrace/actors/vocabulary.hpp>
#include <millrace/core/codec.hpp>
#include <millrace/core/planted_fault.hpp>
#include <millrace/core/status.hpp>
#include <millrace/net/channel/channel.hpp>

#include <caf/mailbox_element.hpp>
#include <caf/monitorable_actor.hpp>
#include <caf/type_erased_tuple.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace millrace::actors {

/// The way back for the reply to a request frame.
struct reply_path {
  std::weak_ptr<net::channel> channel;
  std::uint64_t correlation = 0;
  std::shared_ptr<void> place; // the request's place, held until the reply is sent

  /// Sends the frame of a reply, unless the connection is gone.
  void answer(const byte_buffer& reply) const;
  void refuse(const status& why) const;
};

/// An actor without a mailbox: a reply to it is sent on as a frame by the thread that brings it.
///
/// *Problem*: an actor that only passes requests on and replies back costs two more messages for
/// each request, and a turn of its mailbox for each message.
///
/// Other actors see it as any actor: they may monitor it, and learn when the connection ends.
/// Threads: any.
class reply_port : public caf::monitorable_actor {
public:
  /// Sends the reply in `content`, or the error, as a frame.
  using answer_function = void (*)(const reply_path& back, caf::type_erased_tuple& content);

  explicit reply_port(caf::actor_config& config) : monitorable_actor(config) {}

  static caf::strong_actor_ptr make(caf::actor_system& system);

  const char* name() const override { return "reply_port"; }
  void enqueue(caf::mailbox_element_ptr reply, caf::execution_unit* host) override;
  void on_destroy() override;

  /// Asks an actor, which gets the request after those that were asked before. A request that
  /// cannot be passed on is refused, and others go on.
  template <class Handle, class Request>
  void ask(const Handle& target, Request request, reply_path back, answer_function answer) {
    auto id = keep(std::move(back), answer);
    try {
      MILLRACE_PLANTED_FAULT(typeid(reply_port));
      auto message = caf::make_mailbox_element(
        caf::actor_cast<caf::strong_actor_ptr>(this), id, {}, std::move(request));
      with_unit(home_system(), [&](caf::execution_unit* host) {
        caf::actor_cast<caf::abstract_actor*>(target)->enqueue(std::move(message), host);
      });
    } catch (...) {
      refuse_lost(id, typeid(Request), std::current_exception());
    }
  }

  /// Ends the port, which tells its monitors. Replies that come later are dropped.
  void end(const status& why);

private:
  struct open_request {
    reply_path back;
    answer_function answer = nullptr; // null: the entry is free
    std::uint64_t turn = 0;           // counts the uses of the entry
  };

  // A request's number is its entry's, and above it the entry's turn.
  static constexpr unsigned entry_bits = 24, turn_bits = 36;

  caf::message_id keep(reply_path back, answer_function answer);
  open_request take(caf::message_id id);
  open_request free_entry(std::uint32_t entry);
  void refuse_lost(
    caf::message_id id, const std::type_info& request, const std::exception_ptr& thrown);
  void release() noexcept;

  std::mutex mutex_;
  bool has_ended_ = false;
  std::vector<open_request> open_;
  std::vector<std::uint32_t> free_; // entries
};

} // namespace millrace::actors

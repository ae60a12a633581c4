// Connects one queue pair by librdmacm: waits for the partner's request, or makes one.
// Owned by a `rail`.
#pragma once

#include <millrace/transport/verbs/cm_hub.hpp>
#include <millrace/transport/verbs/messages.hpp>
#include <millrace/transport/verbs/queue_pair.hpp>
#include <millrace/transport/verbs/setup_pool.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace millrace::transport::verbs {

/// The private data of a request. It tells the passive side to which queue pair the request
/// belongs.
struct cm_words {
  cm_token token;
  std::uint32_t pair = 0;
  std::uint32_t generation = 0;

  static constexpr std::size_t size_bytes = 24;
  std::array<std::byte, size_bytes> encode() const;
  /// Returns nothing if there are too few bytes; devices append some.
  static std::optional<cm_words> decode(std::span<const std::byte> bytes);
  friend bool operator==(const cm_words&, const cm_words&) = default;
};

/// Connects one queue pair.
///
/// The passive side listens on a port that the kernel chooses, for this partner only and until it
/// is connected. It sends the address and a token of 128 random bits to the partner over the
/// channel. It refuses a request without the token, or for another queue pair than the channel
/// announced.
///
/// No call waits: events come on the loop and are handled in the peer's lane of the set-up pool.
/// The rail keeps the deadline, and releases this object in that lane, too.
class cm_connection : public cm_listener, public std::enable_shared_from_this<cm_connection> {
public:
  struct parts {
    std::shared_ptr<cm_hub> hub;
    std::shared_ptr<device> port;
    std::string peer; // its name, for errors
    verbs_options options;
    std::weak_ptr<setup_pool> setup;
    const void* lane = nullptr;
    setup_pool::turn turn = setup_pool::turn::first;
  };
  /// Binds to an address of the device. `passive`: listens there.
  /// Errors:  `unavailable`, `io_error`.
  static result<std::shared_ptr<cm_connection>> open(parts p, bool passive);

  /// Fills in what the channel must announce; nothing on the active side.
  void announce(connect& ours) const;
  /// Connects `q` with the partner that `theirs` announced. `done` runs once `q` can receive, or
  /// when it cannot be connected. It does not run if this object goes before; an event that is on
  /// its way then may still run it, so `done` owns what it touches. Call it in the lane.
  void join(
    std::shared_ptr<queue_pair> q, const connect& theirs, std::function<void(const status&)> done);

  void on_event(cm_event e) override;

private:
  explicit cm_connection(parts p) : p_(std::move(p)), token_(random_id<cm_token>()) {}
  void handle(cm_event& e);
  void finish(const status& outcome);
  rdma_conn_param parameters() const;
  // The active side:
  status ask_for_address();
  status ask_for_route();
  status ask();
  status complete();
  // The passive side:
  void consider(cm_event& e);
  void accept();
  static void refuse(const cm_event& e, const status& why);

  const parts p_;
  const cm_token token_; // the passive side's token
  bool passive_ = false;
  bool accepted_ = false;
  cm_id_ptr id_;                            // on the passive side: listens, then has accepted
  std::string address_;                     // the address of the passive side
  std::atomic<std::uint32_t> requests_ = 0; // on their way from the loop to the lane
  std::optional<cm_event> request_;         // the one with the token
  std::shared_ptr<queue_pair> q_;
  connect theirs_;
  std::function<void(const status&)> done_;
};

} // namespace millrace::transport::verbs

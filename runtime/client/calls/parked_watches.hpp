// The watches that one client has parked at one actor of a provider.
// Internal, used by `watch_call`; needs CAF.
#pragma once

#include <millrace/actors/watch_messages.hpp>
#include <millrace/core/clock.hpp>
#include <millrace/core/status.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>

namespace millrace::runtime {

class client_core;

enum class watched : std::uint8_t { models, checkpoints };

/// What is said of a watch: that it is parked, and later that something newer may be there.
enum class watch_step : std::uint8_t { parked, woken };

/// *Problem*: a request that waits at a provider holds one of the connection's credits and a place
/// among the node's requests. A few hundred watches would stop all that the client asks else.
///
/// So one request waits for the news of all watches, and parking one is answered at once. Thousands
/// that begin or end together take turns, since a connection refuses more than some requests.
/// Used in the client's actor only.
class parked_watches {
public:
  /// Called with `parked`, and once more with `woken`; or with an error, which ends the watch.
  using tell = std::function<void(result<watch_step>)>;

  parked_watches(client_core& core, watched what, std::size_t provider)
    : core_(core), what_(what), provider_(provider) {}

  /// Returns the number by which the watch is withdrawn.
  std::uint64_t park(actors::watch_request request, time_point deadline, tell told);
  /// The watch is told nothing any more.
  void withdraw(std::uint64_t number);

  /// What asks for a watch, and calls `over` when it has its answer.
  using turn = std::function<void(std::function<void()> over)>;
  /// Begins it when few enough others are under way.
  void in_turn(turn begin);

private:
  struct entry {
    tell told;
    bool is_asked = false; // its request was sent
    bool is_parked = false;
    std::uint64_t round = 0; // requests for news before it was parked
  };

  template <class Request, class Done>
  void ask(const Request& request, time_point deadline, Done done);
  void begin_turns();
  void on_parked(std::uint64_t number, const status& outcome);
  void ask_for_news();
  void on_news(std::uint64_t round, const result<actors::watch_news>& news);
  void end_all_before(std::uint64_t round, const status& why);
  void end(std::uint64_t number, result<watch_step> outcome);

  client_core& core_; // owns this
  const watched what_;
  const std::size_t provider_;
  std::map<std::uint64_t, entry> entries_;
  std::size_t parked_ = 0;
  std::uint64_t round_ = 0; // of requests for news
  bool asking_ = false;
  std::deque<turn> turns_; // not begun
  std::size_t under_way_ = 0;
  bool beginning_ = false;
};

} // namespace millrace::runtime

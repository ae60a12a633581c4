// Bringing the samples of files into the memory of a data server.
// Internal, behind `working_set`; needs CAF.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/client/calls/stop_mark.hpp>
#include <millrace/runtime/client/working_set.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace millrace::runtime {

struct preload_call {
  std::shared_ptr<client_core> core;
  std::string name;
  std::vector<std::string> files;
  preload_options options;
  std::shared_ptr<stop_mark> mark = std::make_shared<stop_mark>();
  bool appends = false; // to a set that is there
};

/// Returns what a call does, for errors.
inline std::string doing(const preload_call& call) {
  return (call.appends ? "appending to " : "preloading ") + call.name;
}

/// How long a preload waits for another client that fills the set, while it hears of no sample that
/// was written.
inline constexpr auto preload_wait_max = std::chrono::hours{24};

/// One preload, or one append. Its files stay open until it is over.
/// Threads: one at a time.
class preloading {
public:
  /// `call` has no client: `go_on` gets it, since a client may go while the preload waits.
  explicit preloading(preload_call call);
  ~preloading();
  preloading(const preloading&) = delete;
  preloading& operator=(const preloading&) = delete;

  /// Does all that it can, and waits for files and for data servers, so it needs a thread of its
  /// own. Returns nothing while other clients fill the set, all of it or what they have claimed, or
  /// the data server is busy; then it is to be called again after `pause`.
  result<std::optional<preloaded_set>> go_on(std::shared_ptr<client_core> core);

  /// Returns whether this client has reserved the set, and waits for those who help it.
  bool leads() const;

  /// Returns how long to wait now: longer each time, up to a second; to a tenth of one while it
  /// shares the filling of the set with others.
  std::chrono::milliseconds pause();

  bool appends() const noexcept { return call_.appends; }
  /// Returns whether others have written some of the set that this client has published. They may
  /// have told their programs that it is there.
  bool was_shared() const noexcept { return was_shared_; }

private:
  class attempt;
  struct damage;

  result<std::optional<preloaded_set>> make_attempts();
  bool waits_after(const status& why);

  preload_call call_;
  std::unique_ptr<damage> known_;
  std::unique_ptr<attempt> attempt_; // null: none has begun, or it is over
  bool again_ = false;
  bool was_shared_ = false;
  bool told_ = false;            // that it waits
  std::uint64_t most_bytes_ = 0; // that it has known to be written
  std::optional<time_point> waits_until_;
  std::chrono::milliseconds pause_{0}, pause_max_{0};
};

} // namespace millrace::runtime

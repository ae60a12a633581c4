// Follows the publications of one name, and loads them.
// Internal, behind `weights_follower`; needs CAF.
#pragma once

#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/client/calls/waiting_calls.hpp>
#include <millrace/runtime/client/weights.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace millrace::runtime {

/// Keeps one watch parked at the provider, and tells of what comes by it. What the watch found is
/// looked up once, for `next` and `load` together.
///
/// It holds the client as the program does not, see `client_core`: its owner ends it by `stop`.
class weights_following : public std::enable_shared_from_this<weights_following> {
public:
  static std::shared_ptr<weights_following> begin(
    const std::shared_ptr<client_core>& core, std::string group, std::string name);

  // Any thread:
  future<weights_version> next(std::chrono::milliseconds timeout);
  future<weights_version> load(std::vector<load_target> targets, std::chrono::milliseconds timeout);
  std::optional<weights_version> newest() const;
  /// Ends the watch, and the calls of `next`.
  void stop();

private:
  class loading;

  weights_following(std::shared_ptr<client_core> core, std::string group, std::string name)
    : core_(std::move(core)), group_(std::move(group)), name_(std::move(name)),
      waiting_(waiting_calls<weights_version>::make(core_)) {}

  // In the client's actor:
  void wait();
  void on_record(const result<model_record>& record);
  void on_failure(const status& why);
  void wait_again_in(std::chrono::milliseconds time);
  void look_without_watch();
  status keeps_away() const;
  void learn(const weights_version& found);
  void learn_of_look(const weights_version& found, std::uint64_t known_then);
  void add(const promise<weights_version>& done, time_point deadline);
  bool has_news() const;
  void answer_waiting();
  void answer(const promise<weights_version>& done, const weights_version& with);
  void end_load(const promise<weights_version>& done, const result<weights_version>& outcome);
  status late() const;
  void end();

  const std::shared_ptr<client_core> core_;
  const std::string group_, name_;

  mutable std::mutex mutex_; // of the next one
  std::optional<weights_version> newest_;

  const std::shared_ptr<waiting_calls<weights_version>> waiting_;
  std::optional<weights_version> given_; // last, or loaded
  std::uint64_t learnt_ = 0;             // counts what was learnt
  std::uint64_t than_ = 0;
  std::uint32_t failures_ = 0; // since the last answer
  status failed_, no_weights_; // the last watch; what it found last
  time_point failed_at_{};
  future<model_record> watch_;
  std::uint64_t closing_ = 0;
  bool stopped_ = false;
};

} // namespace millrace::runtime

// Loads the newest weights into two buffers in turns.
// Internal, behind `weights_reader`; needs CAF.
#pragma once

#include <millrace/runtime/client/calls/receive_ring.hpp>
#include <millrace/runtime/client/calls/waiting_calls.hpp>
#include <millrace/runtime/client/calls/weights_following.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace millrace::runtime {

/// A version that is loaded holds its buffer until the program and this object have dropped it.
/// Loading goes on when a buffer is free and there is something newer.
class weights_buffers : public std::enable_shared_from_this<weights_buffers> {
public:
  /// Errors:  `invalid_argument` for descriptions that no tensor can have; `no_space`.
  static result<std::shared_ptr<weights_buffers>> make(
    const std::shared_ptr<client_core>& core, std::string group, std::string name,
    std::vector<wanted_tensor> tensors, weights_reader_options options);

  // Any thread:
  weights_ptr current() const;
  future<weights_ptr> next(std::chrono::milliseconds timeout);
  /// Ends the loads, and the calls of `next`.
  void stop();

private:
  using place_ptr = std::shared_ptr<receive_ring::place>;

  weights_buffers(
    const std::shared_ptr<client_core>& core, std::string group, std::string name,
    std::vector<wanted_tensor> tensors, weights_reader_options options);

  std::vector<load_target> targets_in(std::byte* place) const;

  // In the client's actor:
  void go_on();
  void on_news(const result<weights_version>& news);
  void load();
  void on_loaded(const place_ptr& place, const result<weights_version>& outcome);
  void show(const place_ptr& place, const weights_version& version);
  void try_again();
  void add(const promise<weights_ptr>& done, time_point deadline);
  bool has_newer() const;
  status late() const;

  const std::shared_ptr<client_core> core_;
  const std::string name_;
  const std::vector<wanted_tensor> tensors_;
  const weights_reader_options options_;
  const std::shared_ptr<weights_following> following_;
  std::vector<std::uint64_t> begins_; // of each tensor in a buffer, and the end
  std::shared_ptr<receive_ring> ring_;

  mutable std::mutex mutex_; // of the next one
  weights_ptr current_;

  const std::shared_ptr<waiting_calls<weights_ptr>> waiting_;
  std::uint64_t loads_ = 0, given_ = 0;             // counted; the last one that a call has given
  status failed_;                                   // the last load
  std::optional<weights_version> tried_, unusable_; // no load of the latter can succeed
  future<weights_version> running_;
  bool waits_ = false; // for news
  bool loading_ = false, stopped_ = false;

  std::recursive_mutex telling_; // while the program is told: a callback may drop the reader
  bool is_told_ = true;
};

} // namespace millrace::runtime

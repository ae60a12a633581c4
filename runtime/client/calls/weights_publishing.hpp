// Publishes the tensors of one publisher object, one publication after the other.
// Internal, behind `weights_publisher`; needs CAF.
#pragma once

#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/client/weights.hpp>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace millrace::runtime {

/// *Problem*: two stores of one name that run at once may end in either order, and then the older
/// weights stay. So a store begins when the one before it has ended, however that has ended.
/// Threads: any.
class weights_publishing : public std::enable_shared_from_this<weights_publishing> {
public:
  /// Errors:  `invalid_argument` for tensors and metadata, see `weights::publisher`.
  static result<std::shared_ptr<weights_publishing>> make(
    std::shared_ptr<client_core> core, std::string group, std::string name,
    std::vector<tensor_view> tensors, publisher_options options);

  pending_store publish(std::uint64_t version);
  status rebind(std::vector<tensor_view> tensors);

private:
  struct publication {
    std::uint64_t version = 0;
    promise<void> staged;
    promise<receipt> stored;
    std::thread::id begins_on;
    bool given_up = false;
    pending_store store; // valid once it has begun
  };
  using publication_ptr = std::shared_ptr<publication>;

  weights_publishing(
    std::shared_ptr<client_core> core, std::string group, std::string name,
    std::vector<tensor_view> tensors, publisher_options options);

  status refusal(std::uint64_t version) const;
  void begin_next();
  void on_stored(const publication_ptr& one, const result<receipt>& outcome);
  void give_up(const publication_ptr& one);

  const std::shared_ptr<client_core> core_;
  const std::string group_, name_, run_;
  const publisher_options options_;
  std::shared_ptr<const model_graph> graph_;

  std::mutex mutex_;
  std::condition_variable begun_;
  std::vector<tensor_view> tensors_;
  std::optional<std::uint64_t> last_stored_;
  publication_ptr running_, waiting_;
};

} // namespace millrace::runtime

// Weights by version: a trainer publishes its tensors, and evaluators and replicas follow them.
// Programs get them from `client::weights`; every call that waits returns a future.
#pragma once

#include <millrace/core/future.hpp>
#include <millrace/core/status.hpp>
#include <millrace/core/tensor_view.hpp>
#include <millrace/runtime/client/load_target.hpp>
#include <millrace/runtime/client/repository.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace millrace {

namespace runtime {
class weights_publishing;
}

/// One publication, as followers see it.
struct weights_version {
  std::uint64_t version = 0;      // the number that the publisher gave, such as the step
  std::uint64_t stored_as = 0;    // the number of the repository
  std::uint64_t stored_at_ns = 0; // wall clock of the provider
  std::uint64_t size_bytes = 0;   // of all tensors
  std::string run;                // names the publisher object that made it
  std::vector<std::pair<std::string, std::string>> metadata; // the publisher's

  friend bool operator==(const weights_version&, const weights_version&) = default;
};

struct publisher_options {
  std::optional<bool> checksums = {}; // empty: as the provider is configured
  std::vector<std::pair<std::string, std::string>> metadata = {}; // of each version
  /// Of each publication, from when its store begins; 0: the client's request timeout.
  std::chrono::milliseconds timeout{0};
};

/// Publishes tensors that stay at their addresses.
///
/// Copies share the publisher. Publications under way go on when the last copy is dropped.
/// Threads: any.
class weights_publisher {
public:
  explicit weights_publisher(std::shared_ptr<runtime::weights_publishing> of)
    : of_(std::move(of)) {}

  /// Publishes the tensors under a number, whole or not at all. Publications are made one after
  /// the other, in the order of the calls. One that waits for another reads the tensors when that
  /// one has ended.
  ///
  /// `staged` is ready when the tensors may be changed: they are copied to `client.staging` if they
  /// fit, and read by the provider otherwise. `stored` is ready when followers can load them.
  /// Cancelling one that is not ready cancels the publication. Followers may have got it all the
  /// same.
  /// Errors:  `invalid_argument` for a number that is not above all those which this publisher has
  ///          published or is publishing; `busy` while one publication waits already: wait for its
  ///          `staged`; those of `repository::store`.
  pending_store publish(std::uint64_t version) const;

  /// Takes the addresses of tensors that have moved. Their descriptions must be those registered.
  /// Errors:  `invalid_argument` for other descriptions; `busy` while the tensors of a publication
  ///          are read or to be read.
  status rebind(std::vector<tensor_view> tensors) const;

private:
  std::shared_ptr<runtime::weights_publishing> of_;
};

/// Follows the publications of a name. It always keeps one watch at the provider, so that it hears
/// of a publication by one message, and asks again by itself when a provider was away.
///
/// What is newest is decided by the order of the publications, not by their numbers: a trainer that
/// restarts from an older step makes a new publisher, which may begin below. Of one publisher
/// object, a smaller number never follows a larger one.
/// Copies share the follower. The last copy ends the calls of `next`, with `cancelled`.
/// Loads go on.
/// Threads: any.
class weights_follower {
public:
  /// Waits for a publication after the one that this follower gave or loaded last; the first call
  /// gives the newest one, if there is any. Publications that come quickly after one another give
  /// the newest alone. A call that is cancelled has given none.
  /// Time:    0: the client's request timeout.
  /// Errors:  `deadline_exceeded`, with what keeps the follower from asking, if anything does;
  ///          `invalid_argument` when the model of that name was not stored by a publisher;
  ///          `not_found` for a group without providers; `cancelled`.
  future<weights_version> next(std::chrono::milliseconds timeout = {}) const;

  /// Loads the newest publication straight into the memory of the targets: whole tensors, or rows
  /// or boxes of them. All bytes are of the version that it gives. When that is replaced before the
  /// load has begun, the load begins again with the newer one. After an error, and until the future
  /// is ready, the targets have any bytes.
  /// Errors:  `not_found` when nothing is published; those of `repository::load`.
  future<weights_version> load(
    std::vector<load_target> targets, std::chrono::milliseconds timeout = {}) const;

  /// Returns the newest publication that the follower knows of, without a message.
  std::optional<weights_version> newest() const;

private:
  friend class weights;
  struct handle; // ends the watch with the last copy
  explicit weights_follower(std::shared_ptr<handle> of);

  std::shared_ptr<handle> of_;
};

/// Weights in memory of the reader. They stay as they are while any copy of the pointer lives.
struct read_weights {
  weights_version version;
  std::vector<tensor_view> tensors; // in the order of the descriptions that the reader was given

  /// Returns the tensor of a name; null if the reader does not read it.
  const tensor_view* find(const std::string& name) const noexcept;
};
using weights_ptr = std::shared_ptr<const read_weights>;

/// What a reader loads of a tensor: all of it, some rows, or a box. As in `load_target`, with no
/// memory.
struct wanted_tensor {
  tensor_desc desc;
  std::optional<std::uint64_t> first_row = {};
  std::vector<std::uint64_t> offsets = {};
};

struct weights_reader_options {
  /// Called with each version when it can be read, on a thread of the runtime. It must neither
  /// block nor throw. When the last copy of the reader is gone, it is not called any more.
  std::function<void(const weights_ptr&)> on_version = {};
  std::chrono::milliseconds timeout{0}; // of each load; 0: the client's request timeout
};

/// Has the newest weights in memory of its own, in two buffers: one is read while the next version
/// is loaded into the other, beside the program. So a program never sees a part of a version.
///
/// A version that the program holds keeps its buffer. While it holds an older one than the current
/// one, no newer one is loaded.
/// Copies share the reader. Weights that the program holds outlive it.
/// Threads: any.
class weights_reader {
public:
  /// Returns the newest version that is loaded; null: none is yet. It waits for nothing.
  weights_ptr current() const;

  /// Waits for a loaded version that this call has not given before; the first call gives the
  /// current one, if there is any.
  /// Time:    0: the client's request timeout.
  /// Errors:  `deadline_exceeded`, with the error of the last load, if it failed; the error of a
  ///          load that a newer version alone can mend, as soon as it has failed:
  ///          `invalid_argument`, `not_found`, `corrupt_data`; `not_found` for a group without
  ///          providers; `cancelled`.
  future<weights_ptr> next(std::chrono::milliseconds timeout = {}) const;

private:
  friend class weights;
  struct handle; // ends the loads with the last copy
  explicit weights_reader(std::shared_ptr<handle> of);

  std::shared_ptr<handle> of_;
};

/// The weights of a name: a model of a group of providers, which publishers replace.
/// Threads: any.
class weights {
public:
  weights(std::shared_ptr<runtime::client_core> core, std::string name, std::string group)
    : core_(std::move(core)), name_(std::move(name)), group_(std::move(group)) {}

  const std::string& name() const noexcept { return name_; }
  const std::string& group() const noexcept { return group_; }

  /// Registers tensors to publish. Nothing is sent before the first publication. The memory must
  /// stay at its addresses while publications read it.
  /// Errors:  `invalid_argument` for tensors that no model can have, and for a key of metadata that
  ///          publications use themselves.
  result<weights_publisher> publisher(
    std::vector<tensor_view> tensors, publisher_options options = {}) const;

  /// Begins to follow. The name need not be published yet.
  /// Errors:  `invalid_argument` for a name that no model can have.
  result<weights_follower> follow() const;

  /// Begins to follow, and loads each version into memory that is made now: twice the bytes of the
  /// tensors.
  /// Errors:  `invalid_argument`; `no_space`.
  result<weights_reader> read(
    std::vector<wanted_tensor> tensors, weights_reader_options options = {}) const;

  /// Removes the newest publication. Followers keep what they have.
  /// Errors:  those of `repository::erase`.
  future<void> erase() const;

private:
  [[nodiscard]] status check() const;

  std::shared_ptr<runtime::client_core> core_;
  std::string name_, group_;
};

} // namespace millrace

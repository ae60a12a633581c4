// What stands behind the opaque pointers of millrace.h, and how they are released.
#pragma once

#include "request.hpp"

#include <millrace/core/process_mark.hpp>
#include <millrace/runtime/client/client.hpp>

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

struct millrace_client {
  explicit millrace_client(millrace::client c) : of(std::move(c)) {}

  millrace::client of;
  millrace::process_mark made_in = {};
};

struct millrace_checkpointer {
  millrace_checkpointer(
    millrace::checkpointer made, std::vector<millrace::tensor_view> tensors,
    std::vector<millrace::tensor_place> their_places)
    : of(std::move(made)), bound(std::move(tensors)), places(std::move(their_places)) {}

  millrace::checkpointer of;
  millrace::process_mark made_in = {};
  /// The tensors as they were bound last, so that a `rebind` of what has not moved copies nothing.
  std::mutex mutex = {};
  std::vector<millrace::tensor_view> bound;
  /// Where each of these lies in a whole tensor; empty: it is one. None changes.
  const std::vector<millrace::tensor_place> places;
  std::atomic<bool> closed = false;
};

namespace millrace::bindings {

/// Destroys an object whose end may wait, on another thread.
void end_aside(std::shared_ptr<void> last) noexcept;

/// Releases a handle. In a forked child nothing waits, so it ends here.
template <class Handle>
void end(Handle* handle) noexcept {
  if (!handle)
    return;
  if (!handle->made_in.is_here())
    return delete handle;
  try {
    end_aside(std::shared_ptr<Handle>{handle});
  } catch (...) {
    // No memory for the count: the pointer has deleted the handle.
  }
}

} // namespace millrace::bindings

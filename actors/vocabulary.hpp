// The only door to CAF's headers: typed interfaces and what crosses between `status` and `caf::error`.
#pragma once

#include <millrace/actors/checkpoint/checkpoint_messages.hpp>
#include <millrace/actors/messages.hpp>
#include <millrace/core/status.hpp>

#include <caf/error.hpp>
#include <caf/fwd.hpp>
#include <caf/typed_actor.hpp>

#include <functional>

CAF_ERROR_CODE_ENUM(millrace::errc, "millrace")

namespace millrace::actors {

/// A private message: a piece of the actor's own work that a foreign thread finished. Only the code that
/// spawned the actor can make one, since it needs the wider handle.
struct step {
  std::function<void()> run;
};

/// The provider's actor, here or elsewhere. Drives one bucket and the fabric.
using tensor_store_actor = caf::typed_actor<
  // Pulls the segments behind the handle into the bucket and publishes the model whole.
  // Errors: busy (in-flight bound), no_space, permission_denied, peer_lost, unknown_layers.
  caf::replies_to<store_request>::with<store_receipt>,
  // Pushes the selected tensors into the caller's segments.
  // Errors: not_found, invalid_argument (before any byte moves), corrupt_data, peer_lost.
  caf::replies_to<load_request>::with<load_receipt>,
  // What is known of a model; without its digests.
  caf::replies_to<describe_request>::with<model_record>,
  caf::replies_to<list_request>::with<model_list>, caf::replies_to<erase_request>::with<done_reply>,
  caf::replies_to<pin_request>::with<done_reply>,
  // Descriptions of layers by id (DStore, section 3).
  caf::replies_to<resolve_request>::with<layer_list>,
  caf::replies_to<provider_status_request>::with<provider_status>>;

/// The actor of a provider that keeps checkpoints, here or elsewhere.
using checkpoint_manager_actor = caf::typed_actor<
  // Registers a shard once per job and reserves its slots.
  // Errors: no_space, busy (another job is attached), invalid_argument (another layout is there).
  caf::replies_to<enroll_request>::with<enroll_receipt>,
  // Ends a registration in order. What is still being saved is given up.
  caf::replies_to<leave_request>::with<done_reply>,
  // Pulls the registered memory into a slot; the answer is `staged`.
  // Errors: not_found (no such registration), busy, permission_denied, peer_lost, deadline_exceeded.
  caf::replies_to<save_request>::with<save_receipt>,
  // Waits for the same save to be *done*; fails as it fails.
  caf::replies_to<durable_request>::with<save_receipt>,
  // Pushes a version, or some tensors of it, into the caller's memory. Errors as of `load_request`.
  caf::replies_to<restore_request>::with<load_receipt>,
  caf::replies_to<list_checkpoints_request>::with<checkpoint_list>,
  caf::replies_to<describe_shard_request>::with<shard_spec>,
  // Reads a version again and names the tensors whose checksums do not match.
  caf::replies_to<verify_request>::with<verify_receipt>,
  // Errors: not_found; busy while a job is attached.
  caf::replies_to<erase_checkpoint_request>::with<done_reply>,
  // Errors: busy while another one runs.
  caf::replies_to<repack_request>::with<repack_receipt>,
  // What concerns checkpoints only.
  caf::replies_to<provider_status_request>::with<provider_status>>;

/// A connection is gone, and with it what was registered through it. From sessions of this process only.
struct peer_gone {
  asker who;
  status why;
};
using local_checkpoint_manager = checkpoint_manager_actor::extend<caf::reacts_to<peer_gone>>;

/// A node's own actor: who is where, and how things stand.
using node_actor = caf::typed_actor<
  caf::replies_to<directory_request>::with<directory>,
  caf::replies_to<node_status_request>::with<node_status>>;

caf::error to_caf_error(const status& s);
status to_status(const caf::error& e);

} // namespace millrace::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(millrace::actors::step)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(millrace::actors::peer_gone)

// One save of a registered shard: slot, pull, persist, done. Run by the shard's puller.
#pragma once

#include <millrace/actors/checkpoint/checkpoint_messages.hpp>
#include <millrace/actors/window_pull.hpp>
#include <millrace/storage/checkpoint_store.hpp>

#include <functional>
#include <memory>

namespace millrace::actors {

/// The context that the saves of one registration share.
class puller_context : public operation_context {
public:
  using operation_context::operation_context;

  void let_go() {
    store.reset();
    published = nullptr;
  }

  std::shared_ptr<storage::checkpoint_store> store;
  snapshot_staging snapshots; // also if slots cannot be reached
  shard_spec shard;
  asker owner; // the process whose memory it is
  bulk_handle source;
  when_saving busy = when_saving::wait;
  std::uint64_t slot_wait_ms = 0;
  /// Called in the actor when a step may have become complete. May be empty.
  std::function<void(std::uint64_t step)> published;
  std::uint64_t extra_bytes_max = 0; // the user's, with one save
  bool direct = true;                // false once a transfer straight to a slot was refused
};

/// A save under way. Both events run in the actor, once each; `staged` comes first, or not at all.
class save_operation {
public:
  struct events {
    std::function<void(save_receipt)> staged; // the trainer may change its tensors
    completion<save_receipt> ended;           // the version is done, or the error
  };

  virtual ~save_operation() = default;

  virtual void begin() = 0;
  /// Ends the save with an error unless it has ended. The slot is given back once nothing can touch
  /// it any more.
  virtual void give_up(const status& why) = 0;
  /// Ends the save with `busy` if it still waits for a slot.
  virtual void give_up_slot() = 0;

  static std::shared_ptr<save_operation> make(
    std::shared_ptr<puller_context> context, const save_request& request, events events);
};

} // namespace millrace::actors

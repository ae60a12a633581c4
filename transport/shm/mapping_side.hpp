// Asks one peer to let this process map its regions.
// Part of `peer_link`.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/net/channel/channel.hpp>
#include <millrace/transport/memory/mapped_region.hpp>
#include <millrace/transport/shm/asking_side.hpp>
#include <millrace/transport/shm/lending_side.hpp>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>

namespace millrace::transport::shm {

/// Asks for regions and matches the answers. The arenas in which they lie come as announcements,
/// which `lending_side` takes. Completions run without the lock.
/// Threads: any.
class mapping_side {
public:
  mapping_side(std::shared_ptr<net::channel> c, const shm_options& options)
    : channel_(std::move(c)), options_(options) {}

  /// Tells the peer that this build answers such questions.
  void introduce();
  void on_abilities(const abilities& theirs) noexcept {
    answered_ = theirs.maps;
    answered_to_write_ = theirs.maps_to_write;
  }
  /// Returns true if the peer answers such questions.
  bool is_answered(access_mode how) const noexcept {
    return how == access_mode::read ? answered_ : answered_to_write_;
  }

  /// Asks for a region. `done` runs once, also when the link closes.
  /// Errors:  `busy`, `peer_lost`, and those of the owner.
  void ask(const bulk_handle& remote, access_mode how, completion<mapped_region> done);
  /// Counts an arena that the peer announces otherwise than for transfers.
  /// Errors:  `protocol_error` for more arenas than regions were asked for.
  [[nodiscard]] status count_arena();
  /// Takes an answer. Returns the arena that it names, which `arenas` finds; null if there is none.
  /// Errors:  `protocol_error` for another region than the one that was asked for, and for a place
  ///          that the peer has not announced. Answers for which nothing waits are ignored.
  [[nodiscard]] result<std::shared_ptr<mapped_arena>> on_answer(
    map_answer answer, const lending_side& arenas);
  /// Closes the channel if the peer owes an answer for too long.
  void expire(time_point now);
  /// Fails the questions that wait.
  void close(const status& why);

private:
  struct question {
    completion<mapped_region> done;
    access_mode how = access_mode::read;
    std::uint64_t size_bytes = 0; // as the handle says
    time_point asked;
  };
  using questions = std::map<std::uint64_t, question>; // by number, so the oldest comes first

  status add(question& q, std::uint64_t& number);
  questions::node_type take(std::uint64_t number);

  const std::shared_ptr<net::channel> channel_;
  const shm_options options_;
  std::atomic<bool> answered_ = false;
  std::atomic<bool> answered_to_write_ = false;
  std::mutex mutex_;
  bool closed_ = false;
  std::uint64_t next_ = 1;
  std::uint64_t arenas_ = 0;
  questions waiting_;
};

/// Returns the answer to a question of the peer of `asking`, to whom the arena is announced before.
map_answer answer_to(const map_question& asked, asking_side& asking);

} // namespace millrace::transport::shm

// The blocks that this client claims of sets that are being filled, from their data servers.
// Used by `sample_moving`.
// Internal; needs CAF.
#pragma once

#include <millrace/runtime/client/calls/preload.hpp>
#include <millrace/runtime/client/calls/sample_blocks.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace millrace::runtime {

/// Blocks that were claimed together. They follow each other in one part.
struct block_claim {
  std::size_t part = 0;
  std::uint64_t first = 0, end = 0;
  std::uint64_t next = 0; // to be taken
  std::uint64_t left = 0; // that are not moved yet
};

/// A block to move.
struct claimed_block {
  std::shared_ptr<block_claim> claim;
  std::uint64_t number = 0; // in the part
};

/// Claims are asked for ahead, a few blocks at a time, and tell the server what was written of
/// those before. A server of an older version shares nothing: then all blocks are this client's.
/// Threads: any; those who take, one at a time.
class block_claims {
public:
  /// `parts` live as long as this. `in_order`: the files are best read field by field. `begin`: the
  /// part to begin with, otherwise; none for the leader, whose first pass tells all servers how the
  /// set is cut, so that others can join.
  block_claims(
    const preload_call& call, const std::vector<std::unique_ptr<part_blocks>>& parts, bool in_order,
    std::optional<std::size_t> begin);

  /// Asks all parts once for what nobody has claimed. `ahead`: blocks that are asked for before
  /// they are needed.
  void begin_pass(std::uint64_t ahead);
  /// Waits until there is a block to take, or all parts have answered that there is none.
  /// Returns whether there is one.
  /// Errors:  those of the data server, naming the node of a part.
  result<bool> look();
  /// Returns the next block, and waits for it; none if there is none in this pass. Errors: as
  /// `look`.
  result<std::optional<claimed_block>> take();

  /// Notes that a block was moved. Returns true for the last one of its claim: then the entries of
  /// all are to be written.
  bool moved(const claimed_block& one);
  /// Notes that the entries of a claim are written, too. The next request tells it.
  void written(const block_claim& claim);

  /// Returns the bytes of samples that other clients have written, as far as it is known.
  std::uint64_t bytes_elsewhere() const noexcept { return bytes_elsewhere_; }
  /// Returns whether another client has blocks, or could have some, as the last answers said.
  bool others_have_some() const;

private:
  // What the server of a part has said.
  struct known_part {
    std::uint64_t cut = 0;
    std::uint64_t told_bytes = 0; // of samples, that it knows from this client
    std::uint64_t bytes_elsewhere = 0;
    std::uint64_t unclaimed = 0, elsewhere = 0;
    std::uint64_t next_alone = 0; // to be taken, where the server does not share
    bool alone = false;
    std::vector<actors::written_blocks> written = {}; // to be told
  };
  // Blocks of one part before a number.
  struct stretch {
    std::size_t part = 0;
    std::uint64_t below = 0;
  };
  struct question {
    stretch of;
    std::vector<actors::written_blocks> told;
    future<actors::claimed_blocks> answer;
  };

  void ask();
  void take_alone(const stretch& of);
  status hear();
  status take_answer(const question& asked, const actors::claimed_blocks& answer);
  status failed(const question& asked, const status& why);
  void keep(std::size_t part, const actors::block_range& blocks);
  std::uint64_t bytes_of(const block_claim& claim) const;
  std::uint64_t ready_blocks() const;

  const preload_call& call_;
  const std::vector<std::unique_ptr<part_blocks>>& parts_;
  std::vector<stretch> order_; // of the first pass
  bool first_pass_ = true;
  std::vector<stretch> pass_;
  std::size_t at_ = 0; // in `pass_`
  std::uint64_t ahead_ = 1;
  std::optional<question> asked_;
  std::deque<std::shared_ptr<block_claim>> ready_; // with blocks to be taken
  std::atomic<std::uint64_t> bytes_elsewhere_ = 0;
  mutable std::mutex mutex_; // for `known_`, and for counts of claims
  std::vector<known_part> known_;
};

} // namespace millrace::runtime

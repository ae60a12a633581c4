// Fills a window through staging blocks: reads from the peer, and copies on while the next blocks
// are read.
#include <millrace/actors/window_pull.hpp>

#include <algorithm>

namespace millrace::actors {

namespace {

using storage::piece;
using storage::window;

// Staged pieces begin at multiples of this, as the pieces of windows do.
constexpr std::uint64_t piece_alignment = 64;

// The content of one block: pieces of the window, and their offsets in the block.
struct batch {
  std::vector<piece> pieces;
  std::vector<std::uint64_t> offsets;
  std::uint64_t used_bytes = 0; // the bytes of the block that are in use
  std::uint64_t size_bytes = 0;
};

// Cuts pieces at digest blocks. Small pieces share a block.
std::vector<batch> cut(const std::vector<piece>& pieces, std::uint64_t block_bytes) {
  std::vector<batch> out(1);
  for (auto rest : pieces) {
    while (rest.length > 0) {
      auto room = block_bytes - out.back().used_bytes;
      auto length =
        rest.length <= room ? rest.length : room / digest_block_bytes * digest_block_bytes;
      if (length == 0) {
        out.emplace_back();
        continue;
      }
      auto& b = out.back();
      b.pieces.push_back({rest.tensor, rest.tensor_offset, rest.data, length});
      b.offsets.push_back(b.used_bytes);
      b.size_bytes += length;
      b.used_bytes = std::min(
        (b.used_bytes + length + piece_alignment - 1) / piece_alignment * piece_alignment,
        block_bytes);
      rest.tensor_offset += length;
      rest.data += length;
      rest.length -= length;
    }
  }
  return out;
}

class staged_fill : public std::enable_shared_from_this<staged_fill> {
public:
  staged_fill(
    std::shared_ptr<pull_work> work, snapshot_staging blocks, window w,
    std::function<void(std::uint64_t)> arrived, completion<filled_window> done)
    : work_(std::move(work)), blocks_(std::move(blocks)), hold_(std::move(w.hold)),
      batches_(cut(w.pieces, blocks_.block_bytes)), arrived_(std::move(arrived)),
      done_(std::move(done)) {
    outcome_.written_back = work_->write_back;
  }

  void pump() {
    auto self = shared_from_this();
    while (next_ < batches_.size() && in_flight_ < work_->context->bounds.windows_max && !over()) {
      ++in_flight_;
      blocks_.lender->ask(
        work_->claim, blocks_.block_bytes,
        work_->context->home<memory_block>(
          [self, index = next_++](auto block) { self->on_block(index, std::move(block)); }));
    }
    if (!over() && in_flight_ == 0 && next_ == batches_.size())
      end(std::move(outcome_));
  }

private:
  bool over() const { return !done_ || work_->stopped; }

  void on_block(std::size_t index, result<memory_block> block) {
    if (over())
      return;
    if (!block)
      return end(fail(block.error()));
    auto& b = batches_[index];
    transport::transfer t;
    t.dir = transport::direction::read;
    t.remote = work_->source;
    t.channel = work_->channel;
    t.digests = work_->checksums;
    t.hold = block->owner;
    t.ops.reserve(b.pieces.size());
    for (std::size_t i = 0; i < b.pieces.size(); ++i)
      t.ops.push_back(
        {.remote_offset = work_->offsets.byte_of(b.pieces[i]),
         .local = block->data + b.offsets[i],
         .length = b.pieces[i].length});
    work_->context->move(
      std::move(t), [self = shared_from_this(), index, block = std::move(*block)](auto report) {
        self->on_staged(index, block, std::move(report));
      });
  }

  void on_staged(
    std::size_t index, const memory_block& block, result<transport::transfer_report> report) {
    if (over())
      return;
    if (!report)
      return end(fail(report.error()));
    outcome_.driver = report->driver;
    auto& b = batches_[index];
    std::size_t at = 0;
    std::vector<transport::local_copy> copies;
    for (std::size_t i = 0; i < b.pieces.size(); ++i) {
      work_->keep_digests(b.pieces[i], report->digests, at);
      copies.push_back({b.pieces[i].data, block.data + b.offsets[i], b.pieces[i].length});
    }
    // Called before the copy, which may end at once and end the whole fill.
    arrived_(b.size_bytes);
    if (over())
      return;
    // The completion keeps the memory on both sides of the copy.
    work_->context->fabric->copy(
      std::move(copies), work_->write_back,
      work_->context->home<void>([self = shared_from_this(), block, hold = hold_](
                                   const result<void>& copied) { self->on_copied(copied); }));
  }

  void on_copied(const result<void>& copied) {
    if (over())
      return;
    if (!copied)
      return end(fail(copied.error()));
    --in_flight_;
    pump();
  }

  void end(result<filled_window> outcome) {
    auto done = std::exchange(done_, nullptr);
    arrived_ = nullptr;
    hold_.reset();
    done(std::move(outcome));
  }

  std::shared_ptr<pull_work> work_;
  snapshot_staging blocks_;
  std::shared_ptr<void> hold_; // keeps the window's memory
  std::vector<batch> batches_;
  std::function<void(std::uint64_t)> arrived_;
  completion<filled_window> done_;
  filled_window outcome_;
  std::size_t next_ = 0;
  std::uint32_t in_flight_ = 0;
};

} // namespace

window_filler fill_through_staging(std::shared_ptr<pull_work> work, snapshot_staging blocks) {
  return [work, blocks](window w, auto arrived, auto done) {
    std::make_shared<staged_fill>(work, blocks, std::move(w), std::move(arrived), std::move(done))
      ->pump();
  };
}

} // namespace millrace::actors

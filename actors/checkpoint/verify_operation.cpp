// Fetches window after window; movers compute the digests in place.
#include <millrace/actors/checkpoint/verify_operation.hpp>
#include <millrace/actors/reading_operation.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace millrace::actors {

namespace {

using storage::wanted;
using storage::window;

// One digest block of a window. A mover writes `ok` once.
struct block {
  const std::byte* data;
  std::uint64_t length;
  std::uint64_t expected;
  std::uint32_t tensor;
  bool ok = false;
};

constexpr std::uint32_t blocks_per_chunk = 8;

class verify_operation : public reading_operation<verify_request, verify_receipt> {
public:
  using reading_operation::reading_operation;

private:
  std::string name() const override {
    return fmt::format(
      "verifying step {} of {}, rank {}", request_.step, request_.model, request_.rank);
  }

  // No trainer stands still until it is done.
  staging_use use() const override { return staging_use::load_ahead; }

  result<std::vector<wanted>> choose() override {
    auto& record = model().record();
    auto& tensors = record.spec.tensors;
    offsets_ = layout_offsets{tensors};
    receipt_.size_bytes = offsets_.size_bytes();
    if (record.digests.size() != offsets_.digests())
      return fail(errc::corrupt_data, "it has no checksums");
    is_corrupt_.resize(tensors.tensors.size());
    std::vector<wanted> everything;
    for (std::uint32_t i = 0; i < tensors.tensors.size(); ++i)
      if (auto bytes = *size_bytes(tensors.tensors[i]); bytes > 0)
        everything.push_back({i, 0, bytes});
    return everything;
  }

  void on_window(std::size_t, window w) override {
    auto blocks = std::make_shared<std::vector<block>>();
    for (auto& piece : w.pieces) {
      auto digest = offsets_.digest_of(piece);
      for (std::uint64_t at = 0; at < piece.length; at += digest_block_bytes)
        blocks->push_back(
          {piece.data + at, std::min(digest_block_bytes, piece.length - at),
           model().record().digests[digest++], piece.tensor});
    }
    auto chunks = (blocks->size() + blocks_per_chunk - 1) / blocks_per_chunk;
    auto compared = later<verify_operation, void>(
      [blocks](verify_operation& self, const result<void>&) { self.on_compared(*blocks); });
    context_->fabric->movers()->submit(
      static_cast<std::uint32_t>(chunks),
      [blocks](std::uint32_t chunk) {
        auto last = std::min<std::size_t>((chunk + 1) * blocks_per_chunk, blocks->size());
        for (std::size_t i = chunk * blocks_per_chunk; i < last; ++i) {
          auto& b = (*blocks)[i];
          b.ok = digest(b.data, b.length) == b.expected;
        }
      },
      [compared, hold = w.hold] { compared({}); });
  }

  void on_compared(const std::vector<block>& blocks) {
    for (auto& b : blocks)
      if (!b.ok)
        is_corrupt_[b.tensor] = true;
    done_with_window();
  }

  void on_everything_read() override {
    auto& tensors = model().record().spec.tensors.tensors;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (is_corrupt_[i])
        receipt_.corrupt.push_back(tensors[i].name);
    succeed();
  }

  layout_offsets offsets_;
  std::vector<bool> is_corrupt_; // one flag per tensor
};

} // namespace

std::shared_ptr<operation> make_verify_operation(
  std::shared_ptr<operation_context> context, verify_request request, model_opener open,
  time_point arrived, answer<verify_receipt> done) {
  return std::make_shared<verify_operation>(
    std::move(context), std::move(request), std::move(open), arrived, std::move(done));
}

} // namespace millrace::actors

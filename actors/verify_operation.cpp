// Window after window is fetched; movers compute its digests where it lies.
#include <millrace/actors/layout_offsets.hpp>
#include <millrace/actors/verify_operation.hpp>

#include <algorithm>

namespace millrace::actors {

namespace {

using storage::opened_model;
using storage::wanted;
using storage::window;

// One digest block of a window. `ok` is written by a mover, once.
struct block {
  const std::byte* data;
  std::uint64_t length;
  std::uint64_t expected;
  std::uint32_t tensor;
  bool ok = false;
};

constexpr std::uint32_t blocks_per_chunk = 8;

class verify_operation : public timed_operation<verify_request, verify_receipt>,
                         public std::enable_shared_from_this<verify_operation> {
public:
  verify_operation(
    std::shared_ptr<operation_context> context, verify_request request, model_opener open,
    time_point arrived, answer<verify_receipt> done)
    : timed_operation(std::move(context), std::move(request), arrived, std::move(done)),
      open_(std::move(open)) {}

protected:
  void start() override {
    std::exchange(open_, nullptr)(context_->home<std::shared_ptr<opened_model>>(
      [self = shared_from_this()](auto opened) { self->on_opened(std::move(opened)); }));
  }

  void let_go() override { model_.reset(); }

private:
  std::string name() const {
    return "verifying step " + std::to_string(request_.step) + " of " + request_.model + ", rank " +
      std::to_string(request_.rank);
  }

  void on_opened(result<std::shared_ptr<opened_model>> opened) {
    if (answered())
      return;
    if (!opened)
      return give_up(opened.error());
    model_ = std::move(*opened);
    auto& tensors = model_->record().spec.tensors;
    offsets_ = layout_offsets{tensors};
    receipt_.size_bytes = offsets_.size_bytes();
    if (model_->record().digests.size() != offsets_.digests())
      return give_up({errc::corrupt_data, name() + ": it has no checksums"});
    std::vector<wanted> everything;
    for (std::uint32_t i = 0; i < tensors.tensors.size(); ++i)
      if (auto bytes = *size_bytes(tensors.tensors[i]); bytes > 0)
        everything.push_back({i, 0, bytes});
    windows_ = model_->plan(everything);
    is_corrupt_.resize(tensors.tensors.size());
    pump();
  }

  void pump() {
    auto self = shared_from_this();
    while (!answered() && next_ < windows_.size() && in_flight_ < context_->bounds.windows_max) {
      ++in_flight_;
      model_->fetch(std::move(windows_[next_++]), context_->home<window>([self](result<window> w) {
        self->on_window(std::move(w));
      }));
    }
    if (!answered() && in_flight_ == 0 && next_ == windows_.size())
      finish();
  }

  void on_window(result<window> w) {
    if (answered())
      return;
    if (!w)
      return give_up(w.error().within(name()));
    auto blocks = std::make_shared<std::vector<block>>();
    for (auto& piece : w->pieces) {
      auto digest = offsets_.digest_of(piece);
      for (std::uint64_t at = 0; at < piece.length; at += digest_block_bytes)
        blocks->push_back(
          {piece.data + at, std::min(digest_block_bytes, piece.length - at),
           model_->record().digests[digest++], piece.tensor});
    }
    auto chunks = (blocks->size() + blocks_per_chunk - 1) / blocks_per_chunk;
    auto compared = context_->home<void>(
      [self = shared_from_this(), blocks](const result<void>&) { self->on_compared(*blocks); });
    context_->fabric->movers()->submit(
      static_cast<std::uint32_t>(chunks),
      [blocks](std::uint32_t chunk) {
        auto last = std::min<std::size_t>((chunk + 1) * blocks_per_chunk, blocks->size());
        for (std::size_t i = chunk * blocks_per_chunk; i < last; ++i) {
          auto& b = (*blocks)[i];
          b.ok = digest(b.data, b.length) == b.expected;
        }
      },
      [compared, hold = w->hold] { compared({}); });
  }

  void on_compared(const std::vector<block>& blocks) {
    if (answered())
      return;
    for (auto& b : blocks)
      if (!b.ok)
        is_corrupt_[b.tensor] = true;
    --in_flight_;
    pump();
  }

  void finish() {
    auto& tensors = model_->record().spec.tensors.tensors;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (is_corrupt_[i])
        receipt_.corrupt.push_back(tensors[i].name);
    succeed();
  }

  model_opener open_;
  std::shared_ptr<opened_model> model_;
  layout_offsets offsets_;
  std::vector<std::vector<wanted>> windows_;
  std::vector<bool> is_corrupt_; // per tensor
  std::size_t next_ = 0;
  std::uint32_t in_flight_ = 0;
};

} // namespace

std::shared_ptr<operation> make_verify_operation(
  std::shared_ptr<operation_context> context, verify_request request, model_opener open,
  time_point arrived, answer<verify_receipt> done) {
  return std::make_shared<verify_operation>(
    std::move(context), std::move(request), std::move(open), arrived, std::move(done));
}

} // namespace millrace::actors

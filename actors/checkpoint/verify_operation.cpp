// Fetches window after window; movers compute the digests in place.
#include <millrace/actors/block_check.hpp>
#include <millrace/actors/checkpoint/verify_operation.hpp>
#include <millrace/actors/reading_operation.hpp>

#include <fmt/format.h>

#include <vector>

namespace millrace::actors {

namespace {

using storage::wanted;
using storage::window;

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
    check_blocks(
      *context_->fabric->movers(), w, offsets_, model().record().digests,
      later<verify_operation, std::vector<checked_block>>(
        [](verify_operation& self, const auto& blocks) { self.on_compared(*blocks); }));
  }

  void on_compared(const std::vector<checked_block>& blocks) {
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

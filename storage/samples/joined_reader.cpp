// Each field is read by the reader that it comes from.
#include <millrace/storage/samples/joined_reader.hpp>

#include <algorithm>
#include <utility>

namespace millrace::storage::samples {

namespace {

class joined_reader final : public sample_reader {
public:
  explicit joined_reader(std::vector<std::unique_ptr<sample_reader>> readers)
    : readers_(std::move(readers)) {
    for (auto& one : readers_)
      fields_.push_back(one->fields().front());
  }

  std::uint64_t samples() const noexcept override { return readers_.front()->samples(); }
  const std::vector<read_field>& fields() const noexcept override { return fields_; }
  std::span<const std::uint64_t> lengths(std::size_t field) const noexcept override {
    return readers_[field]->lengths(0);
  }
  bool computes() const noexcept override {
    return std::ranges::any_of(readers_, [](auto& one) { return one->computes(); });
  }
  bool prefers_order() const noexcept override {
    return std::ranges::any_of(readers_, [](auto& one) { return one->prefers_order(); });
  }

protected:
  status read_range(
    std::size_t field, std::uint64_t first, std::uint64_t offset,
    std::span<std::byte> into) override {
    auto& from = *readers_[field];
    return blame_as(from, read_range_of(from, 0, first, offset, into));
  }

private:
  const std::vector<std::unique_ptr<sample_reader>> readers_; // by field
  std::vector<read_field> fields_;
};

} // namespace

std::unique_ptr<sample_reader> join_fields(std::vector<std::unique_ptr<sample_reader>> readers) {
  return std::make_unique<joined_reader>(std::move(readers));
}

} // namespace millrace::storage::samples

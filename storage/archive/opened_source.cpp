// Copies the bytes asked for out of the windows that hold them.
#include <millrace/core/digest.hpp>
#include <millrace/storage/archive/formats.hpp>
#include <millrace/storage/archive/opened_source.hpp>
#include <millrace/storage/await.hpp>
#include <millrace/storage/io/file_io.hpp>

#include <fmt/format.h>

#include <chrono>
#include <cstring>

namespace millrace::storage::archive {

namespace {

class opened_source final : public tensor_source {
public:
  opened_source(std::shared_ptr<opened_model> version, std::uint32_t deadline_ms)
    : version_(std::move(version)), deadline_(deadline_ms) {
    for (auto& tensor : stored()) {
      first_digest_.push_back(digests_);
      digests_ += digest_count(size_bytes(tensor).value_or(0));
    }
    tensors_.tensors = stored();
    if (version_->record().extra_bytes > 0)
      tensors_.tensors.pop_back();
  }

  const layout& tensors() const noexcept override { return tensors_; }
  const text_pairs& metadata() const noexcept override { return version_->record().spec.metadata; }

  status read(std::uint32_t tensor, std::uint64_t offset, std::span<std::byte> into) override {
    if (auto bad = check_range(tensors(), tensor, offset, into.size()); !bad.ok())
      return bad;
    return into.empty() ? status{} : read_stored(tensor, offset, into);
  }

  result<std::vector<std::byte>> extra() override {
    std::vector<std::byte> bytes(version_->record().extra_bytes);
    if (bytes.empty())
      return bytes;
    auto last = static_cast<std::uint32_t>(tensors_.tensors.size());
    if (auto bad = read_stored(last, 0, bytes); !bad.ok())
      return fail(bad.within(fmt::format("step {}", version_->record().version)));
    return bytes;
  }

private:
  // The tensors and, as the last one, the user's bytes.
  const std::vector<tensor_desc>& stored() const { return version_->record().spec.tensors.tensors; }

  status read_stored(std::uint32_t tensor, std::uint64_t offset, std::span<std::byte> into) {
    auto total = size_bytes(stored()[tensor]).value_or(0);
    auto begin = offset / digest_block_bytes * digest_block_bytes;
    auto end = std::min(
      (offset + into.size() + digest_block_bytes - 1) / digest_block_bytes * digest_block_bytes,
      total);
    for (auto& ranges : version_->plan({{tensor, begin, end - begin}})) {
      auto came = fetch(ranges);
      if (!came)
        return came.error().within("reading " + stored()[tensor].name);
      for (auto& one : came->pieces)
        if (auto bad = take(one, offset, into); !bad.ok())
          return bad;
    }
    return {};
  }

  // One window at a time, so that its memory can be used again.
  result<window> fetch(const std::vector<wanted>& ranges) {
    if (staging_.size_bytes < version_->window_bytes())
      staging_ = io::heap_block(version_->window_bytes());
    auto came = await<window>(
      deadline_, [&](auto done) { version_->fetch(ranges, staging_, std::move(done)); });
    // A read that came too late may still fill it.
    if (!came)
      staging_ = {};
    return came;
  }

  // Checks a piece and copies the part of it that was asked for.
  status take(const piece& from, std::uint64_t offset, std::span<std::byte> into) {
    if (auto bad = verify(from); !bad.ok())
      return bad;
    auto begin = std::max(from.tensor_offset, offset);
    auto end = std::min(from.tensor_offset + from.length, offset + into.size());
    if (begin < end)
      std::memcpy(
        into.data() + (begin - offset), from.data + (begin - from.tensor_offset), end - begin);
    return {};
  }

  status verify(const piece& from) {
    auto& digests = version_->record().digests;
    if (digests.size() != digests_)
      return {};
    for (std::uint64_t at = 0; at < from.length; at += digest_block_bytes) {
      auto block = (from.tensor_offset + at) / digest_block_bytes;
      auto bytes = std::min(digest_block_bytes, from.length - at);
      if (digest(from.data + at, bytes) != digests[first_digest_[from.tensor] + block])
        return {
          errc::corrupt_data, "tensor {}, block {}: the bytes do not match their checksum",
          stored()[from.tensor].name, block};
    }
    return {};
  }

  std::shared_ptr<opened_model> version_;
  std::chrono::milliseconds deadline_;
  layout tensors_;
  std::vector<std::uint64_t> first_digest_;
  std::uint64_t digests_ = 0;
  memory_block staging_;
};

} // namespace

std::unique_ptr<tensor_source> make_opened_source(
  std::shared_ptr<opened_model> version, std::uint32_t deadline_ms) {
  return std::make_unique<opened_source>(std::move(version), deadline_ms);
}

} // namespace millrace::storage::archive

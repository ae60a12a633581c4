// The formats: one writer and one reader each, and the loop from a source to a writer. Called by
// `archive.cpp`, and by the reader of samples.
#pragma once

#include <millrace/storage/archive/archive.hpp>

#include <algorithm>
#include <functional>

namespace millrace::storage::archive {

/// Counts the bytes that are written and reports them. The answer decides whether writing goes on.
class meter {
public:
  meter(const progress_callback& report, std::uint64_t total) : report_(report), total_(total) {}

  [[nodiscard]] status add(std::uint64_t size_bytes);

private:
  const progress_callback& report_;
  std::uint64_t total_;
  std::uint64_t done_ = 0;
};

/// The bytes that a writer reads from a source at a time.
inline constexpr std::uint64_t archive_step_bytes = 4 * 1024 * 1024;

/// Passes a whole tensor to `sink(offset, bytes)`, step by step, through `buffer`.
template <class Sink>
[[nodiscard]] status for_each_step(
  tensor_source& source, std::uint32_t tensor, std::vector<std::byte>& buffer, Sink sink) {
  auto total = size_bytes(source.tensors().tensors[tensor]).value_or(0);
  if (buffer.size() < std::min(total, archive_step_bytes))
    buffer.resize(std::min(total, archive_step_bytes));
  for (std::uint64_t offset = 0; offset < total; offset += archive_step_bytes) {
    std::span step{buffer.data(), std::min(archive_step_bytes, total - offset)};
    if (auto bad = source.read(tensor, offset, step); !bad.ok())
      return bad;
    if (auto bad = sink(offset, std::span<const std::byte>{step}); !bad.ok())
      return bad;
  }
  return {};
}

/// Checks that the range lies in the tensor and is of whole elements.
[[nodiscard]] status check_range(
  const layout& tensors, std::uint32_t tensor, std::uint64_t offset, std::uint64_t length);

// Writers fill the existing file at `path`, which is not published yet. The caller removes it on
// failure.
[[nodiscard]] status write_safetensors(const std::string& path, tensor_source& source, meter& done);
[[nodiscard]] status write_npz(const std::string& path, tensor_source& source, meter& done);
[[nodiscard]] status write_hdf5(const std::string& path, tensor_source& source, meter& done);
[[nodiscard]] status write_torch(const std::string& path, tensor_source& source, meter& done);

result<std::unique_ptr<tensor_source>> open_safetensors(const std::string& path);
/// Says which tensors are wanted. Others are not looked at, whatever they are. Null: all.
using tensor_filter = std::function<bool(std::string_view name)>;

result<std::unique_ptr<tensor_source>> open_npz(
  const std::string& path, const tensor_filter& wanted = {});
result<std::unique_ptr<tensor_source>> open_hdf5(
  const std::string& path, const tensor_filter& wanted = {});
result<std::unique_ptr<tensor_source>> open_torch(const std::string& path);

} // namespace millrace::storage::archive

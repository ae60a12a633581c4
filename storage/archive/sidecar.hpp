// The sidecar: the file beside an archive that has the user's bytes of a checkpoint's version.
// Called by `write_archive` and `open_archive`.
#pragma once

#include <millrace/storage/archive/archive.hpp>

#include <memory>
#include <string>
#include <vector>

namespace millrace::storage::archive {

/// No format has a place for bytes of any size that all its readers leave alone. So the bytes lie
/// in `PATH.extra`, as they are. The archive's metadata has their size and checksum under
/// `millrace.extra`, so that another file at that place is not taken for them.
std::string sidecar_of(const std::string& archive);

/// A source of the same tensors with other metadata, and with the user's bytes.
class source_with_extra final : public tensor_source {
public:
  source_with_extra(
    std::shared_ptr<tensor_source> inner, text_pairs metadata, std::vector<std::byte> extra)
    : inner_(std::move(inner)), metadata_(std::move(metadata)), extra_(std::move(extra)) {}

  const layout& tensors() const noexcept override { return inner_->tensors(); }
  const text_pairs& metadata() const noexcept override { return metadata_; }
  status read(std::uint32_t tensor, std::uint64_t offset, std::span<std::byte> into) override {
    return inner_->read(tensor, offset, into);
  }
  result<std::vector<std::byte>> extra() override { return extra_; }

private:
  std::shared_ptr<tensor_source> inner_;
  text_pairs metadata_;
  std::vector<std::byte> extra_;
};

/// Writes the sidecar of an archive, completely or not at all.
/// Errors: as `write_archive`.
[[nodiscard]] status write_sidecar(
  const std::string& archive, std::span<const std::byte> extra, bool replace);

/// Returns the metadata with the entry for these bytes.
text_pairs with_extra(text_pairs metadata, std::span<const std::byte> extra);

/// Returns the source with its user's bytes, which are read from the sidecar, and without the
/// entry. A source whose metadata has no such entry is returned as it is.
/// Errors: `not_found` and `corrupt_data` naming the sidecar.
result<std::unique_ptr<tensor_source>> take_sidecar(
  const std::string& archive, std::unique_ptr<tensor_source> source);

} // namespace millrace::storage::archive

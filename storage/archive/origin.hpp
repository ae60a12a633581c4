// The origin of a file's tensors, as entries of its metadata. Written by `checkpoints dump` and by
// flushing, read by `checkpoints load`.
#pragma once

#include <millrace/storage/archive/archive.hpp>

namespace millrace::storage::archive {

struct version_origin {
  std::optional<std::string> model;
  std::optional<std::uint64_t> step;
  std::optional<std::uint32_t> rank;
  std::optional<std::uint32_t> world_size;
  text_pairs axes;

  friend bool operator==(const version_origin&, const version_origin&) = default;
};

/// Returns the metadata with entries for the origin: `millrace.model`, `.step`, `.rank`,
/// `.world_size`, `.axis.NAME`. They replace the entries of another origin.
text_pairs with_origin(text_pairs metadata, const version_origin& origin);

/// Removes the entries of `with_origin` from the metadata and returns them. Malformed numbers are
/// ignored.
version_origin take_origin(text_pairs& metadata);

/// A source of the same tensors with other metadata.
class labelled_source final : public tensor_source {
public:
  labelled_source(std::unique_ptr<tensor_source> inner, text_pairs metadata)
    : inner_(std::move(inner)), metadata_(std::move(metadata)) {}

  const layout& tensors() const noexcept override { return inner_->tensors(); }
  const text_pairs& metadata() const noexcept override { return metadata_; }
  status read(std::uint32_t tensor, std::uint64_t offset, std::span<std::byte> into) override {
    return inner_->read(tensor, offset, into);
  }
  result<std::vector<std::byte>> extra() override { return inner_->extra(); }

private:
  std::unique_ptr<tensor_source> inner_;
  text_pairs metadata_;
};

} // namespace millrace::storage::archive

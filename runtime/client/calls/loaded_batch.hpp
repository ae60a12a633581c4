// A batch of a loader, in the memory of its ring.
// Internal, behind `batch`.
#pragma once

#include <millrace/core/batch_walk.hpp>
#include <millrace/core/device_stream.hpp>
#include <millrace/core/tensor_view.hpp>
#include <millrace/core/working_set.hpp>
#include <millrace/runtime/client/calls/receive_ring.hpp>
#include <millrace/transport/memory/device_memory.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::runtime {

/// A batch in its place of the ring. If that is memory of a device, the batch is filled in a place
/// of the host, and then moved.
class loaded_batch {
public:
  using lengths = std::vector<std::uint64_t>; // of the samples, in bytes
  static constexpr std::uint64_t field_alignment = 4096;

  /// `device`: the kind of device whose memory the place is, with `staging`; empty: this host's.
  loaded_batch(
    batch_step step, std::shared_ptr<receive_ring::place> place,
    std::shared_ptr<receive_ring::place> staging = nullptr, std::string_view device = {});
  /// Returns where the fields begin if they lie one behind the other, each on a page of its own,
  /// and then where the last one ends. `of`: for each field that varies; empty for the others.
  std::vector<std::uint64_t> begins_of(
    const set_info& set, const std::vector<std::size_t>& fields,
    const std::vector<lengths>& of) const;
  /// Places the fields. The place is large enough.
  void lay_out(
    const set_info& set, const std::vector<std::size_t>& fields, const std::vector<lengths>& of);
  void clear_padding() const;
  /// Copies all fields to the device. Blocks until it has them.
  /// Errors:  those of `device_memory::copy`.
  status move_to(transport::device_memory& device) const;
  /// Gives the place of the host back.
  void end_staging() noexcept { staging_ = nullptr; }

  /// See `batch::follow`.
  status follow(const device_stream& stream) const;
  void* stream() const noexcept { return stream_; } // null: the default one

  const batch_step& step() const noexcept { return step_; }
  receive_ring::place& place() const noexcept { return *place_; }
  /// Returns null if the batch is filled where it stays.
  receive_ring::place* staging() const noexcept { return staging_.get(); }
  /// Shape: [rows, the shape of a sample]; of a field that varies, [sum of the first extents, ...].
  const std::vector<tensor_view>& fields() const noexcept { return fields_; }
  std::span<const std::uint64_t> offsets(std::size_t field) const { return offsets_.at(field); }
  tensor_view mask() const;
  /// Returns the bytes of a field that its samples fill, where they are read to. The padding comes
  /// after them.
  std::span<std::byte> samples_of(std::size_t field) const;
  std::uint64_t size_bytes() const noexcept; // of samples

private:
  void add_varying(const sample_field& field, const lengths& of);
  std::byte* filled_at(std::size_t field) const;

  const batch_step step_;
  const std::shared_ptr<receive_ring::place> place_;
  std::shared_ptr<receive_ring::place> staging_;
  const std::string device_; // its kind
  std::uint64_t laid_out_bytes_ = 0;
  mutable std::atomic<void*> stream_ = nullptr;
  std::vector<tensor_view> fields_;
  std::vector<std::uint64_t> filled_bytes_;         // of each field
  std::vector<std::vector<std::uint64_t>> offsets_; // of each field; empty if it does not vary
  std::vector<std::uint8_t> mask_;
};

} // namespace millrace::runtime

// Fields lie one behind the other; rows of padding come after those of samples.
#include <millrace/core/rounding.hpp>
#include <millrace/runtime/client/calls/loaded_batch.hpp>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace millrace::runtime {

loaded_batch::loaded_batch(
  batch_step step, std::shared_ptr<receive_ring::place> place,
  std::shared_ptr<receive_ring::place> staging, std::string_view device)
  : step_(std::move(step)), place_(std::move(place)), staging_(std::move(staging)), device_(device),
    mask_(step_.rows(), 0) {
  std::fill_n(mask_.begin(), step_.samples.size(), std::uint8_t{1});
}

std::vector<std::uint64_t> loaded_batch::begins_of(
  const set_info& set, const std::vector<std::size_t>& fields,
  const std::vector<lengths>& of) const {
  std::vector<std::uint64_t> out{0};
  for (std::size_t i = 0; i < fields.size(); ++i) {
    auto bytes = set.fields[fields[i]].bytes * step_.rows();
    for (auto length : of[i])
      bytes += length;
    out.push_back(out.back() + round_up(bytes, field_alignment));
  }
  return out;
}

void loaded_batch::lay_out(
  const set_info& set, const std::vector<std::size_t>& fields, const std::vector<lengths>& of) {
  auto begins = begins_of(set, fields, of);
  laid_out_bytes_ = begins.back();
  for (std::size_t i = 0; i < fields.size(); ++i) {
    auto& field = set.fields[fields[i]];
    fields_.push_back({field.sample, place_->data + begins[i], {}});
    if (field.varies) {
      add_varying(field, of[i]);
      continue;
    }
    auto& shape = fields_.back().desc.shape;
    shape.insert(shape.begin(), step_.rows());
    filled_bytes_.push_back(field.bytes * step_.samples.size());
    offsets_.emplace_back();
  }
}

// Places without a sample have no rows.
void loaded_batch::add_varying(const sample_field& field, const lengths& of) {
  auto row_bytes = varying_row_bytes(field.sample).value_or(1);
  std::vector<std::uint64_t> offsets{0};
  std::uint64_t filled = 0;
  for (std::uint64_t row = 0; row < step_.rows(); ++row) {
    filled += row < of.size() ? of[row] : 0;
    offsets.push_back(filled / row_bytes);
  }
  fields_.back().desc.shape.front() = offsets.back();
  filled_bytes_.push_back(filled);
  offsets_.push_back(std::move(offsets));
}

tensor_view loaded_batch::mask() const {
  return tensor_view::dense("mask", dtype::boolean, {mask_.size()}, std::span{mask_});
}

std::byte* loaded_batch::filled_at(std::size_t field) const {
  auto* data = fields_[field].data;
  return staging_ ? staging_->data + (data - place_->data) : data;
}

std::span<std::byte> loaded_batch::samples_of(std::size_t field) const {
  return {filled_at(field), filled_bytes_[field]};
}

void loaded_batch::clear_padding() const {
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    auto all = millrace::size_bytes(fields_[i].desc).value_or(0);
    std::memset(filled_at(i) + filled_bytes_[i], 0, all - filled_bytes_[i]);
  }
}

// One copy: the gaps between fields are shorter than a page.
status loaded_batch::move_to(transport::device_memory& device) const {
  if (laid_out_bytes_ == 0)
    return {};
  transport::device_run all{place_->data, staging_->data, laid_out_bytes_};
  return device.copy({&all, 1}, transport::device_way::from_host);
}

status loaded_batch::follow(const device_stream& stream) const {
  if (device_.empty())
    return {
      errc::invalid_argument,
      "the batch is in memory of the host, which no stream uses; give the "
      "loader a device"};
  if (device_ != stream.kind)
    return {
      errc::invalid_argument, "a stream of {}, and the batch is in memory of {}", stream.kind,
      device_};
  stream_ = stream.handle;
  return {};
}

std::uint64_t loaded_batch::size_bytes() const noexcept {
  return std::accumulate(filled_bytes_.begin(), filled_bytes_.end(), std::uint64_t{0});
}

} // namespace millrace::runtime

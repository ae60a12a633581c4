// Reads dense tensors piece by piece. Keeps in memory the bytes of a tensor in another order, while
// it is read.
#include <millrace/storage/archive/formats.hpp>
#include <millrace/storage/archive/zipped_tensors.hpp>

namespace millrace::storage::archive {

namespace {

class zipped_source final : public tensor_source {
public:
  zipped_source(
    zip_input file, layout tensors, std::vector<zipped_tensor> places, text_pairs metadata)
    : file_(std::move(file)), tensors_(std::move(tensors)), places_(std::move(places)),
      metadata_(std::move(metadata)) {}

  const layout& tensors() const noexcept override { return tensors_; }
  const text_pairs& metadata() const noexcept override { return metadata_; }

  status read(std::uint32_t tensor, std::uint64_t offset, std::span<std::byte> into) override {
    if (auto bad = check_range(tensors_, tensor, offset, into.size()); !bad.ok())
      return bad;
    if (into.empty())
      return {};
    auto& place = places_[tensor];
    if (place.steps.empty()) {
      if (auto bad = file_.read(place.entry, place.offset + offset, into); !bad.ok())
        return bad;
    } else {
      if (auto bad = hold(tensor); !bad.ok())
        return bad;
      auto& about = tensors_.tensors[tensor];
      auto size = element_bytes(about);
      gather(held_, about.shape, place.steps, size, offset / size, into);
    }
    auto number = number_bytes(tensors_.tensors[tensor]);
    if (place.big_endian && number > 1)
      swap_bytes(into, number);
    // A conjugated number that is negated keeps its imaginary part.
    if (place.conjugated || place.negated)
      flip_signs(into, number, place.negated, place.negated != place.conjugated);
    return {};
  }

private:
  status hold(std::uint32_t tensor) {
    if (held_tensor_ == tensor)
      return {};
    auto& about = tensors_.tensors[tensor];
    auto& place = places_[tensor];
    auto bytes = reach(about.shape, place.steps).value_or(0) * element_bytes(about);
    held_tensor_.reset();
    held_ = {};
    held_.resize(bytes);
    if (auto bad = file_.read(place.entry, place.offset, held_); !bad.ok())
      return bad;
    held_tensor_ = tensor;
    return {};
  }

  zip_input file_;
  layout tensors_;
  std::vector<zipped_tensor> places_;
  text_pairs metadata_;
  std::optional<std::uint32_t> held_tensor_;
  std::vector<std::byte> held_;
};

// True for the dtypes whose signs `flip_signs` can reverse, and that PyTorch marks so.
bool has_signs(dtype type) {
  using enum dtype;
  return is_complex(type) || type == f16 || type == bf16 || type == f32 || type == f64;
}

status check_place(const zip_input& file, const tensor_desc& tensor, zipped_tensor& place) {
  auto& entry = file.entries()[place.entry];
  auto too_short = [&] {
    return status{errc::corrupt_data, "tensor {}, {}, does not lie in the {} bytes of {}",
                  tensor.name,        describe(tensor),
                  entry.size_bytes,   entry.name};
  };
  auto needed = size_bytes(tensor);
  if (!needed)
    return needed.error();
  if ((place.conjugated && !is_complex(tensor.type)) || (place.negated && !has_signs(tensor.type)))
    return {
      errc::unsupported,
      "tensor {}, {}, is marked as {}; save {}() of it",
      tensor.name,
      describe(tensor),
      place.conjugated ? "conjugated" : "negated",
      place.conjugated ? "resolve_conj" : "resolve_neg"};
  if (!place.steps.empty() && is_dense(tensor.shape, place.steps))
    place.steps.clear();
  if (!place.steps.empty()) {
    auto elements = reach(tensor.shape, place.steps);
    if (!elements || *elements > entry.size_bytes / element_bytes(tensor))
      return too_short();
    needed = *elements * element_bytes(tensor);
    if (*needed > strided_bytes_max)
      return {
        errc::unsupported,
        "tensor {} does not lie in C order, and has more bytes ({}) than are put in order here; "
        "store it contiguous",
        tensor.name, *needed};
  }
  if (place.offset > entry.size_bytes || *needed > entry.size_bytes - place.offset)
    return too_short();
  return {};
}

} // namespace

result<std::unique_ptr<tensor_source>> make_zipped_source(
  zip_input file, layout tensors, std::vector<zipped_tensor> places, text_pairs metadata) {
  if (auto bad = validate(tensors); !bad.ok())
    return fail(errc::corrupt_data, bad.detail());
  for (std::size_t i = 0; i < places.size(); ++i)
    if (auto bad = check_place(file, tensors.tensors[i], places[i]); !bad.ok())
      return fail(bad);
  return std::make_unique<zipped_source>(
    std::move(file), std::move(tensors), std::move(places), std::move(metadata));
}

} // namespace millrace::storage::archive

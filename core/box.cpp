// Intersects boxes, cuts them, and finds their runs of bytes.
#include <millrace/core/box.hpp>

#include <algorithm>

namespace millrace {

status check_inside(const tensor_box& box, const tensor_desc& tensor) {
  auto rank = tensor.shape.size();
  if (box.offsets.size() != rank || box.extents.size() != rank)
    return {
      errc::invalid_argument,
      "a box of {} offsets and {} extents of tensor {}, which is {}",
      box.offsets.size(),
      box.extents.size(),
      tensor.name,
      describe(tensor)};
  for (std::size_t i = 0; i < rank; ++i)
    if (box.offsets[i] > tensor.shape[i] || box.extents[i] > tensor.shape[i] - box.offsets[i])
      return {
        errc::invalid_argument,
        "a box begins at {} in dimension {} of tensor {} and has {} elements there; the tensor is "
        "{}",
        box.offsets[i],
        i,
        tensor.name,
        box.extents[i],
        describe(tensor)};
  return {};
}

bool is_empty(const tensor_box& box) noexcept {
  return std::ranges::find(box.extents, 0u) != box.extents.end();
}

std::string describe(const tensor_box& box) {
  std::string text = "[";
  for (std::size_t i = 0; i < box.offsets.size(); ++i)
    text +=
      fmt::format("{}{}:{}", i == 0 ? "" : ", ", box.offsets[i], box.offsets[i] + box.extents[i]);
  return text + ']';
}

std::optional<tensor_box> intersection(const tensor_box& a, const tensor_box& b) {
  tensor_box out;
  for (std::size_t i = 0; i < a.offsets.size(); ++i) {
    auto first = std::max(a.offsets[i], b.offsets[i]);
    auto end = std::min(a.offsets[i] + a.extents[i], b.offsets[i] + b.extents[i]);
    if (first >= end)
      return {};
    out.offsets.push_back(first);
    out.extents.push_back(end - first);
  }
  return out;
}

std::vector<tensor_box> without(const tensor_box& whole, const tensor_box& part) {
  std::vector<tensor_box> left;
  // What is not yet cut off: it has the part's place in the dimensions before `i`.
  auto rest = whole;
  auto cut_off = [&](std::size_t i, std::uint64_t first, std::uint64_t end) {
    if (first == end)
      return;
    left.push_back(rest);
    left.back().offsets[i] = first;
    left.back().extents[i] = end - first;
  };
  for (std::size_t i = 0; i < whole.offsets.size(); ++i) {
    cut_off(i, whole.offsets[i], part.offsets[i]);
    cut_off(i, part.offsets[i] + part.extents[i], whole.offsets[i] + whole.extents[i]);
    rest.offsets[i] = part.offsets[i];
    rest.extents[i] = part.extents[i];
  }
  return left;
}

box_runs::box_runs(std::uint64_t first_byte, std::uint64_t run_bytes, std::vector<dimension> outer)
  : first_byte_(first_byte), run_bytes_(run_bytes), outer_(std::move(outer)) {
  for (auto& d : outer_)
    count_ *= d.count;
}

std::uint64_t box_runs::offset(std::uint64_t run) const noexcept {
  std::uint64_t at = 0;
  for (auto d = outer_.rbegin(); d != outer_.rend(); ++d) {
    at += run % d->count * d->stride_bytes;
    run /= d->count;
  }
  return at;
}

std::uint64_t box_runs::first_ending_after(std::uint64_t offset) const noexcept {
  // The last run that begins at `offset` or before.
  std::uint64_t run = 0;
  auto rest = offset;
  for (auto& d : outer_) {
    auto index = std::min(rest / d.stride_bytes, d.count - 1);
    rest -= index * d.stride_bytes;
    run = run * d.count + index;
  }
  return rest < run_bytes_ ? run : run + 1;
}

std::pair<box_runs, box_runs> box_runs::grouped(std::uint64_t gap_bytes) const {
  auto span = run_bytes_;
  auto first = outer_.size(); // of the dimensions inside a group
  while (first > 0 && outer_[first - 1].stride_bytes - span < gap_bytes) {
    --first;
    span += (outer_[first].count - 1) * outer_[first].stride_bytes;
  }
  auto border = outer_.begin() + static_cast<std::ptrdiff_t>(first);
  return {
    box_runs{first_byte_, span, {outer_.begin(), border}},
    box_runs{0, run_bytes_, {border, outer_.end()}}};
}

result<box_runs> runs_of(const tensor_desc& tensor, const tensor_box& box) {
  if (auto bad = check_inside(box, tensor); !bad.ok())
    return fail(std::move(bad));
  if (is_empty(box))
    return box_runs{0, 0, {}};
  // In bits, which fit 64 of them in every valid tensor.
  std::uint64_t stride = bits_per_element(tensor.type), first = 0, run = stride;
  auto touch = true; // all dimensions so far are in one run
  std::vector<box_runs::dimension> outer;
  for (auto i = tensor.shape.size(); i-- > 0; stride *= tensor.shape[i]) {
    auto extent = box.extents[i];
    first += box.offsets[i] * stride;
    if (touch) {
      run = extent * stride;
      touch = extent == tensor.shape[i];
    } else if (!outer.empty() && outer.back().count * outer.back().stride_bytes == stride) {
      outer.back().count *= extent;
    } else if (extent > 1) {
      outer.push_back({extent, stride});
    }
  }
  auto whole_bytes = first % 8 == 0 && run % 8 == 0;
  for (auto& d : outer) {
    whole_bytes &= d.stride_bytes % 8 == 0;
    d.stride_bytes /= 8;
  }
  if (!whole_bytes)
    return fail(
      errc::invalid_argument,
      "the box {} of tensor {}, which is {}, does not begin and end at whole bytes", describe(box),
      tensor.name, describe(tensor));
  std::ranges::reverse(outer);
  return box_runs{first / 8, run / 8, std::move(outer)};
}

} // namespace millrace

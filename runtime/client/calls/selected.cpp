// Says which part of a tensor a target is for.
#include <millrace/runtime/client/calls/selected.hpp>

#include <algorithm>
#include <utility>

namespace millrace::runtime {

status check_targets(const std::vector<load_target>& targets) {
  for (auto& target : targets) {
    auto& desc = target.into.desc;
    if (target.offsets.empty())
      continue;
    if (target.first_row)
      return {
        errc::invalid_argument, "tensor {}: a target has either a first row or offsets", desc.name};
    if (target.offsets.size() != desc.shape.size())
      return {
        errc::invalid_argument, "tensor {}: {} offsets for a box that is {}", desc.name,
        target.offsets.size(), describe(desc)};
  }
  return {};
}

std::vector<load_target> whole(std::vector<tensor_view> views) {
  std::vector<load_target> out;
  out.reserve(views.size());
  for (auto& view : views)
    out.push_back({std::move(view)});
  return out;
}

std::vector<tensor_view> take_views(std::vector<load_target>& targets) {
  std::vector<tensor_view> out;
  out.reserve(targets.size());
  for (auto& target : targets)
    out.push_back(std::move(target.into));
  return out;
}

actors::selection selected(const tensor_desc& desc, const load_target& target) {
  auto& offsets = target.offsets;
  if (offsets.empty())
    return {desc, target.first_row.has_value(), target.first_row.value_or(0)};
  auto are_rows = std::all_of(offsets.begin() + 1, offsets.end(), [](auto at) { return at == 0; });
  return {desc, true, are_rows ? offsets.front() : actors::selection::no_row, offsets};
}

} // namespace millrace::runtime

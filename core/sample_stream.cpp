// The names of policies, and the check of a stream's options.
#include <millrace/core/sample_stream.hpp>

#include <algorithm>

namespace millrace {

result<stream_policy> parse_stream_policy(std::string_view text) {
  for (auto kind : {stream_policy::fifo, stream_policy::firo, stream_policy::reservoir})
    if (text == to_string(kind))
      return kind;
  return fail(errc::invalid_argument, "policy: '{}' is none of fifo, firo and reservoir", text);
}

std::string_view to_string(stream_policy policy) noexcept {
  constexpr std::string_view names[] = {"fifo", "firo", "reservoir"};
  return names[static_cast<std::size_t>(policy)];
}

result<full_policy> parse_full_policy(std::string_view text) {
  for (auto kind : {full_policy::block, full_policy::drop_oldest})
    if (text == to_string(kind))
      return kind;
  return fail(errc::invalid_argument, "when_full: '{}' is neither block nor drop_oldest", text);
}

std::string_view to_string(full_policy policy) noexcept {
  constexpr std::string_view names[] = {"block", "drop_oldest"};
  return names[static_cast<std::size_t>(policy)];
}

status validate(const stream_options& o) {
  if (o.policy > stream_policy::reservoir)
    return {errc::invalid_argument, "policy {} is unknown", static_cast<int>(o.policy)};
  if (o.when_full > full_policy::drop_oldest)
    return {errc::invalid_argument, "when_full {} is unknown", static_cast<int>(o.when_full)};
  if (o.capacity < 1 || o.capacity > stream_capacity_max)
    return {
      errc::invalid_argument, "capacity {}: 1 to {} samples", o.capacity, stream_capacity_max};
  if (o.policy == stream_policy::fifo && o.threshold > 0)
    return {errc::invalid_argument, "threshold {}: the policy fifo has none", o.threshold};
  if (o.threshold > o.capacity)
    return {
      errc::invalid_argument, "threshold {}: at most the capacity, which is {}", o.threshold,
      o.capacity};
  return {};
}

set_info places_of(const std::string& name, const stream_options& options) {
  set_info out;
  out.name = name;
  out.samples = options.capacity;
  for (auto& field : options.fields)
    out.fields.push_back({.sample = field});
  return out;
}

} // namespace millrace

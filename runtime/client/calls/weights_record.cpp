// Numbers and runs are metadata, so any program can read them beside the tensors.
#include <millrace/runtime/client/calls/weights_record.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

namespace millrace::runtime {

namespace {

constexpr std::string_view version_key = "millrace.weights.version";
constexpr std::string_view run_key = "millrace.weights.run";

} // namespace

metadata_pairs weights_metadata(metadata_pairs own, const std::string& run, std::uint64_t version) {
  own.emplace_back(run_key, run);
  own.emplace_back(version_key, fmt::format("{}", version));
  return own;
}

status check_weights_metadata(const metadata_pairs& own) {
  for (auto& [key, value] : own)
    if (key == version_key || key == run_key)
      return {errc::invalid_argument, "metadata: the key {} is that of a publication's own", key};
  return {};
}

result<weights_version> weights_of(const model_record& record) {
  weights_version out;
  out.stored_as = record.version;
  out.stored_at_ns = record.stored_at_ns;
  out.size_bytes = size_bytes(record.spec.tensors);
  auto is_numbered = false;
  for (auto& [key, value] : record.spec.metadata) {
    auto* end = value.data() + value.size();
    if (key == run_key)
      out.run = value;
    else if (key == version_key)
      is_numbered =
        std::from_chars(value.data(), end, out.version) == std::from_chars_result{end, {}};
    else
      out.metadata.emplace_back(key, value);
  }
  if (!is_numbered || out.run.empty())
    return fail(
      errc::invalid_argument,
      "model {} was not published as weights: publish it, or follow it by repository::newer",
      record.spec.name);
  return out;
}

bool is_after(const weights_version& one, const weights_version& last) {
  if (one.run != last.run)
    return true;
  return one.version > last.version || (one.version == last.version && one != last);
}

} // namespace millrace::runtime

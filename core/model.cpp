// Checks and summaries of model records. Called by buckets and by the actors that ask them.
#include <millrace/core/model.hpp>

namespace millrace {

status validate_model_name(std::string_view name) {
  if (name.empty() || name.size() > model_name_bytes_max)
    return {
      errc::invalid_argument, "a name must have 1 to {} bytes, this one has {}",
      model_name_bytes_max, name.size()};
  if (!is_utf8(name))
    return {errc::invalid_argument, "a name must be UTF-8 without NUL"};
  return {};
}

model_summary summarize(const model_record& record) {
  return {
    record.spec.name,
    record.version,
    size_bytes(record.spec.tensors),
    record.spec.tensors.tensors.size(),
    record.stored_at_ns,
    record.spec.pinned,
    record.spec.group,
    record.spec.view,
    record.spec.erased};
}

} // namespace millrace

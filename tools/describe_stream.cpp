// The counts are those of `stream_status`, by the same names.
#include <millrace/tools/describe_stream.hpp>

namespace millrace::tools {

json to_json(const stream_status& stream) {
  auto& o = stream.options;
  auto& c = stream.counts;
  json fields = json::array();
  for (auto& field : o.fields)
    fields.push_back(
      {{"name", field.name}, {"dtype", to_string(field.type)}, {"shape", field.shape}});
  return {
    {"name", stream.name},
    {"id", to_string(stream.id)},
    {"owner", stream.owner},
    {"created_at_ns", stream.created_at_ns},
    {"size_bytes", stream.size_bytes},
    {"fields", fields},
    {"capacity", o.capacity},
    {"policy", to_string(o.policy)},
    {"when_full", to_string(o.when_full)},
    {"producers_wanted", o.producers},
    {"seed", o.seed},
    {"threshold", o.threshold},
    {"producers", stream.producers},
    {"producers_ended", stream.producers_ended},
    {"readers", stream.readers},
    {"ended", stream.ended},
    {"appended", c.appended},
    {"given", c.given},
    {"repeated", c.repeated},
    {"dropped", c.dropped},
    {"replaced", c.replaced},
    {"present", c.present},
    {"writing", c.writing},
    {"reading", c.reading},
    {"append_waits", stream.append_waits},
    {"take_waits", stream.take_waits}};
}

} // namespace millrace::tools

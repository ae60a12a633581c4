// Lists streams; ends and removes those that are named.
#include <millrace/tools/changes.hpp>
#include <millrace/tools/connection.hpp>
#include <millrace/tools/data_streams.hpp>
#include <millrace/tools/listing.hpp>
#include <millrace/tools/text.hpp>

#include <fmt/format.h>

#include <ostream>
#include <string>
#include <vector>

namespace millrace::tools {

namespace {

struct streams_options : connection_options {
  std::string prefix;
  std::vector<std::string> names;
};

std::string producers_of(const stream_status& s) {
  if (s.ended)
    return "ended";
  auto wanted = s.options.producers;
  return wanted == 0 ? std::to_string(s.producers)
                     : fmt::format("{}, {} of {} ended", s.producers, s.producers_ended, wanted);
}

int list(invocation& call, const streams_options& options) {
  auto client = connect_to(options);
  if (!client)
    return report(call, client.error());
  auto streams = client->streams(options.prefix).result();
  if (!streams)
    return report(call, streams.error());
  if (call.json) {
    print_json(call, to_json(*streams, "streams", "node"));
    return report_silent(call, streams->silent, "node");
  }
  table lines{
    {"stream", "policy", ">capacity", ">present", ">appended", ">given", ">dropped", "producers",
     ">readers", "owner", "node"}};
  for (auto& s : streams->found)
    lines.add(
      {s.name, std::string{to_string(s.options.policy)}, std::to_string(s.options.capacity),
       std::to_string(s.counts.present), std::to_string(s.counts.appended),
       std::to_string(s.counts.given), std::to_string(s.counts.dropped), producers_of(s),
       std::to_string(s.readers), s.owner, s.provider});
  lines.print(call.out);
  return report_silent(call, streams->silent, "node");
}

// Changes every stream that is named, also after one of them failed.
int change(
  invocation& call, const streams_options& options, const char* done_word,
  future<void> (stream::*what)() const) {
  auto client = connect_to(options);
  if (!client)
    return report(call, client.error());
  std::vector<future<void>> running;
  running.reserve(options.names.size());
  for (auto& name : options.names)
    running.push_back((client->stream(name).*what)());
  changes done{call, done_word};
  for (std::size_t i = 0; i < running.size(); ++i) {
    auto& outcome = running[i].result();
    done.add(options.names[i], outcome ? status{} : outcome.error());
  }
  return done.finish();
}

int end(invocation& call, const streams_options& options) {
  return change(call, options, "ended", &stream::end);
}

int remove(invocation& call, const streams_options& options) {
  return change(call, options, "removed", &stream::remove);
}

} // namespace

void add_data_streams(CLI::App& data, invocation& call) {
  auto [ls, listed] = add_command<streams_options>(
    data, call, "streams", "List the streams whose names begin with PREFIX", list);
  add_connection_options(*ls, *listed);
  ls->add_option("PREFIX", listed->prefix, "beginning of the names")->type_name("");
  auto [ending, ended] = add_command<streams_options>(
    data, call, "end", "End streams, whatever their producers do; readers get what is left", end);
  add_connection_options(*ending, *ended);
  ending->add_option("NAME", ended->names, "names of streams")->type_name("")->required();
  auto [removing, removed] = add_command<streams_options>(
    data, call, "remove", "Remove streams and their samples at once", remove);
  add_connection_options(*removing, *removed);
  removing->add_option("NAME", removed->names, "names of streams")->type_name("")->required();
}

} // namespace millrace::tools

// `millrace data`: brings training data into the memory of data servers, and shows what they have.
#include <millrace/tools/changes.hpp>
#include <millrace/tools/connection.hpp>
#include <millrace/tools/data_streams.hpp>
#include <millrace/tools/data_verify.hpp>
#include <millrace/tools/describe_set.hpp>
#include <millrace/tools/listing.hpp>
#include <millrace/tools/progress_line.hpp>
#include <millrace/tools/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <ostream>

namespace millrace::tools {

namespace {

struct data_options : connection_options {
  std::string prefix;
  std::string set;
  std::vector<std::string> sets;
  std::vector<std::string> files;
  std::vector<std::string> fields;
  std::string kind = "automatic";
  std::string labels;
  std::string on_error = "fail";
  std::vector<std::string> decode;
  std::uint64_t image_pixels_max = preload_options{}.image_pixels_max;
  std::uint32_t servers = 1;
  std::string device;
};

preload_options options_of(const data_options& given) {
  preload_options out;
  // The command line has checked the names.
  out.kind = parse_preload_kind(given.kind).value();
  out.fields = given.fields;
  out.labels = given.labels;
  out.on_error = parse_damage_policy(given.on_error).value();
  out.decode = given.decode;
  out.image_pixels_max = given.image_pixels_max;
  out.servers = given.servers;
  return out;
}

json skipped_json(const preloaded_set& loaded) {
  auto out = json::array();
  for (auto& file : loaded.skipped)
    out.push_back({{"path", file.path}, {"error", file.why.to_string()}});
  return out;
}

void print_skipped(std::ostream& out, const preloaded_set& loaded) {
  for (auto& file : loaded.skipped) {
    auto& why = file.why.detail();
    auto is_named = why.find(file.path) != std::string::npos;
    out << "left out: " << printable(is_named ? why : file.path + ": " + why) << '\n';
  }
}

// What a preload or an append has done, and how long it took.
struct brought_set {
  preloaded_set loaded;
  std::string node;
  std::uint64_t moved_bytes = 0; // of samples
  double seconds = 0;

  std::uint64_t rate() const {
    return static_cast<std::uint64_t>(static_cast<double>(moved_bytes) / seconds);
  }
};

// `begin` gets the set and the options for progress.
template <class Options, class Begin>
tl::expected<brought_set, failure> bring(
  invocation& call, const data_options& options, Options how, const Begin& begin) {
  auto client = connect_to(options);
  if (!client)
    return tl::unexpected<failure>{client.error()};
  auto set = client->working_set(options.set);
  brought_set out;
  auto begun = std::chrono::steady_clock::now();
  auto loaded = [&] {
    progress_line line{call, options.set};
    how.progress = [&out, show = line.callback()](std::uint64_t done, std::uint64_t total) {
      out.moved_bytes = total;
      return show(done, total);
    };
    how.waits = [&](const status& why) {
      call.err << "waiting: " << printable(why.detail()) << '\n' << std::flush;
    };
    return begin(set, how).result();
  }();
  if (!loaded)
    return tl::unexpected<failure>{failure{loaded.error()}};
  std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begun;
  out.seconds = std::max(spent.count(), 1e-6);
  out.loaded = *loaded;
  out.node = set.node().value_or("");
  return out;
}

int print_json_of(invocation& call, const brought_set& done) {
  auto document = to_json(done.loaded.set);
  document["node"] = done.node;
  document["existed"] = done.loaded.existed;
  document["skipped"] = skipped_json(done.loaded);
  if (!done.loaded.existed) {
    document["duration_ms"] = static_cast<std::int64_t>(done.seconds * 1000);
    document["rate_bytes_per_s"] = done.rate();
  }
  print_json(call, document);
  return exit_ok;
}

int preload(invocation& call, const data_options& options) {
  auto done = bring(call, options, options_of(options), [&](auto& set, auto& how) {
    return set.preload(options.files, how);
  });
  if (!done)
    return report(call, done.error());
  if (call.json)
    return print_json_of(call, *done);
  auto& set = done->loaded.set;
  auto existed = done->loaded.existed;
  call.out << printable(set.name) << (existed ? " is there already: " : ": ")
           << counted(set.samples, "sample") << ", " << human_size(samples_bytes(set));
  if (!existed)
    call.out << fmt::format(" in {:.2f} s, {}/s", done->seconds, human_size(done->rate()));
  call.out << " on " << printable(places_of(set, done->node)) << '\n';
  print_skipped(call.out, done->loaded);
  return exit_ok;
}

int append(invocation& call, const data_options& options) {
  append_options how;
  static_cast<set_file_options&>(how) = options_of(options);
  auto done = bring(
    call, options, how, [&](auto& set, auto& with) { return set.append(options.files, with); });
  if (!done)
    return report(call, done.error());
  if (call.json)
    return print_json_of(call, *done);
  auto& set = done->loaded.set;
  auto existed = done->loaded.existed;
  call.out << printable(set.name);
  if (existed)
    call.out << " has these samples already: ";
  else
    call.out << fmt::format(
      ": appended {} in {:.2f} s, {}/s; it has ", human_size(done->moved_bytes), done->seconds,
      human_size(done->rate()));
  call.out << counted(set.samples, "sample") << ", " << human_size(samples_bytes(set)) << " on "
           << printable(places_of(set, done->node)) << '\n';
  print_skipped(call.out, done->loaded);
  return exit_ok;
}

std::string fields_of(const set_info& set) {
  std::vector<std::string> texts;
  texts.reserve(set.fields.size());
  for (auto& field : set.fields)
    texts.push_back(
      fmt::format("{} {}{}", field.sample.name, to_string(field.sample.type), shape_text(field)));
  return joined(texts);
}

int list(invocation& call, const data_options& options) {
  auto client = connect_to(options);
  if (!client)
    return report(call, client.error());
  auto sets = client->working_sets(options.prefix).result();
  if (!sets)
    return report(call, sets.error());
  if (call.json) {
    print_json(call, to_json(*sets, "sets", "node"));
    return report_silent(call, sets->silent, "node");
  }
  table lines{{"set", ">samples", ">size", "fields", "preloaded", "owner", "node"}};
  for (auto& set : sets->found)
    lines.add(
      {set.name, std::to_string(set.samples), human_size(samples_bytes(set)), fields_of(set),
       human_time(set.preloaded_at_ns), set.owner, set.provider});
  lines.print(call.out);
  return report_silent(call, sets->silent, "node");
}

int show_set(invocation& call, const data_options& options) {
  auto client = connect_to(options);
  if (!client)
    return report(call, client.error());
  auto set = client->working_set(options.set);
  auto info = set.describe().result();
  if (!info)
    return report(call, info.error());
  auto node = set.node().value_or("");
  std::optional<window_counts> window;
  if (is_window(*info)) {
    auto counts = set.window().result();
    if (!counts)
      return report(call, counts.error());
    window = *counts;
  }
  auto access = set.access(options.device == "cpu" ? "" : options.device).result();
  if (!access)
    return report(call, access.error());
  if (!call.json) {
    print(call.out, *info, node);
    if (window)
      print(call.out, *window);
    print(call.out, *access);
    return exit_ok;
  }
  auto document = to_json(*info);
  document["node"] = node;
  document["window"] = window ? to_json(*window) : json{};
  add_json(document, *access);
  print_json(call, document);
  return exit_ok;
}

// Unloads every named set, also after one of them failed.
int unload(invocation& call, const data_options& options) {
  auto client = connect_to(options);
  if (!client)
    return report(call, client.error());
  std::vector<future<void>> running;
  running.reserve(options.sets.size());
  for (auto& set : options.sets)
    running.push_back(client->working_set(set).unload());
  changes done{call, "unloaded"};
  for (std::size_t i = 0; i < running.size(); ++i) {
    auto& outcome = running[i].result();
    done.add(options.sets[i], outcome ? status{} : outcome.error());
  }
  return done.finish();
}

void add_describe(CLI::App& data, invocation& call) {
  auto [describe, described] = add_command<data_options>(
    data, call, "describe", "Show the fields, the size and the place of a set", show_set);
  add_connection_options(*describe, *described);
  describe
    ->add_option(
      "--device", described->device,
      "say near which processors a loader for this device would copy, such as cuda:0 (default: "
      "cpu, the memory of the host)")
    ->type_name("DEVICE");
  describe->add_option("NAME", described->set, "name of the set")->type_name("")->required();
}

// The set, its files, and as what they are read.
void add_file_options(CLI::App& command, data_options& into) {
  command.add_option("NAME", into.set, "name of the set")->type_name("")->required();
  command
    .add_option(
      "FILE", into.files,
      "files .npy, .npz, .h5 or .hdf5 of equal fields; files .npy of several fields, as "
      "image=images.npy label=labels.npy; tar archives, also .tar.gz, .tgz and .tar.zst, of "
      "samples; other files, or a directory, each file of which is a sample; with braces and "
      "patterns")
    ->type_name("")
    ->required();
  command.add_option("--kind", into.kind, "automatic, arrays or files (default: automatic)")
    ->type_name("KIND")
    ->check(CLI::IsMember({"automatic", "arrays", "files"}));
  command
    .add_option(
      "--field", into.fields, "take this field; may be given several times (default: all)")
    ->type_name("NAME")
    ->allow_extra_args(false);
  command
    .add_option(
      "--labels", into.labels,
      "labels of files: folders, or a CSV file with lines path,label (default: none)")
    ->type_name("SOURCE");
  command
    .add_option(
      "--on-error", into.on_error,
      "what becomes of a damaged file: fail, or skip to leave it out (default: fail)")
    ->type_name("POLICY")
    ->check(CLI::IsMember({"fail", "skip"}));
  command
    .add_option(
      "--decode", into.decode,
      "decode the images of a field, as x=rgb:224, x=gray:28x28, or x=rgb where all have one size; "
      "may be given several times")
    ->type_name("FIELD=FORM")
    ->allow_extra_args(false);
  command
    .add_option(
      "--image-pixels-max", into.image_pixels_max,
      "an image with more pixels is damaged (default: 67108864)")
    ->type_name("NUMBER")
    ->check(whole_number(1));
}

} // namespace

void add_data_command(CLI::App& app, invocation& call) {
  auto* data = app.add_subcommand(
    "data",
    "Preload, append to, list, describe, verify and unload working sets; show, end and remove "
    "streams");
  data->require_subcommand(1);
  auto [load, loaded] = add_command<data_options>(
    *data, call, "preload", "Bring the samples of files into the memory of a data server", preload);
  add_connection_options(*load, *loaded);
  add_file_options(*load, *loaded);
  load
    ->add_option(
      "--servers", loaded->servers,
      "divide the samples among N data servers; 0: all that there are (default: 1)")
    ->type_name("N")
    ->check(whole_number(0, UINT32_MAX));
  auto [more, appended] = add_command<data_options>(
    *data, call, "append", "Append the samples of more files to a set that was preloaded", append);
  add_connection_options(*more, *appended);
  add_file_options(*more, *appended);
  auto [ls, listed] = add_command<data_options>(
    *data, call, "ls", "List the sets whose names begin with PREFIX", list);
  add_connection_options(*ls, *listed);
  ls->add_option("PREFIX", listed->prefix, "beginning of the names")->type_name("");
  add_describe(*data, call);
  add_data_verify(*data, call);
  auto [off, unloaded] = add_command<data_options>(
    *data, call, "unload", "Hide sets and free their memory; who has one open finishes", unload);
  add_connection_options(*off, *unloaded);
  off->add_option("NAME", unloaded->sets, "names of sets")->type_name("")->required();
  add_data_streams(*data, call);
}

} // namespace millrace::tools

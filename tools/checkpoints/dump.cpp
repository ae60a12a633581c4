// `millrace checkpoints dump`: writes a version to a file that other programs read.
#include <millrace/storage/archive/origin.hpp>
#include <millrace/tools/checkpoints/access.hpp>
#include <millrace/tools/checkpoints/commands.hpp>
#include <millrace/tools/checkpoints/version_name.hpp>
#include <millrace/tools/output.hpp>
#include <millrace/tools/progress_line.hpp>
#include <millrace/tools/text.hpp>

#include <memory>
#include <ostream>
#include <set>

namespace millrace::tools {

namespace {

struct dump_options : checkpoint_place {
  std::string version;
  std::string file;
  std::string format;
  std::optional<std::uint32_t> rank;
  bool force = false;
};

tl::expected<storage::archive::archive_format, failure> format_of(const dump_options& options) {
  if (!options.format.empty()) {
    auto named = storage::archive::parse_format(options.format);
    return named ? tl::expected<storage::archive::archive_format, failure>{*named}
                 : tl::unexpected{failure{named.error(), exit_usage}};
  }
  if (auto promised = storage::archive::format_of_name(options.file))
    return *promised;
  return tl::unexpected{failure{
    {errc::invalid_argument, options.file + " does not tell its format: name it with --format"},
    exit_usage}};
}

result<std::uint64_t> step_of(const checkpoint_summary& model, const version_name& version) {
  if (version.step)
    return *version.step;
  if (auto newest = newest_step(model))
    return *newest;
  return fail(errc::not_found, "no step of {} is complete; name one: MODEL@STEP", model.model);
}

// A running job replaces versions. Without a named step, the command takes the newest one again, up
// to this many times.
constexpr int attempts_max = 100;

/// One version, rank by rank.
struct dumped {
  std::string model;
  std::uint64_t step = 0;
  std::vector<std::pair<std::uint32_t, std::string>> files;
};

// Opens one rank of a version. The file that is made of it says where it came from.
result<std::unique_ptr<storage::archive::tensor_source>> open_labelled(
  checkpoint_access& from, const std::string& model, std::uint64_t step, std::uint32_t rank) {
  auto shard = from.describe_shard(model, rank, step);
  if (!shard)
    return fail(shard.error());
  auto source = from.open(model, rank, step);
  if (!source)
    return source;
  auto metadata = storage::archive::with_origin(
    (*source)->metadata(), {shard->model, step, shard->rank, shard->world_size, shard->axes});
  return std::make_unique<storage::archive::labelled_source>(
    std::move(*source), std::move(metadata));
}

// Returns nothing if a job has replaced the newest version meanwhile. `ours` are the files that
// this command wrote.
tl::expected<std::optional<dumped>, failure> try_to_dump(
  invocation& call, checkpoint_access& from, const dump_options& options,
  storage::archive::archive_format format, std::set<std::string>& ours) {
  auto version = parse_version_name(options.version);
  auto model = from.describe(version.model, version.step);
  if (!model)
    return tl::unexpected{failure{explain_name(model.error(), version.model)}};
  auto step = step_of(*model, version);
  if (!step)
    return tl::unexpected{failure{step.error()}};
  auto files = files_of_ranks(options.file, options.rank, model->world_size);
  if (!files)
    return tl::unexpected{failure{files.error(), exit_usage}};
  for (auto& [rank, file] : *files) {
    auto source = open_labelled(from, model->model, *step, rank);
    if (!source && source.error().code() == errc::not_found && !version.step)
      return std::nullopt;
    if (!source)
      return tl::unexpected{failure{source.error()}};
    progress_line line{call, file};
    storage::archive::archive_options how{options.force || ours.contains(file), line.callback()};
    auto bad = write_archive(format, file, **source, how);
    if (bad.code() == errc::already_exists)
      bad = {bad.code(), "{} (--force replaces it)", bad.detail()};
    if (!bad.ok())
      return tl::unexpected{failure{bad}};
    ours.insert(file);
  }
  return dumped{model->model, *step, std::move(*files)};
}

int dump(invocation& call, const dump_options& options) {
  auto format = format_of(options);
  if (!format)
    return report(call, format.error());
  auto from = open_access(options);
  if (!from)
    return report(call, from.error());
  std::set<std::string> ours;
  tl::expected<std::optional<dumped>, failure> outcome;
  for (int i = 0; i < attempts_max && outcome && !*outcome; ++i)
    outcome = try_to_dump(call, **from, options, *format, ours);
  if (!outcome)
    return report(call, outcome.error());
  if (!*outcome)
    return report(
      call,
      status{
        errc::busy,
        "{} was saved over {} times while it was dumped: dump one rank with --rank, or have the "
        "job keep more versions",
        options.version, attempts_max});
  auto& done = **outcome;
  json written = json::array();
  for (auto& [rank, file] : done.files) {
    written.push_back({{"rank", rank}, {"file", file}});
    if (!call.json)
      call.out << printable(done.model) << "@" << done.step << " rank " << rank << ": "
               << printable(file) << " (" << to_string(*format) << ")\n";
  }
  if (call.json)
    print_json(
      call,
      {{"model", done.model},
       {"step", done.step},
       {"format", to_string(*format)},
       {"files", written}});
  return exit_ok;
}

} // namespace

void add_dump_command(CLI::App& checkpoints, invocation& call) {
  auto [command, options] = add_command<dump_options>(
    checkpoints, call, "dump", "Write a version to a file of a common format", dump);
  command->add_option("MODEL", options->version, "MODEL (newest complete step) or MODEL@STEP")
    ->type_name("")
    ->required();
  command
    ->add_option("FILE", options->file, "the file; with {rank} in its name, one for every rank")
    ->type_name("")
    ->required();
  command
    ->add_option(
      "--format", options->format,
      "safetensors, npz, hdf5 or torch (default: by the file's ending)")
    ->type_name("FORMAT");
  command->add_option("--rank", options->rank, "this rank only")->type_name("NUMBER");
  command->add_flag("--force", options->force, "replace an existing file");
  add_place_options(*command, *options);
}

} // namespace millrace::tools

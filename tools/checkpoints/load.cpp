// `millrace checkpoints load`: saves a file's tensors as a version.
#include <millrace/storage/archive/origin.hpp>
#include <millrace/tools/checkpoints/access.hpp>
#include <millrace/tools/checkpoints/commands.hpp>
#include <millrace/tools/checkpoints/version_name.hpp>
#include <millrace/tools/output.hpp>
#include <millrace/tools/progress_line.hpp>
#include <millrace/tools/text.hpp>

#include <memory>
#include <ostream>
#include <utility>

namespace millrace::tools {

namespace {

struct load_options : checkpoint_place {
  std::string file;
  std::string format;
  std::string model;
  std::optional<std::uint64_t> step;
  std::optional<std::uint32_t> rank;
  std::optional<std::uint32_t> world_size;
  std::optional<std::uint32_t> keep;
};

/// The shard and step to make from a file: as the command line says, else as the file itself says.
struct imported {
  shard_spec shard;
  std::uint64_t step = 0;
};

result<imported> plan(const storage::archive::tensor_source& source, const load_options& options) {
  imported found;
  found.shard.tensors = source.tensors();
  found.shard.metadata = source.metadata();
  auto origin = storage::archive::take_origin(found.shard.metadata);
  auto model = options.model.empty() ? origin.model : options.model;
  auto step = options.step ? options.step : origin.step;
  if (!model || !step)
    return fail(
      errc::invalid_argument, "{} does not say {}: name it with {}", options.file,
      model ? "its step" : "its model", model ? "--step" : "--model");
  found.shard.model = *model;
  found.shard.rank = options.rank.value_or(origin.rank.value_or(0));
  found.shard.world_size = options.world_size.value_or(origin.world_size.value_or(1));
  found.shard.axes = std::move(origin.axes);
  found.shard.keep = options.keep.value_or(found.shard.keep);
  found.step = *step;
  if (auto bad = validate(found.shard); !bad.ok())
    return fail(bad);
  return found;
}

// A shard that exists keeps its registration, since its slots hold versions. Returns whether the
// file has other metadata, which is left out.
result<bool> adapt(checkpoint_access& to, shard_spec& shard, const load_options& options) {
  auto known = to.describe_shard(shard.model, shard.rank, std::nullopt);
  if (!known && known.error().code() == errc::not_found)
    return false;
  if (!known)
    return fail(known.error());
  shard.keep = options.keep.value_or(known->keep);
  shard.axes = std::move(known->axes);
  shard.places = std::move(known->places);
  auto of_file = std::exchange(shard.metadata, std::move(known->metadata));
  return of_file != shard.metadata;
}

using rank_files = std::vector<std::pair<std::uint32_t, std::string>>;

tl::expected<rank_files, failure> files_of_world(
  const load_options& options, std::uint32_t world_size) {
  auto files = files_of_ranks(options.file, options.rank, world_size);
  if (!files)
    return tl::unexpected{failure{files.error(), exit_usage}};
  return std::move(*files);
}

// Without a world size, the file of rank 0 says which ranks there are.
tl::expected<rank_files, failure> files_of(
  const load_options& options, std::optional<storage::archive::archive_format> format) {
  if (options.rank && !options.world_size)
    return rank_files{{*options.rank, file_of_rank(options.file, *options.rank)}};
  auto first = file_of_rank(options.file, 0);
  if (options.world_size || first == options.file)
    return files_of_world(options, options.world_size.value_or(1));
  auto source = storage::archive::open_archive(first, format);
  if (!source)
    return tl::unexpected{failure{source.error()}};
  auto metadata = (*source)->metadata();
  auto world_size = storage::archive::take_origin(metadata).world_size;
  if (!world_size)
    return tl::unexpected{failure{
      {errc::invalid_argument,
       first + " does not say how many ranks there are: name them with --world-size"},
      exit_usage}};
  return files_of_world(options, *world_size);
}

int load(invocation& call, const load_options& options) {
  std::optional<storage::archive::archive_format> format;
  if (!options.format.empty()) {
    auto named = storage::archive::parse_format(options.format);
    if (!named)
      return report(call, {named.error(), exit_usage});
    format = *named;
  }
  auto files = files_of(options, format);
  if (!files)
    return report(call, files.error());
  std::unique_ptr<checkpoint_access> to;
  json done = json::array();
  for (auto& [rank, file] : *files) {
    auto source = storage::archive::open_archive(file, format);
    if (!source)
      return report(call, source.error());
    auto each = options;
    each.file = file;
    if (options.world_size || options.rank || files->size() > 1)
      each.rank = rank;
    auto what = plan(**source, each);
    if (!what)
      return report(call, {what.error(), exit_usage});
    if (!to) {
      auto opened = open_access(options);
      if (!opened)
        return report(call, opened.error());
      to = std::move(*opened);
    }
    auto left_out = adapt(*to, what->shard, options);
    if (!left_out)
      return report(call, left_out.error());
    progress_line line{call, file};
    auto bad = to->import(what->shard, what->step, **source, line.callback());
    if (!bad.ok())
      return report(call, bad.within("loading " + file));
    done.push_back(
      {{"file", file},
       {"model", what->shard.model},
       {"step", what->step},
       {"rank", what->shard.rank},
       {"world_size", what->shard.world_size},
       {"metadata_left_out", *left_out}});
    if (!call.json)
      call.out << printable(file) << ": " << printable(what->shard.model) << "@" << what->step
               << " rank " << what->shard.rank << " of " << what->shard.world_size
               << (*left_out ? " (the shard keeps its own metadata)\n" : "\n");
  }
  if (call.json)
    print_json(call, {{"loaded", done}});
  return exit_ok;
}

} // namespace

void add_load_command(CLI::App& checkpoints, invocation& call) {
  auto [command, options] = add_command<load_options>(
    checkpoints, call, "load", "Save a file's tensors as a version", load);
  command->add_option("FILE", options->file, "the file; with {rank} in its name, one of every rank")
    ->type_name("")
    ->required();
  command
    ->add_option(
      "--format", options->format,
      "safetensors, npz, hdf5 or torch (default: by the file's content)")
    ->type_name("FORMAT");
  command->add_option("--model", options->model, "the model (default: as the file was dumped)")
    ->type_name("NAME");
  command->add_option("--step", options->step, "the step (default: as the file was dumped)")
    ->type_name("NUMBER")
    ->check(whole_number());
  command->add_option("--rank", options->rank, "the rank (default: as dumped, else 0)")
    ->type_name("NUMBER");
  command
    ->add_option("--world-size", options->world_size, "how many ranks (default: as dumped, else 1)")
    ->type_name("NUMBER");
  command
    ->add_option(
      "--keep", options->keep,
      "versions to reserve (default: as many as a known shard has, else 2)")
    ->type_name("NUMBER");
  add_place_options(*command, *options);
}

} // namespace millrace::tools

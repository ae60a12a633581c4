// `millrace checkpoints load`: a file becomes a version.
#include <millrace/tools/checkpoints/access.hpp>
#include <millrace/tools/checkpoints/commands.hpp>
#include <millrace/tools/checkpoints/version_name.hpp>
#include <millrace/tools/output.hpp>
#include <millrace/tools/progress_line.hpp>
#include <millrace/tools/text.hpp>

#include <charconv>
#include <memory>
#include <ostream>

namespace millrace::tools {

namespace {

struct load_options : checkpoint_place {
  std::string file;
  std::string format;
  std::string model;
  std::optional<std::uint64_t> step;
  std::optional<std::uint32_t> rank;
  std::optional<std::uint32_t> world_size;
  std::uint32_t keep = 2;
};

/// What a file shall become: what the command line says, else what the file says of itself.
struct imported {
  shard_spec shard;
  std::uint64_t step = 0;
};

template <class Number>
std::optional<Number> number_of(const std::string& text) {
  Number value = 0;
  auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), value);
  return bad == std::errc{} && end == text.data() + text.size() ? std::optional{value}
                                                                : std::nullopt;
}

// Takes our own words out of the metadata.
imported described_by(const storage::tensor_source& source, load_options& options) {
  imported found;
  found.shard.tensors = source.tensors();
  for (auto& [key, value] : source.metadata()) {
    if (key == model_key)
      options.model = options.model.empty() ? value : options.model;
    else if (key == step_key)
      options.step = options.step ? options.step : number_of<std::uint64_t>(value);
    else if (key == rank_key)
      options.rank = options.rank ? options.rank : number_of<std::uint32_t>(value);
    else if (key == world_size_key)
      options.world_size =
        options.world_size ? options.world_size : number_of<std::uint32_t>(value);
    else if (key.starts_with(axis_key_prefix))
      found.shard.axes.emplace_back(key.substr(axis_key_prefix.size()), value);
    else
      found.shard.metadata.emplace_back(key, value);
  }
  return found;
}

result<imported> plan(const storage::tensor_source& source, load_options options) {
  auto found = described_by(source, options);
  if (options.model.empty() || !options.step)
    return fail(
      errc::invalid_argument,
      options.file + " does not say " + (options.model.empty() ? "its model" : "its step") +
        ": name it with " + (options.model.empty() ? "--model" : "--step"));
  found.shard.model = options.model;
  found.shard.rank = options.rank.value_or(0);
  found.shard.world_size = options.world_size.value_or(1);
  found.shard.keep = options.keep;
  found.step = *options.step;
  if (auto bad = validate(found.shard); !bad.ok())
    return fail(bad);
  return found;
}

int load(invocation& call, const load_options& options) {
  std::optional<storage::archive_format> format;
  if (!options.format.empty()) {
    auto named = storage::parse_format(options.format);
    if (!named)
      return report(call, {named.error(), exit_usage});
    format = *named;
  }
  auto files = files_of_ranks(options.file, options.rank, options.world_size.value_or(1));
  if (!files)
    return report(call, {files.error(), exit_usage});
  std::unique_ptr<checkpoint_access> to;
  json done = json::array();
  for (auto& [rank, file] : *files) {
    auto source = storage::open_archive(file, format);
    if (!source)
      return report(call, source.error());
    auto each = options;
    each.file = file;
    if (options.world_size || options.rank)
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
    progress_line line{call, file};
    auto bad = to->import(what->shard, what->step, **source, line.callback());
    if (!bad.ok())
      return report(call, bad.within("loading " + file));
    done.push_back(
      {{"file", file},
       {"model", what->shard.model},
       {"step", what->step},
       {"rank", what->shard.rank},
       {"world_size", what->shard.world_size}});
    if (!call.json)
      call.out << printable(file) << ": " << printable(what->shard.model) << "@" << what->step
               << " rank " << what->shard.rank << " of " << what->shard.world_size << '\n';
  }
  if (call.json)
    print_json(call, {{"loaded", done}});
  return exit_ok;
}

} // namespace

void add_load_command(CLI::App& checkpoints, invocation& call) {
  auto options = std::make_shared<load_options>();
  auto* command =
    add_command(checkpoints, call, "load", "Save a file's tensors as a version", [&call, options] {
      return load(call, *options);
    });
  command
    ->add_option(
      "FILE", options->file,
      "the file; with {rank} in its name and --world-size, one of every rank")
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
    ->type_name("NUMBER");
  command->add_option("--rank", options->rank, "the rank (default: as dumped, else 0)")
    ->type_name("NUMBER");
  command
    ->add_option("--world-size", options->world_size, "how many ranks (default: as dumped, else 1)")
    ->type_name("NUMBER");
  command->add_option("--keep", options->keep, "versions to reserve for a shard that is new")
    ->type_name("NUMBER")
    ->capture_default_str();
  add_place_options(*command, *options);
}

} // namespace millrace::tools

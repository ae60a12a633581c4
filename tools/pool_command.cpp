// `millrace pool`: makes pools, and shows those that no service has open.
#include <millrace/config/units.hpp>
#include <millrace/storage/pmem/pool.hpp>
#include <millrace/tools/output.hpp>
#include <millrace/tools/progress_line.hpp>
#include <millrace/tools/salvage.hpp>
#include <millrace/tools/text.hpp>

#include <array>
#include <ostream>

namespace millrace::tools {

namespace {

struct pool_arguments {
  std::string path;
  std::string size;
  std::string medium = "automatic";
  bool quick = false;
};

result<storage::pool_medium> parse_medium(const std::string& name) {
  using enum storage::pool_medium;
  for (auto medium : {automatic, dax, memory, file})
    if (to_string(medium) == name)
      return medium;
  return fail(
    errc::invalid_argument, "--medium: {} is none of automatic, dax, memory and file", name);
}

json info_json(const storage::pool_info& info) {
  return {
    {"path", info.path},
    {"uuid", info.uuid},
    {"format_version", info.format_version},
    {"created_ns", info.created_ns},
    {"medium", to_string(info.medium)},
    {"medium_note", info.medium_note},
    {"direct_io", info.direct_io},
    {"size_bytes", info.size_bytes},
    {"free_bytes", info.free_bytes},
    {"largest_free_bytes", info.largest_free_bytes},
    {"models", info.models},
    {"shards", info.shards},
    {"versions", info.versions},
    {"repository_models", info.repository_models}};
}

void print_info(std::ostream& out, const storage::pool_info& info) {
  out << printable(info.path) << ": " << human_size(info.size_bytes) << ", "
      << human_size(info.free_bytes) << " free (largest piece "
      << human_size(info.largest_free_bytes) << ")\n"
      << "  " << counted(info.models, "model") << ", " << counted(info.shards, "shard") << ", "
      << counted(info.versions, "version") << " of checkpoints; "
      << counted(info.repository_models, "model") << " of the repository\n"
      << "  medium: " << to_string(info.medium)
      << (info.medium_note.empty() ? "" : ", " + printable(info.medium_note)) << '\n'
      << "  format " << info.format_version << ", made " << human_time(info.created_ns) << ", "
      << printable(info.uuid) << '\n';
}

int show_info(invocation& call, const result<storage::pool_info>& info) {
  if (!info)
    return report(call, info.error());
  if (call.json)
    print_json(call, info_json(*info));
  else
    print_info(call.out, *info);
  return exit_ok;
}

int create(invocation& call, const pool_arguments& arguments) {
  storage::pool_options options;
  options.path = arguments.path;
  if (!arguments.size.empty()) {
    auto size = config::parse_size(arguments.size);
    if (!size)
      return report(call, {size.error().within("--size"), exit_usage});
    options.capacity_bytes = *size;
  }
  auto medium = parse_medium(arguments.medium);
  if (!medium)
    return report(call, {medium.error(), exit_usage});
  options.medium = *medium;
  return show_info(call, storage::create_pool(options));
}

int check_pool(invocation& call, const pool_arguments& arguments) {
  progress_line line{call, arguments.path};
  auto seen = storage::check_pool(arguments.path, !arguments.quick, line.callback());
  if (!seen)
    return report(call, seen.error());
  if (call.json) {
    print_json(
      call,
      {{"ok", seen->problems.empty()},
       {"pool", info_json(seen->pool)},
       {"problems", seen->problems},
       {"versions", seen->versions},
       {"verified_bytes", seen->verified_bytes},
       {"unreachable_bytes", seen->unreachable_bytes}});
    return seen->problems.empty() ? exit_ok : exit_failed;
  }
  for (auto& problem : seen->problems)
    call.out << printable(problem) << '\n';
  call.out << printable(arguments.path) << ": "
           << (seen->problems.empty() ? "ok" : counted(seen->problems.size(), "problem")) << ", "
           << counted(seen->versions, "version") << ", " << human_size(seen->verified_bytes)
           << " verified";
  if (seen->unreachable_bytes > 0)
    call.out << ", " << human_size(seen->unreachable_bytes) << " that nothing names";
  call.out << '\n';
  return seen->problems.empty() ? exit_ok : exit_failed;
}

int show_pool(invocation& call, const pool_arguments& arguments) {
  return show_info(call, storage::inspect_pool(arguments.path));
}

void add_path(CLI::App& command, pool_arguments& arguments) {
  command.add_option("PATH", arguments.path, "a file, or a device as /dev/dax0.0")
    ->type_name("")
    ->required();
}

} // namespace

void add_pool_command(CLI::App& app, invocation& call) {
  auto* pool = app.add_subcommand("pool", "Make and examine pools of persistent memory");
  pool->require_subcommand(1);
  auto [make, making] = add_command<pool_arguments>(
    *pool, call, "create", "Make a pool where there is nothing; never touches what is there",
    create);
  add_path(*make, *making);
  make->add_option("--size", making->size, "size of the file (a device: all of it)")
    ->type_name("SIZE");
  make
    ->add_option(
      "--medium", making->medium, "automatic, dax, memory or file: how bytes become persistent")
    ->type_name("KIND")
    ->capture_default_str();
  auto [examine, examined] = add_command<pool_arguments>(
    *pool, call, "check", "Compare everything in a pool with its checksums; changes nothing",
    check_pool);
  add_path(*examine, *examined);
  examine->add_flag("--quick", examined->quick, "the index only, not the versions' bytes");
  auto [show, shown] = add_command<pool_arguments>(
    *pool, call, "info", "Show what a pool says of itself; changes nothing", show_pool);
  add_path(*show, *shown);
  add_salvage_command(
    *pool, call,
    "Write all checkpoints and models that are whole to files; changes nothing in the pool",
    "a file, or a device as /dev/dax0.0", storage::salvage_pool);
}

} // namespace millrace::tools

// `millrace checkpoints`: shows, verifies and repacks the checkpoints of a service or a pool.
#include <millrace/tools/changes.hpp>
#include <millrace/tools/checkpoints/access.hpp>
#include <millrace/tools/checkpoints/commands.hpp>
#include <millrace/tools/checkpoints/describe.hpp>
#include <millrace/tools/checkpoints/version_name.hpp>
#include <millrace/tools/listing.hpp>
#include <millrace/tools/progress_line.hpp>
#include <millrace/tools/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

namespace millrace::tools {

namespace {

struct checkpoints_options : checkpoint_place {
  std::string prefix;
  std::string model;
  std::optional<std::uint32_t> rank;
  std::vector<std::string> versions;
};

int list(invocation& call, const checkpoints_options& options) {
  auto from = open_access(options);
  if (!from)
    return report(call, from.error());
  auto models = (*from)->list(options.prefix);
  if (!models)
    return report(call, models.error());
  if (call.json)
    print_json(call, to_json(*models, "checkpoints"));
  else
    print(call.out, models->found);
  return report_silent(call, models->silent);
}

int view(invocation& call, const checkpoints_options& options) {
  auto from = open_access(options);
  if (!from)
    return report(call, from.error());
  auto model = (*from)->describe(options.model, std::nullopt);
  if (!model)
    return report(call, explain_name(model.error(), options.model));
  std::vector<shard_spec> described;
  for (auto& shard : model->shards)
    if (options.rank ? shard.rank == *options.rank : true) {
      auto one = (*from)->describe_shard(options.model, shard.rank, std::nullopt);
      if (!one)
        return report(call, one.error());
      described.push_back(std::move(*one));
    }
  if (described.empty() && options.rank)
    return report(call, status{errc::not_found, "{} has no rank {}", options.model, *options.rank});
  if (call.json) {
    auto document = to_json(*model);
    document["layouts"] = json::array();
    for (auto& shard : described)
      document["layouts"].push_back(to_json(shard));
    print_json(call, document);
    return exit_ok;
  }
  print(call.out, *model);
  for (auto& shard : described)
    print(call.out, shard);
  return exit_ok;
}

/// Verifies every version that is done, one after the other. Damage is counted and does not stop
/// it. If a running job replaces a version meanwhile, the version is named, but does not count as a
/// failure.
class verifier {
public:
  verifier(invocation& call, checkpoint_access& from, std::optional<std::uint32_t> rank)
    : call_(call), from_(from), rank_(rank) {}

  void verify(const checkpoint_summary& model, std::optional<std::uint64_t> step) {
    for (auto& shard : model.shards)
      for (auto& slot : shard.slots)
        if (
          slot.state == slot_state::done && (!step || slot.step == *step) &&
          (!rank_ || shard.rank == *rank_))
          verify(model.model, shard.rank, slot);
  }

  int finish() {
    if (call_.json)
      print_json(call_, {{"verified", seen_}, {"replaced", replaced_}, {"failed", failed_}});
    else
      lines_.print(call_.out);
    return bad_ ? exit_failed : exit_ok;
  }

  bool found_any() const { return !seen_.empty() || !replaced_.empty() || !failed_.empty(); }

private:
  void verify(const std::string& model, std::uint32_t rank, const version_summary& version) {
    auto step = std::to_string(version.step);
    auto outcome = [&] {
      progress_line line{call_, fmt::format("{}@{} rank {}", model, step, rank)};
      return from_.verify(model, rank, version, line.callback());
    }();
    json one = {
      {"model", model},
      {"step", version.step},
      {"rank", rank},
      {"saved_at_ns", version.saved_at_ns}};
    std::string verdict = "ok", size;
    if (!outcome && outcome.error().code() == errc::not_found) {
      replaced_.push_back(one);
      return lines_.add({model, step, std::to_string(rank), "", "replaced meanwhile"});
    }
    if (!outcome) {
      one["error"] = to_json(outcome.error());
      verdict = outcome.error().to_string();
      failed_.push_back(one);
    } else {
      one["size_bytes"] = outcome->size_bytes;
      one["corrupt"] = outcome->corrupt;
      size = human_size(outcome->size_bytes);
      if (!outcome->corrupt.empty())
        verdict = fmt::format(
          "damaged: {}{}", outcome->corrupt.front(),
          outcome->corrupt.size() > 1
            ? " and " + counted(outcome->corrupt.size() - 1, "more tensor")
            : "");
      seen_.push_back(one);
    }
    bad_ |= verdict != "ok";
    lines_.add({model, step, std::to_string(rank), size, verdict});
  }

  invocation& call_;
  checkpoint_access& from_;
  std::optional<std::uint32_t> rank_;
  table lines_{{"model", ">step", ">rank", ">size", "verdict"}};
  json seen_ = json::array();
  json replaced_ = json::array();
  json failed_ = json::array();
  bool bad_ = false;
};

int verify(invocation& call, const checkpoints_options& options) {
  auto from = open_access(options);
  if (!from)
    return report(call, from.error());
  verifier all{call, **from, options.rank};
  if (options.model.empty()) {
    auto models = (*from)->list("");
    if (!models)
      return report(call, models.error());
    for (auto& model : models->found)
      all.verify(model, std::nullopt);
    return std::max(all.finish(), report_silent(call, models->silent));
  }
  auto version = parse_version_name(options.model);
  auto model = (*from)->describe(version.model, version.step);
  if (!model)
    return report(call, explain_name(model.error(), version.model));
  all.verify(*model, version.step);
  if ((version.step || options.rank) && !all.found_any()) {
    auto step = version.step ? fmt::format("step {}", *version.step) : "version";
    auto rank = options.rank ? fmt::format(" of rank {}", *options.rank) : "";
    return report(
      call, status{errc::not_found, "{} has no {}{} that is done", version.model, step, rank});
  }
  return all.finish();
}

int remove(invocation& call, const checkpoints_options& options) {
  auto from = open_access(options);
  if (!from)
    return report(call, from.error());
  changes removed{call, "removed"};
  for (auto& text : options.versions) {
    auto version = parse_version_name(text);
    removed.add(text, explain_name((*from)->erase(version.model, version.step), version.model));
  }
  return removed.finish();
}

status stopped_early(invocation& call, const std::string& where) {
  status why{
    errc::deadline_exceeded,
    where +
      " stopped before it was through: run it again, or with a longer --timeout (a service "
      "allows limits.request_timeout_max)"};
  if (!call.json)
    report(call, why);
  return why;
}

int repack(invocation& call, const checkpoints_options& options) {
  auto from = open_access(options);
  if (!from)
    return report(call, from.error());
  table lines{{"where", ">freed", ">versions", ">remains", ">moved", ">skipped", ">largest free"}};
  json done = json::array();
  json failed = json::array();
  progress_line line{call, "repack"};
  for (auto& one : (*from)->repack(line.callback())) {
    if (!one) {
      failed.push_back(to_json(one.error()));
      if (!call.json)
        report(call, one.error());
      continue;
    }
    auto& [where, r] = *one;
    auto document = to_json(r);
    document["where"] = where;
    done.push_back(document);
    if (r.stopped_early)
      failed.push_back(to_json(stopped_early(call, where)));
    lines.add(
      {where, human_size(r.freed_bytes), std::to_string(r.versions_freed),
       std::to_string(r.remains_freed), human_size(r.moved_bytes), std::to_string(r.skipped),
       human_size(r.largest_free_bytes_after)});
  }
  if (call.json)
    print_json(call, {{"repacked", done}, {"failed", failed}});
  else if (!done.empty())
    lines.print(call.out);
  return failed.empty() ? exit_ok : exit_failed;
}

struct wait_options : connection_options {
  std::string model;
  std::optional<std::uint64_t> newer_than;
};

int wait(invocation& call, const wait_options& options) {
  auto client = connect_to(options);
  if (!client)
    return report(call, client.error());
  auto later = client->checkpoints(options.group).newer(options.model, options.newer_than).result();
  if (!later)
    return report(call, later.error());
  if (call.json)
    print_json(call, to_json(*later));
  else
    call.out << printable(later->model) << " step " << later->complete_steps.back() << '\n';
  return exit_ok;
}

void add_list(CLI::App& checkpoints, invocation& call) {
  auto [command, options] = add_command<checkpoints_options>(
    checkpoints, call, "ls", "List the models whose names begin with PREFIX, with their steps",
    list);
  add_place_options(*command, *options);
  command->add_option("PREFIX", options->prefix, "beginning of the names")->type_name("");
}

void add_view(CLI::App& checkpoints, invocation& call) {
  auto [command, options] = add_command<checkpoints_options>(
    checkpoints, call, "view", "Show the ranks, versions and tensors of a model", view);
  add_place_options(*command, *options);
  command->add_option("model", options->model, "name of the model")->type_name("MODEL")->required();
  command->add_option("--rank", options->rank, "tensors of this rank only")->type_name("NUMBER");
}

void add_wait(CLI::App& checkpoints, invocation& call) {
  auto [command, options] = add_command<wait_options>(
    checkpoints, call, "wait", "Wait until a model has a later step that all ranks have", wait);
  add_connection_options(*command, *options);
  options->group.clear();
  command
    ->add_option("--group", options->group, "the group of providers (default: all that keep some)")
    ->type_name("NAME");
  command->add_option("model", options->model, "name of the model, which need not exist yet")
    ->type_name("MODEL")
    ->required();
  command
    ->add_option("--newer-than", options->newer_than, "a step above this one (default: any step)")
    ->type_name("STEP")
    ->check(whole_number());
}

void add_verify(CLI::App& checkpoints, invocation& call) {
  auto [command, options] = add_command<checkpoints_options>(
    checkpoints, call, "verify", "Read versions again and compare them with their checksums",
    verify);
  add_place_options(*command, *options);
  command->add_option("MODEL", options->model, "MODEL or MODEL@STEP (default: everything)")
    ->type_name("");
  command->add_option("--rank", options->rank, "this rank only")->type_name("NUMBER");
}

} // namespace

void add_checkpoints_command(CLI::App& app, invocation& call) {
  auto* checkpoints = app.add_subcommand(
    "checkpoints", "List, await, verify, dump, load and remove checkpoints; reclaim their space");
  checkpoints->require_subcommand(1);
  add_list(*checkpoints, call);
  add_view(*checkpoints, call);
  add_wait(*checkpoints, call);
  add_verify(*checkpoints, call);
  add_dump_command(*checkpoints, call);
  add_load_command(*checkpoints, call);
  auto [rm, versions] = add_command<checkpoints_options>(
    *checkpoints, call, "rm", "Remove models or steps; who reads one finishes", remove);
  add_place_options(*rm, *versions);
  rm->add_option("MODEL", versions->versions, "MODEL, or MODEL@STEP")->type_name("")->required();
  auto [pack, place] = add_command<checkpoints_options>(
    *checkpoints, call, "repack", "Reclaim what finished and dead jobs left, and join free space",
    repack);
  add_place_options(*pack, *place);
}

} // namespace millrace::tools

// `millrace models`: shows and changes the models that a group of providers keeps.
#include <millrace/storage/builtin.hpp>
#include <millrace/tools/changes.hpp>
#include <millrace/tools/connection.hpp>
#include <millrace/tools/describe_model.hpp>
#include <millrace/tools/listing.hpp>
#include <millrace/tools/models_verify.hpp>
#include <millrace/tools/salvage.hpp>
#include <millrace/tools/text.hpp>

#include <memory>
#include <ostream>

namespace millrace::tools {

namespace {

struct models_options : connection_options {
  std::string prefix;
  std::string model;
  std::vector<std::string> models;
  std::uint64_t newer_than = 0;
};

// The marks that the listing removes go before the process does.
int ended(invocation& call, const listed<model_summary>& models) {
  call.out.flush();
  static_cast<void>(models.swept.result());
  return report_silent(call, models.silent);
}

int list(invocation& call, const models_options& options) {
  auto client = connect_to(options);
  if (!client)
    return report(call, client.error());
  auto models = client->repository(options.group).list(options.prefix).result();
  if (!models)
    return report(call, models.error());
  if (call.json) {
    auto document = to_json(*models, "models");
    document["marks"] = json::array();
    for (auto& m : models->marks)
      document["marks"].push_back(
        {{"name", m.name},
         {"erased", true},
         {"stored_at_ns", m.stored_at_ns},
         {"provider", m.provider}});
    print_json(call, document);
    return ended(call, *models);
  }
  table lines{{"model", ">version", ">size", ">tensors", "stored", "pinned", "provider"}};
  for (auto& m : models->found)
    lines.add(
      {m.name, std::to_string(m.version), human_size(m.size_bytes), std::to_string(m.tensors),
       human_time(m.stored_at_ns), m.pinned ? "yes" : "no", m.provider});
  lines.print(call.out);
  if (!models->marks.empty())
    call.out << counted(models->marks.size(), "mark")
             << " of removed models, for providers that are away\n";
  return ended(call, *models);
}

int show_model(invocation& call, const models_options& options) {
  auto client = connect_to(options);
  if (!client)
    return report(call, client.error());
  auto model = client->repository(options.group).describe(options.model).result();
  if (!model)
    return report(call, model.error());
  if (call.json)
    print_json(call, to_json(*model));
  else
    print(call.out, *model);
  return exit_ok;
}

int wait(invocation& call, const models_options& options) {
  auto client = connect_to(options);
  if (!client)
    return report(call, client.error());
  auto newer = client->repository(options.group).newer(options.model, options.newer_than).result();
  if (!newer)
    return report(call, newer.error());
  auto found = summarize(*newer);
  if (call.json)
    print_json(call, to_json(found));
  else
    call.out << printable(found.name) << " version " << found.version << ", "
             << human_size(found.size_bytes) << '\n';
  return exit_ok;
}

using change = std::function<future<void>(repository&, const std::string& model)>;

// Applies a change to every named model, also after one of them failed.
int apply(
  invocation& call, const models_options& options, const char* done_word, const change& one) {
  auto client = connect_to(options);
  if (!client)
    return report(call, client.error());
  auto repo = client->repository(options.group);
  std::vector<future<void>> running;
  for (auto& model : options.models)
    running.push_back(one(repo, model));
  changes done{call, done_word};
  for (std::size_t i = 0; i < running.size(); ++i) {
    auto& outcome = running[i].result();
    done.add(options.models[i], outcome ? status{} : outcome.error());
  }
  return done.finish();
}

void add_group_options(CLI::App& command, models_options& options) {
  add_connection_options(command, options);
  add_group_option(command, options);
}

void add_change(
  CLI::App& models, invocation& call, const std::string& name, const std::string& what,
  const char* done_word, const change& one) {
  auto options = std::make_shared<models_options>();
  auto* command = add_command(models, call, name, what, [&call, options, done_word, one] {
    return apply(call, *options, done_word, one);
  });
  command->add_option("MODEL", options->models, "names of models")->type_name("")->required();
  add_group_options(*command, *options);
}

} // namespace

void add_models_command(CLI::App& app, invocation& call) {
  auto* models =
    app.add_subcommand("models", "List, describe, await, verify, remove, pin and salvage models");
  models->require_subcommand(1);
  auto [ls, listed] = add_command<models_options>(
    *models, call, "ls", "List the models whose names begin with PREFIX", list);
  add_group_options(*ls, *listed);
  ls->add_option("PREFIX", listed->prefix, "beginning of the names")->type_name("");
  auto [describe, described] = add_command<models_options>(
    *models, call, "describe", "Show the layers and tensors of a model", show_model);
  add_group_options(*describe, *described);
  describe->add_option("model", described->model, "name of the model")
    ->type_name("MODEL")
    ->required();
  auto [waits, waited] = add_command<models_options>(
    *models, call, "wait", "Wait until a model has a version that is newer", wait);
  add_group_options(*waits, *waited);
  waits->add_option("model", waited->model, "name of the model, which need not exist yet")
    ->type_name("MODEL")
    ->required();
  waits
    ->add_option(
      "--newer-than", waited->newer_than, "a version above this number (default: any version)")
    ->type_name("VERSION")
    ->check(whole_number());
  add_models_verify(*models, call);
  add_change(
    *models, call, "rm", "Remove models; who reads one finishes", "removed",
    [](repository& repo, const std::string& model) { return repo.erase(model); });
  add_change(
    *models, call, "pin", "Keep models from being evicted", "pinned",
    [](repository& repo, const std::string& model) { return repo.pin(model, true); });
  add_change(
    *models, call, "unpin", "Let models be evicted again", "unpinned",
    [](repository& repo, const std::string& model) { return repo.pin(model, false); });
  add_salvage_command(
    *models, call,
    "Write all models that are whole to files, from the directory of a provider that no service "
    "has open",
    "the directory of a provider", [](const std::string& path, storage::salvager& to) {
      auto at_rest = storage::storage_at(path);
      return at_rest ? at_rest->salvage(path, to) : at_rest.error();
    });
}

} // namespace millrace::tools

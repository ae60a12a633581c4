// `millrace models verify`: reads a bucket that no service has open.
#include <millrace/storage/builtin.hpp>
#include <millrace/tools/models_verify.hpp>
#include <millrace/tools/output.hpp>
#include <millrace/tools/progress_line.hpp>
#include <millrace/tools/text.hpp>

#include <ostream>

namespace millrace::tools {

namespace {

json row_of(const storage::model_at_rest& model) {
  json j{
    {"name", model.name},
    {"version", model.version},
    {"size_bytes", model.size_bytes},
    {"checksums", model.has_checksums}};
  if (!model.outcome.ok())
    j["error"] = to_json(model.outcome);
  return j;
}

int verify(invocation& call, const std::string& path) {
  auto at_rest = storage::storage_at(path);
  if (!at_rest)
    return report(call, at_rest.error());
  std::uint64_t verified = 0, bytes = 0, without = 0;
  json damaged = json::array();
  progress_line line{call, path};
  auto outcome = at_rest->verify(path, [&](const storage::model_at_rest& model) {
    bytes += model.read_bytes;
    line.show(bytes, 0);
    if (!model.outcome.ok()) {
      damaged.push_back(row_of(model));
      if (!call.json)
        call.out << printable(model.name) << " version " << model.version << ": "
                 << printable(model.outcome.detail()) << '\n';
      return;
    }
    ++(model.has_checksums ? verified : without);
  });
  if (!outcome.ok())
    return report(call, outcome);
  auto code = damaged.empty() ? exit_ok : exit_failed;
  if (call.json) {
    print_json(
      call,
      {{"ok", damaged.empty()},
       {"verified", verified},
       {"without_checksums", without},
       {"read_bytes", bytes},
       {"damaged", damaged}});
    return code;
  }
  call.out << printable(path) << ": " << counted(verified, "model") << " verified, "
           << human_size(bytes) << " read";
  if (without > 0)
    call.out << ", " << counted(without, "model") << " without checksums";
  if (!damaged.empty())
    call.out << ", " << counted(damaged.size(), "model") << " damaged";
  call.out << '\n';
  return code;
}

} // namespace

void add_models_verify(CLI::App& models, invocation& call) {
  auto [command, path] = add_command<std::string>(
    models, call, "verify",
    "Compare the models of a provider with their checksums, while no service has it open; "
    "changes nothing",
    verify);
  command->add_option("PATH", *path, "directory of the provider")->type_name("")->required();
}

} // namespace millrace::tools

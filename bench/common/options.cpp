// The options and what --help says of them.
#include <millrace/bench/common/child.hpp>
#include <millrace/bench/common/options.hpp>
#include <millrace/bench/common/service.hpp>

#include <cstdio>
#include <cstdlib>
#include <exception>

namespace millrace::bench {

report begin_run(const run_options& o) {
  clean_up_on_signals();
  auto machine = machine_summary();
  std::printf("%s%s%s\n", machine.c_str(), o.commit.empty() ? "" : ", commit ", o.commit.c_str());
  return {o.commit, machine};
}

int finish(const report& out, const run_options& o) {
  auto missed = out.print_goals();
  if (!o.json.empty())
    if (auto bad = out.write_json(o.json); !bad.ok())
      give_up(bad, "reporting");
  return o.strict && missed > 0 ? exit_goal_missed : EXIT_SUCCESS;
}

void add_options(CLI::App& app, run_options& o, const std::vector<std::string>& sections) {
  app.add_flag("--quick", o.quick, "a smoke run of some seconds; its figures mean little");
  app.add_flag("--no-peers", o.no_peers, "only ours and the floors");
  app.add_option("--json", o.json, "one line a case, beside the table")->type_name("FILE");
  app.add_option("--only", o.only, "one section")->check(CLI::IsMember(sections));
  app.add_flag(
    "--strict", o.strict,
    "exit with 3 if a goal is missed; one that was not measured, for want of a peer, is not");
  app.add_option("--rounds", o.rounds, "repetitions");
  app.add_option("--commit", o.commit, "for the report");
}

void add_options(CLI::App& app, model_options& o, const std::vector<std::string>& sections) {
  add_options(app, static_cast<run_options&>(o), sections);
  app.add_option("--model", o.model, "only models whose name contains it, such as 1GiB/10-layers");
  app.add_option("--memory", o.memory, "a directory in memory, for the peers' files")
    ->type_name("DIR")
    ->capture_default_str();
  app.add_option("--disk", o.disk, "a directory on disk, for all files that shall be durable")
    ->type_name("DIR")
    ->capture_default_str();
}

int run_program(int argc, char** argv, const program& of) {
  try {
    if (argc == 3 && argv[1] == std::string{"--serve"})
      return serve(argv[2]);
    model_options o;
    CLI::App app{of.what};
    add_options(app, o, of.sections);
    if (of.takes_guest)
      app.add_option(
        "--guest", o.guest, "runs a program in a guest with RDMA devices, where here are none");
    CLI11_PARSE(app, argc, argv);
    return of.run(o);
  } catch (const std::exception& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "bench_%s: %s\n", of.name, e.what());
    return EXIT_FAILURE;
  }
}

} // namespace millrace::bench

// Which rank of which job a process is, by the variables of launchers.
#include <millrace/core/digest.hpp>
#include <millrace/runtime/client/job.hpp>

#include <boost/test/unit_test.hpp>

#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

using namespace millrace;

namespace {

using variables = std::map<std::string, std::string>;

result<std::optional<job>> read(const variables& all) {
  return job::from([&all](const char* name) {
    auto found = all.find(name);
    return found == all.end() ? std::string{} : found->second;
  });
}

job good(const variables& all) {
  auto found = read(all);
  BOOST_REQUIRE_MESSAGE(found, (found ? "" : found.error().to_string()));
  BOOST_REQUIRE(found->has_value());
  return **found;
}

// Returns the detail of the error, and demands that there is one.
std::string bad(const variables& all) {
  auto found = read(all);
  BOOST_REQUIRE(!found);
  BOOST_TEST((found.error().code() == errc::invalid_argument));
  return found.error().detail();
}

variables with(variables all, const variables& more) {
  for (auto& [name, value] : more)
    all[name] = value;
  return all;
}

bool has(const std::string& text, std::string_view part) { return text.find(part) != text.npos; }

const variables of_torchrun{
  {"RANK", "1"},
  {"WORLD_SIZE", "4"},
  {"LOCAL_RANK", "1"},
  {"LOCAL_WORLD_SIZE", "4"},
  {"TORCHELASTIC_RUN_ID", "run7"},
  {"TORCHELASTIC_RESTART_COUNT", "2"}};

const variables of_srun{{"SLURM_JOB_ID", "814"}, {"SLURM_STEP_ID", "3"},
                        {"SLURM_PROCID", "5"},   {"SLURM_STEP_NUM_TASKS", "8"},
                        {"SLURM_NTASKS", "16"},  {"SLURM_LOCALID", "1"}};

} // namespace

BOOST_AUTO_TEST_SUITE(jobs)

BOOST_AUTO_TEST_CASE(a_process_that_no_launcher_has_started_is_in_no_job) {
  BOOST_TEST(!read({}).value().has_value());
  BOOST_TEST(!read({{"RANK", ""}, {"WORLD_SIZE", ""}}).value().has_value());
}

BOOST_AUTO_TEST_CASE(torchrun_names_ranks_and_the_run) {
  auto one = good(of_torchrun);
  BOOST_TEST(one.launcher == "torchrun");
  BOOST_TEST(one.rank == 1u);
  BOOST_TEST(one.world_size == 4u);
  BOOST_TEST(one.local_rank.value() == 1u);
  BOOST_TEST(one.local_world_size.value() == 4u);
  BOOST_TEST(one.run_id == "run7");
  BOOST_TEST(one.restart_count == 2u);
}

BOOST_AUTO_TEST_CASE(ranks_that_a_program_sets_itself_need_no_launcher) {
  auto one = good({{"RANK", "0"}, {"WORLD_SIZE", "2"}});
  BOOST_TEST(one.world_size == 2u);
  BOOST_TEST(!one.local_rank.has_value());
  BOOST_TEST(!one.local_world_size.has_value());
  BOOST_TEST(one.life == 0u);
}

BOOST_AUTO_TEST_CASE(the_environment_of_this_process_is_read) {
  ::setenv("RANK", "3", 1);
  ::setenv("WORLD_SIZE", "7", 1);
  auto found = job::from_environment();
  ::unsetenv("RANK");
  ::unsetenv("WORLD_SIZE");
  BOOST_REQUIRE(found.has_value());
  BOOST_TEST((*found)->rank == 3u);
  BOOST_TEST((*found)->world_size == 7u);
}

BOOST_AUTO_TEST_CASE(the_innermost_launcher_decides) {
  const variables mpirun{
    {"OMPI_COMM_WORLD_RANK", "2"},
    {"OMPI_COMM_WORLD_SIZE", "3"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
    {"PMIX_RANK", "2"},
    {"PMIX_NAMESPACE", "3236233217"}};
  // srun started an agent of each on every host.
  auto in_step = good(with(of_srun, mpirun));
  BOOST_TEST(in_step.launcher == "Open MPI");
  BOOST_TEST(in_step.rank == 2u);
  BOOST_TEST(in_step.world_size == 3u);
  BOOST_TEST(in_step.local_rank.value() == 0u);
  BOOST_TEST(in_step.local_world_size.value() == 1u);
  BOOST_TEST(in_step.run_id == "3236233217");
  BOOST_TEST(good(with(with(of_srun, mpirun), of_torchrun)).launcher == "torchrun");
}

BOOST_AUTO_TEST_CASE(a_step_of_slurm_has_its_own_number_of_ranks) {
  auto one = good(of_srun);
  BOOST_TEST(one.launcher == "Slurm");
  BOOST_TEST(one.rank == 5u);
  BOOST_TEST(one.world_size == 8u);
  BOOST_TEST(one.local_rank.value() == 1u);
  BOOST_TEST(!one.local_world_size.has_value());
  BOOST_TEST(one.run_id == "814.3");
  BOOST_TEST(one.restart_count == 0u);
  BOOST_TEST(good(with(of_srun, {{"SLURM_STEP_NUM_TASKS", ""}})).world_size == 16u);
}

BOOST_AUTO_TEST_CASE(the_script_and_the_shell_of_a_job_of_slurm_are_no_ranks) {
  BOOST_TEST(!read({{"SLURM_JOB_ID", "814"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "16"}})
                .value()
                .has_value());
  BOOST_TEST(!read({{"SLURM_JOB_ID", "814"}, {"SLURM_NTASKS", "16"}}).value().has_value());
  // The shell of `salloc` is a step with a number of its own.
  BOOST_TEST(!read(with(of_srun, {{"SLURM_STEP_ID", "4294967290"}})).value().has_value());
}

BOOST_AUTO_TEST_CASE(an_mpi_launcher_within_a_step_decides_and_slurms_own_does_not) {
  auto of_slurm = with(of_srun, {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"PMI_JOBID", "814.3"}});
  BOOST_TEST(good(of_slurm).launcher == "Slurm");
  auto by_pmix = with(of_srun, {{"PMIX_RANK", "5"}, {"PMIX_NAMESPACE", "slurm.pmix.814.3"}});
  BOOST_TEST(good(by_pmix).launcher == "Slurm");
  auto one = good(with(
    of_slurm,
    {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}}));
  BOOST_TEST(one.launcher == "PMI");
  BOOST_TEST(one.rank == 1u);
  BOOST_TEST(one.world_size == 2u);
  BOOST_TEST(one.local_rank.value() == 1u);
  BOOST_TEST(one.local_world_size.value() == 2u);
  BOOST_TEST(one.life == 0u);
}

BOOST_AUTO_TEST_CASE(pmix_alone_does_not_tell_the_number_of_ranks) {
  auto detail = bad({{"PMIX_RANK", "3"}, {"PMIX_NAMESPACE", "prterun-n1-77@1"}});
  BOOST_TEST(has(detail, "PMIX_RANK is '3'"), detail);
  BOOST_TEST(has(detail, "Set RANK and WORLD_SIZE"), detail);
}

BOOST_AUTO_TEST_CASE(a_program_that_initializes_open_mpi_without_a_launcher_is_alone) {
  const variables alone{
    {"OMPI_MCA_ess", "singleton"}, {"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "334757889"}};
  BOOST_TEST(!read(alone).value().has_value());
  BOOST_TEST(good(with(alone, of_torchrun)).launcher == "torchrun");
}

BOOST_AUTO_TEST_CASE(a_variable_without_the_other_is_an_error_that_names_both) {
  auto detail = bad({{"RANK", "1"}});
  BOOST_TEST(has(detail, "RANK is '1', and WORLD_SIZE is not set"), detail);
  detail = bad({{"OMPI_COMM_WORLD_SIZE", "2"}});
  BOOST_TEST(
    has(detail, "OMPI_COMM_WORLD_SIZE is '2', and OMPI_COMM_WORLD_RANK is not set"), detail);
  detail = bad({{"PMI_RANK", "2"}});
  BOOST_TEST(has(detail, "PMI_RANK is '2', and PMI_SIZE is not set"), detail);
  detail = bad({{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}});
  BOOST_TEST(has(detail, "SLURM_PROCID is '1', and SLURM_NTASKS is not set"), detail);
}

BOOST_AUTO_TEST_CASE(what_is_no_number_is_an_error_that_names_the_variable) {
  for (auto* variable : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT"})
    for (auto* text : {"abc", "-1", "1x", " 1", "4294967296", "99999999999999999999"}) {
      auto detail = bad(with(of_torchrun, {{variable, text}}));
      BOOST_TEST(has(detail, std::string{variable} + " is '" + text + "'"), detail);
    }
  auto detail = bad(with(of_srun, {{"SLURM_RESTART_COUNT", "once"}}));
  BOOST_TEST(has(detail, "SLURM_RESTART_COUNT is 'once'"), detail);
}

BOOST_AUTO_TEST_CASE(a_rank_is_below_its_world_size) {
  auto detail = bad(with(of_torchrun, {{"RANK", "4"}}));
  BOOST_TEST(has(detail, "RANK is 4, and WORLD_SIZE is 4"), detail);
  detail = bad(with(of_torchrun, {{"LOCAL_RANK", "4"}}));
  BOOST_TEST(has(detail, "LOCAL_RANK is 4, and LOCAL_WORLD_SIZE is 4"), detail);
  detail = bad({{"RANK", "0"}, {"WORLD_SIZE", "0"}});
  BOOST_TEST(has(detail, "RANK is 0, and WORLD_SIZE is 0"), detail);
}

BOOST_AUTO_TEST_CASE(all_ranks_of_a_run_have_one_life_and_another_one_after_a_restart) {
  auto life = good(of_torchrun).life;
  BOOST_TEST(life != 0u);
  BOOST_TEST(good(with(of_torchrun, {{"RANK", "3"}, {"LOCAL_RANK", "3"}})).life == life);
  BOOST_TEST(good(with(of_torchrun, {{"TORCHELASTIC_RESTART_COUNT", "3"}})).life != life);
  BOOST_TEST(good(with(of_torchrun, {{"TORCHELASTIC_RUN_ID", "run8"}})).life != life);
  auto step = good(of_srun).life;
  BOOST_TEST(step != 0u);
  BOOST_TEST(good(with(of_srun, {{"SLURM_PROCID", "6"}, {"SLURM_LOCALID", "2"}})).life == step);
  BOOST_TEST(good(with(of_srun, {{"SLURM_RESTART_COUNT", "1"}})).life != step);
  BOOST_TEST(good(with(of_srun, {{"SLURM_STEP_ID", "4"}})).life != step);
  BOOST_TEST(good(with(of_srun, {{"SLURM_JOB_ID", "815"}})).life != step);
}

// Ranks may run different builds.
BOOST_AUTO_TEST_CASE(the_life_of_a_run_is_the_same_in_every_build) {
  constexpr std::string_view torchrun = "torchrun 2 run7", srun = "Slurm 0 814.3";
  BOOST_TEST(good(of_torchrun).life == digest(torchrun.data(), torchrun.size()));
  BOOST_TEST(good(of_srun).life == digest(srun.data(), srun.size()));
}

BOOST_AUTO_TEST_CASE(a_run_that_its_launcher_does_not_name_has_no_life) {
  // The default of torchrun.
  auto unnamed = good(with(of_torchrun, {{"TORCHELASTIC_RUN_ID", "none"}}));
  BOOST_TEST(unnamed.run_id == "");
  BOOST_TEST(unnamed.life == 0u);
  // Each host counts its own restarts.
  BOOST_TEST(good(with(of_torchrun, {{"WORLD_SIZE", "8"}})).life == 0u);
  BOOST_TEST(good(with(of_torchrun, {{"LOCAL_WORLD_SIZE", ""}})).life == 0u);
  BOOST_TEST(good(with(of_srun, {{"SLURM_JOB_ID", ""}})).life == 0u);
  // What mpirun calls a job may come again.
  BOOST_TEST(
    good({{"OMPI_COMM_WORLD_RANK", "0"},
          {"OMPI_COMM_WORLD_SIZE", "1"},
          {"PMIX_NAMESPACE", "3236233217"}})
      .life == 0u);
}

BOOST_AUTO_TEST_SUITE_END()

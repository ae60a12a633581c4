// Reads the variables of launchers, the innermost launcher first.
#include <millrace/config/units.hpp>
#include <millrace/core/digest.hpp>
#include <millrace/core/environment.hpp>
#include <millrace/runtime/client/job.hpp>

#include <fmt/format.h>

#include <initializer_list>
#include <limits>
#include <string_view>
#include <utility>

namespace millrace {

namespace {

using values = std::function<std::string(const char*)>;

/// The variables of one launcher. Null: it has none for this.
struct launcher_variables {
  const char* launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
};

constexpr launcher_variables torchrun{
  "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr launcher_variables open_mpi{
  "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
  "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr launcher_variables pmi{
  "PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
constexpr launcher_variables slurm{
  "Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr};

/// The name that torchrun gives to runs for which it was told none.
constexpr std::string_view unnamed_run = "none";

bool any_set(const values& value_of, std::initializer_list<const char*> variables) {
  for (auto* variable : variables)
    if (!value_of(variable).empty())
      return true;
  return false;
}

result<std::optional<std::uint32_t>> number_in(const values& value_of, const char* variable) {
  auto text = variable ? value_of(variable) : "";
  if (text.empty())
    return std::optional<std::uint32_t>{};
  auto number = config::parse_count(text);
  if (!number || *number > std::numeric_limits<std::uint32_t>::max())
    return fail(
      errc::invalid_argument,
      "{} is '{}', which is no number of a rank or of ranks. Launchers set it: start the program "
      "by one, set it to a whole number, or unset it",
      variable, text);
  return static_cast<std::uint32_t>(*number);
}

// Reads a number below a bound, and the bound. Either both are set, or none.
struct number_and_bound {
  std::optional<std::uint32_t> number;
  std::optional<std::uint32_t> bound;
};

result<number_and_bound> pair_in(
  const values& value_of, const char* number_name, const char* bound_name) {
  auto number = number_in(value_of, number_name);
  if (!number)
    return fail(number.error());
  auto bound = number_in(value_of, bound_name);
  if (!bound)
    return fail(bound.error());
  if (*number && *bound && **number >= **bound)
    return fail(
      errc::invalid_argument,
      "{} is {}, and {} is {}: ranks count from 0, so the first must be less than the second. "
      "Start the program by its launcher, or set both as one would",
      number_name, **number, bound_name, **bound);
  return number_and_bound{*number, *bound};
}

result<job> read(const values& value_of, const launcher_variables& names) {
  auto in_world = pair_in(value_of, names.rank, names.world_size);
  if (!in_world)
    return fail(in_world.error());
  if (!in_world->number || !in_world->bound) {
    auto [set, other] = in_world->number ? std::pair{names.rank, names.world_size}
                                         : std::pair{names.world_size, names.rank};
    return fail(
      errc::invalid_argument,
      "{} is '{}', and {} is not set. Launchers set both: start the program by one, set both, or "
      "unset the former",
      set, value_of(set), other);
  }
  auto on_host = pair_in(value_of, names.local_rank, names.local_world_size);
  if (!on_host)
    return fail(on_host.error());
  return job{
    .launcher = names.launcher,
    .rank = *in_world->number,
    .world_size = *in_world->bound,
    .local_rank = on_host->number,
    .local_world_size = on_host->bound};
}

std::uint64_t life_of(const job& one) {
  auto name = fmt::format("{} {} {}", one.launcher, one.restart_count, one.run_id);
  auto life = digest(name.data(), name.size());
  return life == 0 ? 1 : life;
}

// Adds how often the run was started again, and with `unique` its life.
result<job> of_run(job one, const values& value_of, const char* restarts, bool unique) {
  auto count = number_in(value_of, restarts);
  if (!count)
    return fail(count.error());
  one.restart_count = count->value_or(0);
  if (unique && !one.run_id.empty())
    one.life = life_of(one);
  return one;
}

result<job> of_torchrun(const values& value_of) {
  auto one = read(value_of, torchrun);
  if (!one)
    return one;
  one->run_id = value_of("TORCHELASTIC_RUN_ID");
  if (one->run_id == unnamed_run)
    one->run_id.clear();
  // The agent of each host counts the restarts that it has begun itself.
  auto unique = one->local_world_size == one->world_size;
  return of_run(std::move(*one), value_of, "TORCHELASTIC_RESTART_COUNT", unique);
}

result<job> of_open_mpi(const values& value_of) {
  auto one = read(value_of, open_mpi);
  // A hash of mpirun's host and process number, of 16 bits: too few for a life.
  if (one)
    one->run_id = value_of("PMIX_NAMESPACE");
  return one;
}

std::string step_of(const values& value_of) {
  return value_of("SLURM_JOB_ID") + "." + value_of("SLURM_STEP_ID");
}

// A step without that variable has another one, which is that of the whole job in its script.
launcher_variables slurm_names(const values& value_of) {
  auto names = slurm;
  if (value_of(names.world_size).empty())
    names.world_size = "SLURM_NTASKS";
  return names;
}

result<job> of_slurm(const values& value_of) {
  auto one = read(value_of, slurm_names(value_of));
  if (!one)
    return one;
  if (any_set(value_of, {"SLURM_JOB_ID"}))
    one->run_id = step_of(value_of);
  return of_run(std::move(*one), value_of, "SLURM_RESTART_COUNT", true);
}

// The steps of `sbatch` scripts and of the shells of `salloc` have the highest numbers.
bool is_shell_step(const std::string& step) {
  constexpr std::uint64_t reserved_min = 4'294'967'290;
  auto number = config::parse_count(step);
  return number && *number >= reserved_min;
}

// Returns true if this process is a task of a step, and whatever PMI's variables say is about that
// task. An MPI launcher within a step sets its own, and leaves those of Slurm as they are.
bool is_task_of_slurm(const values& value_of) {
  if (!any_set(value_of, {"SLURM_STEP_ID"}) || is_shell_step(value_of("SLURM_STEP_ID")))
    return false;
  auto task = value_of(slurm.rank), tasks = value_of(slurm_names(value_of).world_size);
  auto agrees = [&](const char* variable, const std::string& expected) {
    auto value = value_of(variable);
    return value.empty() || value == expected;
  };
  auto step = step_of(value_of);
  return agrees("PMI_RANK", task) && agrees("PMI_SIZE", tasks) && agrees("PMI_JOBID", step) &&
    agrees("PMIX_RANK", task) && agrees("PMIX_NAMESPACE", "slurm.pmix." + step);
}

} // namespace

result<std::optional<job>> job::from(
  const std::function<std::string(const char* variable)>& value_of) {
  if (any_set(value_of, {torchrun.rank, torchrun.world_size}))
    return of_torchrun(value_of);
  if (any_set(value_of, {open_mpi.rank, open_mpi.world_size}))
    return of_open_mpi(value_of);
  if (is_task_of_slurm(value_of))
    return of_slurm(value_of);
  if (any_set(value_of, {pmi.rank, pmi.world_size}))
    return read(value_of, pmi);
  // A program that initializes Open MPI without a launcher gives itself those of PMIx.
  if (value_of("OMPI_MCA_ess") == "singleton")
    return std::optional<job>{};
  if (auto rank = value_of("PMIX_RANK"); !rank.empty())
    return fail(
      errc::invalid_argument,
      "PMIX_RANK is '{}', and no variable tells the number of ranks, which PMIx does not. Set RANK "
      "and WORLD_SIZE, or start the program by torchrun, mpirun or srun",
      rank);
  return std::optional<job>{};
}

result<std::optional<job>> job::from_environment() { return from(environment); }

} // namespace millrace

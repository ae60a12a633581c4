// The job that this process is a rank of, as the launcher that started it says.
// Asked by programs before they register checkpoints.
#pragma once

#include <millrace/core/status.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace millrace {

/// Where a launcher has put this process in a job.
struct job {
  std::string launcher; // "torchrun", "Open MPI", "PMI" or "Slurm"
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  /// The number of this rank among those of its host, and how many these are, where the launcher
  /// says so.
  std::optional<std::uint32_t> local_rank = {};
  std::optional<std::uint32_t> local_world_size = {};
  /// The launcher's name for this run of the job; empty: it has none.
  std::string run_id = {};
  /// How often the launcher has started the ranks of `run_id` again.
  std::uint32_t restart_count = 0;
  /// A value for `checkpoint_options::life`: equal on all ranks, another one after a restart, never
  /// that of another run. It is the xxHash3-64 of "launcher restart_count run_id", and 1 where that
  /// is 0. 0 where the launcher gives no name that holds this: each rank then draws its own.
  ///
  /// A Slurm step has a value. A torchrun job on one host has one with `--standalone`, or with a
  /// `--rdzv-id` that is never used again: a torchrun that is started again counts from 0. A
  /// torchrun job on several hosts has none, because each host counts only the restarts that begin
  /// there, and no host counts those for a host that joins. MPI launchers reuse names, so their
  /// jobs have none. A program that is started again without its launcher, by a loop in a script,
  /// must leave `checkpoint_options::life` at 0.
  std::uint64_t life = 0;

  /// Returns the job of this process, or nothing if no launcher has started it.
  ///
  /// The first launcher that left its variables in the environment decides. It is the innermost
  /// one: a launcher is started within the jobs of those below it in this list.
  /// 1. torchrun, or any program that sets RANK and WORLD_SIZE (LOCAL_RANK, LOCAL_WORLD_SIZE);
  /// 2. Open MPI's mpirun (OMPI_COMM_WORLD_RANK and others);
  /// 3. other launchers of MPI programs (PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS),
  ///    unless Slurm itself has set these;
  /// 4. a step of Slurm, that is, `srun` (SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS,
  ///    SLURM_LOCALID). The script of `sbatch` and the shell of `salloc` are no ranks.
  /// An empty variable counts as not set.
  /// Errors:  `invalid_argument` naming the variable, its value, and what to do: one without the
  ///          other, what is no number, a rank that is not below its world size, and PMIX_RANK
  ///          where nothing tells the number of ranks.
  /// Threads: any, while none changes the environment.
  static result<std::optional<job>> from_environment();

  /// Does what `from_environment` does, with the values that `value_of` gives for variables.
  static result<std::optional<job>> from(
    const std::function<std::string(const char* variable)>& value_of);
};

} // namespace millrace

// bench_checkpoint: saves to a pool and restores, compared with other libraries and with the
// machine's own speed.
// See bench/README.md; scripts/bench checkpoint runs it.
#include <millrace/bench/checkpoint/stage.hpp>
#include <millrace/bench/common/options.hpp>

#include <algorithm>
#include <cstdlib>

namespace {

using namespace millrace::bench;

std::vector<std::string> peers_at_hand() {
  std::vector<std::string> out;
  for (auto* name : {"torch", "h5py", "dcp"})
    if (python_peer::start(name))
      out.emplace_back(name);
  return out;
}

std::uint64_t largest(const extent& how) {
  // Four ranks and their floors use the same buffers in turn.
  auto bytes = 4 * table_named(how.shard_table()).size_bytes;
  for (auto& name : how.tables())
    bytes = std::max(bytes, table_named(name).size_bytes);
  // O_DIRECT needs whole pages.
  return (bytes + 4095) / 4096 * 4096;
}

void run_sections(stage& s, const std::string& only) {
  auto wanted = [&](const std::string& name) { return only.empty() || only == name; };
  if (wanted("memory"))
    memory_section(s);
  if (wanted("shards"))
    shards_section(s);
  if (wanted("call"))
    call_section(s);
  if (wanted("disk"))
    disk_section(s);
}

int run(const model_options& o) {
  auto out = begin_run(o);
  scratch_directory in_memory{o.memory};
  scratch_directory on_disk{o.disk};
  extent how;
  how.quick = o.quick;
  if (o.quick)
    how.rounds = how.fresh_rounds = 3;
  if (o.rounds > 0)
    how.rounds = how.fresh_rounds = o.rounds;
  how.model = o.model;
  warm_buffer source{largest(how)}, target{largest(how)};
  source.fill_randomly(1);
  stage s{
    how,
    out,
    in_memory,
    on_disk,
    source,
    target,
    o.no_peers ? std::vector<std::string>{} : peers_at_hand()};
  out.print_header();
  run_sections(s, o.only);
  return finish(out, o);
}

} // namespace

int main(int argc, char** argv) {
  if (argc == 7 && argv[1] == std::string{"--trainer"})
    return train(
      argv[2], argv[3], static_cast<std::uint32_t>(std::atoi(argv[4])),
      static_cast<std::uint32_t>(std::atoi(argv[5])), argv[6] == std::string{"empty"});
  return run_program(
    argc, argv,
    {"checkpoint",
     "Checkpoints pulled and restored, against peers and floors.",
     {"memory", "shards", "call", "disk"},
     &run});
}

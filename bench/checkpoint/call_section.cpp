// Measures what a save takes from its caller.
#include <millrace/bench/checkpoint/stage.hpp>

namespace millrace::bench {

namespace {

constexpr int calls = 200;

} // namespace

void call_section(stage& s) {
  service at{
    s.in_memory.path(),
    {.kind = service_kind::pmem,
     .capacity_bytes = s.how.pool_bytes() / 2,
     .path = s.in_memory.file("pool-of-calls")}};
  auto table = layered(1u << 20, 10);
  auto client = at.connect();
  auto checkpoints = attach(client, table, s.source.first(table.size_bytes));
  samples times;
  for (std::uint64_t step = 1; step <= calls; ++step) {
    pending_save saving;
    times.add(seconds_of([&] { saving = checkpoints.save(step); }));
    saving.durable.get();
  }
  row r;
  r.name = "save()/the-call";
  r.ours = times;
  r.seconds_max = 100e-6;
  s.out.add(std::move(r));
  if (auto bad = checkpoints.close(true); !bad.ok())
    give_up(bad, "closing");
}

} // namespace millrace::bench

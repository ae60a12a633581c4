// Measures what a save takes from its caller, and how long a small one runs.
#include <millrace/bench/checkpoint/stage.hpp>

namespace millrace::bench {

namespace {

constexpr int calls = 200;
constexpr std::uint64_t small_bytes = 200u << 10;

// Saves again and again, each after the one before is durable.
void measure(stage& s, const service& at, const model_table& table, samples& call, samples& whole) {
  auto client = at.connect();
  auto checkpoints = attach(client, table, s.source.first(table.size_bytes));
  for (std::uint64_t step = 1; step <= calls; ++step)
    whole.add(seconds_of([&] {
      pending_save saving;
      call.add(seconds_of([&] { saving = checkpoints.save(step); }));
      saving.durable.get();
    }));
  if (auto bad = checkpoints.close(true); !bad.ok())
    give_up(bad, "closing");
}

} // namespace

void call_section(stage& s) {
  service at{
    s.in_memory.path(),
    {.kind = service_kind::pmem,
     .capacity_bytes = s.how.pool_bytes() / 2,
     .path = s.in_memory.file("pool-of-calls")}};
  row the_call, small;
  samples ignored;
  measure(s, at, layered(1u << 20, 10), the_call.ours, ignored);
  the_call.name = "save()/the-call";
  the_call.seconds_max = 5e-6;
  s.out.add(std::move(the_call));
  measure(s, at, layered(small_bytes, 10), ignored, small.ours);
  small.name = "save()/200KiB/memory/until-durable";
  small.size_bytes = small_bytes;
  small.seconds_max = 60e-6;
  s.out.add(std::move(small));
}

} // namespace millrace::bench

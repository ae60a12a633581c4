// bench_library: what the C functions add to the C++ API: calls, bandwidth, and descriptions of
// many tensors. See bench/README.md; scripts/bench library runs it.
#include <millrace/bench/common/child.hpp>
#include <millrace/bench/common/measure.hpp>
#include <millrace/bench/common/options.hpp>
#include <millrace/bench/common/service.hpp>
#include <millrace/bindings/c/handles.hpp>

#include <fmt/format.h>
#include <millrace.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

using namespace millrace;
using namespace millrace::bench;

namespace {

constexpr double added_max_s = 1e-6;
constexpr double ratio_goal = 0.97;
constexpr std::uint64_t small_bytes = 4096;
// One sample moves so many bytes, by at least so many calls: some take twice as long as others.
constexpr std::uint64_t sample_bytes = 1u << 30;
constexpr std::uint64_t min_calls = 4;
constexpr std::size_t many_tensors = 1000;
constexpr double register_max_s = 2e-3;
constexpr double rebind_max_s = 100e-6;
constexpr double interrupt_max_s = 0.1;

void must(millrace_code code, const char* doing) {
  if (code != MILLRACE_OK)
    give_up(fmt::format("{}: {}", doing, millrace_error()));
}

// The same tensor as both interfaces describe it.
struct both_views {
  std::vector<std::byte> bytes;
  std::uint64_t shape[1];

  explicit both_views(std::uint64_t size_bytes)
    : bytes(size_bytes, std::byte{7}), shape{size_bytes} {}

  millrace_tensor in_c() {
    millrace_tensor t{};
    t.name = "weights";
    t.data = bytes.data();
    t.dtype = MILLRACE_U8;
    t.rank = 1;
    t.shape = shape;
    return t;
  }
  tensor_view in_cpp() {
    return tensor_view::dense("weights", dtype::u8, {bytes.size()}, std::span{bytes});
  }
};

// Many small tensors in one block of memory, with names as models have them.
struct many {
  std::vector<float> elements = std::vector<float>(many_tensors * 16);
  std::vector<std::string> names;
  std::vector<millrace_tensor> tensors;
  std::uint64_t shape[2] = {4, 4};

  many() {
    for (std::size_t i = 0; i < many_tensors; ++i)
      names.push_back(fmt::format("transformer.block.{}.attention.weight", i));
    for (std::size_t i = 0; i < many_tensors; ++i) {
      millrace_tensor t{};
      t.name = names[i].c_str();
      t.data = elements.data() + i * 16;
      t.dtype = MILLRACE_F32;
      t.rank = 2;
      t.shape = shape;
      tensors.push_back(t);
    }
  }
  many(const many&) = delete;
  many& operator=(const many&) = delete;
};

struct c_client {
  explicit c_client(const service& at) {
    must(millrace_connect(at.address().c_str(), nullptr, &of), "connecting");
  }
  ~c_client() { millrace_release(of); }
  c_client(const c_client&) = delete;
  c_client& operator=(const c_client&) = delete;

  millrace_client* of = nullptr;
};

struct operation {
  const char* name;
  std::function<void()> by_c;
  std::function<void()> by_cpp;
};

// Both ways share a client and a model: threads of clients differ in speed by the cores on which
// they rest, blocks of a provider by their pages. An even number of stores uses both blocks of a
// model as often.
void compare(const operation& op, std::uint64_t size_bytes, std::size_t rounds, report& out) {
  auto is_small = size_bytes == small_bytes;
  auto calls = is_small ? 500 : static_cast<int>(std::max(sample_bytes / size_bytes, min_calls));
  contest c;
  auto& by_c = c.add([&] { return mean_of(calls, op.by_c); });
  auto& by_cpp = c.add([&] { return mean_of(calls, op.by_cpp); });
  c.run(rounds);
  row r;
  r.name = fmt::format(
    "{}/{}", op.name,
    is_small ? fmt::format("{}KiB", size_bytes >> 10) : fmt::format("{}MiB", size_bytes >> 20));
  r.size_bytes = size_bytes;
  r.ours = by_c;
  r.peer = "C++ call";
  r.peer_s = by_cpp.median();
  if (is_small)
    r.seconds_max = by_cpp.median() + added_max_s;
  else
    r.ratio_min = ratio_goal;
  out.add(std::move(r));
}

void calls_section(
  const service& at, const std::vector<std::uint64_t>& sizes, std::size_t rounds, report& out) {
  c_client own{at};
  auto models = own.of->of.repository();
  for (auto size_bytes : sizes) {
    both_views tensor{size_bytes};
    auto in_c = tensor.in_c();
    auto in_cpp = tensor.in_cpp();
    operation put{
      "put", [&] { must(millrace_put(own.of, "model", &in_c, 1, nullptr, nullptr), "storing"); },
      [&] { need(models.store("model", {in_cpp}).result(), "storing"); }};
    operation get{
      "get", [&] { must(millrace_get(own.of, "model", &in_c, 1, nullptr, nullptr), "loading"); },
      [&] { need(models.load("model", {{.into = in_cpp}}).result(), "loading"); }};
    compare(put, size_bytes, rounds, out);
    compare(get, size_bytes, rounds, out);
  }
}

millrace_checkpointer* registered(const c_client& own, const many& tensors, const char* name) {
  millrace_checkpoint_options options{};
  options.struct_size = sizeof(options);
  options.name = name;
  millrace_checkpointer* job = nullptr;
  must(
    millrace_register(own.of, &options, tensors.tensors.data(), many_tensors, &job), "registering");
  return job;
}

void end(millrace_checkpointer* job) {
  must(millrace_close(job, 1, nullptr), "closing");
  millrace_checkpointer_release(job);
}

// The first registration of a run makes the slots; a job that comes back finds them.
void tensors_section(const service& at, std::size_t rounds, report& out) {
  c_client own{at};
  many tensors;
  auto measure = [&](const char* name, std::size_t times, auto run_of) {
    row r;
    r.name = name;
    r.seconds_max = register_max_s;
    for (std::size_t i = 0; i < times; ++i) {
      millrace_checkpointer* job = nullptr;
      const std::string run = run_of(i);
      r.ours.add(seconds_of([&] { job = registered(own, tensors, run.c_str()); }));
      end(job);
    }
    out.add(std::move(r));
  };
  measure("register/1000-tensors/first", rounds, [](auto i) { return fmt::format("run {}", i); });
  end(registered(own, tensors, "run"));
  measure("register/1000-tensors", rounds * 10, [](auto) { return "run"; });

  auto* job = registered(own, tensors, "run");
  row unmoved;
  unmoved.name = "rebind/1000-tensors/nothing-moved";
  unmoved.seconds_max = rebind_max_s;
  for (std::size_t i = 0; i < rounds * 100; ++i)
    unmoved.ours.add(seconds_of(
      [&] { must(millrace_rebind(job, tensors.tensors.data(), many_tensors), "rebinding"); }));
  out.add(std::move(unmoved));
  end(job);
}

void on_signal(int) {}

// Ends when a handler has returned: by a descriptor, or by looking again after each slice.
void wait_for_a_signal(millrace_request*& waited, const std::atomic<bool>& sent, bool in_slices) {
  if (in_slices) {
    while (millrace_wait(&waited, 50) == MILLRACE_DEADLINE_EXCEEDED && !sent) {
    }
  } else {
    millrace_queue* queue = nullptr;
    must(millrace_queue_create(0, &queue), "making a queue");
    must(millrace_queue_add(queue, waited, 1), "adding to a queue");
    pollfd readable{millrace_queue_fd(queue), POLLIN, 0};
    while (ppoll(&readable, 1, nullptr, nullptr) >= 0 && !sent) {
    }
    millrace_queue_release(queue);
  }
  must(millrace_cancel(waited), "cancelling");
}

// From the signal until the wait has returned and its request is cancelled.
double interrupted_after(const c_client& own, bool in_slices) {
  millrace_request* waited = nullptr;
  must(millrace_await(own.of, nullptr, "never", 0, 60'000, &waited), "awaiting");
  std::atomic<bool> sent = false;
  std::thread waits{[&] { wait_for_a_signal(waited, sent, in_slices); }};
  std::this_thread::sleep_for(std::chrono::milliseconds{20});
  auto took = seconds_of([&] {
    sent = true;
    pthread_kill(waits.native_handle(), SIGUSR1);
    waits.join();
  });
  millrace_detach(&waited);
  return took;
}

// A wait that a signal's handler ends, in the two ways that docs/c-api.md gives.
void signals_section(const service& at, std::size_t rounds, report& out) {
  struct sigaction handled {};
  handled.sa_handler = on_signal;
  sigaction(SIGUSR1, &handled, nullptr);
  c_client own{at};
  for (auto in_slices : {true, false}) {
    row r;
    r.name = in_slices ? "interrupt/slices-of-50-ms" : "interrupt/ppoll";
    r.seconds_max = interrupt_max_s;
    for (std::size_t i = 0; i < rounds * 2; ++i)
      r.ours.add(interrupted_after(own, in_slices));
    out.add(std::move(r));
  }
}

int run(const model_options& o) {
  auto out = begin_run(o);
  scratch_directory in_memory{o.memory};
  out.print_header();
  auto rounds = o.rounds > 0 ? o.rounds : o.quick ? 2 : 15;
  std::vector<std::uint64_t> sizes{small_bytes, 16u << 20};
  if (!o.quick)
    sizes.push_back(256u << 20);
  if (o.only.empty() || o.only == "calls") {
    service at{in_memory.path(), {service_kind::memory, 3u << 30, {}, 0}};
    calls_section(at, sizes, rounds, out);
  }
  if (o.only.empty() || o.only == "signals") {
    service at{in_memory.path(), {service_kind::memory, 1u << 20, {}, 0}};
    signals_section(at, rounds, out);
  }
  if (o.only.empty() || o.only == "tensors") {
    service at{
      in_memory.path(),
      {.kind = service_kind::pmem,
       .capacity_bytes = 64u << 20,
       .path = in_memory.file("pool-of-tensors")}};
    tensors_section(at, rounds, out);
  }
  return finish(out, o);
}

} // namespace

int main(int argc, char** argv) {
  return run_program(
    argc, argv,
    {"library", "What the C functions add to the C++ API.", {"calls", "signals", "tensors"}, &run});
}

/* A simulation and a training in one process: a solver of the heat equation appends its fields to a
 * stream, and the main thread reads batches of them as a training would. */
#include <math.h>
#include <millrace.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>

enum { side = 32, cells = side * side, samples = 200, steps_a_sample = 10, batch_size = 16 };
static const uint64_t shape[] = {side, side};

/* Each call returns a code, and `millrace_error` has the text. */
static void must(millrace_code code, const char* what) {
  if (code == MILLRACE_OK)
    return;
  fprintf(stderr, "heat_stream: %s: %s\n", what, millrace_error());
  exit(1);
}

/* One explicit step. No heat passes the border, so the sum of all cells stays. */
static void step(float* u, float* next) {
  for (int i = 0; i < side; ++i)
    for (int j = 0; j < side; ++j) {
      float here = u[i * side + j], change = 0;
      change += i > 0 ? u[(i - 1) * side + j] - here : 0;
      change += i < side - 1 ? u[(i + 1) * side + j] - here : 0;
      change += j > 0 ? u[i * side + j - 1] - here : 0;
      change += j < side - 1 ? u[i * side + j + 1] - here : 0;
      next[i * side + j] = here + 0.2f * change;
    }
  memcpy(u, next, cells * sizeof(float));
}

static void create(millrace_client* client) {
  millrace_tensor fields[] = {
    {.name = "time", .dtype = MILLRACE_F64},
    {.name = "u", .dtype = MILLRACE_F32, .rank = 2, .shape = shape}};
  millrace_stream_options options = {
    .struct_size = sizeof(options),
    .capacity = 64,
    .policy = "reservoir",
    .producers = 1,
    .threshold = batch_size};
  must(millrace_stream_create(client, "heat", fields, 2, &options, NULL), "create");
}

/* The solver. A call without an output for a request waits. */
static int solve(void* context) {
  static float u[cells], next[cells];
  double time = 0;
  millrace_producer* to = NULL;
  must(millrace_open_producer(context, "heat", NULL, &to), "producer");
  u[cells / 2 + side / 2] = cells; /* a hot spot; the mean is 1 */
  millrace_tensor sample[] = {
    {.name = "time", .data = &time, .dtype = MILLRACE_F64},
    {.name = "u", .data = u, .dtype = MILLRACE_F32, .rank = 2, .shape = shape}};
  for (int i = 0; i < samples; ++i) {
    for (int s = 0; s < steps_a_sample; ++s, time += 0.2)
      step(u, next);
    must(millrace_append(to, sample, 2, NULL), "append");
  }
  must(millrace_producer_end(to, NULL), "end");
  millrace_producer_release(to);
  return 0;
}

/* Returns how many samples of a batch are not fields of the solver. */
static int wrong_in(const millrace_batch* batch) {
  millrace_tensor u;
  must(millrace_batch_field(batch, 1, &u), "field");
  int wrong = 0;
  for (uint64_t row = 0; row < u.shape[0]; ++row) {
    double sum = 0;
    for (int i = 0; i < cells; ++i)
      sum += ((const float*)u.data)[row * cells + i];
    wrong += fabs(sum / cells - 1) > 1e-3;
  }
  return wrong;
}

/* Reads to the end of the stream. Notes which samples it has seen. */
static int train(millrace_client* client, char* seen) {
  millrace_stream_reader_options options = {
    .struct_size = sizeof(options), .batch_size = batch_size};
  millrace_stream_reader* from = NULL;
  millrace_batch* batch = NULL;
  int wrong = 0;
  must(millrace_open_stream_reader(client, "heat", &options, &from), "reader");
  for (;;) {
    must(millrace_stream_next(from, 0, 0, &batch), "next");
    if (!batch)
      break;
    millrace_batch_info info = {.struct_size = sizeof(info)};
    must(millrace_batch_describe(batch, &info), "describe");
    for (uint64_t i = 0; i < info.ids_count; ++i)
      seen[info.ids[i]] = 1;
    wrong += wrong_in(batch);
    millrace_batch_release(batch);
  }
  millrace_stream_reader_release(from);
  return wrong;
}

int main(int argc, char** argv) {
  millrace_node* node = NULL;
  millrace_client* client = NULL;
  must(millrace_embed(argc > 1 ? argv[1] : "node.yaml", NULL, &node), "embed");
  must(millrace_node_client(node, &client), "client");
  create(client);
  thrd_t solver;
  if (thrd_create(&solver, solve, client) != thrd_success)
    return 1;
  static char seen[samples];
  int wrong = train(client, seen);
  thrd_join(solver, NULL);
  millrace_stream_info info = {.struct_size = sizeof(info)};
  must(millrace_stream_describe(client, "heat", &info), "describe");
  must(millrace_stream_remove(client, "heat", NULL), "remove");
  int missing = 0;
  for (int i = 0; i < samples; ++i)
    missing += !seen[i];
  printf(
    "%d samples appended, %llu given, %d missing, %d wrong\n", samples,
    (unsigned long long)info.given, missing, wrong);
  millrace_release(client);
  must(millrace_node_stop(node, NULL), "stop");
  millrace_node_release(node);
  return missing + wrong > 0;
}

/* A node in this process: stores a model and loads it, then saves a checkpoint and restores it. */
#include <millrace.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { elements = 64 * 32 };
static int32_t cells[elements], copy[elements];
static const uint64_t shape[] = {64, 32};

/* Each call returns a code, and `millrace_error` has the text. */
static void must(millrace_code code, const char* what) {
  if (code == MILLRACE_OK)
    return;
  fprintf(stderr, "embedded_c: %s: %s\n", what, millrace_error());
  exit(1);
}

static void store_and_load(millrace_client* client, millrace_tensor tensor) {
  /* Without an output for a request, a call waits. */
  must(millrace_put(client, "hello/first", &tensor, 1, NULL, NULL), "put");
  millrace_request* request = NULL;
  tensor.data = copy;
  must(millrace_get(client, "hello/first", &tensor, 1, NULL, &request), "get");
  /* The program would compute here. */
  must(millrace_wait(&request, 10000), "wait");
}

static void save_and_restore(millrace_client* client, millrace_tensor tensor) {
  millrace_checkpoint_options options = {.struct_size = sizeof(options), .name = "simulation"};
  millrace_checkpointer* job = NULL;
  millrace_request* durable = NULL;
  must(millrace_register(client, &options, &tensor, 1, &job), "register");
  must(millrace_save(job, 1, MILLRACE_SAVE_DIRECT, NULL, 0, NULL, &durable), "save");
  must(millrace_fence(job, NULL), "fence"); /* now the cells may change */
  memset(cells, 0, sizeof(cells));
  must(millrace_wait(&durable, MILLRACE_FOREVER), "until durable");
  must(millrace_restore(job, -1, NULL), "restore");
  must(millrace_close(job, 1, NULL), "close");
  millrace_checkpointer_release(job);
}

int main(int argc, char** argv) {
  millrace_node* node = NULL;
  millrace_client* client = NULL;
  must(millrace_embed(argc > 1 ? argv[1] : "node.yaml", NULL, &node), "embed");
  must(millrace_node_client(node, &client), "client");
  for (int i = 0; i < elements; ++i)
    cells[i] = i;
  millrace_tensor tensor = {
    .name = "cells", .data = cells, .dtype = MILLRACE_I32, .rank = 2, .shape = shape};
  store_and_load(client, tensor);
  save_and_restore(client, tensor);
  int same = memcmp(cells, copy, sizeof(cells)) == 0 && cells[elements - 1] == elements - 1;
  printf("%s by Millrace %s\n", same ? "the same bytes" : "other bytes", millrace_version());
  millrace_release(client);
  must(millrace_node_stop(node, NULL), "stop");
  millrace_node_release(node);
  return same ? 0 : 1;
}

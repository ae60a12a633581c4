/* A node in this process: stores a model and loads it, then saves a checkpoint and restores it. */
#include <millrace.h>
#include <stdio.h>
#include <string.h>

enum { rows = 64, columns = 32 };

static float weights[rows][columns], copy[rows][columns];
static const uint64_t shape[] = {rows, columns};

/* Each call returns a code, and `millrace_error` has the text. */
static int fails(millrace_code code, const char* what) {
  if (code != MILLRACE_OK)
    fprintf(stderr, "embedded_c: %s: %s\n", what, millrace_error());
  return code != MILLRACE_OK;
}

static int are_same(const void* one, const void* other, size_t bytes) {
  return memcmp(one, other, bytes) == 0;
}

static int store_and_load(millrace_client* client) {
  millrace_tensor tensor = {
    .name = "weights", .data = weights, .dtype = MILLRACE_F32, .rank = 2, .shape = shape};
  /* Without an output for a request, a call waits. */
  if (fails(millrace_put(client, "hello/first", &tensor, 1, NULL, NULL), "put"))
    return 0;
  millrace_request* request = NULL;
  tensor.data = copy;
  if (fails(millrace_get(client, "hello/first", &tensor, 1, NULL, &request), "get"))
    return 0;
  /* The program would compute here. */
  if (fails(millrace_wait(&request, 10000), "wait"))
    return 0;
  return are_same(weights, copy, sizeof(weights));
}

static int save_and_restore(millrace_client* client) {
  millrace_tensor tensor = {
    .name = "weights", .data = weights, .dtype = MILLRACE_F32, .rank = 2, .shape = shape};
  millrace_checkpoint_options options = {.struct_size = sizeof(options), .name = "training"};
  millrace_checkpointer* job = NULL;
  if (fails(millrace_register(client, &options, &tensor, 1, &job), "register"))
    return 0;
  millrace_request* durable = NULL;
  int good =
    !fails(millrace_save(job, 1, MILLRACE_SAVE_DIRECT, "epoch 1", 8, NULL, &durable), "save");
  good = good && !fails(millrace_fence(job, NULL), "fence"); /* now the weights may change */
  good = good && !fails(millrace_wait(&durable, MILLRACE_FOREVER), "until durable");
  memset(weights, 0, sizeof(weights));
  millrace_request* restored = NULL;
  const void* extra = NULL;
  size_t extra_bytes = 0;
  good = good && !fails(millrace_restore(job, -1, &restored), "restore");
  good = good && !fails(millrace_request_wait(restored, MILLRACE_FOREVER), "restore");
  good = good && !fails(millrace_request_extra(restored, &extra, &extra_bytes), "extra");
  good = good && extra_bytes == 8 && are_same(extra, "epoch 1", 8);
  millrace_detach(&restored);
  good = !fails(millrace_close(job, 1, NULL), "close") && good;
  millrace_checkpointer_release(job);
  return good && are_same(weights, copy, sizeof(weights));
}

int main(int argc, char** argv) {
  millrace_node* node = NULL;
  millrace_client* client = NULL;
  if (
    argc != 2 || fails(millrace_embed(argv[1], NULL, &node), "embed") ||
    fails(millrace_node_client(node, &client), "client"))
    return 1;
  for (int i = 0; i < rows * columns; ++i)
    weights[i / columns][i % columns] = (float)i;
  int same = store_and_load(client) && save_and_restore(client);
  printf("%s by Millrace %s\n", same ? "the same bytes" : "other bytes", millrace_version());
  millrace_release(client);
  same = !fails(millrace_node_stop(node, NULL), "stop") && same;
  millrace_node_release(node);
  return same ? 0 : 1;
}

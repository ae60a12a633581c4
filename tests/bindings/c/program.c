/* program ADDRESS: uses the library as a program in C does; valgrind finds nothing to say of it.
 * Prints what went wrong, and ends with 1. */
#include "check.h"

#include <stdio.h>
#include <string.h>

enum { tensors_count = 8, elements = 1000 };

static double values[tensors_count][elements], loaded[tensors_count][elements];
static char names[tensors_count][16];
static const uint64_t shape[] = {elements};

static void describe(millrace_tensor* tensors, double from[tensors_count][elements]) {
  for (int i = 0; i < tensors_count; ++i) {
    snprintf(names[i], sizeof(names[i]), "layer%d", i);
    tensors[i] = (millrace_tensor){
      .name = names[i], .data = from[i], .dtype = MILLRACE_F64, .rank = 1, .shape = shape};
  }
}

static void use_models(millrace_client* client) {
  millrace_tensor tensors[tensors_count];
  describe(tensors, values);
  millrace_pair metadata[] = {{"made by", "program.c"}};
  millrace_put_options options = {
    .struct_size = sizeof(options), .metadata = metadata, .metadata_count = 1, .checksums = 1};
  millrace_request* request = NULL;
  CHECK(millrace_put(client, "c/model", tensors, tensors_count, &options, &request) == MILLRACE_OK);
  CHECK(millrace_request_wait(request, MILLRACE_FOREVER) == MILLRACE_OK);
  millrace_receipt receipt = {.struct_size = sizeof(receipt)};
  CHECK(millrace_request_receipt(request, &receipt) == MILLRACE_OK);
  CHECK(receipt.size_bytes == sizeof(values) && receipt.verified == 1);
  CHECK(millrace_wait(&request, 0) == MILLRACE_OK && !request);

  describe(tensors, loaded);
  CHECK(millrace_get(client, "c/model", tensors, tensors_count, NULL, NULL) == MILLRACE_OK);
  CHECK(memcmp(values, loaded, sizeof(values)) == 0);
  CHECK(millrace_list(client, NULL, "c/", &request) == MILLRACE_OK);
  CHECK(millrace_request_wait(request, MILLRACE_FOREVER) == MILLRACE_OK);
  CHECK(millrace_request_count(request) == 1);
  millrace_model model = {.struct_size = sizeof(model)};
  CHECK(millrace_request_model(request, 0, &model) == MILLRACE_OK);
  CHECK(strcmp(model.name, "c/model") == 0 && model.tensors == tensors_count);
  millrace_detach(&request);
  CHECK(millrace_pin(client, NULL, "c/model", 1, NULL) == MILLRACE_OK);
  CHECK(millrace_describe(client, NULL, "c/model", 0, &request) == MILLRACE_OK);
  CHECK(millrace_request_wait(request, MILLRACE_FOREVER) == MILLRACE_OK);
  millrace_tensor described;
  millrace_pair pair;
  CHECK(millrace_request_tensor(request, tensors_count - 1, &described) == MILLRACE_OK);
  CHECK(strcmp(described.name, "layer7") == 0 && described.shape[0] == elements);
  CHECK(millrace_request_metadata(request, 0, &pair) == MILLRACE_OK);
  CHECK(strcmp(pair.value, "program.c") == 0);
  millrace_detach(&request);
  CHECK(millrace_erase(client, NULL, "c/model", NULL) == MILLRACE_OK);
  CHECK(millrace_get(client, "c/model", tensors, 1, NULL, NULL) == MILLRACE_NOT_FOUND);
}

/* Several at once: a watch that is over, one that is given up, and one that nobody waits for. */
static void use_queues(millrace_client* client) {
  millrace_tensor tensors[tensors_count];
  describe(tensors, values);
  millrace_queue* queue = NULL;
  millrace_request* all[3] = {NULL, NULL, NULL};
  CHECK(millrace_queue_create(16, &queue) == MILLRACE_OK && millrace_queue_fd(queue) >= 0);
  CHECK(millrace_await(client, NULL, "c/awaited", 0, 60000, &all[0]) == MILLRACE_OK);
  CHECK(millrace_await(client, NULL, "c/never", 0, 60000, &all[1]) == MILLRACE_OK);
  CHECK(millrace_await(client, NULL, "c/never", 0, 60000, &all[2]) == MILLRACE_OK);
  CHECK(millrace_queue_add(queue, all[0], 7) == MILLRACE_OK);
  CHECK(millrace_put(client, "c/awaited", tensors, 1, NULL, NULL) == MILLRACE_OK);
  uint64_t token = 0;
  size_t taken = 0;
  CHECK(millrace_queue_poll(queue, &token, 1, 60000, &taken) == MILLRACE_OK);
  CHECK(taken == 1 && token == 7);
  CHECK(millrace_cancel(all[1]) == MILLRACE_OK);
  millrace_code each[2];
  CHECK(millrace_waitall(2, all, MILLRACE_FOREVER, each) == MILLRACE_CANCELLED);
  CHECK(each[0] == MILLRACE_OK && each[1] == MILLRACE_CANCELLED);
  millrace_detach(&all[2]);
  millrace_queue_release(queue);
}

static void use_checkpoints(millrace_client* client) {
  millrace_tensor tensors[tensors_count];
  describe(tensors, values);
  memcpy(loaded, values, sizeof(values));
  millrace_checkpoint_options options = {.struct_size = sizeof(options), .name = "c/run"};
  millrace_checkpointer* job = NULL;
  millrace_request* durable = NULL;
  CHECK(millrace_register_begin(client, &options, tensors, tensors_count, &durable) == MILLRACE_OK);
  CHECK(millrace_request_wait(durable, MILLRACE_FOREVER) == MILLRACE_OK);
  CHECK(millrace_request_checkpointer(durable, &job) == MILLRACE_OK);
  millrace_detach(&durable);
  CHECK(millrace_save(job, 1, MILLRACE_SAVE_SNAPSHOT, "abc", 3, NULL, &durable) == MILLRACE_OK);
  CHECK(millrace_fence(job, NULL) == MILLRACE_OK);
  CHECK(millrace_wait(&durable, MILLRACE_FOREVER) == MILLRACE_OK);
  memset(values, 0, sizeof(values));
  millrace_request* restored = NULL;
  CHECK(millrace_restore(job, -1, &restored) == MILLRACE_OK);
  size_t index = 9;
  const void* extra = NULL;
  size_t extra_bytes = 0;
  CHECK(millrace_request_wait(restored, MILLRACE_FOREVER) == MILLRACE_OK);
  CHECK(millrace_request_extra(restored, &extra, &extra_bytes) == MILLRACE_OK);
  CHECK(extra_bytes == 3 && memcmp(extra, "abc", 3) == 0);
  CHECK(millrace_waitany(1, &restored, MILLRACE_FOREVER, &index) == MILLRACE_OK && index == 0);
  CHECK(memcmp(values, loaded, sizeof(values)) == 0);
  describe(tensors, loaded);
  CHECK(millrace_rebind(job, tensors, tensors_count) == MILLRACE_OK);
  memset(loaded, 0, sizeof(loaded));
  CHECK(
    millrace_get_shard(client, "c/run", 0, 1, tensors, tensors_count, NULL, NULL) == MILLRACE_OK);
  CHECK(memcmp(values, loaded, sizeof(values)) == 0);
  CHECK(millrace_list_steps(client, NULL, "c/run", &restored) == MILLRACE_OK);
  CHECK(millrace_request_wait(restored, MILLRACE_FOREVER) == MILLRACE_OK);
  CHECK(millrace_request_count(restored) == 1);
  millrace_detach(&restored);
  CHECK(millrace_describe_shard(client, NULL, "c/run", 0, -1, &restored) == MILLRACE_OK);
  CHECK(millrace_request_wait(restored, MILLRACE_FOREVER) == MILLRACE_OK);
  CHECK(millrace_request_count(restored) == tensors_count);
  millrace_detach(&restored);
  CHECK(millrace_close(job, 1, NULL) == MILLRACE_OK);
  millrace_checkpointer_release(job);
}

/* One client that is taken, and one that is not. */
static void connect_beside(const char* address) {
  millrace_request* all[2] = {NULL, NULL};
  for (int i = 0; i < 2; ++i)
    CHECK(millrace_connect_begin(address, NULL, &all[i]) == MILLRACE_OK);
  millrace_client* client = NULL;
  CHECK(millrace_request_wait(all[0], MILLRACE_FOREVER) == MILLRACE_OK);
  CHECK(millrace_request_client(all[0], &client) == MILLRACE_OK);
  millrace_release(client);
  CHECK(millrace_request_client(all[0], &client) == MILLRACE_NOT_FOUND && !client);
  CHECK(millrace_waitall(2, all, MILLRACE_FOREVER, NULL) == MILLRACE_OK);
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  CHECK(millrace_version_number() == MILLRACE_VERSION_NUMBER);
  for (int i = 0; i < tensors_count * elements; ++i)
    values[i / elements][i % elements] = i;
  millrace_client* client = NULL;
  CHECK(millrace_connect("unix:/nonexistent/socket", NULL, &client) != MILLRACE_OK && !client);
  CHECK(millrace_error()[0] != '\0');
  CHECK(millrace_connect(argv[1], NULL, &client) == MILLRACE_OK);
  use_models(client);
  use_queues(client);
  use_checkpoints(client);
  connect_beside(argv[1]);
  millrace_release(client);
  return 0;
}

/* exiting HOW CONFIG: exits while objects of the library end, or uses it in a handler at exit. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

static const char* config;
static millrace_node* node;
static millrace_client* client;
static double values[1000];
static const uint64_t shape[] = {1000};
static const millrace_tensor tensor = {
  .name = "u", .data = values, .dtype = MILLRACE_F64, .rank = 1, .shape = shape};

static void start(void) {
  CHECK(millrace_embed(config, NULL, &node) == MILLRACE_OK);
  CHECK(millrace_connect(millrace_node_address(node), NULL, &client) == MILLRACE_OK);
  CHECK(millrace_put(client, "exiting", &tensor, 1, NULL, NULL) == MILLRACE_OK);
}

static void release(void) {
  millrace_node_release(node);
  millrace_release(client);
}

static void save_and_release(void) {
  millrace_checkpoint_options options = {.struct_size = sizeof(options), .name = "exiting"};
  millrace_checkpointer* job = NULL;
  CHECK(millrace_register(client, &options, &tensor, 1, &job) == MILLRACE_OK);
  CHECK(millrace_save(job, 1, MILLRACE_SAVE_DIRECT, NULL, 0, NULL, NULL) == MILLRACE_OK);
  millrace_checkpointer_release(job);
  release();
}

static void start_nothing(void) {
  CHECK(millrace_embed(config, NULL, &node) == MILLRACE_UNAVAILABLE && !node);
  CHECK(millrace_open(config, &client) == MILLRACE_UNAVAILABLE && !client);
  CHECK(millrace_connect("unix:/tmp/none", NULL, &client) == MILLRACE_UNAVAILABLE && !client);
}

static void begin_and_leave(void) {
  millrace_request* request = NULL;
  CHECK(millrace_embed_begin(config, NULL, &request) == MILLRACE_OK);
  CHECK(millrace_wait(&request, MILLRACE_FOREVER) == MILLRACE_OK);
}

int main(int argc, char** argv) {
  CHECK(argc == 3);
  config = argv[2];
  if (strcmp(argv[1], "released") == 0) {
    start();
    release();
  } else if (strcmp(argv[1], "saving") == 0) {
    start();
    save_and_release();
  } else if (strcmp(argv[1], "untaken") == 0) {
    begin_and_leave();
  } else if (strcmp(argv[1], "in-a-handler") == 0) {
    CHECK(atexit(save_and_release) == 0);
    start();
  } else {
    CHECK(strcmp(argv[1], "late") == 0);
    CHECK(atexit(start_nothing) == 0);
    start();
    CHECK(millrace_node_stop(node, NULL) == MILLRACE_OK);
    release();
  }
  return 0;
}

/* waiting ADDRESS: waits for a model that never comes, until a signal ends it. */
#include <millrace.h>
#include <stdio.h>

int main(int argc, char** argv) {
  millrace_client* client = NULL;
  millrace_request* request = NULL;
  if (
    argc != 2 || millrace_connect(argv[1], NULL, &client) != MILLRACE_OK ||
    millrace_await(client, NULL, "never", 0, 3600000, &request) != MILLRACE_OK) {
    fprintf(stderr, "waiting: %s\n", millrace_error());
    return 1;
  }
  puts("waiting");
  fflush(stdout);
  millrace_wait(&request, MILLRACE_FOREVER);
  return 2;
}

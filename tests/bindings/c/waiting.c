/* waiting ADDRESS [slices|ppoll]: waits for a model that never comes, until a signal ends the
 * program, or with the second argument until a handler has returned: then it gives the wait up. */
#define _GNU_SOURCE
#include <errno.h>
#include <millrace.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static volatile sig_atomic_t interrupted = 0;

static void interrupt(int number) {
  (void)number;
  interrupted = 1;
}

static void handle_interrupts(void) {
  struct sigaction action;
  memset(&action, 0, sizeof(action));
  action.sa_handler = interrupt;
  sigaction(SIGINT, &action, NULL);
}

static void say_waiting(void) {
  puts("waiting");
  fflush(stdout);
}

static int give_up(millrace_request** request) {
  millrace_cancel(*request);
  return millrace_wait(request, 0) == MILLRACE_CANCELLED ? 0 : 3;
}

static int in_slices(millrace_request* request) {
  handle_interrupts();
  say_waiting();
  while (millrace_wait(&request, 50) == MILLRACE_DEADLINE_EXCEEDED && request && !interrupted) {
  }
  return request ? give_up(&request) : 2;
}

/* The signal comes during `ppoll` alone, so none is missed before it. */
static int by_descriptor(millrace_request* request) {
  sigset_t interrupts, before;
  sigemptyset(&interrupts);
  sigaddset(&interrupts, SIGINT);
  pthread_sigmask(SIG_BLOCK, &interrupts, &before);
  handle_interrupts();
  millrace_queue* queue = NULL;
  if (
    millrace_queue_create(0, &queue) != MILLRACE_OK ||
    millrace_queue_add(queue, request, 1) != MILLRACE_OK)
    return 1;
  say_waiting();
  struct pollfd readable = {millrace_queue_fd(queue), POLLIN, 0};
  int ready = ppoll(&readable, 1, NULL, &before);
  int result = ready < 0 && errno == EINTR && interrupted ? give_up(&request) : 2;
  millrace_queue_release(queue);
  return result;
}

int main(int argc, char** argv) {
  millrace_client* client = NULL;
  millrace_request* request = NULL;
  if (
    argc < 2 || millrace_connect(argv[1], NULL, &client) != MILLRACE_OK ||
    millrace_await(client, NULL, "never", 0, 3600000, &request) != MILLRACE_OK) {
    fprintf(stderr, "waiting: %s\n", millrace_error());
    return 1;
  }
  if (argc == 3) {
    int result = strcmp(argv[2], "slices") == 0 ? in_slices(request) : by_descriptor(request);
    millrace_release(client);
    return result;
  }
  say_waiting();
  millrace_wait(&request, MILLRACE_FOREVER);
  return 2;
}

/* builds LIBRARY OTHER ADDRESS: uses two builds of the library in one process, in a forked child,
 * and in a program that it starts. Says which step failed. */
#include <dlfcn.h>
#include <millrace.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
  void* image;
  __typeof__(millrace_connect)* connect;
  __typeof__(millrace_put)* put;
  __typeof__(millrace_get)* get;
  __typeof__(millrace_await)* await;
  __typeof__(millrace_wait)* wait;
  __typeof__(millrace_error)* error;
  __typeof__(millrace_release)* release;
} build;

static void must(int holds, const char* what, const build* of) {
  if (holds)
    return;
  fprintf(stderr, "builds: %s: %s\n", what, of && of->error ? of->error() : dlerror());
  _exit(1);
}

/* C has no conversion from an object's pointer to a function's. */
#define FIND(of, name)                                                                             \
  do {                                                                                             \
    void* found = dlsym((of)->image, "millrace_" #name);                                           \
    must(found != NULL, "finding " #name, NULL);                                                   \
    memcpy(&(of)->name, &found, sizeof(found));                                                    \
  } while (0)

static build opened(const char* path) {
  build b;
  memset(&b, 0, sizeof(b));
  b.image = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  must(b.image != NULL, "opening a library", NULL);
  FIND(&b, connect);
  FIND(&b, put);
  FIND(&b, get);
  FIND(&b, await);
  FIND(&b, wait);
  FIND(&b, release);
  FIND(&b, error);
  return b;
}

/* Large enough for a transfer of its own. */
enum { elements = 1 << 18 };
static const uint64_t shape[1] = {elements};
static uint32_t values[elements];

static millrace_tensor tensor(void) {
  millrace_tensor t;
  memset(&t, 0, sizeof(t));
  t.name = "t";
  t.data = values;
  t.dtype = MILLRACE_U32;
  t.rank = 1;
  t.shape = shape;
  return t;
}

static void store(const build* by, millrace_client* c, const char* model, uint32_t seed) {
  millrace_tensor t = tensor();
  for (uint32_t i = 0; i < elements; ++i)
    values[i] = seed + i;
  must(by->put(c, model, &t, 1, NULL, NULL) == MILLRACE_OK, model, by);
}

static void find(const build* by, millrace_client* c, const char* model, uint32_t seed) {
  millrace_tensor t = tensor();
  memset(values, 0, sizeof(values));
  must(by->get(c, model, &t, 1, NULL, NULL) == MILLRACE_OK, model, by);
  for (uint32_t i = 0; i < elements; ++i)
    must(values[i] == seed + i, "other bytes came", by);
}

static void ends_well(pid_t child, const char* what) {
  int status = 0;
  must(child > 0 && waitpid(child, &status, 0) == child && status == 0, what, NULL);
}

static void in_child(
  const build* a, millrace_client* of_a, const build* b, millrace_client* of_b,
  const char* address) {
  millrace_tensor t = tensor();
  must(a->put(of_a, "x", &t, 1, NULL, NULL) == MILLRACE_UNAVAILABLE, "the parent's client", a);
  must(b->put(of_b, "x", &t, 1, NULL, NULL) == MILLRACE_UNAVAILABLE, "the parent's other", b);
  a->release(of_a);
  b->release(of_b);
  const build* both[2] = {a, b};
  for (int i = 0; i < 2; ++i) {
    millrace_client* own = NULL;
    must(both[i]->connect(address, NULL, &own) == MILLRACE_OK, "connecting in a child", both[i]);
    store(both[i], own, i == 0 ? "child a" : "child b", 500 + (uint32_t)i);
    both[i]->release(own);
  }
}

static int started(const char* library, const char* address) {
  build b = opened(library);
  millrace_client* own = NULL;
  must(b.connect(address, NULL, &own) == MILLRACE_OK, "connecting in a program", &b);
  find(&b, own, "of a", 1);
  store(&b, own, "of the program", 900);
  b.release(own);
  return 0;
}

int main(int argc, char** argv) {
  if (argc == 3)
    return started(argv[1], argv[2]);
  must(argc == 4, "arguments", NULL);
  build a = opened(argv[1]), b = opened(argv[2]);
  must(a.put != b.put, "both are one library", &a);
  millrace_client *of_a = NULL, *of_b = NULL;
  must(a.connect(argv[3], NULL, &of_a) == MILLRACE_OK, "connecting", &a);
  must(b.connect(argv[3], NULL, &of_b) == MILLRACE_OK, "connecting the other", &b);
  store(&a, of_a, "of a", 1);
  store(&b, of_b, "of b", 2);
  find(&b, of_b, "of a", 1);
  find(&a, of_a, "of b", 2);

  /* Each waits for what the other does. */
  millrace_request *by_a = NULL, *by_b = NULL;
  must(a.await(of_a, NULL, "late b", 0, 60000, &by_a) == MILLRACE_OK, "awaiting", &a);
  must(b.await(of_b, NULL, "late a", 0, 60000, &by_b) == MILLRACE_OK, "awaiting", &b);
  store(&a, of_a, "late a", 3);
  store(&b, of_b, "late b", 4);
  must(a.wait(&by_a, MILLRACE_FOREVER) == MILLRACE_OK, "what the other stored", &a);
  must(b.wait(&by_b, MILLRACE_FOREVER) == MILLRACE_OK, "what the first stored", &b);

  pid_t child = fork();
  if (child == 0) {
    in_child(&a, of_a, &b, of_b, argv[3]);
    _exit(0);
  }
  ends_well(child, "the child");
  child = fork();
  if (child == 0) {
    execl(argv[0], argv[0], argv[2], argv[3], (char*)NULL);
    _exit(127);
  }
  ends_well(child, "the program");
  find(&b, of_b, "child a", 500);
  find(&a, of_a, "child b", 501);
  find(&a, of_a, "of the program", 900);
  a.release(of_a);
  find(&b, of_b, "of a", 1); /* goes on without the first */
  b.release(of_b);
  return 0;
}

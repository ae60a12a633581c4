/* dlopened LIBRARY ADDRESS: opens the library, uses it, and closes it, several times. */
#include <dlfcn.h>
#include <millrace.h>
#include <stdio.h>
#include <string.h>

typedef millrace_code (*connect_function)(
  const char*, const millrace_client_options*, millrace_client**);
typedef void (*release_function)(millrace_client*);

static int use(const char* path, const char* address) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "dlopened: %s\n", dlerror());
    return 1;
  }
  /* C has no conversion from an object's pointer to a function's. */
  connect_function open_client = NULL;
  release_function release = NULL;
  void* found = dlsym(library, "millrace_connect");
  memcpy(&open_client, &found, sizeof(found));
  found = dlsym(library, "millrace_release");
  memcpy(&release, &found, sizeof(found));
  millrace_client* client = NULL;
  if (!open_client || !release || open_client(address, NULL, &client) != MILLRACE_OK)
    return 1;
  release(client); /* its threads may end after the library is closed */
  return dlclose(library);
}

int main(int argc, char** argv) {
  for (int i = 0; i < 5; ++i)
    if (argc != 3 || use(argv[1], argv[2]) != 0)
      return 1;
  return 0;
}

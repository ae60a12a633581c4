/* What the programs in C check by: the end of the process, with the line and the last error. */
#ifndef MILLRACE_TESTS_CHECK_H
#define MILLRACE_TESTS_CHECK_H

#include <millrace.h>
#include <stdio.h>
#include <stdlib.h>

/* Also in handlers at exit, which must not call `exit`. */
#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      fprintf(                                                                                     \
        stderr, "%s:%d: %s does not hold; last error: %s\n", __FILE__, __LINE__, #condition,       \
        millrace_error());                                                                         \
      _Exit(1);                                                                                    \
    }                                                                                              \
  } while (0)

#endif

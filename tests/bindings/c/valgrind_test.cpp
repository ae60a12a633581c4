// Runs the program in C under valgrind, where that is installed.
#include "c_node.hpp"

#include <millrace/tests/support/skipped.hpp>

#include <unistd.h>

using namespace millrace::testing;

BOOST_FIXTURE_TEST_CASE(valgrind_finds_neither_leaks_nor_invalid_accesses, c_node) {
  auto* valgrind = "/usr/bin/valgrind";
  if (::access(valgrind, X_OK) != 0)
    return skipped("valgrind: it is not installed");
  // By `env`, since some systems have a script in its place.
  child_process program{
    {"/usr/bin/env", valgrind, "--quiet", "--leak-check=full",
     "--errors-for-leak-kinds=definite,possible", "--suppressions=" MILLRACE_VALGRIND_SUPPRESSIONS,
     "--error-exitcode=9", MILLRACE_C_PROGRAM, millrace_node_address(node)}};
  BOOST_TEST(program.wait() == 0);
}

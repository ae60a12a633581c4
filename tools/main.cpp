// The program `millrace`. It calls `tools::run`, as tests do.
#include <millrace/tools/run.hpp>

#include <iostream>

int main(int argc, char** argv) {
  return millrace::tools::run({argv + 1, argv + argc}, std::cout, std::cerr);
}

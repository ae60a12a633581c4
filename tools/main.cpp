// The program `millrace`: everything is behind `tools::run`, which tests call as well.
#include <millrace/tools/run.hpp>

#include <iostream>

int main(int argc, char** argv) {
  return millrace::tools::run({argv + 1, argv + argc}, std::cout, std::cerr);
}

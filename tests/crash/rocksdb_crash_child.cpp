// The process that crash tests kill. It stores, overwrites and erases models as its parent says.
// Protocol, one line each: "store NAME GENERATION" or "erase NAME" in; "done" or an error out.
#include "crash_models.hpp"

#include <cstdio>
#include <iostream>

using namespace millrace;
using namespace millrace::testing;

int main(int argc, char** argv) {
  if (argc != 2)
    return 2;
  std::ios::sync_with_stdio(false); // a recorder sees what is printed
  auto subject = open_crash_bucket(argv[1]);
  if (!subject) {
    std::cout << subject.error().to_string() << std::endl;
    return 1;
  }
  std::cout << "ready" << std::endl;
  std::string verb, name;
  while (std::cin >> verb >> name) {
    status outcome;
    if (verb == "store") {
      std::uint64_t generation = 0;
      std::cin >> generation;
      auto version = store(**subject, crash_spec(name, generation), crash_seed(name, generation));
      outcome = version ? status{} : version.error();
    } else {
      outcome = erase(**subject, name);
    }
    std::cout << (outcome.ok() ? "done" : outcome.to_string()) << std::endl;
  }
}

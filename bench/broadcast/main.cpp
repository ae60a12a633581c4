// bench_broadcast: the same bytes from one process to several others, beside other ways.
// See bench/README.md; scripts/bench broadcast runs it.
#include <millrace/bench/broadcast/follower.hpp>
#include <millrace/bench/broadcast/groups_section.hpp>
#include <millrace/bench/broadcast/member.hpp>
#include <millrace/bench/broadcast/weights_section.hpp>

#include <string>

using namespace millrace;
using namespace millrace::bench;

namespace {

int run(const model_options& o) {
  auto out = begin_run(o);
  scratch_directory files{o.memory};
  out.print_header();
  if (o.only.empty() || o.only == "groups")
    groups_section(o, files, out);
  if (o.only.empty() || o.only == "weights")
    weights_section(o, files, out);
  return finish(out, o);
}

} // namespace

int main(int argc, char** argv) {
  if (argc == 4 && argv[1] == std::string{follow_option})
    return follow(argv[2], std::stoull(argv[3]));
  if (argc == 6 && argv[1] == std::string{member_option})
    return broadcast_as_member(argv + 2);
  return run_program(
    argc, argv,
    {"broadcast",
     "The same bytes from one process to several others.",
     {"groups", "weights"},
     &run});
}

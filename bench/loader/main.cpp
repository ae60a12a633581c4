// bench_loader: random batches of a working set, and trainings that take them, beside PyTorch's
// DataLoader, numpy.take and plain gathering.
// See bench/README.md; scripts/bench loader runs it.
#include <millrace/bench/common/service.hpp>
#include <millrace/bench/loader/stage.hpp>

#include <string>
#include <utility>

using namespace millrace::bench;

namespace {

int run(const model_options& o) {
  auto out = begin_run(o);
  scratch_directory files{o.memory};
  out.print_header();
  stage s{o, files, out};
  for (auto& [name, section] : {
         std::pair{"read", &read_section},
         {"next", &next_section},
         {"train", &train_section},
         {"window", &window_section},
         {"samples", &samples_section},
         {"images", &images_section},
         {"network", &network_section},
         {"verbs", &verbs_section},
       })
    if (o.only.empty() || o.only == name)
      section(s);
  return finish(out, o);
}

} // namespace

int main(int argc, char** argv) {
  return run_program(
    argc, argv,
    {"loader",
     "Random batches of a working set, beside PyTorch's DataLoader.",
     {"read", "next", "train", "window", "samples", "images", "network", "verbs"},
     &run,
     true});
}

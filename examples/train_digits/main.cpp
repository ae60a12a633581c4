// train_digits: trains on handwritten digits with a Millrace client beside the training.
// Run by examples/run_demo.sh, phase by phase.
#include "phases.hpp"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>

int main(int argc, char** argv) try {
  using namespace train_digits;
  phase_options options;
  options.data = TRAIN_DIGITS_DATA;

  CLI::App app{"Trains a perceptron on handwritten digits, storing it with Millrace meanwhile."};
  app.require_subcommand(1);
  auto* train = app.add_subcommand("train", "train, store, start a second model from the first");
  auto* verify = app.add_subcommand("verify", "load the final model, compare it bit for bit");
  auto* checkpoint = app.add_subcommand("checkpoint", "train with a checkpoint at every iteration");
  for (auto* phase : {train, verify, checkpoint}) {
    phase->add_option("-c,--config", options.config, "configuration of the cluster")->required();
    phase->add_option("--data", options.data, "the digits, a gzipped CSV");
    phase->add_option("--summary", options.summary, "append what was found to this file");
  }
  train->add_option("--out", options.weights, "write the final weights there")->required();
  train->add_option("--report", options.report, "write the measurements there, as JSON");
  for (auto* phase : {train, checkpoint})
    phase->add_option("--epochs", options.epochs)->check(CLI::Range(1, 99))->capture_default_str();
  checkpoint->add_option("--out", options.weights, "write the final weights there")->required();
  checkpoint->add_option("--job", options.job, "name of the checkpoints")->capture_default_str();
  checkpoint->add_option(
    "--killed-at", options.killed_at, "kill -9 itself while this iteration is being saved");
  train->add_option("--accuracy-min", options.accuracy_min, "fail below it")->capture_default_str();
  verify->add_option("--expect", options.weights, "the weights that `train` wrote")->required();
  CLI11_PARSE(app, argc, argv);

  auto outcome = train->parsed() ? train_phase(options)
    : checkpoint->parsed()       ? checkpoint_phase(options)
                                 : verify_phase(options);
  if (outcome.ok())
    return 0;
  std::fprintf(stderr, "train_digits: %s\n", outcome.to_string().c_str());
  return 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "train_digits: %s\n", e.what());
  return 1;
}

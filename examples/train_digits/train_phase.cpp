// Trains and stores at the same time, then runs transfer learning, then stores durably.
#include "background_saver.hpp"
#include "setup.hpp"
#include "summary.hpp"
#include "training.hpp"
#include "transfer.hpp"
#include "weights_file.hpp"

#include <nlohmann/json.hpp>

#include <fstream>
#include <map>
#include <set>

namespace train_digits {

using millrace::errc;
using millrace::status;
using millrace::steady_clock;

namespace {

constexpr double held_up_percent_max = 1;

struct trained {
  mlp model{widths_for(10), 42};
  Eigen::Index images = 0; // per epoch
  milliseconds training{0};
  double accuracy = 0;
};

// Runs before training begins: connects, and prepares the memory for snapshots.
status store_untrained(summary& tell, millrace::repository fast) {
  mlp model{widths_for(10), 42};
  auto begun = steady_clock::now();
  auto stored = fast.store_snapshot(epoch_names + std::string{"00"}, model.graph(), model.tensors())
                  .stored.result();
  if (!stored)
    return stored.error();
  milliseconds took = steady_clock::now() - begun;
  tell.say(
    "stored before training, connecting meanwhile: {}, {} bytes, {:.1f} ms", stored->model,
    stored->size_bytes, took.count());
  return {};
}

// The main job. The stores begin between epochs and finish while the next epochs run.
trained train_first(const dataset& digits, const phase_options& options, background_saver& saver) {
  trained out;
  auto images = with_shifts(digits.train);
  out.images = images.size();
  auto begun = steady_clock::now();
  training_events events;
  events.after_epoch = [&](int epoch) {
    saver.save(newest_name, out.model);
    saver.save(epoch_names + fmt::format("{:02}", epoch), out.model);
  };
  events.before_update = [&] { saver.fence(); };
  train(out.model, images, {.epochs = options.epochs}, events);
  out.training = steady_clock::now() - begun;
  out.accuracy = out.model.accuracy(digits.test);
  return out;
}

void tell_stores(summary& tell, const background_saver& saver) {
  std::uint64_t bytes = 0;
  std::uint64_t newest = 0;
  std::map<std::string, int> by_provider;
  std::set<std::string> drivers;
  for (auto& r : saver.receipts()) {
    bytes += r.size_bytes;
    ++by_provider[r.provider];
    drivers.insert(r.driver);
    if (r.model == newest_name)
      newest = std::max(newest, r.version);
  }
  std::string where;
  for (auto& [provider, count] : by_provider)
    where += fmt::format("{}{} in {}", where.empty() ? "" : ", ", count, provider);
  tell.say(
    "stored while training: {} models, {} bytes ({}), moved by {}; {} is version {}",
    saver.receipts().size(), bytes, where, fmt::join(drivers, ", "), newest_name, newest);
}

void tell_training(summary& tell, const trained& first, const background_saver& saver, int epochs) {
  tell.say(
    "trained {} epochs of {} images in {:.0f} ms: {:.2f} % of the test images right", epochs,
    first.images, first.training.count(), 100 * first.accuracy);
  tell_stores(tell, saver);
  auto percent = 100 * saver.held_up() / first.training;
  tell.say(
    "training held up by it: {:.2f} ms, {:.3f} % of its time ({:.2f} ms of work; longest store() "
    "{:.3f} ms); the last receipts came {:.1f} ms after its end",
    saver.held_up().count(), percent, saver.worked().count(), saver.longest_save().count(),
    saver.waited_at_the_end().count());
  if (percent >= held_up_percent_max)
    tell.say(
      "warning: that is more than {} %; {:.2f} ms of it was waiting, is this machine busy?",
      held_up_percent_max, (saver.held_up() - saver.worked()).count());
}

// For comparison with other libraries' saves.
status write_report(const std::string& path, trained& first, const background_saver& saver) {
  auto shapes = nlohmann::json::object();
  for (auto& tensor : first.model.tensors())
    shapes[tensor.desc.name] = tensor.desc.shape;
  std::ofstream file{path};
  file << nlohmann::json{{"saves", saver.receipts().size()}, {"shapes", shapes},
            {"training_ms", first.training.count()}, {"held_up_ms", saver.held_up().count()}}
            .dump(2)
       << "\n";
  return file.flush() ? status{} : status{errc::io_error, "cannot write " + path};
}

status transfer(summary& tell, const millrace::repository& fast, const dataset& digits) {
  auto outcome = learn_even_or_odd(fast, newest_name, digits, {.epochs = 5});
  if (!outcome)
    return outcome.error();
  tell.say(
    "transfer learning: {} of {} bytes loaded (two layers of {}, moved by {}); even or odd "
    "after 5 epochs: {:.2f} % right, from scratch {:.2f} %",
    outcome->loaded_bytes, outcome->model_bytes, newest_name, outcome->loaded_by,
    100 * outcome->loaded_accuracy, 100 * outcome->scratch_accuracy);
  return {};
}

// The tensors do not change any more, so no snapshot is needed: they are read in place.
status store_final(summary& tell, millrace::repository kept, mlp& model) {
  auto stored = kept.store(final_name, model.graph(), model.tensors(), {.pinned = true}).result();
  if (!stored)
    return stored.error();
  tell.say(
    "stored for good: {}, {} bytes, version {}, in {} ({}), moved by {}", final_name,
    stored->size_bytes, stored->version, stored->provider,
    stored->durable ? "durable" : "NOT durable", stored->driver);
  return stored->durable ? status{} : status{errc::internal, "the final model is not durable"};
}

} // namespace

status train_phase(const phase_options& options) {
  auto ready = set_up(options);
  if (!ready)
    return ready.error();
  summary tell{options.summary};

  auto fast = ready->client.repository("fast");
  if (auto bad = store_untrained(tell, fast); !bad.ok())
    return bad;
  background_saver saver{fast};
  auto first = train_first(ready->digits, options, saver);
  if (auto bad = saver.finish(); !bad.ok())
    return bad;
  tell_training(tell, first, saver, options.epochs);
  if (auto bad = transfer(tell, fast, ready->digits); !bad.ok())
    return bad;
  if (auto bad = store_final(tell, ready->client.repository("kept"), first.model); !bad.ok())
    return bad;
  if (auto bad = write_weights(options.weights, first.model); !bad.ok())
    return bad;
  if (!options.report.empty())
    if (auto bad = write_report(options.report, first, saver); !bad.ok())
      return bad;
  if (first.accuracy < options.accuracy_min)
    return {
      errc::internal,
      fmt::format("accuracy {:.4f} is below {}", first.accuracy, options.accuracy_min)};
  return {};
}

} // namespace train_digits

// Chooses the seeds that run, and reports those that fail.
#include "seeds.hpp"

#include <millrace/core/log.hpp>

#include <boost/test/unit_test.hpp>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <optional>

namespace millrace::testing {

namespace {

// Under a sanitizer fewer seeds take as long. GCC and clang tell of it in different ways.
#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define MILLRACE_WITH_ADDRESS_SANITIZER
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(MILLRACE_WITH_ADDRESS_SANITIZER)
constexpr std::uint64_t slowdown = 5;
#else
constexpr std::uint64_t slowdown = 1;
#endif

std::optional<std::uint64_t> number_from_environment(const char* name) {
  auto* text = std::getenv(name);
  std::uint64_t value = 0;
  if (!text || std::from_chars(text, text + std::strlen(text), value).ec != std::errc{})
    return std::nullopt;
  return value;
}

// The bounds of a run.
struct bounds {
  std::uint64_t seeds = 0;
  std::optional<std::chrono::steady_clock::time_point> until;

  static bounds of_environment(std::uint64_t seeds) {
    if (is_single_seed())
      return {1, {}};
    if (auto count = number_from_environment("MILLRACE_SEEDS"))
      return {*count, {}};
    if (auto seconds = number_from_environment("MILLRACE_SEED_SECONDS"))
      return {~0ull, std::chrono::steady_clock::now() + std::chrono::seconds{*seconds}};
    return {seeds / slowdown, {}};
  }
  bool reached(std::uint64_t ran) const {
    return ran >= seeds || (until && std::chrono::steady_clock::now() >= *until);
  }
};

// Returns why the seed failed; empty if it did not.
std::string why_failed(std::uint64_t seed, const std::function<void(std::uint64_t)>& run) {
  try {
    run(seed);
    return {};
  } catch (const std::exception& e) {
    return e.what();
  }
}

} // namespace

bool is_single_seed() { return number_from_environment("MILLRACE_SEED").has_value(); }

void run_seeds(std::uint64_t seeds, const std::function<void(std::uint64_t)>& run) {
  auto scenario = boost::unit_test::framework::current_test_case().full_name();
  auto& all = boost::unit_test::framework::master_test_suite();
  auto first = number_from_environment("MILLRACE_SEED");
  if (!first)
    configure_log("off");
  auto seed = first ? *first : number_from_environment("MILLRACE_FIRST_SEED").value_or(0);
  auto until = bounds::of_environment(seeds);
  std::uint64_t ran = 0;
  for (int failures = 0; !until.reached(ran) && failures < 5; ++seed, ++ran) {
    // A crash reports the last checkpoint.
    BOOST_TEST_CHECKPOINT(scenario << ": MILLRACE_SEED=" << seed);
    if (auto why = why_failed(seed, run); !why.empty()) {
      ++failures;
      auto* nodes = std::getenv("MILLRACE_SIM_NODES");
      BOOST_ERROR(
        scenario << ", seed " << seed << ": " << why
                 << "; again: " << (nodes ? std::string{"MILLRACE_SIM_NODES="} + nodes + " " : "")
                 << "MILLRACE_SEED=" << seed << " " << all.argv[0] << " --run_test=" << scenario);
    }
  }
  std::cout << scenario << ": " << ran << " seeds" << std::endl;
  configure_log("warn");
}

failed_seed first_that_fails(std::uint64_t seeds, const std::function<void(std::uint64_t)>& run) {
  configure_log("off");
  failed_seed found;
  while (found.seed < seeds && (found.why = why_failed(found.seed, run)).empty())
    ++found.seed;
  configure_log("warn");
  return found;
}

} // namespace millrace::testing

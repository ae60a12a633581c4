// Follows weights in a process of its own, and tells when it has each version.
#include <millrace/bench/broadcast/follower.hpp>
#include <millrace/bench/common/measure.hpp>
#include <millrace/runtime/client/client.hpp>
#include <millrace/runtime/client/weights.hpp>

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>

namespace millrace::bench {

namespace {

using namespace std::chrono_literals;

constexpr std::size_t layers = 10;
constexpr int start_timeout_ms = 60'000;
constexpr int load_timeout_ms = 120'000;

constexpr std::uint64_t word_of(std::uint64_t version, std::uint64_t place) {
  return version * 0x9e3779b97f4a7c15u + place;
}

std::span<std::uint64_t> words_of(std::span<std::byte> memory) {
  return {reinterpret_cast<std::uint64_t*>(memory.data()), memory.size() / sizeof(std::uint64_t)};
}

void tell(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

[[noreturn]] void follow_until_ended(const std::string& address, std::uint64_t size_bytes) {
  auto c = client::connect(address);
  warm_buffer memory{size_bytes};
  std::vector<load_target> targets;
  for (auto& view : weights_table(size_bytes).over(memory.bytes()))
    targets.push_back({.into = view});
  auto weights = need(c.weights(weights_name).follow(), "following");
  tell("ready");
  for (;;) {
    need(weights.next(1h).result(), "waiting for a version");
    auto loaded = need(weights.load(targets, 60s).result(), "loading");
    tell(fmt::format("{} {}", loaded.version, monotonic_ns()));
    // Others may still be loading, and need the cores.
    std::string check;
    if (!std::getline(std::cin, check))
      std::exit(EXIT_SUCCESS);
    tell(is_stamped(memory.bytes(), loaded.version) ? "right" : "wrong bytes");
  }
}

} // namespace

model_table weights_table(std::uint64_t size_bytes) { return layered(size_bytes, layers); }

void stamp(std::span<std::byte> memory, std::uint64_t version) {
  auto words = words_of(memory);
  for (std::size_t i = 0; i < words.size(); ++i)
    words[i] = word_of(version, i);
}

bool is_stamped(std::span<std::byte> memory, std::uint64_t version) {
  auto words = words_of(memory);
  for (std::size_t i = 0; i < words.size(); ++i)
    if (words[i] != word_of(version, i))
      return false;
  return true;
}

std::int64_t monotonic_ns() {
  auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

follower_process::follower_process(const std::string& address, std::uint64_t size_bytes) {
  process_ = need(
    child::start({"/proc/self/exe", follow_option, address, std::to_string(size_bytes)}),
    "starting a follower");
  if (auto said = need(process_.read_line(start_timeout_ms), "starting a follower");
      said != "ready")
    give_up("a follower does not start: " + said);
}

std::int64_t follower_process::loaded_at_ns(std::uint64_t version) {
  auto said = need(process_.read_line(load_timeout_ms), "waiting for a follower");
  unsigned long long loaded = 0;
  long long at_ns = 0;
  if (std::sscanf(said.c_str(), "%llu %lld", &loaded, &at_ns) != 2)
    give_up("a follower has failed: " + said);
  if (loaded != version)
    give_up(fmt::format("a follower has version {} instead of {}", loaded, version));
  return at_ns;
}

void follower_process::check() {
  if (auto bad = process_.write_line("check"); !bad.ok())
    give_up(bad, "asking a follower");
  if (auto said = need(process_.read_line(load_timeout_ms), "waiting for a follower");
      said != "right")
    give_up("a follower has failed: " + said);
}

int follow(const std::string& address, std::uint64_t size_bytes) {
  try {
    follow_until_ended(address, size_bytes);
  } catch (const std::exception& e) {
    tell(e.what());
    return EXIT_FAILURE;
  }
}

} // namespace millrace::bench

// Joins a group, and broadcasts on command.
#include <millrace/bench/broadcast/follower.hpp>
#include <millrace/bench/broadcast/member.hpp>
#include <millrace/bench/common/measure.hpp>
#include <millrace/runtime/client/broadcast_group.hpp>
#include <millrace/runtime/client/client.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <sstream>

namespace millrace::bench {

namespace {

using namespace std::chrono_literals;

constexpr int answer_timeout_ms = 300'000;
constexpr auto patience = 60s;

void serve_commands(const broadcast_group& group) {
  std::optional<warm_buffer> memory;
  std::uint64_t version = 0;
  auto broadcast = [&] {
    auto bytes = memory->bytes();
    tensor_view view{{"w", dtype::u8, {bytes.size()}}, bytes.data(), {}};
    need(group.broadcast({view}, {0, patience}).result(), "broadcasting");
  };
  for (std::string line; std::getline(std::cin, line);) {
    std::uint64_t size_bytes = 0, count = 0;
    std::istringstream{line} >> size_bytes >> count;
    if (!memory || memory->bytes().size() != size_bytes)
      memory.emplace(size_bytes);
    ++version;
    if (group.rank() == 0)
      stamp(memory->bytes(), version);
    else
      std::ranges::fill(memory->bytes(), std::byte{0});
    broadcast(); // all have come, as after a barrier
    auto begun = monotonic_ns();
    for (std::uint64_t i = 0; i < count; ++i)
      broadcast();
    auto ended = monotonic_ns();
    auto right = is_stamped(memory->bytes(), version);
    std::puts(right ? fmt::format("{} {}", begun, ended).c_str() : "wrong bytes");
    std::fflush(stdout);
  }
}

} // namespace

member_process::member_process(
  const std::string& address, const std::string& group, std::uint32_t rank, std::uint32_t size) {
  process_ = need(
    child::start(
      {"/proc/self/exe", member_option, address, group, std::to_string(rank),
       std::to_string(size)}),
    "starting a member");
}

void member_process::joined() {
  if (auto said = need(process_.read_line(answer_timeout_ms), "joining"); said != "ready")
    give_up("a member does not join: " + said);
}

void member_process::begin(std::uint64_t size_bytes, std::uint64_t count) {
  if (auto bad = process_.write_line(fmt::format("{} {}", size_bytes, count)); !bad.ok())
    give_up(bad, "asking a member");
}

member_process::span_ns member_process::end() {
  auto said = need(process_.read_line(answer_timeout_ms), "waiting for a member");
  long long begun = 0, ended = 0;
  if (std::sscanf(said.c_str(), "%lld %lld", &begun, &ended) != 2)
    give_up("a member has failed: " + said);
  return {begun, ended};
}

int broadcast_as_member(char** arguments) {
  try {
    auto c = client::connect(arguments[0]);
    group_options options;
    options.rank = static_cast<std::uint32_t>(std::stoul(arguments[2]));
    options.size = static_cast<std::uint32_t>(std::stoul(arguments[3]));
    options.timeout = patience;
    auto group = need(c.join_group(arguments[1], options).result(), "joining");
    std::puts("ready");
    std::fflush(stdout);
    serve_commands(group);
    return EXIT_SUCCESS;
  } catch (const std::exception& e) {
    std::puts(e.what());
    return EXIT_FAILURE;
  }
}

} // namespace millrace::bench

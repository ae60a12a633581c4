// Replays what was recorded. Called by crash tests.
#include <millrace/tests/support/disk/history.hpp>
#include <millrace/tests/support/file_contents.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstring>
#include <span>

namespace millrace::testing::disk {

std::vector<std::string> history::environment(const std::string& root, const std::string& log) {
  return {
    "/usr/bin/env", "LD_PRELOAD=" + std::string{DISK_RECORDER}, "MILLRACE_DISK_ROOT=" + root,
    "MILLRACE_DISK_LOG=" + log};
}

history::history(const std::string& root, const std::string& log) {
  auto all = contents_of(log);
  std::size_t at = 0;
  auto take = [&](std::uint64_t size_bytes) {
    BOOST_REQUIRE(at + size_bytes <= all.size());
    at += size_bytes;
    return all.substr(at - size_bytes, size_bytes);
  };
  auto below = [&](std::string path) {
    return path.starts_with(root) ? path.substr(std::min(path.size(), root.size() + 1)) : path;
  };
  while (at < all.size()) {
    event e;
    std::memcpy(&e.head, take(sizeof(event_head)).data(), sizeof(event_head));
    e.path = below(take(e.head.path_bytes));
    e.other = below(take(e.head.other_bytes));
    if (has_data(e.head.kind))
      e.data = take(e.head.size_bytes);
    BOOST_TEST_REQUIRE((e.head.kind != event_kind::unknown), "not understood: " << e.path);
    if (e.head.id != 0 && !e.path.empty())
      names_of_[e.head.id].push_back(e.path);
    events_.push_back(std::move(e));
  }
}

bool history::has(event_kind kind) const {
  return std::ranges::any_of(events_, [=](auto& e) { return e.head.kind == kind; });
}

std::string history::said_before(std::size_t end) const {
  std::string text;
  for (std::size_t i = 0; i < end; ++i)
    if (events_[i].head.kind == event_kind::said)
      text += events_[i].data;
  return text;
}

std::size_t history::instant(dice& random) const {
  auto end = random.below(events_.size()) + 1;
  if (random.percent(25))
    return end;
  auto tells = [&](const event& e) {
    return e.head.kind == event_kind::synced || e.head.kind == event_kind::names_synced ||
      e.head.kind == event_kind::said || e.head.kind == event_kind::written_back;
  };
  while (end < events_.size() && !tells(events_[end - 1]))
    ++end;
  return end;
}

bool history::is_forgotten(const event& e) const {
  auto kind = e.head.kind;
  auto forgets = [&](const std::string& name) { return forgotten_(kind, name); };
  if (kind == event_kind::names_synced)
    return forgets(e.path);
  auto of_file = kind == event_kind::synced || kind == event_kind::written_back;
  return of_file && std::ranges::any_of(names_of_.at(e.head.id), forgets);
}

state history::replayed(std::size_t end) const {
  state files;
  std::size_t number = 0;
  for (auto& e : std::span{events_}.first(end)) {
    auto is_one = is_forgotten(e);
    auto at = is_one ? number++ : 0;
    if (!is_one || at < first_forgotten_ || at - first_forgotten_ >= forgotten_max_) {
      files.happens(e);
      continue;
    }
    auto forgotten = e;
    auto is_data = e.head.kind == event_kind::written_back;
    forgotten.head.kind = is_data ? event_kind::written : event_kind::said;
    files.happens(forgotten);
  }
  return files;
}

void history::make_image(std::size_t end, dice& random, const std::string& to) const {
  write_tree(replayed(end).after_power_cut(random), to);
}

void history::make_copy(std::size_t end, const std::string& to) const {
  write_tree(replayed(end).seen(), to);
}

} // namespace millrace::testing::disk

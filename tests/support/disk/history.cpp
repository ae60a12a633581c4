// Replays what was recorded. Called by crash tests.
#include <millrace/tests/support/disk/history.hpp>
#include <millrace/tests/support/file_contents.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace millrace::testing::disk {

namespace {

constexpr std::uint64_t sector_bytes = 512;

std::string directory_of(const std::string& path) {
  auto slash = path.rfind('/');
  return slash == path.npos ? std::string{} : path.substr(0, slash);
}

void overwrite(std::string& content, std::uint64_t at, const char* data, std::uint64_t size_bytes) {
  if (content.size() < at + size_bytes)
    content.resize(at + size_bytes);
  std::memcpy(content.data() + at, data, size_bytes);
}

/// Calls `f(sector, offset in the data, bytes)` for each part of a write.
template <class F>
void for_each_sector(std::uint64_t offset, std::uint64_t size_bytes, F f) {
  for (std::uint64_t done = 0; done < size_bytes;) {
    auto at = offset + done;
    auto part = std::min(size_bytes - done, sector_bytes - at % sector_bytes);
    f(at / sector_bytes, done, part);
    done += part;
  }
}

} // namespace

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

void history::apply(const change& c, std::string& content) {
  if (c.kind == event_kind::resized)
    content.resize(c.offset);
  else if (c.kind == event_kind::allocated)
    content.resize(std::max<std::size_t>(content.size(), c.offset));
  else
    overwrite(content, c.offset, c.data.data(), c.data.size());
}

void history::apply(const naming& n, names& all) {
  if (n.kind == event_kind::removed)
    all.erase(n.path);
  else
    all[n.path] = n.id;
  if (auto old = all.find(n.other);
      n.kind == event_kind::renamed && old != all.end() && old->second == n.id)
    all.erase(old);
}

void history::make_durable(file& f) {
  for (auto& c : f.pending) {
    if (c.kind != event_kind::written || c.overtaken.empty()) {
      apply(c, f.durable);
      continue;
    }
    for_each_sector(c.offset, c.data.size(), [&](auto sector, auto at, auto size_bytes) {
      if (!c.overtaken.contains(sector))
        overwrite(f.durable, c.offset + at, c.data.data() + at, size_bytes);
    });
  }
  f.pending.clear();
}

void history::make_names_durable(const std::string& directory, disk& d) {
  std::vector<naming> later;
  for (auto& n : d.pending) {
    if (directory_of(n.path) != directory) {
      later.push_back(n);
      continue;
    }
    apply(n, d.durable);
    // With the new name the old one is gone, whether it was durable or not.
    if (n.kind == event_kind::renamed)
      std::erase_if(later, [&](auto& old) { return old.path == n.other && old.id == n.id; });
  }
  d.pending = std::move(later);
}

void history::replay(const event& e, disk& d) const {
  auto& head = e.head;
  auto is_forgotten = [&] {
    return std::ranges::any_of(
      names_of_.at(head.id), [&](auto& name) { return forgotten_(head.kind, name); });
  };
  switch (head.kind) {
  case event_kind::file_made:
    d.files[head.id] = {};
    [[fallthrough]];
  case event_kind::linked:
  case event_kind::renamed:
  case event_kind::directory_made:
  case event_kind::removed:
    d.pending.push_back({head.kind, head.id, e.path, e.other});
    break;
  case event_kind::written:
  case event_kind::resized:
  case event_kind::allocated:
    d.files[head.id].pending.push_back({head.kind, head.offset, e.data, {}});
    break;
  case event_kind::zeroed:
    d.files[head.id].pending.push_back(
      {event_kind::written, head.offset, std::string(head.size_bytes, '\0'), {}});
    break;
  case event_kind::written_back: {
    auto& f = d.files[head.id];
    if (is_forgotten()) {
      f.pending.push_back({event_kind::written, head.offset, e.data, {}});
      break;
    }
    // The size of a mapped file is set before it is mapped.
    overwrite(f.durable, head.offset, e.data.data(), e.data.size());
    for_each_sector(head.offset, e.data.size(), [&](auto sector, auto, auto) {
      for (auto& c : f.pending)
        c.overtaken.insert(sector);
    });
    break;
  }
  case event_kind::synced: {
    if (is_forgotten())
      break;
    make_durable(d.files[head.id]);
    break;
  }
  case event_kind::names_synced: {
    if (forgotten_(head.kind, e.path))
      break;
    make_names_durable(e.path, d);
    break;
  }
  case event_kind::said:
  case event_kind::unknown:
    break;
  }
}

history::disk history::replayed(std::size_t end) const {
  disk d;
  for (std::size_t i = 0; i < end; ++i)
    replay(events_[i], d);
  return d;
}

void history::make_image(std::size_t end, dice& random, const std::string& to) const {
  auto d = replayed(end);
  // Nothing of what is not durable, all of it, or any part.
  constexpr std::uint64_t chances[] = {0, 0, 100, 50, 90};
  auto chance = chances[random.below(std::size(chances))];
  std::map<std::string, std::vector<const naming*>> by_directory;
  for (auto& n : d.pending)
    by_directory[directory_of(n.path)].push_back(&n);
  std::set<const naming*> kept;
  for (auto& [directory, all] : by_directory)
    for (auto* n : all) {
      if (!random.percent(chance))
        break;
      kept.insert(n);
    }
  auto all = d.durable;
  for (auto& n : d.pending)
    if (kept.contains(&n))
      apply(n, all);
  std::map<std::uint64_t, std::string> contents;
  for (auto& [name, id] : all) {
    if (id == 0 || contents.contains(id))
      continue;
    auto& f = d.files[id];
    auto content = f.durable;
    for (auto& c : f.pending) {
      if (c.kind != event_kind::written) {
        if (random.percent(chance))
          apply(c, content);
        continue;
      }
      for_each_sector(c.offset, c.data.size(), [&](auto sector, auto at, auto size_bytes) {
        if (!c.overtaken.contains(sector) && random.percent(chance))
          overwrite(content, c.offset + at, c.data.data() + at, size_bytes);
      });
    }
    contents[id] = std::move(content);
  }
  write_out(all, contents, to);
}

void history::make_copy(std::size_t end, const std::string& to) const {
  auto d = replayed(end);
  auto all = d.durable;
  for (auto& n : d.pending)
    apply(n, all);
  std::map<std::uint64_t, std::string> contents;
  for (auto& [id, f] : d.files) {
    contents[id] = f.durable;
    for (auto& c : f.pending)
      apply(c, contents[id]);
  }
  write_out(all, contents, to);
}

void history::write_out(
  const names& all, const std::map<std::uint64_t, std::string>& contents, const std::string& to) {
  namespace fs = std::filesystem;
  fs::create_directories(to);
  for (auto& [name, id] : all) {
    auto path = to + "/" + name;
    // What lies in a directory that was never durable is lost.
    if (!fs::is_directory(fs::path{path}.parent_path()))
      continue;
    if (id == 0) {
      fs::create_directory(path);
      fs::permissions(path, fs::perms::owner_all);
      continue;
    }
    auto& content = contents.at(id);
    std::ofstream file{path, std::ios::binary};
    // Holes stay holes.
    constexpr std::size_t block = 64u << 10;
    static const std::string nothing(block, '\0');
    for (std::size_t at = 0; at < content.size(); at += block) {
      auto part = std::min(block, content.size() - at);
      if (std::memcmp(content.data() + at, nothing.data(), part) == 0)
        continue;
      file.seekp(static_cast<std::streamoff>(at));
      file.write(content.data() + at, static_cast<std::streamsize>(part));
    }
    file.close();
    fs::resize_file(path, content.size());
    fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  }
}

} // namespace millrace::testing::disk

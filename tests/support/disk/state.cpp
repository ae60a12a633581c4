// What syncs make durable, and what is lost without them. Called by histories and by disks of
// simulated machines.
#include <millrace/storage/io/file_io.hpp>
#include <millrace/tests/support/disk/state.hpp>
#include <millrace/tests/support/seeds.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>

namespace millrace::testing::disk {

namespace {

constexpr std::uint64_t sector_bytes = 512;

std::string_view directory_of(std::string_view path) {
  auto slash = path.rfind('/');
  return slash == path.npos ? std::string_view{} : path.substr(0, slash);
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

// By calls that a recorder sees. Holes stay holes.
status write_file(const std::string& path, const std::string& content) {
  constexpr std::size_t block = 64u << 10;
  static const std::string nothing(block, '\0');
  auto file = storage::io::open_file(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (!file)
    return file.error();
  for (std::size_t at = 0; at < content.size(); at += block) {
    auto part = std::min(block, content.size() - at);
    if (std::memcmp(content.data() + at, nothing.data(), part) == 0)
      continue;
    auto bad = storage::io::write_all(*file, content.data() + at, part, at, path);
    if (!bad.ok())
      return bad;
  }
  if (::ftruncate(file->get(), static_cast<off_t>(content.size())) != 0)
    return status_from_errno(errno, "making " + path);
  return {};
}

} // namespace

void write_tree(const tree& all, const std::string& to) {
  namespace fs = std::filesystem;
  fs::create_directories(to);
  for (auto& [name, content] : all) {
    auto path = to + "/" + name;
    // What lies in a directory that was never durable is lost.
    if (!fs::is_directory(fs::path{path}.parent_path()))
      continue;
    if (!content) {
      fs::create_directory(path);
      fs::permissions(path, fs::perms::owner_all);
      continue;
    }
    auto made = write_file(path, *content);
    demand(made.ok(), made.to_string());
  }
}

void state::apply(const change& c, std::string& content) {
  if (c.kind == event_kind::resized)
    content.resize(c.offset);
  else if (c.kind == event_kind::allocated)
    content.resize(std::max<std::size_t>(content.size(), c.offset));
  else
    overwrite(content, c.offset, c.data.data(), c.data.size());
}

void state::apply(const naming& n, names& all) {
  if (n.kind == event_kind::removed)
    all.erase(n.path);
  else
    all[n.path] = n.id;
  if (auto old = all.find(n.other);
      n.kind == event_kind::renamed && old != all.end() && old->second == n.id)
    all.erase(old);
}

void state::make_durable(file& f) {
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

void state::make_names_durable(const std::string& directory) {
  std::vector<naming> later;
  for (auto& n : pending_) {
    if (directory_of(n.path) != directory) {
      later.push_back(n);
      continue;
    }
    apply(n, durable_);
    // With the new name the old one is gone, whether it was durable or not.
    if (n.kind == event_kind::renamed)
      std::erase_if(later, [&](auto& old) { return old.path == n.other && old.id == n.id; });
    else if (n.kind == event_kind::removed)
      std::erase_if(later, [&](auto& inside) { return directory_of(inside.path) == n.path; });
  }
  pending_ = std::move(later);
}

void state::written_back(const event& e) {
  auto& f = files_[e.head.id];
  // The size of a mapped file is set before it is mapped.
  overwrite(f.durable, e.head.offset, e.data.data(), e.data.size());
  for_each_sector(e.head.offset, e.data.size(), [&](auto sector, auto, auto) {
    for (auto& c : f.pending)
      c.overtaken.insert(sector);
  });
}

void state::happens(const event& e) {
  auto& head = e.head;
  switch (head.kind) {
  case event_kind::file_made:
    files_[head.id] = {};
    [[fallthrough]];
  case event_kind::linked:
  case event_kind::renamed:
  case event_kind::directory_made:
  case event_kind::removed:
    pending_.push_back({head.kind, head.id, e.path, e.other});
    break;
  case event_kind::written:
  case event_kind::resized:
  case event_kind::allocated:
    files_[head.id].pending.push_back({head.kind, head.offset, e.data, {}});
    break;
  case event_kind::zeroed:
    files_[head.id].pending.push_back(
      {event_kind::written, head.offset, std::string(head.size_bytes, '\0'), {}});
    break;
  case event_kind::written_back:
    written_back(e);
    break;
  case event_kind::synced:
    make_durable(files_[head.id]);
    break;
  case event_kind::names_synced:
    make_names_durable(e.path);
    break;
  case event_kind::said:
  case event_kind::unknown:
    break;
  }
}

state::names state::names_with(const std::vector<const naming*>& kept) const {
  auto all = durable_;
  for (auto* n : kept)
    apply(*n, all);
  return all;
}

state::names state::names_seen() const {
  auto all = durable_;
  for (auto& n : pending_)
    apply(n, all);
  return all;
}

std::string state::content_seen(const file& f) {
  auto content = f.durable;
  for (auto& c : f.pending)
    apply(c, content);
  return content;
}

tree state::seen() const {
  tree out;
  for (auto& [name, id] : names_seen())
    out[name] = id == 0 ? std::nullopt : std::optional{content_seen(files_.at(id))};
  return out;
}

// Choices are made in the order of the changes, whatever files are called.
tree state::after_power_cut(dice& random) const {
  // Nothing of what is not durable, all of it, or any part.
  constexpr std::uint64_t chances[] = {0, 0, 100, 50, 90};
  auto chance = chances[random.below(std::size(chances))];
  std::set<std::string> over; // directories that keep no more
  std::vector<const naming*> kept;
  for (auto& n : pending_)
    if (std::string directory{directory_of(n.path)}; !over.contains(directory)) {
      if (random.percent(chance))
        kept.push_back(&n);
      else
        over.insert(std::move(directory));
    }
  auto all = names_with(kept);
  std::map<std::uint64_t, std::string> contents;
  for (auto& [name, id] : all)
    if (id != 0)
      contents[id] = files_.at(id).durable;
  for (auto& entry : contents) {
    auto& content = entry.second; // clang 14 captures no structured bindings
    for (auto& c : files_.at(entry.first).pending) {
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
  }
  tree out;
  for (auto& [name, id] : all)
    out[name] = id == 0 ? std::nullopt : std::optional{contents.at(id)};
  return out;
}

void state::settle() {
  durable_ = names_seen();
  pending_.clear();
  std::map<std::uint64_t, file> named;
  for (auto& [name, id] : durable_)
    if (id != 0)
      make_durable(named[id] = std::move(files_[id]));
  files_ = std::move(named);
}

void state::go_on_from(const state& former) {
  auto now = names_seen();
  std::map<std::uint64_t, std::uint64_t> same{{0, 0}}; // files by their former numbers
  for (auto& [name, id] : former.names_seen())
    same[id] = now.at(name);
  auto renumber = [&](std::uint64_t& id) { id = same.try_emplace(id, id).first->second; };
  durable_ = former.durable_;
  for (auto& [name, id] : durable_)
    renumber(id);
  pending_ = former.pending_;
  for (auto& n : pending_)
    renumber(n.id);
  files_.clear();
  for (auto& [id, f] : former.files_)
    if (auto at = same.find(id); at != same.end())
      files_[at->second] = f;
}

} // namespace millrace::testing::disk

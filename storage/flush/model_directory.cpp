// Names, order and removal of flushed steps. Called by `version_flusher` and `open_flushed`.
#include <millrace/core/clock.hpp>
#include <millrace/core/digest.hpp>
#include <millrace/core/kill_point.hpp>
#include <millrace/core/log.hpp>
#include <millrace/storage/archive/output_file.hpp>
#include <millrace/storage/flush/model_directory.hpp>
#include <millrace/storage/io/file_io.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <map>
#include <set>

namespace millrace::storage::flush {

using namespace archive;

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t manifest_bytes_max = 256ull << 20;
constexpr std::size_t name_bytes_max = 200;
constexpr auto manifest_file = "manifest.json";
constexpr auto latest_file = "latest";

std::optional<std::uint64_t> take_number(std::string_view& text) {
  std::uint64_t value = 0;
  auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (bad != std::errc{})
    return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

std::string step_name(std::uint64_t step, std::uint64_t attempt) {
  return fmt::format("step-{}{}", step, attempt > 1 ? fmt::format(".{}", attempt) : "");
}

// Accepts only names that `step_name` makes: other files belong to other programs.
std::optional<model_directory::step_place> parse_step_name(const std::string& name) {
  std::string_view rest{name};
  if (!rest.starts_with("step-"))
    return std::nullopt;
  rest.remove_prefix(5);
  auto step = take_number(rest);
  std::uint64_t attempt = 1;
  if (rest.starts_with('.')) {
    rest.remove_prefix(1);
    attempt = take_number(rest).value_or(0);
  }
  if (!step || !rest.empty() || step_name(*step, attempt) != name)
    return std::nullopt;
  return model_directory::step_place{name, *step, attempt, false};
}

// Returns R and W of "rank-R-of-W.json" if R < W.
std::optional<std::pair<std::uint32_t, std::uint32_t>> parse_description_name(
  const std::string& name) {
  std::string_view rest{name};
  if (!rest.starts_with("rank-"))
    return std::nullopt;
  rest.remove_prefix(5);
  auto rank = take_number(rest);
  if (!rank || !rest.starts_with("-of-"))
    return std::nullopt;
  rest.remove_prefix(4);
  auto size = take_number(rest);
  if (!size || *size > world_size_max || *rank >= *size)
    return std::nullopt;
  auto found = std::pair{static_cast<std::uint32_t>(*rank), static_cast<std::uint32_t>(*size)};
  return shard_file_stem(found.first, found.second) + ".json" == name ? std::optional{found}
                                                                      : std::nullopt;
}

result<std::string> read_file(const std::string& path) {
  auto file = io::open_file(path, O_RDONLY);
  if (!file)
    return fail(file.error());
  struct stat about {};
  if (::fstat(file->get(), &about) != 0)
    return fail(status_from_errno(errno, "examining " + path));
  if (static_cast<std::uint64_t>(about.st_size) > manifest_bytes_max)
    return fail(errc::corrupt_data, "{} is too large", path);
  std::string text(static_cast<std::size_t>(about.st_size), '\0');
  if (auto bad = io::read_all(*file, text.data(), text.size(), 0, path); !bad.ok())
    return fail(bad);
  return text;
}

std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  std::error_code why;
  for (fs::directory_iterator at{path, why}, end; !why && at != end; at.increment(why))
    names.push_back(at->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// Makes one directory, durably.
status make_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST)
    return status_from_errno(errno, "creating directory " + path);
  return io::sync_directory(directory_of(path));
}

status remove_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT)
    return status_from_errno(errno, "removing " + path);
  return {};
}

std::optional<std::pair<std::int64_t, std::int64_t>> changed_at(const std::string& path) {
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0)
    return std::nullopt;
  return std::pair<std::int64_t, std::int64_t>{about.st_mtim.tv_sec, about.st_mtim.tv_nsec};
}

// Removes unfinished files. Called where only the holder of the lock may be writing. Older builds
// left plain files.
void sweep(const std::string& path) {
  remove_unfinished(path);
  for (auto& name : names_in(path))
    if (name.starts_with(output_file_prefix))
      ::unlink(fs::path{path}.append(name).c_str());
}

/// Held while manifests and `latest` change. On a file system without locks it has no effect.
class directory_lock {
public:
  static result<directory_lock> take(const std::string& path, std::uint32_t deadline_ms) {
    auto file = io::open_file(path + "/.lock", O_RDWR | O_CREAT, 0666);
    if (!file)
      return fail(file.error());
    auto deadline = steady_clock::now() + std::chrono::milliseconds{deadline_ms};
    while (::flock(file->get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == ENOLCK || errno == EOPNOTSUPP || errno == EINVAL || errno == ENOSYS)
        break;
      if (errno != EWOULDBLOCK && errno != EINTR)
        return fail(status_from_errno(errno, "locking " + path));
      if (steady_clock::now() > deadline)
        return fail(errc::deadline_exceeded, "another process keeps {} locked", path);
      sleep_for(std::chrono::milliseconds{5});
    }
    return directory_lock{std::move(*file)};
  }

private:
  explicit directory_lock(io::file_handle file) : file_(std::move(file)) {}

  io::file_handle file_;
};

} // namespace

std::string directory_name_of(std::string_view model) {
  std::string name;
  for (std::size_t i = 0; i < model.size(); ++i) {
    auto c = static_cast<unsigned char>(model[i]);
    bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
      c == '_' || c == '-' || (c == '.' && i > 0);
    name += plain ? std::string{model[i]} : fmt::format("%{:02X}", c);
  }
  if (name.size() <= name_bytes_max)
    return name;
  // No escaped name has "%~".
  return fmt::format(
    "{}%~{:016X}", name.substr(0, name_bytes_max - 18), digest(model.data(), model.size()));
}

std::string shard_file_stem(std::uint32_t rank, std::uint32_t world_size) {
  return fmt::format("rank-{}-of-{}", rank, world_size);
}

model_directory model_directory::at(const std::string& root, const std::string& model) {
  return {root + "/" + directory_name_of(model), model};
}

result<model_directory> model_directory::make(const std::string& root, const std::string& model) {
  auto made = at(root, model);
  if (auto bad = io::make_directories(root); !bad.ok())
    return fail(bad);
  if (auto bad = make_directory(made.path_); !bad.ok())
    return fail(bad);
  return made;
}

std::vector<model_directory::step_place> model_directory::steps() const {
  std::vector<step_place> found;
  for (auto& name : names_in(path_))
    if (auto place = parse_step_name(name)) {
      place->whole = ::access((path_ + "/" + name + "/" + manifest_file).c_str(), F_OK) == 0;
      found.push_back(std::move(*place));
    }
  std::sort(found.begin(), found.end(), [](auto& a, auto& b) {
    return std::pair{a.step, a.attempt} < std::pair{b.step, b.attempt};
  });
  return found;
}

result<flush_manifest> model_directory::manifest(const std::string& place) const {
  auto path = path_ + "/" + place + "/" + manifest_file;
  auto text = read_file(path);
  auto parsed = text ? parse_flush_manifest(*text) : fail(text.error());
  if (!parsed)
    return fail(parsed.error().within(path));
  if (parsed->model != model_ && !model_.empty())
    return fail(errc::corrupt_data, "{} is of the model {}", path, parsed->model);
  return parsed;
}

result<std::string> model_directory::latest() const {
  auto text = read_file(path_ + "/" + latest_file);
  if (!text)
    return fail(text.error());
  while (text->ends_with('\n'))
    text->pop_back();
  if (!parse_step_name(*text))
    return fail(errc::corrupt_data, "{}/{} names no step", path_, latest_file);
  return text;
}

result<shard_description> model_directory::description(
  const std::string& place, std::uint32_t rank, std::uint32_t world_size) const {
  auto path = path_ + "/" + place + "/" + shard_file_stem(rank, world_size) + ".json";
  auto text = read_file(path);
  auto parsed = text ? parse_shard_description(*text) : fail(text.error());
  if (!parsed)
    return fail(parsed.error().within(path));
  if (parsed->shard.rank != rank || parsed->world_size != world_size)
    return fail(errc::corrupt_data, "{} describes another shard", path);
  return parsed;
}

// Holds the lock. While the description exists, another process may make the step whole, and a
// whole step never changes.
result<std::optional<std::string>> model_directory::place_for(
  const flushed_shard& shard, std::uint64_t step, std::uint32_t world_size,
  std::uint32_t deadline_ms) {
  auto lock = directory_lock::take(path_, deadline_ms);
  if (!lock)
    return fail(lock.error());
  std::uint64_t attempt = 1;
  for (auto& place : steps()) {
    if (place.step != step)
      continue;
    attempt = place.whole ? place.attempt + 1 : place.attempt;
    if (!place.whole)
      continue;
    auto about = manifest(place.name);
    if (!about)
      return fail(about.error());
    for (auto& there : about->shards)
      if (
        there.rank == shard.rank && about->world_size == world_size &&
        there.saved_at_ns == shard.saved_at_ns)
        return std::nullopt;
  }
  auto name = step_name(step, attempt);
  auto path = path_ + "/" + name;
  if (auto bad = make_directory(path); !bad.ok())
    return fail(bad);
  // The description is removed first, since the file that it describes is about to change.
  auto stem = path + "/" + shard_file_stem(shard.rank, world_size);
  if (auto bad = remove_file(stem + ".json"); !bad.ok())
    return fail(bad);
  if (auto bad = io::sync_directory(path); !bad.ok())
    return fail(bad);
  return name;
}

void model_directory::give_up(const std::string& place) noexcept {
  ::rmdir((path_ + "/" + place).c_str());
}

status model_directory::describe(const std::string& place, const shard_description& description) {
  auto path = path_ + "/" + place + "/" +
    shard_file_stem(description.shard.rank, description.world_size) + ".json";
  return write_whole_file(path, to_json(description));
}

// Writes the manifest if all shards of one world size are there. It runs after every shard, so it
// counts the descriptions before it reads any.
result<bool> model_directory::finish(const step_place& place) {
  auto path = path_ + "/" + place.name;
  std::map<std::uint32_t, std::vector<std::uint32_t>> worlds;
  for (auto& name : names_in(path))
    if (auto one = parse_description_name(name))
      worlds[one->second].push_back(one->first);
  for (auto& [size, ranks] : worlds) {
    if (ranks.size() != size)
      continue;
    auto world = gather(place, ranks, size);
    if (!world) {
      log().warn("a flushed step is not made whole: {}", world.error().to_string());
      continue;
    }
    if (auto bad = write_whole_file(path + "/" + manifest_file, to_json(*world)); !bad.ok())
      return fail(bad);
    return true;
  }
  return false;
}

result<flush_manifest> model_directory::gather(
  const step_place& place, std::vector<std::uint32_t> ranks, std::uint32_t world_size) const {
  flush_manifest world;
  world.step = place.step;
  world.world_size = world_size;
  std::sort(ranks.begin(), ranks.end());
  for (auto rank : ranks) {
    auto one = description(place.name, rank, world_size);
    if (!one)
      return fail(one.error());
    world.model = one->model;
    world.saved_at_ns = std::max(world.saved_at_ns, one->shard.saved_at_ns);
    world.shards.push_back(std::move(one->shard));
  }
  return world;
}

status model_directory::move_latest(const std::string& newest, bool is_durable) {
  // A process that was killed may have renamed the manifest or `latest`, and not come to sync the
  // directory.
  if (!is_durable)
    if (auto bad = io::sync_directory(path_ + "/" + newest); !bad.ok())
      return bad;
  auto now = latest();
  if (now && *now == newest)
    return io::sync_directory(path_);
  if (!now && now.error().code() != errc::not_found)
    return now.error();
  MILLRACE_KILL_POINT("flush.before_latest");
  auto bad = write_whole_file(path_ + "/" + latest_file, newest + "\n");
  MILLRACE_KILL_POINT("flush.after_latest");
  return bad;
}

status model_directory::settle(std::uint32_t keep, std::uint32_t deadline_ms) {
  auto lock = directory_lock::take(path_, deadline_ms);
  if (!lock)
    return lock.error();
  sweep(path_);
  std::set<std::string> finished;
  for (auto& place : steps()) {
    if (place.whole)
      continue;
    auto written = finish(place);
    if (!written)
      return written.error();
    if (*written)
      finished.insert(place.name);
  }
  MILLRACE_KILL_POINT("flush.after_manifest");
  std::vector<std::pair<flush_manifest, step_place>> whole;
  for (auto& place : steps()) {
    if (!place.whole)
      continue;
    sweep(path_ + "/" + place.name);
    auto about = manifest(place.name);
    if (!about)
      return about.error();
    whole.emplace_back(std::move(*about), place);
  }
  if (whole.empty())
    return {};
  std::stable_sort(whole.begin(), whole.end(), [](auto& a, auto& b) {
    return a.first.saved_at_ns < b.first.saved_at_ns;
  });
  auto& newest = whole.back().second.name;
  if (auto bad = move_latest(newest, finished.contains(newest)); !bad.ok())
    return bad;
  return prune(std::move(whole), keep);
}

status model_directory::prune(
  std::vector<std::pair<flush_manifest, step_place>> whole, std::uint32_t keep) {
  auto named = latest();
  if (!named)
    return named.error();
  while (whole.size() > std::max(keep, 1u) && whole.front().second.name != *named) {
    if (auto bad = remove_step(whole.front().second); !bad.ok())
      return bad;
    whole.erase(whole.begin());
  }
  auto oldest = changed_at(path_ + "/" + whole.front().second.name + "/" + manifest_file);
  for (auto& place : steps()) {
    auto touched = changed_at(path_ + "/" + place.name);
    if (!place.whole && oldest && touched && *touched < *oldest)
      if (auto bad = remove_step(place); !bad.ok())
        return bad;
  }
  return {};
}

// Removes the manifest first, durably: a step without one does not count.
status model_directory::remove_step(const step_place& place) {
  auto path = path_ + "/" + place.name;
  if (place.whole) {
    if (auto bad = remove_file(path + "/" + manifest_file); !bad.ok())
      return bad;
    if (auto bad = io::sync_directory(path); !bad.ok())
      return bad;
    MILLRACE_KILL_POINT("flush.manifest_removed");
  }
  // Descriptions are removed before the files that they describe.
  for (auto& name : names_in(path))
    if (name.ends_with(".json"))
      if (auto bad = remove_file(fs::path{path}.append(name)); !bad.ok())
        return bad;
  MILLRACE_KILL_POINT("flush.descriptions_removed");
  std::error_code why;
  fs::remove_all(path, why);
  return why ? status_from_errno(why.value(), "removing " + path) : status{};
}

} // namespace millrace::storage::flush

// Lines that are not certain, and the images that follow from them.
#include <millrace/tests/support/power_cut.hpp>

#include <algorithm>
#include <cstring>

namespace millrace::testing {

namespace {

// Lines of a cut that are tried one by one, and subsets drawn at random.
constexpr std::size_t single_lines_max = 6;
constexpr int random_subsets = 3;

} // namespace

void power_cut_recorder::watch(std::span<const std::byte> live, try_image attempt) {
  std::lock_guard guard{mutex_};
  live_ = live;
  attempt_ = std::move(attempt);
  image_.resize(live.size());
  lines_.clear();
}

void power_cut_recorder::stop() {
  std::lock_guard guard{mutex_};
  live_ = {};
}

std::uint64_t power_cut_recorder::line_of(const void* p) const {
  return static_cast<std::uint64_t>(static_cast<const std::byte*>(p) - live_.data()) / line_bytes;
}

power_cut_recorder::line_image power_cut_recorder::now(std::uint64_t line) const {
  line_image out;
  std::memcpy(out.data(), live_.data() + line * line_bytes, line_bytes);
  return out;
}

void power_cut_recorder::uncertain(std::uint64_t line, bool bulk) {
  auto& entry = lines_.try_emplace(line, uncertain_line{now(line), {}, bulk}).first->second;
  entry.bulk |= bulk;
}

void power_cut_recorder::stores(const void* target, const void*, std::size_t size_bytes) {
  std::lock_guard guard{mutex_};
  if (!watching() || size_bytes == 0)
    return;
  auto last = line_of(static_cast<const std::byte*>(target) + size_bytes - 1);
  for (auto line = line_of(target); line <= last; ++line)
    uncertain(line, false);
}

void power_cut_recorder::flushes(const void* target, std::size_t size_bytes) {
  std::lock_guard guard{mutex_};
  if (!watching() || size_bytes == 0 || forgets_flushes_)
    return;
  auto last = line_of(static_cast<const std::byte*>(target) + size_bytes - 1);
  for (auto i = lines_.lower_bound(line_of(target)); i != lines_.end() && i->first <= last; ++i)
    i->second.flushed = {now(i->first)};
  cut("flush");
}

void power_cut_recorder::fences() {
  std::lock_guard guard{mutex_};
  if (!watching())
    return;
  for (auto i = lines_.begin(); i != lines_.end();) {
    auto& line = i->second;
    if (!line.flushed.empty()) {
      line.certain = line.flushed.back();
      line.flushed.clear();
    }
    i = !line.bulk && line.certain == now(i->first) ? lines_.erase(i) : std::next(i);
  }
  cut("fence");
}

void power_cut_recorder::bulk_begins(const void* target, std::size_t size_bytes) {
  std::lock_guard guard{mutex_};
  if (!watching() || size_bytes == 0)
    return;
  auto last = line_of(static_cast<const std::byte*>(target) + size_bytes - 1);
  for (auto line = line_of(target); line <= last; ++line)
    uncertain(line, true);
  cut("bulk begins");
}

void power_cut_recorder::bulk_persisted(const void* target, std::size_t size_bytes) {
  std::lock_guard guard{mutex_};
  if (!watching() || size_bytes == 0)
    return;
  // What has arrived, and none of it certain.
  cut("bulk arrived");
  if (forgets_bulk_)
    return;
  auto last = line_of(static_cast<const std::byte*>(target) + size_bytes - 1);
  lines_.erase(lines_.lower_bound(line_of(target)), lines_.upper_bound(last));
  cut("bulk persisted");
}

void power_cut_recorder::publishes() {
  // Held until `published`: nobody else's cut may fall into the middle of this change.
  mutex_.lock();
  if (watching())
    cut("before a publish");
}

void power_cut_recorder::published() {
  if (watching())
    cut("after a publish");
  mutex_.unlock();
}

void power_cut_recorder::cut(const std::string& where) {
  ++cuts_;
  auto count = lines_.size();
  attempt(where + ", nothing more arrived", [](std::size_t) { return true; });
  if (count == 0)
    return;
  attempt(where + ", everything arrived", [](std::size_t) { return false; });
  for (std::size_t i = 0; i < std::min(count, single_lines_max); ++i) {
    auto chosen = count <= single_lines_max ? i : random_() % count;
    attempt(where + ", only one line arrived", [=](std::size_t line) { return line != chosen; });
    attempt(where + ", one line is missing", [=](std::size_t line) { return line == chosen; });
  }
  for (int i = 0; i < random_subsets; ++i)
    attempt(where + ", some arrived", [this](std::size_t) { return random_() % 2 == 0; });
}

void power_cut_recorder::attempt(
  const std::string& what, const std::function<bool(std::size_t)>& reverts) {
  ++images_;
  std::memcpy(image_.data(), live_.data(), live_.size());
  std::size_t at = 0;
  for (auto& [line, state] : lines_)
    if (reverts(at++)) {
      // A line that was written back but not fenced may have got there, too.
      auto& old =
        !state.flushed.empty() && random_() % 2 == 0 ? state.flushed.back() : state.certain;
      std::memcpy(image_.data() + line * line_bytes, old.data(), line_bytes);
    }
  attempt_(image_, what);
}

} // namespace millrace::testing

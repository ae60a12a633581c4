// Keeps the uncertain lines, and makes the images that may follow from them.
#include <millrace/tests/support/power_cut.hpp>

#include <algorithm>
#include <cstring>

namespace millrace::testing {

namespace {

// If a cut may leave up to this many images, all are tried: six lines with two contents each.
constexpr std::size_t images_whole_max = 64;
// If a cut may leave more, this many lines are tried one by one, and this many random subsets.
constexpr std::size_t single_lines_max = 6;
constexpr int random_subsets = 3;

} // namespace

void power_cut_recorder::watch(std::span<const std::byte> live, try_image attempt) {
  std::lock_guard guard{mutex_};
  live_ = live;
  attempt_ = std::move(attempt);
  if (attempt_)
    image_.resize(live.size());
  lines_.clear();
  changed_.clear();
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
  auto [at, fresh] = lines_.try_emplace(line, uncertain_line{now(line), bulk, {}, {}, {}});
  auto& entry = at->second;
  entry.bulk |= bulk;
  changed_.insert(line);
  if (!fresh)
    // The present content may have been evicted before the next store.
    entry.since.push_back(now(line));
}

void power_cut_recorder::stores(const void* target, const void*, std::size_t size_bytes) {
  std::lock_guard guard{mutex_};
  if (!watching() || size_bytes == 0)
    return;
  auto last = line_of(static_cast<const std::byte*>(target) + size_bytes - 1);
  for (auto line = line_of(target); line <= last; ++line)
    uncertain(line, false);
}

power_cut_recorder::line_range power_cut_recorder::lines_in(
  const void* target, std::size_t size_bytes) {
  auto last = line_of(static_cast<const std::byte*>(target) + size_bytes - 1);
  return {lines_.lower_bound(line_of(target)), lines_.upper_bound(last)};
}

void power_cut_recorder::flush_lines(const void* target, std::size_t size_bytes) {
  for (auto& [line, state] : lines_in(target, size_bytes)) {
    state.flushed = state.since.size();
    state.flusher = std::this_thread::get_id();
    state.since.push_back(now(line));
    changed_.insert(line);
  }
}

void power_cut_recorder::flushes(const void* target, std::size_t size_bytes) {
  std::lock_guard guard{mutex_};
  if (!watching() || size_bytes == 0 || forgets_.no_flushes)
    return;
  flush_lines(target, size_bytes);
  cut("flush");
}

void power_cut_recorder::fences() {
  std::lock_guard guard{mutex_};
  if (!watching())
    return;
  std::erase_if(changed_, [this](std::uint64_t number) {
    auto i = lines_.find(number);
    if (i == lines_.end())
      return true;
    auto& line = i->second;
    if (line.flushed && line.flusher != std::this_thread::get_id())
      return false;
    if (line.flushed) {
      auto certain = line.since.begin() + static_cast<std::ptrdiff_t>(*line.flushed);
      line.certain = *certain;
      line.since.erase(line.since.begin(), certain + 1);
      line.flushed.reset();
    }
    if (!line.bulk && line.since.empty() && line.certain == now(number))
      lines_.erase(i);
    return true;
  });
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

void power_cut_recorder::bulk_flushes(const void* target, std::size_t size_bytes) {
  std::lock_guard guard{mutex_};
  if (!watching() || size_bytes == 0 || forgets_.no_bulk)
    return;
  // The bulk data has arrived, and none of it is certain.
  cut("bulk arrived");
  auto left_out = forgets_.first_line_of_bulk ? std::min(line_bytes, size_bytes) : 0;
  if (left_out < size_bytes)
    flush_lines(static_cast<const std::byte*>(target) + left_out, size_bytes - left_out);
}

void power_cut_recorder::bulk_written_back(const void* target, std::size_t size_bytes) {
  std::lock_guard guard{mutex_};
  if (!watching() || size_bytes == 0 || forgets_.no_bulk)
    return;
  cut("bulk arrived");
  for (auto& [line, state] : lines_in(target, size_bytes)) {
    state.certain = now(line);
    state.since.clear();
    state.flushed.reset();
    changed_.insert(line);
  }
}

void power_cut_recorder::bulk_persisted(const void* target, std::size_t size_bytes) {
  std::lock_guard guard{mutex_};
  if (!watching() || size_bytes == 0)
    return;
  // From here on these lines are like others: those never flushed and fenced stay uncertain.
  auto range = lines_in(target, size_bytes);
  for (auto i = range.begin(); i != range.end();) {
    auto& line = i->second;
    line.bulk = false;
    changed_.insert(i->first);
    auto is_certain = line.since.empty() && line.certain == now(i->first);
    i = is_certain ? lines_.erase(i) : std::next(i);
  }
  cut("bulk persisted");
}

void power_cut_recorder::publishes() {
  // Held until `published`: the cut of another thread must not fall inside this change.
  mutex_.lock();
  if (watching())
    cut("before a publish");
}

void power_cut_recorder::published() {
  if (watching())
    cut("after a publish");
  mutex_.unlock();
}

std::vector<power_cut_recorder::choice> power_cut_recorder::choices_now() const {
  std::vector<choice> choices;
  for (auto& [line, state] : lines_) {
    std::vector<line_image> contents{state.certain};
    auto present = now(line);
    for (auto& content : state.since)
      if (content != present && std::ranges::find(contents, content) == contents.end())
        contents.push_back(content);
    if (contents.front() != present)
      contents.push_back(present);
    if (contents.size() > 1)
      choices.push_back({line, std::move(contents)});
  }
  return choices;
}

std::vector<power_cut_recorder::lost_line> power_cut_recorder::lost_by_a_cut(
  const std::function<std::size_t(std::size_t)>& pick) {
  std::lock_guard guard{mutex_};
  std::vector<lost_line> lost;
  for (auto& c : choices_now())
    if (!lines_.at(c.line).bulk)
      lost.push_back({c.line * line_bytes, c.contents[pick(c.contents.size())]});
  return lost;
}

void power_cut_recorder::cut(const std::string& where) {
  if (!attempt_)
    return;
  ++cuts_;
  std::memcpy(image_.data(), live_.data(), live_.size());
  auto choices = choices_now();
  std::size_t images = 1;
  for (auto& c : choices)
    images = std::min(images * c.contents.size(), images_whole_max + 1);
  if (images > images_whole_max)
    return sample(where, choices);
  ++whole_cuts_;
  enumerate(where, choices);
}

void power_cut_recorder::enumerate(const std::string& where, const std::vector<choice>& choices) {
  std::vector<std::size_t> picks(choices.size());
  std::size_t carried = 0; // carries to this line when counting on; the first line counts fastest
  do {
    attempt(where + ", one of all images", choices, [&](std::size_t i) { return picks[i]; });
    for (carried = 0;
         carried < picks.size() && ++picks[carried] == choices[carried].contents.size(); ++carried)
      picks[carried] = 0;
  } while (carried < picks.size());
}

void power_cut_recorder::sample(const std::string& where, const std::vector<choice>& choices) {
  auto certain = [](std::size_t) { return std::size_t{0}; };
  auto present = [&](std::size_t i) { return choices[i].contents.size() - 1; };
  attempt(where + ", nothing more arrived", choices, certain);
  attempt(where + ", everything arrived", choices, present);
  for (std::size_t i = 0; i < std::min(choices.size(), single_lines_max); ++i) {
    auto chosen = choices.size() <= single_lines_max ? i : random_() % choices.size();
    attempt(where + ", only one line arrived", choices, [&](std::size_t line) {
      return line == chosen ? present(line) : 0;
    });
    attempt(where + ", one line is missing", choices, [&](std::size_t line) {
      return line == chosen ? 0 : present(line);
    });
  }
  for (int i = 0; i < random_subsets; ++i)
    attempt(where + ", some arrived", choices, [&](std::size_t line) {
      return random_() % choices[line].contents.size();
    });
}

void power_cut_recorder::attempt(
  const std::string& what, const std::vector<choice>& choices,
  const std::function<std::size_t(std::size_t)>& pick) {
  ++images_;
  for (std::size_t i = 0; i < choices.size(); ++i)
    std::memcpy(
      image_.data() + choices[i].line * line_bytes, choices[i].contents[pick(i)].data(),
      line_bytes);
  attempt_(image_, what);
}

} // namespace millrace::testing

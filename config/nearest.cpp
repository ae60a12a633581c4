// The edit distance between short words.
#include <millrace/config/nearest.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <numeric>

namespace millrace::config {

namespace {

constexpr std::size_t word_max = 63;

char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

// Typists confuse dash and underscore.
bool same(char a, char b) {
  auto fold = [](char c) { return c == '-' ? '_' : lower(c); };
  return fold(a) == fold(b);
}

// Both words have at most `word_max` letters.
std::size_t distance(std::string_view a, std::string_view b) {
  using row = std::array<std::size_t, word_max + 1>;
  row before_last{};
  row last{};
  row now{};
  std::iota(last.begin(), last.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      auto replaced = last[j - 1] + (same(a[i - 1], b[j - 1]) ? 0 : 1);
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
        now[j] = std::min(now[j], before_last[j - 2] + 1);
    }
    before_last = last;
    last = now;
  }
  return last[b.size()];
}

} // namespace

std::string_view nearest(std::string_view word, std::span<const std::string_view> known) {
  std::string_view best;
  auto best_distance = word.size();
  for (auto candidate : known) {
    if (word.size() > word_max || candidate.size() > word_max)
      continue;
    auto d = distance(word, candidate);
    // A third of the letters may be wrong, or the word is the beginning of the right one.
    bool close = d <= std::max<std::size_t>(1, std::max(word.size(), candidate.size()) / 3) ||
      (word.size() >= 3 && candidate.substr(0, word.size()) == word);
    if (close && (best.empty() || d < best_distance)) {
      best = candidate;
      best_distance = d;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, std::span<const std::string_view> known) {
  auto best = nearest(word, known);
  return best.empty() ? std::string{} : "; did you mean '" + std::string{best} + "'?";
}

} // namespace millrace::config

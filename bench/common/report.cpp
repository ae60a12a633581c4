// Prints columns and JSON, and compares the results with the goals.
#include <millrace/bench/common/report.hpp>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <span>
#include <thread>

namespace millrace::bench {

namespace {

// Below this size a row shows a time instead of a speed, unless it has many transfers.
constexpr std::uint64_t speed_bytes_min = 1u << 20;

template <class... Values>
std::string format(const char* pattern, Values... values) {
  char text[160];
  std::snprintf(text, sizeof(text), pattern, values...);
  return text;
}

bool shows_speed(const row& r) { return r.transfers > 0 || r.size_bytes >= speed_bytes_min; }

// A unit and the figures that it fits.
struct unit {
  double from;  // bytes per second, or seconds: the least figure for this unit
  double scale; // the factor for this unit
  const char* name;
  int decimals;
};
constexpr unit speeds[] = {{1e8, 1e-9, "GB/s", 2}, {1e5, 1e-6, "MB/s", 1}, {0, 1e-3, "kB/s", 1}};
constexpr unit times[] = {
  {1, 1, "s", 2}, {1e-2, 1e3, "ms", 1}, {1e-6, 1e6, "us", 1}, {0, 1e9, "ns", 0}};

double figure(const row& r, double seconds) {
  return shows_speed(r) ? static_cast<double>(r.size_bytes) / seconds : seconds;
}

const unit& unit_of(const row& r, double seconds) {
  auto units = shows_speed(r) ? std::span<const unit>{speeds} : std::span<const unit>{times};
  return *std::ranges::find_if(units, [&](auto& u) { return !(figure(r, seconds) < u.from); });
}

std::string speed_or_time(const row& r, double seconds) {
  auto& u = unit_of(r, seconds);
  return format("%.*f %s", u.decimals, figure(r, seconds) * u.scale, u.name);
}

// Returns the spread in the median's unit.
std::string spread(const row& r) {
  auto& u = unit_of(r, r.ours.median());
  auto a = figure(r, r.ours.min()) * u.scale;
  auto b = figure(r, r.ours.max()) * u.scale;
  return format("%.2f..%.2f", std::min(a, b), std::max(a, b));
}

struct verdict {
  std::string goal;
  std::string reached;
  std::optional<bool> met; // empty: not measured
};

std::optional<double> ratio_of(const row& r) {
  return r.peer_s ? std::optional{*r.peer_s / r.ours.median()} : std::nullopt;
}

std::optional<double> floor_of(const row& r) {
  return r.floor_s ? std::optional{*r.floor_s / r.ours.median()} : std::nullopt;
}

std::optional<double> peer_floor_of(const row& r) {
  return r.floor_s && r.peer_s ? std::optional{*r.floor_s / *r.peer_s} : std::nullopt;
}

// Small ones are told exactly.
std::string bytes_text(double bytes, const char* pattern) {
  return bytes < 1000 ? format("%.0f B", bytes) : format(pattern, bytes * 1e-3);
}

std::vector<verdict> judge(const row& r) {
  std::vector<verdict> out;
  if (r.ratio_min) {
    auto ratio = ratio_of(r);
    out.push_back(
      {format(">= %.2fx %s", *r.ratio_min, r.peer.c_str()),
       ratio ? format("%.2fx", *ratio) : "no peer",
       ratio ? std::optional{*ratio >= *r.ratio_min} : std::nullopt});
  }
  if (r.floor_min) {
    auto part = floor_of(r);
    out.push_back(
      {format(">= %.0f %% of the floor", *r.floor_min * 100),
       part ? format("%.0f %%", *part * 100) : "no floor",
       part ? std::optional{*part >= *r.floor_min} : std::nullopt});
  }
  if (r.peer_floor_max) {
    auto part = peer_floor_of(r);
    out.push_back(
      {format("peer <= %.0f %% of the floor", *r.peer_floor_max * 100),
       part ? format("%.0f %%", *part * 100) : "no peer",
       part ? std::optional{*part <= *r.peer_floor_max} : std::nullopt});
  }
  if (r.seconds_max)
    out.push_back(
      {format("<= %.0f us", *r.seconds_max * 1e6), format("%.0f us", r.ours.median() * 1e6),
       r.ours.median() <= *r.seconds_max});
  if (r.bytes_max)
    out.push_back(
      {"<= " + bytes_text(static_cast<double>(*r.bytes_max), "%.0f KB"),
       bytes_text(static_cast<double>(r.size_bytes), "%.1f KB"), r.size_bytes <= *r.bytes_max});
  return out;
}

const char* word(const std::optional<bool>& met) {
  return !met ? "not measured" : *met ? "met" : "MISSED";
}

nlohmann::json number(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? nlohmann::json(*value) : nlohmann::json();
}

// False if one goal is missed, null if none is but one was not measured.
nlohmann::json met_of(const std::vector<verdict>& verdicts) {
  bool all_measured = true;
  for (auto& v : verdicts) {
    if (v.met && !*v.met)
      return false;
    all_measured = all_measured && v.met.has_value();
  }
  return all_measured ? nlohmann::json(true) : nlohmann::json();
}

// Today in UTC, as 2026-01-31.
std::string date_now() {
  auto now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  return format("%04d-%02d-%02d", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday);
}

nlohmann::json to_json(const row& r) {
  nlohmann::json line{
    {"case", r.name},
    {"ours_s", r.ours.median()},
    {"peer", r.peer_s ? nlohmann::json(r.peer) : nlohmann::json()},
    {"peer_s", number(r.peer_s)},
    {"ratio", number(ratio_of(r))},
    {"floor_s", number(r.floor_s)},
    {"floor_fraction", number(floor_of(r))},
    {"peer_floor_fraction", number(peer_floor_of(r))},
    {"bytes", r.size_bytes},
    {"ours_min_s", r.ours.min()},
    {"ours_max_s", r.ours.max()},
    {"repetitions", r.ours.size()}};
  if (r.transfers > 0)
    line["transfers"] = r.transfers;
  for (auto& [name, seconds] : r.others)
    line["others"][name] = seconds;
  if (!r.stages.empty())
    line["stages"] = r.stages;
  line["ours_all_s"] = r.ours.values();
  auto add_goal = [&](const char* name, auto& goal) {
    if (goal)
      line["goals"][name] = *goal;
  };
  add_goal("ratio_min", r.ratio_min);
  add_goal("floor_min", r.floor_min);
  add_goal("peer_floor_max", r.peer_floor_max);
  add_goal("seconds_max", r.seconds_max);
  add_goal("bytes_max", r.bytes_max);
  auto verdicts = judge(r);
  for (auto& v : verdicts)
    line["goal"] = line.contains("goal") ? line["goal"].get<std::string>() + "; " + v.goal : v.goal;
  if (!verdicts.empty())
    line["met"] = met_of(verdicts);
  return line;
}

template <class T>
void take(const nlohmann::json& from, const char* name, std::optional<T>& to) {
  if (auto found = from.find(name); found != from.end() && !found->is_null())
    to = found->get<T>();
}

row from_json(const nlohmann::json& line) {
  row r;
  r.name = line.at("case");
  r.size_bytes = line.at("bytes");
  r.transfers = line.value("transfers", std::uint64_t{0});
  for (double seconds : line.at("ours_all_s"))
    r.ours.add(seconds);
  take(line, "peer_s", r.peer_s);
  if (r.peer_s)
    r.peer = line.at("peer");
  take(line, "floor_s", r.floor_s);
  auto others = line.value("others", nlohmann::json::object());
  for (auto& [name, seconds] : others.items())
    r.others.emplace_back(name, seconds);
  r.stages = line.value("stages", "");
  r.machine = line.at("machine");
  auto goals = line.value("goals", nlohmann::json::object());
  take(goals, "ratio_min", r.ratio_min);
  take(goals, "floor_min", r.floor_min);
  take(goals, "peer_floor_max", r.peer_floor_max);
  take(goals, "seconds_max", r.seconds_max);
  take(goals, "bytes_max", r.bytes_max);
  return r;
}

} // namespace

void report::print_header() const {
  std::printf(
    "%-46s %11s %15s  %-26s %7s %6s  %s\n", "case", "ours", "min..max", "peer", "ratio", "floor",
    "goals");
}

void report::add(row r) {
  auto ratio = ratio_of(r);
  auto floor = floor_of(r);
  std::string peer = r.peer_s ? r.peer + " " + speed_or_time(r, *r.peer_s) : "-";
  std::string goals;
  for (auto& v : judge(r))
    goals += (goals.empty() ? "" : ", ") + v.goal + ": " + word(v.met);
  std::printf(
    "%-46s %11s %15s  %-26s %7s %6s  %s\n", r.name.c_str(),
    speed_or_time(r, r.ours.median()).c_str(), spread(r).c_str(), peer.c_str(),
    ratio ? format("%.2fx", *ratio).c_str() : "-",
    floor ? format("%.0f %%", *floor * 100).c_str() : "-", goals.c_str());
  for (auto& [name, seconds] : r.others)
    std::printf(
      "%-46s %11s %15s  %s\n", "", "", "", (name + " " + speed_or_time(r, seconds)).c_str());
  if (!r.stages.empty())
    std::printf("%-46s   %s\n", "", r.stages.c_str());
  std::fflush(stdout);
  rows_.push_back(std::move(r));
}

std::size_t report::print_goals() const {
  std::printf("\nGoals\n");
  std::size_t met = 0, missed = 0, all = 0;
  for (auto& r : rows_)
    for (auto& v : judge(r)) {
      std::printf(
        "  %-12s  %-46s %-28s reached %s\n", word(v.met), r.name.c_str(), v.goal.c_str(),
        v.reached.c_str());
      met += v.met.value_or(false);
      missed += !v.met.value_or(true);
      ++all;
    }
  std::printf("%zu of %zu goals met\n", met, all);
  return missed;
}

result<std::string> report::add_from(const std::string& json_path) {
  std::ifstream file{json_path};
  if (!file)
    return fail(status_from_errno(errno, "reading " + json_path));
  std::string machine;
  try {
    for (std::string line; std::getline(file, line);) {
      auto r = from_json(nlohmann::json::parse(line));
      machine = r.machine;
      add(std::move(r));
    }
  } catch (const nlohmann::json::exception& e) {
    return fail(errc::corrupt_data, json_path + ": " + e.what());
  }
  return machine;
}

status report::write_json(const std::string& path) const {
  std::ofstream file{path};
  auto date = date_now();
  for (auto& r : rows_) {
    auto line = to_json(r);
    line["commit"] = commit_;
    line["date"] = date;
    line["machine"] = r.machine.empty() ? machine_ : r.machine;
    file << line.dump() << "\n";
  }
  file.close();
  return file ? status{} : status_from_errno(errno, "writing " + path);
}

std::string machine_summary() {
  std::ifstream info{"/proc/cpuinfo"};
  std::string line, model = "unknown processor";
  while (std::getline(info, line))
    if (line.starts_with("model name")) {
      model = line.substr(line.find(':') + 2);
      break;
    }
  auto gib = static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
    static_cast<double>(sysconf(_SC_PAGESIZE)) / (1u << 30);
  return model + ", " + std::to_string(std::thread::hardware_concurrency()) + " cores, " +
    format("%.0f GiB", gib);
}

} // namespace millrace::bench

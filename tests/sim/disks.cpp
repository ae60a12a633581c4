// Sorts what is recorded by directories. Called by the recorder and by clusters.
#include <millrace/tests/sim/disks.hpp>
#include <millrace/tests/support/seeds.hpp>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace millrace::sim {

using namespace testing::disk;

simulated_disks::simulated_disks(std::string root) : root_(std::move(root)) {
  std::filesystem::create_directory(root_);
  listen_to(root_, [this](const event& e) { happens(e); });
}

simulated_disks::~simulated_disks() { listen_to({}, {}); }

void simulated_disks::happens(event e) {
  if (e.head.kind == event_kind::unknown)
    not_understood_ = e.path;
  for (auto* path : {&e.path, &e.other})
    path->erase(0, std::min(path->size(), root_.size() + 1));
  if (e.head.kind == event_kind::names_synced && e.path.empty()) {
    for (auto& [directory, s] : states_)
      s.happens(e);
    return;
  }
  auto known = directory_of_.find(e.head.id);
  auto directory = e.path.empty() && known != directory_of_.end()
    ? known->second
    : e.path.substr(0, e.path.find('/'));
  if (directory.empty()) // it was printed
    return;
  if (e.head.id != 0)
    directory_of_[e.head.id] = directory;
  states_[directory].happens(e);
  if (watch_)
    watch_(directory);
}

directory_left simulated_disks::left_in(
  const std::string& directory, bool power_cut, testing::dice& random) {
  testing::demand(not_understood_.empty(), "the recorder understands: " + not_understood_);
  // However much is chosen, what happens next does not depend on it.
  testing::dice choices{random.next()};
  auto& now = states_[directory];
  if (power_cut)
    return {now.after_power_cut(choices), {}, true};
  return {now.seen(), now, false};
}

void simulated_disks::put_back(const std::string& directory, const directory_left& left) {
  auto watch = std::exchange(watch_, nullptr);
  std::filesystem::remove_all(path_of(directory));
  auto& now = states_[directory];
  now.settle();
  write_tree(left.files, root_);
  if (left.power_cut)
    now.settle();
  else
    now.go_on_from(left.state);
  watch_ = std::move(watch);
}

} // namespace millrace::sim

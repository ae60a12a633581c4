// The functions that several sections share: floors, fresh processes, names.
#include <millrace/bench/checkpoint/stage.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <thread>

namespace millrace::bench {

std::vector<std::string> extent::tables() const {
  std::vector<std::string> out = {"AlexNet",  "ConvNeXt-B", "ResNet50",  "Swin-B",
                                  "VGG19-BN", "ViT-B/32",   "BERT-large"};
  if (quick)
    out = {"small"};
  std::erase_if(out, [this](auto& name) { return name.find(model) == std::string::npos; });
  return out;
}

std::uint64_t extent::pool_bytes() const { return quick ? 256u << 20 : std::uint64_t{4} << 30; }

std::vector<python_peer> stage::start_peers(const model_table& table) const {
  std::vector<python_peer> out;
  for (auto& name : peers)
    if (auto peer = python_peer::start(name, false)) {
      peer->build(table);
      out.push_back(std::move(*peer));
    }
  return out;
}

std::string peer_path(const scratch_directory& where, const std::string& peer) {
  return where.file("peer-" + peer);
}

void name_peers(
  row& r, const std::string& what, const std::vector<std::string>& names,
  const std::vector<const samples*>& times) {
  r.peer = "torch." + what;
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == "torch")
      r.peer_s = times[i]->median();
    else
      r.others.emplace_back(names[i], times[i]->median());
}

std::string stages_of(const save_receipt& r) {
  auto text = [](std::uint64_t us) { return std::to_string(us); };
  return "last one, us: queued " + text(r.times.queued_us) + ", begin " + text(r.times.begin_us) +
    " (for a slot " + text(r.times.slot_us) + ")" + ", pull " + text(r.times.pull_us) +
    ", persist " + text(r.times.persist_us) + "; " + r.driver + ", " + r.path;
}

std::string stages_of(
  const std::string& peer, const std::vector<std::pair<std::string, double>>& seconds) {
  std::string words;
  for (auto& [name, s] : seconds)
    words += fmt::format(
      "{}{} {:.0f}", words.empty() ? fmt::format(" | {}, us: ", peer) : ", ", name, s * 1e6);
  return words;
}

void restores(
  stage& s, const service& at, const model_table& table, const scratch_directory& files, bool cold,
  row r) {
  contest c;
  auto& ours = c.add([&] {
    return trainer_process{at.address(), table.name, 0, 1, true}.restore();
  });
  std::vector<const samples*> theirs;
  for (auto& name : s.peers)
    theirs.push_back(&c.add([&, name] {
      auto peer = python_peer::start(name, false);
      if (!peer)
        give_up(name + " does not start any more");
      peer->build(table);
      return peer->restore(peer_path(files, name), cold);
    }));
  copy_floor floor{c, s.source.first(table.size_bytes), s.target.first(table.size_bytes)};
  c.run(s.how.fresh_rounds);
  r.size_bytes = table.size_bytes;
  r.ours = ours;
  name_peers(r, "load", s.peers, theirs);
  if (!r.floor_s)
    r.floor_s = floor.median();
  s.out.add(std::move(r));
}

} // namespace millrace::bench

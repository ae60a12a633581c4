// Measures from the call that publishes until the last follower has the version, beside a file of
// torch.save and a broadcast of gloo.
#include <millrace/bench/broadcast/follower.hpp>
#include <millrace/bench/broadcast/weights_section.hpp>
#include <millrace/bench/common/floors.hpp>
#include <millrace/bench/common/peers.hpp>
#include <millrace/bench/common/service.hpp>
#include <millrace/runtime/client/weights.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace millrace::bench {

namespace {

constexpr std::size_t followers = 4;
constexpr double file_goal = 3;   // times torch.save and torch.load
constexpr double gloo_goal = 1.5; // times a broadcast
constexpr auto peer_name = "broadcast";

/// A publisher in this process, a provider in another one, and the followers in one each.
class our_weights {
public:
  our_weights(const service& at, std::uint64_t size_bytes)
    : memory_(size_bytes), client_(at.connect()),
      publisher_(need(
        client_.weights(weights_name).publisher(weights_table(size_bytes).over(memory_.bytes())),
        "making a publisher")) {
    for (std::size_t i = 0; i < followers; ++i)
      followers_.emplace_back(at.address(), size_bytes);
    // The provider has two versions by turns, each in memory that is new at first.
    publish();
    publish();
  }

  std::span<const std::byte> bytes() const noexcept { return memory_.bytes(); }

  /// Returns the seconds until the last follower has a new version.
  double publish() {
    stamp(memory_.bytes(), ++version_);
    auto begun_ns = monotonic_ns();
    auto pending = publisher_.publish(version_);
    need(pending.stored.result(), "publishing");
    auto last_ns = begun_ns;
    for (auto& one : followers_)
      last_ns = std::max(last_ns, one.loaded_at_ns(version_));
    for (auto& one : followers_)
      one.check();
    return static_cast<double>(last_ns - begun_ns) * 1e-9;
  }

private:
  warm_buffer memory_;
  client client_;
  weights_publisher publisher_;
  std::vector<follower_process> followers_;
  std::uint64_t version_ = 0;
};

/// The same by PyTorch: a process that has the weights, and as many others as there are followers.
class torch_weights {
public:
  /// Returns nothing where PyTorch is missing.
  static std::optional<torch_weights> start(const scratch_directory& files) {
    std::vector<python_peer> all;
    for (std::size_t i = 0; i <= followers; ++i) {
      auto one = python_peer::start(peer_name, i == 0);
      if (!one)
        return {};
      all.push_back(std::move(*one));
    }
    return torch_weights{std::move(all), files.file("torch-file"), files.file("gloo-group")};
  }

  void build(const model_table& table) {
    for (auto& one : all_)
      one.build(table);
  }

  /// Returns the seconds until the last process has read the file that the first one writes.
  double by_file() {
    return changed([&] {
      all_.front().save(file_, false);
      each_other([&](python_peer& one, std::size_t) { one.begin_restore(file_, false); });
    });
  }

  double by_gloo() {
    return changed([&] {
      all_.front().begin_save(member(0), false);
      each_other([&](python_peer& one, std::size_t i) { one.begin_restore(member(i), false); });
      all_.front().finish();
    });
  }

private:
  torch_weights(std::vector<python_peer> all, std::string file, std::string group)
    : all_(std::move(all)), file_(std::move(file)), group_(std::move(group)) {}

  std::string member(std::size_t rank) const {
    return fmt::format("gloo:{}:{}:{}", group_, rank, followers + 1);
  }

  // Begins at all the others, then waits for them.
  template <class Begin>
  void each_other(Begin begin) {
    for (std::size_t i = 1; i < all_.size(); ++i)
      begin(all_[i], i);
    for (std::size_t i = 1; i < all_.size(); ++i)
      all_[i].finish();
  }

  // New weights before, and a comparison of all of them after what is timed.
  double changed(const std::function<void()>& f) {
    auto sum = all_.front().measure("fill", ++version_);
    auto seconds = seconds_of(f);
    for (auto& one : all_)
      if (one.measure("sum", 0) != sum)
        give_up("a process of PyTorch has other weights than the first one");
    return seconds;
  }

  std::vector<python_peer> all_;
  std::string file_, group_;
  int version_ = 0;
};

struct outcome {
  const samples *ours = nullptr, *file = nullptr, *gloo = nullptr;
  double floor_s = 0;
};

void add_rows(const model_table& table, const outcome& all, bool has_goals, report& out) {
  row r;
  r.name = fmt::format("weights/{}/{}-subscribers", size_name(table.size_bytes), followers);
  r.size_bytes = table.size_bytes * followers;
  r.ours = *all.ours;
  r.floor_s = all.floor_s;
  auto add_beside = [&](const char* peer, const samples* times, double goal) {
    r.peer = peer;
    r.peer_s.reset();
    if (times)
      r.peer_s = times->median();
    r.ratio_min.reset();
    if (has_goals)
      r.ratio_min = goal;
    out.add(r);
  };
  add_beside("torch.save, torch.load", all.file, file_goal);
  r.name += "/beside-gloo";
  add_beside("gloo broadcast", all.gloo, gloo_goal);
}

// Two versions have room at the provider.
void measure(
  const model_table& table, std::optional<torch_weights>& peers, const model_options& o,
  const scratch_directory& files, report& out) {
  service at{files.path(), {service_kind::memory, 2 * table.size_bytes + (256u << 20), {}, 0}};
  our_weights ours{at, table.size_bytes};
  warm_buffer target{table.size_bytes};
  contest c;
  outcome all;
  all.ours = &c.add([&] { return ours.publish(); });
  if (peers) {
    peers->build(table);
    all.file = &c.add([&] { return peers->by_file(); });
    all.gloo = &c.add([&] { return peers->by_gloo(); });
  }
  // One copy into the provider, and one into each follower.
  copy_floor floor{c, ours.bytes(), target.bytes(), followers + 1};
  c.run(o.rounds > 0 ? o.rounds : o.quick ? 2 : 7);
  all.floor_s = floor.median();
  add_rows(table, all, !o.quick, out);
}

} // namespace

void weights_section(const model_options& o, const scratch_directory& files, report& out) {
  auto peers = o.no_peers ? std::nullopt : torch_weights::start(files);
  std::vector<std::uint64_t> sizes{64u << 20, 1u << 30};
  if (o.quick)
    sizes = {16u << 20};
  for (auto size_bytes : sizes)
    if (size_name(size_bytes).find(o.model) != std::string::npos)
      measure(weights_table(size_bytes), peers, o, files, out);
}

} // namespace millrace::bench

// Batches of a set that is larger than the memory of its data server: a window keeps a quarter of
// it, and the rest comes from the files in each epoch, one for each sample. The first epoch is not
// measured.
#include <millrace/bench/loader/loading.hpp>

#include <fmt/format.h>

namespace millrace::bench {

namespace {

constexpr auto name = "files-50KiB";
constexpr size_spread sizes{50 * kib, 25 * kib};
constexpr std::uint64_t window_part = 4;

row row_of(
  const sample_files& of, std::size_t batches, const samples& ours, const named_samples& loaders) {
  auto of_one = [&](double s) { return s / static_cast<double>(batches); };
  row r;
  r.name = fmt::format("window/{}/cpp", name);
  r.size_bytes = of.batch_bytes(batch_size);
  for (auto seconds : ours.values())
    r.ours.add(of_one(seconds));
  for (auto& [peer, times] : loaders)
    r.others.emplace_back(peer, of_one(times->median()));
  if (auto [peer, best_s] = fastest(loaders); !peer.empty()) {
    r.peer = peer;
    r.peer_s = of_one(best_s);
  }
  return r;
}

} // namespace

void window_section(const stage& s) {
  if (!s.wants(name))
    return;
  sample_files of{s.files, name, sizes, s.set_bytes()};
  preload_options how;
  how.window_bytes = s.set_bytes() / window_part;
  data_service at{s.files, how.window_bytes + region_bytes};
  auto c = at.connect();
  need(c.working_set(of.name()).preload({of.path()}, how).result(), "preloading");
  open_options files;
  files.files = {of.path()};
  training here{at, of, {}, 1, files};
  here.take(of.samples() / batch_size); // an epoch
  auto batches = of.batches_of_round();
  contest all;
  auto& ours = all.add([&] { return here.take(batches); });
  named_samples loaders;
  std::optional<python_trainings> python;
  if (!s.options.no_peers) {
    python.emplace(at, false);
    loaders = python->add_peers(all, of, {}, batches);
  }
  all.run(s.rounds(7));
  s.out.add(row_of(of, batches, ours, loaders));
}

} // namespace millrace::bench

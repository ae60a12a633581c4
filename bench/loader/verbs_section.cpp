// Batches by the driver verbs. A device that a guest emulates shows what works, not how fast it is.
#include <millrace/bench/common/guest.hpp>
#include <millrace/bench/loader/loading.hpp>

#include <fmt/format.h>

#include <filesystem>

namespace millrace::bench {

namespace {

constexpr std::uint64_t set_bytes = 64 * mib;
constexpr std::size_t batches = 8; // of a round

bool has_device() {
  std::error_code none;
  return std::filesystem::directory_iterator{"/sys/class/infiniband", none} !=
    std::filesystem::directory_iterator{};
}

void measure(const stage& s, const sample_kind& kind) {
  sample_files of{s.files, kind, set_bytes};
  data_service at{s.files, set_bytes + 2 * region_bytes};
  auto c = at.connect();
  need(c.working_set(of.name()).preload({of.path()}).result(), "preloading");
  s.out.add(against_large_read(
    fmt::format("verbs/{}", of.name()), of, at.connect("verbs"), at.connect("verbs"), batches,
    s.rounds(3)));
}

} // namespace

void verbs_section(const stage& s) {
  auto& kind = kinds[1];
  if (!s.wants(kind.name))
    return;
  if (has_device())
    return measure(s, kind);
  if (s.options.guest.empty())
    return skip_aloud("verbs", "this machine shows no RDMA device");
  std::vector<std::string> arguments{"--only", "verbs", "--memory", "/dev/shm"};
  if (s.options.quick)
    arguments.emplace_back("--quick");
  run_in_guest(s.out, "verbs", {s.options.guest, {"--mem", "2048M"}, arguments});
}

} // namespace millrace::bench

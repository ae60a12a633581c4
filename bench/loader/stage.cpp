// Samples are made once. Files lie in memory, so that peers do not wait for a disk.
#include <millrace/bench/common/floors.hpp>
#include <millrace/bench/loader/stage.hpp>
#include <millrace/core/rounding.hpp>
#include <millrace/storage/archive/npy.hpp>
#include <millrace/transport/copy/copy.hpp>
#include <millrace/transport/fabric_options.hpp>
#include <millrace/transport/shm/shm_options.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string_view>
#include <thread>

namespace millrace::bench {

namespace {

constexpr int start_timeout_ms = 60'000;
constexpr std::uint32_t mapped_by_transfers = 2; // fewer than any set has regions, and none is

void write_all(std::ofstream file, std::span<const std::byte> bytes, const std::string& path) {
  file.write(
    reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush())
    give_up("the file " + path + " cannot be written");
}

} // namespace

batch_ids random_ids(std::size_t count, std::uint64_t samples, std::uint64_t seed) {
  std::mt19937_64 random{seed};
  batch_ids out;
  for (std::size_t i = 0; i < count; ++i)
    out.push_back(random() % samples);
  return out;
}

sample_files::sample_files(
  const scratch_directory& files, const sample_kind& of, std::uint64_t all_bytes)
  : name_(of.name), path_(files.file(name_ + ".npy")), sample_bytes_(of.bytes) {
  for (std::uint64_t at = 0; at <= all_bytes; at += of.bytes)
    begins_.push_back(at);
  memory_ = std::make_unique<warm_buffer>(size_bytes());
  memory_->fill_randomly(of.bytes);
  std::ofstream file{path_, std::ios::binary};
  file << storage::archive::write_npy_header({"x", dtype::u8, {samples(), of.bytes}});
  write_all(std::move(file), bytes(), path_);
}

sample_files::sample_files(
  const scratch_directory& files, std::string name, const size_spread& of, std::uint64_t all_bytes)
  : name_(std::move(name)), path_(files.file(name_)), begins_{0} {
  std::mt19937_64 random{of.mean_bytes};
  std::normal_distribution<double> sizes{
    static_cast<double>(of.mean_bytes), static_cast<double>(of.deviation_bytes)};
  for (;;) {
    auto end = begins_.back() + static_cast<std::uint64_t>(std::max(sizes(random), 1024.0));
    if (end > all_bytes)
      break;
    begins_.push_back(end);
  }
  memory_ = std::make_unique<warm_buffer>(std::max<std::uint64_t>(size_bytes(), 1));
  memory_->fill_randomly(of.mean_bytes);
  std::filesystem::create_directory(path_);
  for (std::uint64_t i = 0; i < samples(); ++i) {
    auto path = fmt::format("{}/{:08}.bin", path_, i);
    write_all(std::ofstream{path, std::ios::binary}, (*this)[i], path);
  }
}

sample_files::~sample_files() {
  std::error_code ignored; // the scratch directory goes as a whole
  for (auto* of_peers : {"", ".h5", ".files"})
    std::filesystem::remove_all(path_ + of_peers, ignored);
}

std::uint64_t sample_files::batch_bytes(std::size_t batch) const {
  return sample_bytes_ > 0 ? batch * sample_bytes_ : batch * size_bytes() / samples();
}

std::size_t sample_files::batches_of_round() const {
  return std::max<std::size_t>(round_bytes / batch_bytes(batch_size), batches_min);
}

model_table sample_files::table(std::size_t batch) const {
  model_table out;
  out.tensors.tensors = {{path_, dtype::u8, {samples(), sample_bytes_, batch}}};
  return out;
}

child start_node(const std::string& config_path) {
  auto out = need(child::start({"/proc/self/exe", "--serve", config_path}), "starting the node");
  auto ready = need(out.read_line(start_timeout_ms), "starting the node");
  if (ready != "ready")
    give_up("the node does not start: " + ready);
  return out;
}

data_service::data_service(const scratch_directory& files, std::uint64_t capacity_bytes)
  : address_("unix:" + files.file("data.sock")) {
  auto config = files.file("data.yaml");
  std::ofstream{config} << fmt::format(
    "node: {{ name: data, listen: '{}', log_level: error }}\n"
    "data: {{ capacity: {}, region_size: {} }}\n"
    "tcp: {{ listen: ['127.0.0.1:0'] }}\n"
    "providers: [{{ name: store, bucket: memory, capacity: 16MiB }}]\n",
    address_, round_up(capacity_bytes, region_bytes), region_bytes);
  process_ = start_node(config);
}

client data_service::connect(const char* driver) const {
  config::settings s;
  if (driver)
    s.options.edit<transport::fabric_options>().prefer = {driver};
  if (driver && driver == std::string_view{"shm"})
    s.options.edit<transport::shm_options>().mapped_max = mapped_by_transfers;
  return client::connect(address_, s);
}

void on_threads(std::size_t threads, const std::function<void(std::size_t)>& work) {
  std::vector<std::jthread> others;
  for (std::size_t i = 1; i < threads; ++i)
    others.emplace_back([&work, i] { work(i); });
  work(0);
}

gather_floor::gather_floor(const sample_files& of, std::size_t threads, std::size_t plans)
  : of_(of) {
  std::uint64_t largest = 0;
  for (std::size_t i = 0; i < plans; ++i) {
    batches_.push_back(random_ids(batch_size, of.samples(), i));
    std::uint64_t bytes = 0;
    for (auto id : batches_.back())
      bytes += of[id].size();
    largest = std::max(largest, bytes);
  }
  for (std::size_t i = 0; i < threads; ++i)
    targets_.push_back(std::make_unique<warm_buffer>(largest + 64 * batch_size));
}

double gather_floor::gather(std::size_t batches) {
  return seconds_of([&] {
    on_threads(targets_.size(), [&](std::size_t thread) {
      for (auto b = thread; b < batches; b += targets_.size())
        gather_one(batches_[b % batches_.size()], targets_[thread]->bytes().data());
    });
  });
}

// Each sample begins on a line of its own, as streaming stores want it.
void gather_floor::gather_one(const batch_ids& ids, std::byte* to) const {
  for (auto id : ids) {
    auto from = of_[id];
    plain_copy(to, from.data(), from.size());
    to += (from.size() + 63) / 64 * 64;
  }
  transport::streaming_fence();
}

std::pair<std::string, double> fastest(const named_samples& of) {
  std::pair<std::string, double> out{"", std::numeric_limits<double>::infinity()};
  for (auto& [name, times] : of)
    if (times->median() < out.second)
      out = {name, times->median()};
  return out;
}

} // namespace millrace::bench

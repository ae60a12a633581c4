// A node in this process with a data server of a few regions, and files of samples, for tests of
// working sets and loaders.
#pragma once

#include <millrace/actors/loader/data_options.hpp>
#include <millrace/storage/archive/npy.hpp>
#include <millrace/storage/memory/memory_options.hpp>
#include <millrace/tests/runtime/one_node.hpp>
#include <millrace/tests/support/crafted_zip.hpp>
#include <millrace/tests/support/npy_file.hpp>
#include <millrace/tests/support/pattern.hpp>

#include <boost/test/unit_test.hpp>
#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace millrace::testing {

inline constexpr std::uint64_t mib = 1 << 20;

struct data_node : one_node {
  static constexpr std::uint64_t sample_bytes = 1000;

  /// `change` may change the settings before the node starts.
  explicit data_node(
    std::uint64_t capacity_bytes = 8 * mib,
    const std::function<void(config::settings&)>& change = {}) {
    config::provider_settings models;
    models.name = "models";
    models.options.edit<storage::memory_bucket_options>().capacity_bytes = 16 * mib;
    settings = with_provider(dir.path(), models);
    settings.staging.size_bytes = 32 * mib;
    auto& data = settings.options.edit<actors::data_options>();
    data.capacity_bytes = capacity_bytes;
    data.region_bytes = mib;
    if (change)
      change(settings);
    start();
  }

  // A file of samples whose bytes are those of the pattern.
  std::string file(const std::string& name, std::uint64_t samples, std::uint64_t salt = 1) {
    auto bytes = pattern(samples * sample_bytes, salt);
    return write_npy(dir.path() + "/" + name, {"x", dtype::u8, {samples, 10, 100}}, bytes);
  }

  // Ends the connections to the node's socket, as a network does.
  void cut_connections() {
    auto path = dir.path() + "/n0.sock";
    for (int fd = 3; fd < 1024; ++fd) {
      sockaddr_un peer{};
      socklen_t length = sizeof(peer);
      auto is_one = getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0 &&
        peer.sun_family == AF_UNIX && path == peer.sun_path;
      if (is_one)
        shutdown(fd, SHUT_RDWR);
    }
  }

  std::uint64_t used_bytes() { return direct->status().get().front().value().data.used_bytes; }
  // The memory of a reader that has gone returns a little later.
  bool frees_all_but(std::uint64_t bytes) {
    auto until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
    auto is_so = false;
    while (!(is_so = used_bytes() == bytes) && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    return is_so;
  }
};

/// Writes samples as NPZ has them, whose bytes are those of the pattern. A damaged file looks as
/// the others do until its samples are read.
inline std::string write_npz(const std::string& path, std::uint64_t samples, bool damaged) {
  auto text = storage::archive::write_npy_header({"", dtype::u8, {samples, 1000}});
  auto bytes = pattern(samples * 1000, 1);
  text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  write_crafted_zip(path, {{"x.npy", text}});
  std::fstream file{path, std::ios::binary | std::ios::in | std::ios::out};
  if (damaged)
    file.seekp(static_cast<std::streamoff>(samples * 500)).put('!').put('?');
  return path;
}

inline bool is_sample(std::span<const std::byte> bytes, std::uint64_t id, std::uint64_t salt = 1) {
  return is_pattern(bytes, id * data_node::sample_bytes, salt);
}

/// Returns the ids of so many samples, in their order.
inline std::vector<std::uint64_t> all_ids(std::uint64_t samples) {
  std::vector<std::uint64_t> out(samples);
  std::iota(out.begin(), out.end(), 0);
  return out;
}

/// Reads samples in one batch. Errors: `corrupt_data` naming one with other bytes.
[[nodiscard]] inline status read_samples(
  const set_reader& reader, const std::vector<std::uint64_t>& ids) {
  constexpr auto each = data_node::sample_bytes;
  std::vector<std::byte> into(ids.size() * each);
  auto read = reader.read_batch(0, ids, into);
  if (!read.result())
    return read.result().error();
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (!is_sample(std::span{into}.subspan(i * each, each), ids[i]))
      return {errc::corrupt_data, "sample {}", ids[i]};
  return {};
}

inline void check_batch(const set_reader& reader, const std::vector<std::uint64_t>& ids) {
  constexpr auto each = data_node::sample_bytes;
  std::vector<std::byte> into(ids.size() * each);
  reader.read_batch(0, ids, into).get();
  for (std::size_t i = 0; i < ids.size(); ++i)
    BOOST_TEST_REQUIRE(
      is_sample(std::span{into}.subspan(i * each, each), ids[i]), "sample " << ids[i]);
}

template <class T>
errc code_of(const future<T>& f) {
  return f.result() ? errc::ok : f.result().error().code();
}
template <class T>
std::string words_of(const future<T>& f) {
  return f.result() ? std::string{} : f.result().error().to_string();
}

} // namespace millrace::testing

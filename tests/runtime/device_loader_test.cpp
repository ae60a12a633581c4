// Tests loaders whose batches go to memory of a device, with a device that the host cannot touch.
#include <millrace/tests/runtime/data_node.hpp>
#include <millrace/tests/support/fake_device.hpp>
#include <millrace/tests/support/skipped.hpp>
#include <millrace/transport/memory/memory_distance.hpp>

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

constexpr int stream_a = 0xa0, stream_b = 0xb0;

device_stream numbered(int number) {
  return {reinterpret_cast<void*>(static_cast<std::uintptr_t>(number)), "fake"};
}

struct device_loading {
  fake_device device{16 * mib};
  data_node at;

  set_reader reader(std::uint64_t samples) {
    auto set = at.by(true).working_set("digits");
    set.preload({at.file("a.npy", samples)}).get();
    return set.open().get();
  }
  loader load(const set_reader& from, loader_options options) const {
    options.device = "fake:0";
    return from.load_batches(options).value();
  }
  std::span<std::byte> bytes_of(const batch& b) const {
    return {device.shadow(b.field(0).data), *size_bytes(b.field(0).desc)};
  }
  bool has_its_samples(const batch& b) const {
    auto bytes = bytes_of(b);
    for (std::size_t i = 0; i < b.ids().size(); ++i)
      if (!is_sample(
            bytes.subspan(i * data_node::sample_bytes, data_node::sample_bytes), b.ids()[i]))
        return false;
    return true;
  }
  // Memory of the device is freed on another thread.
  bool frees_all() const {
    auto until = std::chrono::steady_clock::now() + 20s;
    while (device.blocks() > 0 && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(1ms);
    return device.blocks() == 0;
  }
};

// A PCI address that the topology has; empty: there is none.
std::string some_device() {
  std::error_code ignored;
  for (auto& entry : std::filesystem::directory_iterator{"/sys/bus/pci/devices", ignored})
    if (!transport::processors_near_pci(entry.path().filename()).empty())
      return entry.path().filename();
  return {};
}

} // namespace

BOOST_FIXTURE_TEST_SUITE(device_loaders, device_loading)

BOOST_AUTO_TEST_CASE(batches_arrive_in_memory_of_the_device) {
  auto by_socket = reader(203);
  for (auto& read : {by_socket, at.by(false).working_set("digits").open().get()}) {
    auto from = load(read, {.batch_size = 16, .seed = 7, .prefetch = 2});
    auto order = read.order(7, 0);
    std::uint64_t position = 0;
    while (auto got = from.next().get()) {
      BOOST_TEST_REQUIRE(has_its_samples(*got));
      for (auto id : got->ids())
        BOOST_TEST_REQUIRE(id == order.at(position++));
    }
    BOOST_TEST(position == 203u);
    BOOST_TEST(from.counts().batches == 13u);
  }
  BOOST_TEST(device.pins() > 0u);
  BOOST_TEST(frees_all());
}

BOOST_AUTO_TEST_CASE(padding_on_the_device_is_zero) {
  auto from = load(reader(10), {.batch_size = 8, .remainder = remainder_kind::pad, .prefetch = 1});
  for (int epoch = 0; epoch < 3; ++epoch) {
    static_cast<void>(from.next().get());
    auto last = from.next().get().value();
    BOOST_TEST(has_its_samples(last));
    BOOST_TEST(std::to_integer<int>(last.mask().data[1]) == 1);
    BOOST_TEST(std::to_integer<int>(last.mask().data[2]) == 0);
    auto padding = bytes_of(last).subspan(2 * data_node::sample_bytes);
    BOOST_TEST(padding.size() == 6 * data_node::sample_bytes);
    BOOST_TEST(std::ranges::all_of(padding, [](auto b) { return b == std::byte{0}; }));
    BOOST_TEST(!from.next().get());
  }
}

BOOST_AUTO_TEST_CASE(samples_that_vary_grow_the_places_on_the_device) {
  std::vector<std::string> files;
  for (std::uint64_t i = 0; i < 40; ++i) {
    files.push_back(fmt::format("{}/{:02}.bin", at.dir.path(), i));
    auto content = pattern(i * i * 7, i);
    std::ofstream{files.back(), std::ios::binary}.write(
      reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
  }
  auto set = at.connect().working_set("files");
  set.preload(files).get();
  auto from = load(set.open().get(), {.batch_size = 8, .fields = {"x"}, .prefetch = 2});
  for (int epoch = 0; epoch < 2; ++epoch)
    while (auto got = from.next().get()) {
      auto offsets = got->offsets(0);
      for (std::size_t i = 0; i < got->ids().size(); ++i) {
        auto found = bytes_of(*got).subspan(offsets[i], offsets[i + 1] - offsets[i]);
        auto id = got->ids()[i];
        BOOST_TEST_REQUIRE(std::ranges::equal(found, pattern(id * id * 7, id)));
      }
    }
  BOOST_TEST(from.counts().samples == 80u);
}

// The ring has three places. The device has not done the work that uses their batches.
BOOST_AUTO_TEST_CASE(a_place_is_written_again_when_the_stream_has_come_to_its_end) {
  auto from = load(reader(1000), {.batch_size = 10, .seed = 3, .prefetch = 1});
  device.make_busy(numbered(stream_a).handle);
  std::vector<std::pair<std::span<std::byte>, std::vector<std::byte>>> used;
  for (int i = 0; i < 3; ++i) {
    auto got = from.next().get().value();
    BOOST_TEST(got.follow(numbered(stream_b)).ok());
    BOOST_TEST(got.follow(numbered(stream_a)).ok()); // the last call counts
    auto bytes = bytes_of(got);
    used.emplace_back(bytes, std::vector(bytes.begin(), bytes.end()));
  }
  auto next = from.next();
  BOOST_TEST(!next.wait_for(100ms));
  BOOST_TEST(from.counts().held == 0u);
  for (auto& [there, before] : used)
    BOOST_TEST(std::ranges::equal(there, before));
  device.finish(numbered(stream_a).handle);
  BOOST_TEST(has_its_samples(next.get().value()));
}

BOOST_AUTO_TEST_CASE(a_batch_without_a_stream_follows_the_default_one) {
  auto from = load(reader(1000), {.batch_size = 10, .prefetch = 1});
  device.make_busy(nullptr);
  for (int i = 0; i < 3; ++i)
    static_cast<void>(from.next().get());
  auto next = from.next();
  BOOST_TEST(!next.wait_for(100ms));
  device.finish(nullptr);
  BOOST_TEST(has_its_samples(next.get().value()));
}

BOOST_AUTO_TEST_CASE(a_copy_that_fails_is_told_and_read_again) {
  auto from = load(reader(100), {.batch_size = 10, .prefetch = 2});
  auto first = from.next().get().value();
  device.on_copy([] { return status{errc::io_error, "the bus is gone"}; });
  auto code = errc::ok;
  for (int i = 0; i < 4 && code == errc::ok; ++i) // some were there already
    code = code_of(from.next());
  BOOST_TEST((code == errc::io_error));
  auto at_position = from.state().position;
  device.on_copy({});
  auto got = from.next().get().value();
  BOOST_TEST(got.position() == at_position);
  BOOST_TEST(has_its_samples(got));
}

BOOST_AUTO_TEST_CASE(batches_on_the_device_outlive_the_client) {
  std::optional<batch> held;
  {
    auto c = at.connect();
    c.working_set("digits").preload({at.file("a.npy", 100)}).get();
    held = load(c.working_set("digits").open().get(), {.batch_size = 10}).next().get();
  }
  at.stop();
  BOOST_TEST(has_its_samples(*held));
  BOOST_TEST(held->follow(numbered(stream_a)).ok());
  device.make_busy(numbered(stream_a).handle);
  held.reset();
  device.finish(numbered(stream_a).handle);
  BOOST_TEST(frees_all());
}

BOOST_AUTO_TEST_CASE(threads_that_copy_stay_near_the_device) {
  auto read = reader(500);
  BOOST_TEST(load(read, {.batch_size = 10}).processors() == ""); // nothing says where it is
  BOOST_TEST(read.load_batches({.batch_size = 10}).value().processors() == "");
  auto address = some_device();
  if (address.empty())
    return skipped("processors near a device: the topology of this machine has no devices");
  device.lies_at(address);
  auto from = load(read, {.batch_size = 10});
  auto near = transport::text_of(transport::processors_near_pci(address));
  BOOST_TEST(from.processors() == fmt::format("processors {}, near fake:0", near));
  while (auto got = from.next().get())
    BOOST_TEST_REQUIRE(has_its_samples(*got));
}

BOOST_AUTO_TEST_CASE(threads_stay_anywhere_without_bind_readers) {
  auto address = some_device();
  if (address.empty())
    return skipped("processors near a device: the topology of this machine has no devices");
  device.lies_at(address);
  data_node free{8 * mib, [](config::settings& s) { s.client.bind_readers = false; }};
  auto set = free.by(false).working_set("digits");
  set.preload({free.file("a.npy", 20)}).get();
  BOOST_TEST(load(set.open().get(), {.batch_size = 10}).processors() == "");
}

BOOST_AUTO_TEST_CASE(devices_and_streams_that_do_not_fit_are_refused) {
  auto from = reader(100);
  auto code = [&](const char* device) {
    return from.load_batches({.device = device}).error().code();
  };
  BOOST_TEST((code("gpu") == errc::invalid_argument));
  BOOST_TEST((code("fake:") == errc::invalid_argument));
  BOOST_TEST((code("fake:1x") == errc::invalid_argument));
  BOOST_TEST((code("fake:3") == errc::not_found));
  BOOST_TEST((code("abacus:0") == errc::unsupported));
  // Five places and more of so many samples.
  auto full = from.load_batches({.batch_size = 10'000, .device = "fake:0"});
  BOOST_TEST((full.error().code() == errc::no_space));

  auto on_host = from.load_batches({.batch_size = 4}).value().next().get().value();
  BOOST_TEST((on_host.follow(numbered(stream_a)).code() == errc::invalid_argument));
  auto on_device = load(from, {.batch_size = 4}).next().get().value();
  BOOST_TEST((on_device.follow(device_stream{}).code() == errc::invalid_argument)); // "cuda"
}

BOOST_AUTO_TEST_SUITE_END()

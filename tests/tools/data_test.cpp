// Tests the commands for working sets, against a node in this process that has a data server.
#include "run.hpp"

#include <millrace/core/digest.hpp>
#include <millrace/core/sample_order.hpp>
#include <millrace/runtime/configuration.hpp>
#include <millrace/runtime/node/node.hpp>
#include <millrace/tests/runtime/data_cluster.hpp>
#include <millrace/tests/support/data_memory.hpp>
#include <millrace/tests/support/made_images.hpp>
#include <millrace/tests/support/scratch_directory.hpp>

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>
#include <semaphore>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace millrace;
using namespace millrace::testing;
using nlohmann::json;

namespace {

constexpr std::size_t values_each = 64; // floats of a sample

// The bytes of a .npy file, version 1.0: samples of `values_each` floats.
std::string npy_of(std::size_t samples, float first) {
  auto header = fmt::format(
    "{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", samples, values_each);
  header.resize(117, ' '); // with what is around it 128 bytes
  header += '\n';
  std::string out{"\x93NUMPY\x01\x00", 8};
  out += static_cast<char>(header.size() & 0xff);
  out += static_cast<char>(header.size() >> 8);
  out += header;
  std::vector<float> values(samples * values_each);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = first + static_cast<float>(i);
  out.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  return out;
}

/// A node with a data server of 16 regions, and files to preload.
struct data_place {
  scratch_directory dir;
  std::string address = "unix:" + dir.path() + "/n0.sock";
  std::optional<node> served;

  explicit data_place(const std::string& data = "{capacity: 16MiB, region_size: 1MiB}") {
    auto yaml = fmt::format(
      "{{node: {{name: n0, listen: '{}'}}, data: {}, providers: [{{name: fast, capacity: "
      "16MiB}}]}}",
      address, data);
    served.emplace(node::embed(parse_configuration(yaml, "data_test").value()));
  }

  std::string file(const std::string& name, std::size_t samples, float first = 0) const {
    auto path = dir.path() + "/" + name;
    std::ofstream{path, std::ios::binary} << npy_of(samples, first);
    return path;
  }
  outcome data(std::vector<std::string> words) const {
    words.insert(words.begin(), "data");
    words.insert(words.end(), {"--address", address});
    return run(std::move(words));
  }
  json parsed(std::vector<std::string> words, int code = 0) const {
    words.emplace_back("--json");
    auto o = data(std::move(words));
    BOOST_TEST_REQUIRE(o.code == code, o.err << o.out);
    return json::parse(o.out);
  }
  json error_of(std::vector<std::string> words, int code = 1) const {
    words.emplace_back("--json");
    auto o = data(std::move(words));
    BOOST_TEST(o.code == code, o.err << o.out);
    BOOST_TEST_REQUIRE(!o.err.empty(), o.out);
    return json::parse(o.err).at("error");
  }
  void preload(const std::string& name, std::size_t samples) const {
    auto o = data({"preload", name, file(name + ".npy", samples)});
    BOOST_TEST_REQUIRE(o.code == 0, o.err);
  }
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Changes a byte of the memory of data servers in this process, where it has these bytes.
template <class T>
bool spoil(const std::vector<T>& sample) {
  auto* found = millrace::testing::find_in_data_memory(std::as_bytes(std::span{sample}));
  if (found)
    *found ^= 1;
  return found != nullptr;
}

} // namespace

BOOST_AUTO_TEST_SUITE(data_commands)

BOOST_AUTO_TEST_CASE(a_preload_says_what_it_brought_and_a_second_one_that_it_is_there) {
  data_place p;
  std::vector<std::string> words = {
    "preload", "digits", p.file("a.npy", 1000), p.file("b.npy", 500, 7)};
  auto o = p.data(words);
  BOOST_TEST_REQUIRE(o.code == 0, o.err);
  BOOST_TEST(o.out.starts_with("digits: 1500 samples, 375 KiB in "), o.out);
  BOOST_TEST(contains(o.out, "/s on n0\n"), o.out);
  BOOST_TEST(p.data(words).out == "digits is there already: 1500 samples, 375 KiB on n0\n");
  auto again = p.parsed(words);
  BOOST_TEST(again.at("existed") == true);
  BOOST_TEST(!again.contains("duration_ms"));
  words[1] = "copy";
  auto copy = p.parsed(words);
  BOOST_TEST(copy.at("existed") == false);
  BOOST_TEST(copy.at("samples_bytes") == 1500 * 256);
  BOOST_TEST(copy.contains("rate_bytes_per_s"));
  BOOST_TEST(copy.at("identity") == again.at("identity"));
  BOOST_TEST(copy.at("id") != again.at("id"));
}

BOOST_AUTO_TEST_CASE(files_are_given_as_fields) {
  data_place p;
  for (auto i : {0, 1, 2}) {
    p.file(fmt::format("image-{}.npy", i), 100 + static_cast<std::size_t>(i));
    p.file(fmt::format("mask-{}.npy", i), 100 + static_cast<std::size_t>(i), 7);
  }
  auto path = [&](const std::string& name) { return p.dir.path() + "/" + name; };
  auto loaded = p.parsed(
    {"preload", "scans", "image=" + path("image-{0..1}.npy"), "mask=" + path("mask-[01].npy")});
  BOOST_TEST(loaded.at("samples") == 201);
  BOOST_TEST_REQUIRE(loaded.at("fields").size() == 2u);
  BOOST_TEST(loaded.at("fields").at(0).at("name") == "image");
  BOOST_TEST(loaded.at("fields").at(1).at("name") == "mask");
  auto grown = p.parsed(
    {"append", "scans", "mask=" + path("mask-2.npy"), "image=" + path("image-2.npy"), "--field",
     "image", "--field", "mask"});
  BOOST_TEST(grown.at("samples") == 303);
  BOOST_TEST(p.parsed({"verify", "scans"}).at("ok") == true);
  auto again = p.parsed(
    {"preload", "scans", "image=" + path("image-0.npy"), "image=" + path("image-1.npy"),
     "mask=" + path("mask-{0,1}.npy")});
  BOOST_TEST(again.at("existed") == true);
  // The second field has the samples of its own files.
  auto reader = p.served->client().working_set("scans").open().get();
  std::vector<float> one(values_each);
  for (auto [id, first] : {std::pair{0, 7.f}, std::pair{100, 7.f}, std::pair{202, 71.f}}) {
    reader.read(1, static_cast<std::uint64_t>(id), std::as_writable_bytes(std::span{one})).get();
    BOOST_TEST(one.front() == first);
  }
  auto refused =
    p.error_of({"preload", "x", "image=" + path("image-0.npy"), "mask=" + path("mask-1.npy")});
  BOOST_TEST(refused.at("code") == "invalid_argument");
  BOOST_TEST(contains(refused.at("detail"), "image-0.npy has 100 samples"));
  BOOST_TEST(contains(refused.at("detail"), "mask-1.npy has 101"));
}

BOOST_AUTO_TEST_CASE(a_preload_says_that_it_waits_for_another_one) {
  data_place p;
  auto file = p.file("a.npy", 1000);
  std::binary_semaphore fills{0};
  preload_options held;
  held.progress = [&, is_first = true](auto, auto) mutable {
    if (!std::exchange(is_first, false))
      return true;
    fills.release(); // and the command begins meanwhile
    std::this_thread::sleep_for(std::chrono::seconds{2});
    return true;
  };
  auto client = p.served->client();
  auto first = client.working_set("digits").preload({file}, held);
  fills.acquire();
  auto o = p.data({"preload", "digits", file});
  BOOST_TEST(contains(o.err, "waiting: working set digits is being preloaded by user "), o.err);
  BOOST_TEST(contains(o.out, "digits is there already: 1000 samples"), o.out);
}

BOOST_AUTO_TEST_CASE(a_directory_is_preloaded_with_labels_and_without_damaged_files) {
  data_place p;
  auto photos = p.dir.path() + "/photos";
  for (auto* folder : {"/cat", "/dog"})
    std::filesystem::create_directories(photos + folder);
  std::ofstream{photos + "/cat/1.jpg"} << "a cat";
  std::ofstream{photos + "/dog/1.jpg"} << "a larger dog";
  std::filesystem::create_symlink("/etc/hostname", photos + "/dog/2.jpg");
  auto refused = p.error_of({"preload", "photos", photos});
  BOOST_TEST(refused.at("code") == "invalid_argument");
  BOOST_TEST(contains(refused.at("detail"), "dog/2.jpg"));
  std::vector<std::string> words = {"preload", "photos",     photos, "--labels",
                                    "folders", "--on-error", "skip", "--field",
                                    "label",   "--field",    "x"};
  auto loaded = p.parsed(words);
  BOOST_TEST(loaded.at("samples") == 2);
  BOOST_TEST(loaded.at("samples_bytes") == 17 + 2 * 8);
  BOOST_TEST_REQUIRE(loaded.at("skipped").size() == 1u);
  BOOST_TEST(contains(loaded.at("skipped").at(0).at("path"), "dog/2.jpg"));
  BOOST_TEST_REQUIRE(loaded.at("fields").size() == 2u);
  BOOST_TEST(loaded.at("fields").at(0).at("name") == "label");
  auto x = json{{"name", "x"},    {"dtype", "U8"},    {"shape", {nullptr}},
                {"varies", true}, {"data_bytes", 17}, {"sample_bytes", nullptr}};
  BOOST_TEST((loaded.at("fields").at(1) == x));
  words[1] = "again";
  auto said = p.data(words).out;
  auto line = said.substr(std::min(said.find("\nleft out: "), said.size()));
  BOOST_TEST(contains(line, "dog/2.jpg"), said);
  BOOST_TEST(line.find("dog/2.jpg") == line.rfind("dog/2.jpg"), said);
  auto text = p.data({"describe", "photos"}).out;
  BOOST_TEST(contains(text, "[*]"), text);
  BOOST_TEST(contains(p.data({"ls"}).out, "x U8[*]"));
  BOOST_TEST(p.parsed({"verify", "photos"}).at("ok") == true);
  BOOST_TEST(p.data({"preload", "x", photos, "--kind", "tar"}).code == 2);
}

BOOST_AUTO_TEST_CASE(images_are_decoded) {
  data_place p;
  auto photos = p.dir.path() + "/photos";
  std::filesystem::create_directories(photos);
  for (std::string name : {"1", "2"})
    std::ofstream{photos + "/" + name + ".png", std::ios::binary}
      << millrace::testing::png_of(millrace::testing::made_pixels(40, 50), 40, 50);
  std::ofstream{photos + "/3.png"} << "no image";
  std::vector<std::string> words = {"preload", "photos", photos, "--decode", "x=gray:8x9"};
  auto refused = p.error_of(words);
  BOOST_TEST(refused.at("code") == "corrupt_data");
  BOOST_TEST(contains(refused.at("detail"), "3.png"));
  words.insert(words.end(), {"--on-error", "skip"});
  auto loaded = p.parsed(words);
  BOOST_TEST(loaded.at("samples") == 2);
  BOOST_TEST(loaded.at("skipped").size() == 1u);
  BOOST_TEST((loaded.at("fields").at(0).at("shape") == json{8, 9, 1}));
  BOOST_TEST(p.parsed({"verify", "photos"}).at("ok") == true);
  auto bounded =
    p.error_of({"preload", "x", photos, "--decode", "x=rgb", "--image-pixels-max", "1999"});
  BOOST_TEST(contains(bounded.at("detail"), "image_pixels_max"));
  BOOST_TEST(
    p.error_of({"preload", "x", photos, "--decode", "x=bgr"}).at("code") == "invalid_argument");
}

BOOST_AUTO_TEST_CASE(a_sample_whose_entry_lies_is_damaged) {
  data_place p;
  const std::string words = "a sample that has its place in the table";
  auto path = p.dir.path() + "/words.txt";
  std::ofstream{path} << words;
  BOOST_TEST_REQUIRE(p.data({"preload", "words", path, "--field", "x"}).code == 0);
  BOOST_TEST(p.parsed({"verify", "words"}).at("damaged") == 0);
  // The length becomes a larger one, beyond the space of the field.
  std::vector<std::uint64_t> entry = {words.size(), digest(words.data(), words.size())};
  BOOST_TEST_REQUIRE(spoil(entry));
  auto found = p.parsed({"verify", "words"}, 1);
  BOOST_TEST(found.at("damaged") == 1);
  BOOST_TEST(found.at("first_damaged") == json::array({0}));
}

BOOST_AUTO_TEST_CASE(preloads_that_cannot_be_are_refused_by_name) {
  data_place p;
  p.preload("digits", 100);
  BOOST_TEST(p.error_of({"preload", "digits", p.file("c.npy", 5)}).at("code") == "already_exists");
  auto absent = p.error_of({"preload", "x", p.dir.path() + "/absent.npy"});
  BOOST_TEST(absent.at("code") == "not_found");
  BOOST_TEST(contains(absent.at("detail"), "absent.npy"));
  auto large = p.file("large.npy", 17u << 12);
  BOOST_TEST(p.error_of({"preload", "large", large}).at("code") == "no_space");
  std::ofstream{p.dir.path() + "/bad.npy"} << "no array";
  auto bad = p.data({"preload", "bad", p.dir.path() + "/bad.npy"});
  BOOST_TEST(bad.code == 1);
  BOOST_TEST(bad.err.starts_with("millrace: data preload: "), bad.err);
  BOOST_TEST(std::count(bad.err.begin(), bad.err.end(), '\n') == 1, bad.err);
  BOOST_TEST(p.data({"preload", "digits"}).code == 2);
  BOOST_TEST(p.parsed({"ls"}).at("sets").size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_window_is_described_with_its_counts) {
  data_place p;
  auto path = p.file("wide.npy", 8192); // 2 MiB
  auto client = p.served->client();
  auto set = client.working_set("wide");
  preload_options how;
  how.window_bytes = 1 << 20;
  set.preload({path}, how).get();
  auto reader = set.open().get();
  std::vector<std::byte> into(values_each * sizeof(float));
  for (auto until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
       reader.samples_from_window() == 0 && std::chrono::steady_clock::now() < until;)
    reader.read(0, 3, into).get();
  auto one = p.parsed({"describe", "wide"});
  BOOST_TEST(one.at("window_bytes") == 1 << 20);
  BOOST_TEST(one.at("samples_bytes") == 2 << 20);
  auto& window = one.at("window");
  BOOST_TEST(window.at("size_bytes") == 1 << 20);
  BOOST_TEST(window.at("kept") == 1);
  BOOST_TEST(window.at("kept_bytes") == into.size());
  BOOST_TEST(window.at("given") >= reader.samples_from_window());
  BOOST_TEST(window.at("damaged") == 0);
  auto text = p.data({"describe", "wide"}).out;
  BOOST_TEST(contains(text, "a window of 1 MiB in 1 region"), text);
  BOOST_TEST(contains(text, "keeps 1 value, 256 B; readers found "), text);
  auto for_host = p.data({"describe", "wide", "--device", "cpu"});
  BOOST_TEST(contains(for_host.out, "; threads that copy go where they write"), for_host.err);
  auto verified = p.error_of({"verify", "wide"});
  BOOST_TEST(verified.at("code") == "unsupported");
  BOOST_TEST(contains(verified.at("detail"), "working set wide keeps a window"));
  BOOST_TEST(contains(text, "this host reads it mapped from n0; threads that copy go "), text);
  BOOST_TEST(p.parsed({"ls"}).at("sets").at(0).at("window_bytes") == 1 << 20);
  auto status = run({"status", "--address", p.address}).out;
  BOOST_TEST(contains(status, "1 set of these through a window"), status);
}

BOOST_AUTO_TEST_CASE(a_divided_set_is_described_with_the_way_to_each_part) {
  data_cluster at{2};
  auto config = at.dir.path() + "/cluster.yaml";
  std::string nodes;
  for (auto* name : {"n0", "n1"})
    nodes += fmt::format(
      "    - {{ name: {0}, listen: 'unix:{1}/{0}.sock', providers: [{{ name: p{2}, bucket: memory, "
      "capacity: 1MiB }}] }}\n",
      name, at.dir.path(), name[1]);
  std::ofstream{config} << "staging: { size: 8MiB }\nclient: { connect_timeout: 2s }\n"
                           "data: { capacity: 8MiB, region_size: 1MiB }\n"
                           "cluster:\n  nodes:\n"
                        << nodes;
  at.connect().working_set("s").preload({at.file("a.npy", 100)}, among(2)).get();
  auto describe = [&](const std::string& more) {
    auto path = config + more;
    std::ofstream{path} << std::ifstream{config}.rdbuf()
                        << (more.empty() ? "" : "transport: { prefer: [tcp] }\n");
    auto o = run({"data", "describe", "s", "-c", path, "--json"});
    BOOST_TEST_REQUIRE(o.code == 0, o.err);
    return json::parse(o.out);
  };
  auto over_tcp = describe(".tcp");
  BOOST_TEST_REQUIRE(over_tcp.at("parts").size() == 2u);
  BOOST_TEST(over_tcp.at("parts").at(1).at("first") == 50);
  BOOST_TEST(over_tcp.at("window").is_null());
  BOOST_TEST_REQUIRE(over_tcp.at("reads").size() == 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    auto& read = over_tcp.at("reads").at(i);
    BOOST_TEST(read.at("node") == over_tcp.at("parts").at(i).at("node"));
    BOOST_TEST(read.at("by") == "tcp");
    BOOST_TEST(read.at("error").is_null());
  }
  auto mapped = run({"data", "describe", "s", "-c", config}).out;
  BOOST_TEST(contains(mapped, "this host reads it mapped from n"), mapped);
  // A part whose node is away is named.
  auto gone = over_tcp.at("parts").at(1).at("node").get<std::string>();
  at.stop(gone);
  auto reads = describe(".tcp").at("reads");
  BOOST_TEST(reads.at(1).at("by").is_null());
  BOOST_TEST(contains(reads.at(1).at("error"), gone), reads.dump());
  auto refused = run({"data", "describe", "s", "-c", config, "--device", "gpu"});
  BOOST_TEST(refused.code == 1);
  BOOST_TEST(contains(refused.err, "gpu"), refused.err);
}

BOOST_AUTO_TEST_CASE(sets_are_listed_and_described) {
  data_place p;
  p.preload("digits", 100);
  p.preload("faces", 5000); // 1.2 MiB
  auto all = p.parsed({"ls"});
  BOOST_TEST(all.at("silent").empty());
  BOOST_TEST_REQUIRE(all.at("sets").size() == 2u);
  BOOST_TEST(all.at("sets").at(0).at("name") == "digits");
  BOOST_TEST(all.at("sets").at(0).at("node") == "n0");
  BOOST_TEST(p.parsed({"ls", "fa"}).at("sets").size() == 1u);
  auto text = p.data({"ls"}).out;
  BOOST_TEST(lines_of(text) == 3u, text);
  BOOST_TEST(contains(text, "x F32[64]"), text);

  auto faces = p.parsed({"describe", "faces"});
  BOOST_TEST(faces.at("samples") == 5000);
  BOOST_TEST(faces.at("samples_bytes") == 5000 * 256);
  BOOST_TEST(faces.at("regions") == 2);
  BOOST_TEST(faces.at("region_bytes") == 1 << 20);
  BOOST_TEST(faces.at("node") == "n0");
  BOOST_TEST(!faces.at("owner").get<std::string>().empty());
  auto field = json{{"name", "x"},     {"dtype", "F32"},          {"shape", {64}},
                    {"varies", false}, {"data_bytes", 1'280'000}, {"sample_bytes", 256}};
  BOOST_TEST((faces.at("fields") == json::array({field})));
  text = p.data({"describe", "faces"}).out;
  BOOST_TEST(text.starts_with("faces: 5000 samples, 1.22 MiB on n0, preloaded 2"), text);
  BOOST_TEST(contains(text, " in 2 regions of 1 MiB, identity for orders "), text);
  BOOST_TEST(p.error_of({"describe", "face"}).at("code") == "not_found");
}

BOOST_AUTO_TEST_CASE(a_set_is_divided_among_data_servers) {
  data_cluster at{3};
  auto address = "unix:" + at.dir.path() + "/n1.sock";
  auto data = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "data");
    words.insert(words.end(), {"--address", address, "--json"});
    return run(std::move(words));
  };
  auto path = at.file("a.npy", 1001);
  auto loaded = data({"preload", "digits", path, "--servers", "2"});
  BOOST_TEST_REQUIRE(loaded.code == 0, loaded.err);
  auto found = json::parse(data({"describe", "digits"}).out);
  BOOST_TEST(found.at("samples") == 1001);
  auto& parts = found.at("parts");
  BOOST_TEST_REQUIRE(parts.size() == 2u);
  BOOST_TEST(parts.at(0).at("node") == found.at("node"));
  BOOST_TEST(parts.at(0).at("samples") == 501);
  BOOST_TEST(parts.at(1).at("first") == 501);
  BOOST_TEST(parts.at(1).at("samples") == 500);
  BOOST_TEST(json::parse(data({"ls"}).out).at("sets").size() == 1u);
  BOOST_TEST(json::parse(data({"verify", "digits"}).out).at("samples") == 1001);
  auto text = run({"data", "describe", "digits", "--address", address}).out;
  for (auto& part : parts)
    BOOST_TEST(contains(text, part.at("node").get<std::string>()), text);
  BOOST_TEST(data({"unload", "digits"}).code == 0);
  BOOST_TEST(at.frees_all());
  auto refused = data({"preload", "digits", path, "--servers", "4"});
  BOOST_TEST(refused.code != 0);
  BOOST_TEST(contains(refused.err, "more than the data servers that there are (3)"), refused.err);
}

BOOST_AUTO_TEST_CASE(samples_are_appended) {
  data_place p;
  auto first = p.file("a.npy", 1000), more = p.file("b.npy", 500, 64'000);
  BOOST_TEST(p.error_of({"append", "digits", more}).at("code") == "not_found");
  BOOST_TEST(p.parsed({"preload", "digits", first}).at("appends").empty());
  auto done = p.data({"append", "digits", more});
  BOOST_TEST_REQUIRE(done.code == 0, done.err);
  BOOST_TEST(contains(done.out, "digits: appended 125 KiB in "), done.out);
  BOOST_TEST(contains(done.out, "it has 1500 samples, 375 KiB on n0"), done.out);
  auto again = p.data({"append", "digits", more});
  BOOST_TEST(contains(again.out, "digits has these samples already: 1500 samples"), again.out);
  auto found = p.parsed({"describe", "digits"});
  BOOST_TEST(found.at("samples") == 1500);
  BOOST_TEST_REQUIRE(found.at("appends").size() == 1u);
  BOOST_TEST(found.at("appends").at(0).at("samples") == 500);
  BOOST_TEST(found.at("appends").at(0).at("samples_bytes") == 128'000);
  auto text = p.data({"describe", "digits"}).out;
  BOOST_TEST(contains(text, "500 samples came by 1 append"), text);
  BOOST_TEST(p.parsed({"ls"}).at("sets").at(0).at("samples") == 1500);
  auto other = p.parsed({"append", "digits", p.file("c.npy", 1), "--on-error", "skip"});
  BOOST_TEST(other.at("existed") == false);
  BOOST_TEST(other.at("samples") == 1501);
  BOOST_TEST(p.parsed({"verify", "digits"}).at("samples") == 1501);
  auto order = p.parsed({"verify", "digits", "--epoch", "1", "--seed", "7", "--world", "3"});
  BOOST_TEST(order.at("world").at("equal") == true);
}

BOOST_AUTO_TEST_CASE(samples_are_compared_with_their_digests) {
  data_place p;
  p.preload("faces", 5000);
  BOOST_TEST(p.data({"verify", "faces"}).out == "faces: 5000 samples compared, 1.22 MiB read\n");
  auto whole = p.parsed({"verify", "faces"});
  BOOST_TEST(whole.at("ok") == true);
  BOOST_TEST(whole.at("samples") == 5000);
  BOOST_TEST(whole.at("damaged") == 0);
  BOOST_TEST(whole.at("first_damaged").empty());
  BOOST_TEST(p.error_of({"verify", "digits"}).at("code") == "not_found");

  std::vector<float> sample(values_each);
  std::iota(sample.begin(), sample.end(), 4321.0F * values_each);
  BOOST_TEST_REQUIRE(spoil(sample));
  auto bad = p.parsed({"verify", "faces"}, 1);
  BOOST_TEST(bad.at("ok") == false);
  BOOST_TEST((bad.at("first_damaged") == json{4321}));
  auto o = p.data({"verify", "faces"});
  BOOST_TEST(o.code == 1);
  BOOST_TEST(
    o.out == "faces: 5000 samples compared, 1.22 MiB read, 1 sample damaged: 4321\n", o.out);
}

BOOST_AUTO_TEST_CASE(the_digest_of_an_epoch_does_not_depend_on_the_number_of_ranks) {
  data_place p;
  p.preload("digits", 1000);
  auto identity = p.parsed({"describe", "digits"}).at("identity").get<std::string>();
  sample_order order{1000, {std::stoull(identity, nullptr, 16), 7, 3}};
  auto digest = fmt::format("{:016x}", order.digest());
  auto epoch = [&](const std::string& world, const std::string& remainder) {
    return p.parsed(
      {"verify", "digits", "--epoch", "3", "--seed", "7", "--world", world, "--batch", "48",
       "--remainder", remainder});
  };
  for (auto* world : {"1", "2", "3", "7"})
    for (auto* remainder : {"short", "pad"}) {
      auto said = epoch(world, remainder);
      BOOST_TEST(said.at("digest") == digest);
      BOOST_TEST(said.at("world").at("digest") == digest);
      BOOST_TEST(said.at("world").at("equal") == true);
      BOOST_TEST(said.at("world").at("ranks").size() == std::stoul(world));
    }
  auto dropped = epoch("3", "drop").at("world"); // 6 batches of 144
  BOOST_TEST(dropped.at("left_out") == 1000 - 864);
  BOOST_TEST(dropped.at("equal") == true);
  BOOST_TEST(dropped.at("digest") != digest);
  auto padded = epoch("3", "pad").at("world");
  BOOST_TEST(padded.at("batches") == 7);
  BOOST_TEST(padded.at("ranks").at(2).at("samples") == 6 * 48 + 40);
  BOOST_TEST(padded.at("ranks").at(2).at("padding") == 8);
}

BOOST_AUTO_TEST_CASE(the_order_is_printed_as_text) {
  data_place p;
  p.preload("digits", 10);
  std::vector<std::string> words = {"verify", "digits", "--epoch",   "3",
                                    "--seed", "7",      "--shuffle", "none"};
  auto one = p.data(words).out;
  BOOST_TEST(one.starts_with("digits: 10 samples, epoch 3, seed 7, shuffle none\n"), one);
  BOOST_TEST(lines_of(one) == 2u, one);
  words.insert(words.end(), {"--world", "2", "--batch", "2", "--remainder", "drop"});
  auto two = p.data(words).out;
  BOOST_TEST(two.starts_with(one), two);
  BOOST_TEST(contains(two, "2 ranks, 2 samples a batch, remainder drop\n"), two);
  BOOST_TEST(contains(two, "that of the order without its last 2 samples\n"), two);
}

BOOST_AUTO_TEST_CASE(options_that_do_not_belong_together_are_refused) {
  data_place p;
  p.preload("digits", 10);
  std::vector<std::vector<std::string>> wrong = {
    {"--epoch", "3"},
    {"--seed", "7"},
    {"--world", "2"},
    {"--shuffle", "none"},
    {"--epoch", "3", "--seed", "7", "--batch", "2"},
    {"--epoch", "3", "--seed", "7", "--remainder", "pad"},
    {"--epoch", "3", "--seed", "-7"},
    {"--epoch", "3", "--seed", "7", "--shuffle", "some"},
    {"--epoch", "3", "--seed", "7", "--world", "0"},
    {"--epoch", "3", "--seed", "7", "--world", "65537"},
    {"--epoch", "3", "--seed", "7", "--world", "2", "--batch", "0"},
    {"--epoch", "3", "--seed", "7", "--world", "2", "--remainder", "all"}};
  for (auto& options : wrong) {
    std::vector<std::string> words = {"verify", "digits"};
    words.insert(words.end(), options.begin(), options.end());
    BOOST_TEST(
      p.error_of(words, 2).at("code") == "invalid_argument",
      fmt::format("{}", fmt::join(options, " ")));
  }
}

BOOST_AUTO_TEST_CASE(sets_are_unloaded_also_after_one_that_is_not_there) {
  data_place p;
  p.preload("a", 10);
  p.preload("b", 10);
  auto said = p.parsed({"unload", "a", "absent", "b"}, 1);
  BOOST_TEST((said.at("unloaded") == json{"a", "b"}));
  BOOST_TEST_REQUIRE(said.at("failed").size() == 1u);
  BOOST_TEST(said.at("failed").at(0).at("error").at("code") == "not_found");
  BOOST_TEST(p.parsed({"ls"}).at("sets").empty());
  auto text = p.data({"unload", "a"});
  BOOST_TEST(text.code == 1);
  BOOST_TEST(text.err.starts_with("millrace: data unload: "), text.err);
}

BOOST_AUTO_TEST_CASE(streams_are_listed_ended_and_removed) {
  data_place p;
  auto c = client::connect(p.address);
  stream_options options;
  options.fields = {{"u", dtype::f32, {4, 8}}};
  options.capacity = 10;
  options.policy = stream_policy::reservoir;
  options.producers = 3;
  for (auto name : {"heat", "waves"})
    c.stream(name).create(options).get();
  auto line = json::parse(run({"data", "streams", "h", "--address", p.address, "--json"}).out);
  BOOST_TEST_REQUIRE(line.at("streams").size() == 1u);
  auto& heat = line.at("streams").at(0);
  BOOST_TEST(heat.at("name") == "heat");
  BOOST_TEST(heat.at("node") == "n0");
  BOOST_TEST(heat.at("policy") == "reservoir");
  BOOST_TEST(heat.at("when_full") == "block");
  BOOST_TEST(heat.at("capacity") == 10);
  BOOST_TEST(heat.at("producers_wanted") == 3);
  BOOST_TEST(heat.at("ended") == false);
  BOOST_TEST(
    (heat.at("fields") == json::parse(R"([{"name": "u", "dtype": "F32", "shape": [4, 8]}])")));
  auto text = run({"data", "streams", "--address", p.address}).out;
  BOOST_TEST(contains(text, "waves"), text);
  BOOST_TEST(contains(text, "0, 0 of 3 ended"), text);
  auto none = run({"data", "end", "none", "--address", p.address}).err;
  BOOST_TEST(contains(none, "there is no stream none\n"), none);
  auto ended = run({"data", "end", "heat", "none", "--address", p.address, "--json"});
  BOOST_TEST(ended.code == 1);
  BOOST_TEST((json::parse(ended.out).at("ended") == json{"heat"}));
  BOOST_TEST(c.stream("heat").status().get().ended);
  auto removed = run({"data", "remove", "heat", "waves", "--address", p.address});
  BOOST_TEST(removed.code == 0);
  BOOST_TEST(c.streams().get().found.empty());
}

BOOST_AUTO_TEST_CASE(the_status_shows_a_data_server) {
  data_place p;
  p.preload("a", 10);
  auto status = [&] { return run({"status", "--address", p.address, "--json"}).out; };
  auto data = json::parse(status()).at("nodes").at(0).at("data");
  BOOST_TEST(data.at("capacity_bytes") == 16 << 20);
  BOOST_TEST(data.at("used_bytes") == 1 << 20);
  BOOST_TEST(data.at("sets") == 1);
  BOOST_TEST(data.at("preloads") == 1);
  auto text = run({"status", "--address", p.address}).out;
  BOOST_TEST(contains(text, "data server"), text);
  BOOST_TEST(contains(text, "1 MiB of 16 MiB"), text);
  BOOST_TEST(!contains(text, "appended"), text);
  auto c = client::connect(p.address);
  stream_options options;
  options.fields = {{"u", dtype::f32, {4}}};
  c.stream("heat").create(options).get();
  BOOST_TEST(json::parse(status()).at("nodes").at(0).at("data").at("streams") == 1);
  text = run({"status", "--address", p.address}).out;
  BOOST_TEST(contains(text, "1 stream, 0 samples appended, 0 given to readers"), text);
}

BOOST_AUTO_TEST_CASE(without_a_data_server_the_key_is_named) {
  data_place p{"{capacity: 0}"};
  for (std::vector<std::string> words : std::vector<std::vector<std::string>>{
         {"ls"}, {"describe", "a"}, {"verify", "a"}, {"preload", "a", p.file("a.npy", 1)}}) {
    auto why = p.error_of(words);
    BOOST_TEST(why.at("code") == "not_found");
    BOOST_TEST(contains(why.at("detail"), "data.capacity"), why.dump());
  }
  auto status = json::parse(run({"status", "--address", p.address, "--json"}).out);
  BOOST_TEST(!status.at("nodes").at(0).contains("data"));
}

BOOST_AUTO_TEST_SUITE_END()

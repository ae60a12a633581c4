// Tests the public API end to end: a node in this process is asked directly and through its socket.
#include <millrace/net/network_options.hpp>
#include <millrace/net/socket/acceptor.hpp>
#include <millrace/runtime/configuration.hpp>
#include <millrace/runtime/node/data_memory.hpp>
#include <millrace/runtime/node/node.hpp>
#include <millrace/runtime/node/provider.hpp>
#include <millrace/storage/builtin.hpp>
#include <millrace/storage/memory/memory_options.hpp>
#include <millrace/storage/pmem/pmem_kind.hpp>
#include <millrace/storage/rocksdb/rocksdb_options.hpp>
#include <millrace/tests/support/process.hpp>
#include <millrace/tests/support/scratch_directory.hpp>
#include <millrace/transport/memory/region.hpp>
#include <millrace/transport/tcp/tcp_options.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

using namespace millrace;
using namespace std::chrono_literals;
namespace data = boost::unit_test::data;

namespace {

using testing::scratch_directory;

config::settings one_node(const scratch_directory& dir, const scratch_directory& memory) {
  config::settings s;
  s.node.name = "n0";
  s.node.listen = {"unix:" + dir.path() + "/n0.sock"};
  s.staging.size_bytes = 32 << 20;
  config::provider_settings fast;
  fast.name = "fast";
  fast.options.edit<storage::memory_bucket_options>().capacity_bytes = 64 << 20;
  config::provider_settings kept;
  kept.name = "kept";
  kept.bucket = "rocksdb";
  kept.group = "kept";
  auto& on_disk = kept.options.edit<storage::rocksdb_bucket_options>();
  on_disk.capacity_bytes = 256 << 20;
  on_disk.path = dir.path() + "/kept";
  on_disk.window_bytes = 1 << 20;
  config::provider_settings pool;
  pool.name = "pool";
  pool.bucket = "pmem";
  auto& on_pool = pool.options.edit<storage::pmem_options>().pool;
  on_pool.capacity_bytes = 64 << 20;
  on_pool.path = dir.path() + "/pool";
  pool.group = "pool";
  auto in_memory = pool;
  in_memory.name = "mapped";
  in_memory.options.edit<storage::pmem_options>().pool.path = memory.path() + "/pool";
  in_memory.group = "mapped";
  s.providers = {fast, kept, pool, in_memory};
  s.nodes = {{s.node.name, s.node.listen, s.providers}};
  return s;
}

// A port that no process has, for a moment at least.
std::string free_port() {
  auto fd = net::listen_at(net::socket_address::parse("127.0.0.1:0").value(), "a test").value();
  return std::to_string(net::bound_address(fd.get()).value().port());
}

// A node and a client: `direct` asks its actors, otherwise its socket.
struct service {
  scratch_directory dir;
  scratch_directory memory{"/dev/shm"}; // there a pool's models rest in place
  config::settings settings = one_node(dir, memory);
  node n = node::embed(settings);
  client direct = n.client();
  client remote = client::connect(n.address());

  repository repo(bool over_socket, const std::string& group = "default") {
    return (over_socket ? remote : direct).repository(group);
  }
};

struct model {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<tensor_view> views;

  void add(const std::string& name, dtype type, std::vector<std::uint64_t> shape, unsigned seed) {
    tensor_desc desc{name, type, std::move(shape)};
    auto& b = bytes.emplace_back(size_bytes(desc).value());
    std::mt19937_64 random{seed};
    for (auto& x : b)
      x = static_cast<std::byte>(random());
    views.push_back({std::move(desc), b.data(), {}});
  }

  // The same tensors, empty.
  model blank() const {
    model out;
    for (auto& v : views) {
      auto& b = out.bytes.emplace_back(size_bytes(v.desc).value());
      out.views.push_back({v.desc, b.data(), {}});
    }
    return out;
  }

  std::vector<load_target> targets() const {
    std::vector<load_target> out;
    for (auto& v : views)
      out.push_back({v, {}});
    return out;
  }
};

model assorted(unsigned seed = 1) {
  model m;
  m.add("embed.weight", dtype::bf16, {1000, 300}, seed);
  m.add("layer1.weight", dtype::f32, {512, 700}, seed + 1);
  m.add("layer1.bias", dtype::f32, {512}, seed + 2);
  m.add("layer2.scale", dtype::f64, {}, seed + 3);
  m.add("layer2.empty", dtype::f16, {0, 7}, seed + 4);
  m.add("head.weight", dtype::f8_e4m3, {3, 5, 7}, seed + 5);
  return m;
}

} // namespace

BOOST_AUTO_TEST_SUITE(repository_end_to_end)

BOOST_DATA_TEST_CASE(
  what_is_stored_loads_back_bit_for_bit,
  data::make({false, true}) * data::make({"default", "kept", "pool", "mapped"}), over_socket,
  group) {
  service s;
  auto repo = s.repo(over_socket, group);
  auto m = assorted();
  auto r = repo.store("net/a", m.views).get();
  BOOST_TEST(r.size_bytes == 1000 * 300 * 2 + 512 * 700 * 4 + 512 * 4 + 8 + 105);
  BOOST_TEST(r.durable == (std::string{group} == "kept" || std::string{group} == "pool"));
  auto back = m.blank();
  auto loaded = repo.load("net/a", back.targets()).get();
  BOOST_TEST(loaded.version == r.version);
  BOOST_TEST(loaded.verified);
  BOOST_TEST((back.bytes == m.bytes));
  BOOST_TEST(transport::exposed_regions() == 0u);
}

BOOST_DATA_TEST_CASE(
  rows_and_single_tensors_load_by_themselves,
  data::make({false, true}) * data::make({"default", "kept", "pool", "mapped"}), over_socket,
  group) {
  service s;
  auto repo = s.repo(over_socket, group);
  auto m = assorted();
  repo.store("net/a", m.views).get();
  std::vector<std::byte> rows(700 * 4 * 300);
  std::vector<std::byte> bias(512 * 4);
  auto r = repo
             .load(
               "net/a",
               {{{{"layer1.weight", dtype::f32, {300, 700}}, rows.data(), {}}, 123},
                {{{"layer1.bias", dtype::f32, {512}}, bias.data(), {}}, {}}})
             .get();
  BOOST_TEST(r.size_bytes == rows.size() + bias.size());
  BOOST_TEST(std::memcmp(rows.data(), m.bytes[1].data() + 123 * 700 * 4, rows.size()) == 0);
  BOOST_TEST((bias == m.bytes[2]));
}

// Rows of one tensor whose digest blocks are the same, are neighbours, or overlap, and a small
// tensor after them.
BOOST_DATA_TEST_CASE(
  several_ranges_of_one_tensor_load_each_into_its_place,
  data::make({false, true}) * data::make({"default", "kept", "pool", "mapped"}), over_socket,
  group) {
  service s;
  auto repo = s.repo(over_socket, group);
  auto m = assorted();
  repo.store("net/a", m.views).get();
  constexpr std::uint64_t row = 700 * 4;
  for (auto [a, b] : {std::pair{10, 11}, {10, 100}, {80, 100}, {100, 10}, {90, 95}, {10, 10}}) {
    std::vector<std::byte> one(10 * row), two(20 * row), bias(512 * 4);
    repo
      .load(
        "net/a",
        {{{{"layer1.weight", dtype::f32, {10, 700}}, one.data(), {}}, a},
         {{{"layer1.weight", dtype::f32, {20, 700}}, two.data(), {}}, b},
         {{{"layer1.bias", dtype::f32, {512}}, bias.data(), {}}, {}}})
      .get();
    BOOST_TEST(std::memcmp(one.data(), m.bytes[1].data() + a * row, one.size()) == 0);
    BOOST_TEST(std::memcmp(two.data(), m.bytes[1].data() + b * row, two.size()) == 0);
    BOOST_TEST((bias == m.bytes[2]));
  }
}

BOOST_DATA_TEST_CASE(
  strided_tensors_are_stored_and_loaded_in_place, data::make({false, true}), over_socket) {
  service s;
  auto repo = s.repo(over_socket);
  // A transposed view: 400 x 300 over memory that holds 300 x 400.
  std::vector<float> memory(400 * 300);
  std::iota(memory.begin(), memory.end(), 0.f);
  tensor_view transposed{
    {"w", dtype::f32, {400, 300}}, reinterpret_cast<std::byte*>(memory.data()), {4, 400 * 4}};
  repo.store("t", {transposed}).get();
  std::vector<float> dense(400 * 300);
  repo.load("t", {{tensor_view::dense<float>("w", dtype::f32, {400, 300}, dense), {}}}).get();
  for (int i = 0; i < 400; ++i)
    for (int j = 0; j < 300; ++j)
      BOOST_REQUIRE(dense[i * 300 + j] == memory[j * 400 + i]);
  std::vector<float> again(400 * 300, -1.f);
  auto target = transposed;
  target.data = reinterpret_cast<std::byte*>(again.data());
  repo.load("t", {{target, {}}}).get();
  BOOST_TEST((again == memory));
}

BOOST_AUTO_TEST_CASE(a_mismatch_is_an_error_before_any_byte_moves) {
  service s;
  auto repo = s.repo(true);
  auto m = assorted();
  repo.store("net/a", m.views).get();
  std::vector<std::byte> buffer(512 * 700 * 4, std::byte{9});
  auto expect = [&](tensor_desc desc, std::optional<std::uint64_t> row, errc code) {
    auto r = repo.load("net/a", {{{desc, buffer.data(), {}}, row}}).result();
    BOOST_TEST((!r && r.error().code() == code));
  };
  expect({"layer1.weight", dtype::f16, {512, 700}}, {}, errc::invalid_argument);
  expect({"layer1.weight", dtype::f32, {700, 512}}, {}, errc::invalid_argument);
  expect({"layer1.weight", dtype::f32, {13, 700}}, 500, errc::invalid_argument);
  expect({"layer9.weight", dtype::f32, {1}}, {}, errc::not_found);
  expect({"layer2.scale", dtype::f64, {}}, 0, errc::invalid_argument);
  BOOST_TEST(buffer == std::vector<std::byte>(512 * 700 * 4, std::byte{9}));
  auto none = repo.load("net/b", {{m.views[0], {}}}).result();
  BOOST_TEST((none.error().code() == errc::not_found));
}

BOOST_AUTO_TEST_CASE(overwriting_makes_a_new_version_and_deleting_removes_it) {
  service s;
  auto repo = s.repo(true);
  auto a = assorted(1), b = assorted(100);
  auto first = repo.store("m", a.views).get();
  auto second = repo.store("m", b.views).get();
  BOOST_TEST(second.version > first.version);
  auto back = b.blank();
  repo.load("m", back.targets()).get();
  BOOST_TEST((back.bytes == b.bytes));
  BOOST_TEST(repo.list().get().found.size() == 1u);
  repo.erase("m").get();
  BOOST_TEST(repo.list().get().found.empty());
  BOOST_TEST((repo.erase("m").result().error().code() == errc::not_found));
}

BOOST_AUTO_TEST_CASE(a_second_client_fetches_layers_it_does_not_know) {
  service s;
  model_graph graph;
  model m;
  std::uint32_t last = 0;
  for (int i = 0; i < 3; ++i) {
    layer l;
    l.label = "fc" + std::to_string(i);
    l.kind = "Linear";
    l.attributes = {{"out", std::to_string(10 + i)}};
    l.tensors = {{"weight", dtype::f32, {10u + i, 8}}};
    if (i > 0)
      l.inputs = {last};
    last = graph.add(l);
    m.add(l.label + ".weight", dtype::f32, {10u + i, 8}, 7 + i);
  }
  s.repo(true).store("g", graph, m.views).get();
  auto other = client::connect(s.n.address());
  auto info = other.repository().describe("g").get();
  BOOST_TEST_REQUIRE(info.layers.size() == 3u);
  BOOST_TEST(info.layers[2]->kind == "Linear");
  BOOST_TEST((
    info.layers[2]->attributes == std::vector<std::pair<std::string, std::string>>{{"out", "12"}}));
  // Layers are loaded by their ids into one buffer.
  std::vector<std::byte> buffer(12 * 8 * 4);
  auto loaded = other.repository().load_layers("g", {info.graph.ids[2]}, buffer).get();
  BOOST_TEST((buffer == m.bytes[2]));
  BOOST_TEST(loaded.tensors.at(0).desc.name == "fc2.weight");
}

BOOST_AUTO_TEST_CASE(a_provider_that_forgot_the_layers_is_told_again) {
  service s;
  auto repo = s.repo(true);
  auto m = assorted();
  repo.store("m", m.views).get();
  repo.erase("m").get();
  // The client believes the provider knows the layers; it forgot them with the model.
  repo.store("m", m.views).get();
  BOOST_TEST(repo.describe("m").get().layers.size() > 0u);
}

// Until its memory is made, snapshots read the tensors themselves.
BOOST_AUTO_TEST_CASE(tensors_may_change_when_their_snapshot_is_taken) {
  service s;
  auto repo = s.repo(true);
  auto m = assorted();
  for (int i = 0; i < 50; ++i) {
    for (auto& b : m.bytes)
      std::fill(b.begin(), b.end(), static_cast<std::byte>(i));
    auto before = m.bytes;
    auto pending = repo.store_snapshot("m", m.views);
    pending.staged.get();
    for (auto& b : m.bytes)
      std::fill(b.begin(), b.end(), std::byte{0xff});
    pending.stored.get();
    auto back = m.blank();
    repo.load("m", back.targets()).get();
    BOOST_TEST((back.bytes == before));
  }
}

BOOST_AUTO_TEST_CASE(a_snapshot_larger_than_its_memory_is_stored) {
  service s;
  config::settings settings;
  settings.client.staging_bytes = 1 << 20;
  auto c = client::connect(s.n.address(), settings);
  auto repo = c.repository();
  model small, large;
  small.add("a", dtype::u8, {100'000}, 1);
  large.add("a", dtype::u8, {2 << 20}, 2);
  for (int i = 0; i < 20; ++i)
    for (auto* m : {&small, &large}) {
      auto pending = repo.store_snapshot("m", m->views);
      pending.staged.get();
      pending.stored.get();
      auto back = m->blank();
      repo.load("m", back.targets()).get();
      BOOST_TEST((back.bytes == m->bytes));
    }
}

BOOST_AUTO_TEST_CASE(a_snapshot_that_fails_or_is_cancelled_leaves_the_tensors_alone) {
  service s;
  auto repo = s.repo(true);
  model m;
  m.add("a", dtype::u8, {16 << 20}, 1);
  BOOST_TEST(
    (repo.store_snapshot("", m.views).staged.result().error().code() == errc::invalid_argument));
  for (int i = 0; i < 40; ++i) {
    auto pending = repo.store_snapshot("m", m.views);
    std::this_thread::sleep_for(std::chrono::microseconds{i * 50});
    i % 2 == 0 ? pending.stored.cancel() : pending.staged.cancel();
    std::ranges::fill(m.bytes.front(), std::byte{0}); // a race if it is read now
    static_cast<void>(pending.staged.result());
    static_cast<void>(pending.stored.result());
  }
  BOOST_TEST(testing::eventually([] { return transport::exposed_regions() == 0u; }));
}

BOOST_AUTO_TEST_CASE(a_full_store_says_so_and_keeps_what_it_has) {
  service s;
  auto repo = s.repo(true);
  model small, large;
  small.add("a", dtype::u8, {1 << 20}, 1);
  large.add("a", dtype::u8, {80 << 20}, 2);
  repo.store("small", small.views).get();
  auto refused = repo.store("large", large.views).result();
  BOOST_TEST((!refused && refused.error().code() == errc::no_space));
  // 80 MiB, and some KiB of metadata and checksums.
  auto why = refused.error().detail();
  BOOST_TEST(
    (why.find(" 8388") != std::string::npos && why.find("large") != std::string::npos), why);
  auto back = small.blank();
  repo.load("small", back.targets()).get();
  BOOST_TEST((back.bytes == small.bytes));
}

BOOST_AUTO_TEST_CASE(a_cancelled_store_leaves_nothing_and_touches_nothing) {
  service s;
  auto repo = s.repo(true);
  for (int i = 0; i < 50; ++i) {
    model m;
    // Fifty of them fit, so that nothing but the cancellation ends one.
    m.add("a", dtype::u8, {1 << 20}, 1);
    auto pending = repo.store("c", m.views);
    pending.cancel();
    auto outcome = pending.result();
    BOOST_TEST((outcome || outcome.error().code() == errc::cancelled));
    // The memory goes now: a mover that still read it would be caught by the address sanitizer.
  }
  // Space returns as soon as the last mover has noticed.
  model m;
  m.add("a", dtype::u8, {30 << 20}, 1);
  result<receipt> again = fail(errc::busy, "");
  for (int i = 0; i < 200 && !again; ++i) {
    again = repo.store("c", m.views).result();
    usleep(10'000);
  }
  BOOST_TEST(again.has_value());
  BOOST_TEST(transport::exposed_regions() == 0u);
}

BOOST_AUTO_TEST_CASE(many_operations_at_once_all_end) {
  service s;
  auto repo = s.repo(true);
  std::vector<model> models;
  std::vector<future<receipt>> stores;
  for (unsigned i = 0; i < 40; ++i) {
    models.emplace_back().add("a", dtype::u8, {1000 + i * 20'000}, i);
    stores.push_back(repo.store("m" + std::to_string(i), models.back().views));
  }
  for (auto& r : when_all(stores).get())
    BOOST_TEST(r.has_value());
  std::vector<model> back;
  std::vector<future<load_receipt>> loads;
  for (unsigned i = 0; i < 40; ++i) {
    back.push_back(models[i].blank());
    loads.push_back(repo.load("m" + std::to_string(i), back.back().targets()));
  }
  for (auto& r : when_all(loads).get())
    BOOST_TEST(r.has_value());
  for (unsigned i = 0; i < 40; ++i)
    BOOST_TEST((back[i].bytes == models[i].bytes));
}

// More than one message carries, among them models with more bytes than a message may have, and
// models that cannot be stored.
BOOST_DATA_TEST_CASE(
  many_models_at_once_have_an_outcome_each,
  data::make({false, true}) * data::make({"default", "kept", "pool", "mapped"}), over_socket,
  group) {
  service s;
  auto repo = s.repo(over_socket, group);
  constexpr unsigned count = 300;
  std::vector<model> models(count), back;
  std::vector<model_to_store> stores;
  std::vector<model_to_load> loads;
  for (unsigned i = 0; i < count; ++i) {
    models[i].add("a", dtype::u8, {i % 50 == 7 ? 100'000 + i : i * 11 % 4000}, i);
    back.push_back(models[i].blank());
    stores.push_back({.model = "m" + std::to_string(i), .tensors = models[i].views});
    loads.push_back({.model = "m" + std::to_string(i), .targets = back[i].targets()});
  }
  stores.push_back({.model = "", .tensors = models[1].views});
  loads.push_back({.model = "none", .targets = back[1].targets()});
  auto other = models[2].blank();
  other.views[0].desc.type = dtype::i8;
  loads.push_back({.model = "m2", .targets = other.targets()});
  for (auto round = 0; round < 2; ++round) {
    auto stored = when_all(repo.store_many(stores)).get();
    BOOST_TEST_REQUIRE(stored.size() == count + 1);
    for (unsigned i = 0; i < count; ++i)
      BOOST_TEST_REQUIRE((stored[i] && stored[i]->model == stores[i].model));
    BOOST_TEST((!stored[count] && stored[count].error().code() == errc::invalid_argument));
  }
  auto loaded = when_all(repo.load_many(loads)).get();
  BOOST_TEST_REQUIRE(loaded.size() == count + 2);
  for (unsigned i = 0; i < count; ++i) {
    BOOST_TEST_REQUIRE((loaded[i] && loaded[i]->size_bytes == models[i].bytes[0].size()));
    BOOST_TEST_REQUIRE((back[i].bytes == models[i].bytes));
  }
  BOOST_TEST((!loaded[count] && loaded[count].error().code() == errc::not_found));
  BOOST_TEST((!loaded[count + 1] && loaded[count + 1].error().code() == errc::invalid_argument));
  BOOST_TEST(repo.store_many({}).empty());
  BOOST_TEST(transport::exposed_regions() == 0u);
}

// As much metadata as a frame holds with one of them.
BOOST_AUTO_TEST_CASE(many_models_fit_into_the_smallest_frames) {
  scratch_directory dir, memory{"/dev/shm"};
  auto settings = one_node(dir, memory);
  settings.options.edit<net::network_options>().channel.frame_bytes_max = 128 << 10;
  auto n = node::embed(settings);
  auto repo = client::connect(n.address()).repository();
  std::vector<model> models(100);
  std::vector<model_to_store> stores;
  for (unsigned i = 0; i < models.size(); ++i) {
    models[i].add("a", dtype::u8, {4096}, i);
    stores.push_back({.model = "m" + std::to_string(i), .tensors = models[i].views});
    if (i % 10 == 3)
      stores[i].options.metadata = {{"notes", std::string(100'000, 'x')}};
  }
  for (auto& r : when_all(repo.store_many(stores)).get())
    BOOST_TEST(r.has_value());
}

BOOST_DATA_TEST_CASE(
  what_is_kept_survives_a_restart, data::make({"kept", "pool", "mapped"}), group) {
  scratch_directory dir, memory{"/dev/shm"};
  auto settings = one_node(dir, memory);
  auto m = assorted();
  std::uint64_t stored_version = 0;
  {
    auto n = node::embed(settings);
    stored_version = n.client().repository(group).store("m", m.views).get().version;
  }
  auto n = node::embed(settings);
  auto c = client::connect(n.address());
  auto back = m.blank();
  BOOST_TEST(c.repository(group).load("m", back.targets()).get().version == stored_version);
  BOOST_TEST((back.bytes == m.bytes));
}

BOOST_AUTO_TEST_CASE(users_that_are_none_are_refused_by_name) {
  scratch_directory dir, memory{"/dev/shm"};
  auto settings = one_node(dir, memory);
  for (auto user : {"", "99999999999999999999", "4294967296", "4294967295", "-1", "1000x"}) {
    settings.node.allow_users = {user};
    auto refused = node::start(settings);
    BOOST_TEST_REQUIRE(!refused.has_value());
    BOOST_TEST((refused.error().code() == errc::invalid_argument));
    BOOST_TEST(refused.error().detail().find('"' + std::string{user} + '"') != std::string::npos);
  }
  settings.node.allow_users = {"0", std::to_string(getuid())};
  BOOST_TEST(node::start(settings).has_value());
}

// The address is that of the node, which listens already.
BOOST_AUTO_TEST_CASE(a_client_does_not_listen_where_its_file_lets_nodes_listen) {
  scratch_directory dir, memory{"/dev/shm"};
  auto settings = one_node(dir, memory);
  settings.options.edit<transport::tcp_options>().listen = {"127.0.0.1:" + free_port()};
  auto n = node::embed(settings);
  auto by_address = client::open(n.address(), settings);
  BOOST_TEST(by_address.has_value(), (by_address ? "" : by_address.error().to_string()));
  auto by_file = client::of(settings);
  BOOST_TEST(by_file.has_value(), (by_file ? "" : by_file.error().to_string()));
}

BOOST_AUTO_TEST_CASE(memory_beyond_the_bound_of_the_control_group_is_refused_at_the_start) {
  scratch_directory dir, memory{"/dev/shm"};
  auto engine = runtime::engine::start(one_node(dir, memory), runtime::engine_role::node).value();
  runtime::node_memory arenas{engine, group_memory{"/job", 40 << 20, 0}};
  BOOST_TEST(arenas.make("a", 32 << 20).has_value());
  auto refused = arenas.make("b", 32 << 20);
  BOOST_TEST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code() == errc::no_space));
  BOOST_TEST(refused.error().detail().find("control group /job allows 40MiB") != std::string::npos);
  // A pool on tmpfs takes memory of the node's group, too; one on a disk does not.
  auto file_bytes = [](const std::string& path) {
    auto settings = parse_configuration(
      "providers: [{ name: p, bucket: pmem, path: " + path + ", capacity: 32MiB }]", "t.yaml");
    auto& p = settings.value().providers.at(0);
    return storage::bucket_called(p.bucket).value()->section.needs(p.options).file_bytes;
  };
  BOOST_TEST(file_bytes(memory.path() + "/pool") == 32u << 20);
  BOOST_TEST(file_bytes("/proc/pool") == 0u);
  // So does what a provider keeps beside its arena or its files.
  auto heap_bytes = [](const std::string& provider) {
    auto settings = parse_configuration("providers: [" + provider + "]", "t.yaml").value();
    auto& p = settings.providers.at(0);
    return storage::bucket_called(p.bucket).value()->section.needs(p.options).heap_bytes;
  };
  BOOST_TEST(heap_bytes("{ name: p, capacity: 32MiB }") == 16u << 20);
  BOOST_TEST(heap_bytes("{ name: p, capacity: 32MiB, descriptions_max: 1MiB }") == 1u << 20);
  BOOST_TEST(heap_bytes("{ name: p, bucket: rocksdb, path: /k }") == 360u << 20);
  BOOST_TEST(heap_bytes("{ name: p, bucket: pmem, path: /k, descriptions_max: 2MiB }") == 2u << 20);
  BOOST_TEST(arenas.count("p", 8 << 20).ok());
  BOOST_TEST((arenas.count("p", 1 << 20).code() == errc::no_space));
  // All regions of a data server are checked before the first one is touched.
  BOOST_TEST(arenas.check("c", 0).ok());
  BOOST_TEST((arenas.check("c", 1 << 20).code() == errc::no_space));
  actors::data_options wanted;
  wanted.region_bytes = 1ull << 34;
  wanted.capacity_bytes = 1ull << 50;
  for (auto bound : {1ull << 30, 1ull << 60}) {
    runtime::node_memory others{engine, group_memory{"/job", bound, 0}};
    auto made = runtime::make_data_memory(wanted, others);
    BOOST_TEST_REQUIRE(!made.has_value());
    BOOST_TEST((made.error().code() == errc::no_space));
    BOOST_TEST(made.error().detail().find("working sets") != std::string::npos);
    BOOST_TEST(others.count("nothing of it is counted", bound).ok());
  }
  // What peers may add is only warned of.
  auto warned = arenas.check_with_peers();
  for (auto* words : {"has 40MiB", "limits.requests_size", "channel.buffers_max", "staged.size"})
    BOOST_TEST(warned.detail().find(words) != std::string::npos, warned.to_string());
  BOOST_TEST(
    runtime::node_memory(engine, group_memory{"/job", 1ull << 40, 0}).check_with_peers().ok());
}

BOOST_AUTO_TEST_CASE(a_time_too_long_for_a_message_is_the_longest_there_is) {
  service s;
  auto repo = s.repo(true);
  auto m = assorted();
  // Cut to 32 bits it would be over at once.
  auto forever = std::chrono::milliseconds{(1ll << 32) + 1};
  repo.store("m", m.views, {.timeout = forever}).get();
  auto back = m.blank();
  repo.load("m", back.targets(), {.timeout = forever}).get();
  BOOST_TEST((back.bytes == m.bytes));
}

BOOST_AUTO_TEST_CASE(closing_node_or_client_ends_what_waits) {
  service s;
  model m;
  m.add("a", dtype::u8, {16 << 20}, 1);
  auto other = std::make_unique<client>(client::connect(s.n.address()));
  auto pending = other->repository().store("x", m.views);
  other.reset();
  BOOST_TEST(pending.wait_for(60s));
  auto later = s.remote.repository().store("y", m.views);
  s.n.stop();
  BOOST_TEST(later.wait_for(60s));
  auto refused = s.remote.repository().store("z", m.views).result();
  BOOST_TEST(!refused);
}

BOOST_AUTO_TEST_CASE(status_counts_what_happened) {
  service s;
  auto m = assorted();
  s.repo(true).store("m", m.views).get();
  auto all = s.remote.status().get();
  BOOST_TEST_REQUIRE(all.size() == 1u);
  auto& status = all[0].value();
  BOOST_TEST(status.node == "n0");
  BOOST_TEST(status.connections == 1u);
  BOOST_TEST_REQUIRE(status.providers.size() == s.settings.providers.size());
  BOOST_TEST(status.providers[0].store.stores == 1u);
  BOOST_TEST(status.providers[0].store.models == 1u);
  // The pool of the other group has both parts.
  auto& pool = status.providers[2];
  BOOST_TEST(pool.kind == "pmem");
  BOOST_TEST(pool.checkpoints.kept);
  BOOST_TEST(pool.store.models == 0u);
  auto own_bytes = pool.used_bytes; // what the provider knows of its group
  BOOST_TEST((pool.store.views_bytes > 0u && pool.store.views_bytes < own_bytes));
  BOOST_TEST(own_bytes < 100'000u);
  BOOST_TEST(pool.store.descriptions_bytes == 0u);
  s.repo(true, "pool").store("m", m.views).get();
  pool = s.remote.status().get().at(0).value().providers.at(2);
  BOOST_TEST(pool.store.models == 1u);
  BOOST_TEST(pool.store.stores == 1u);
  BOOST_TEST(pool.used_bytes > own_bytes);
  BOOST_TEST(pool.store.descriptions_bytes > 1000u);
}

BOOST_AUTO_TEST_SUITE_END()

// Working sets and streams whose data servers, preloads, readers and producers are killed or stand
// still, and that belong to other users. Each of them is a process of its own, so a read that goes
// to another server than that of the sample is seen.
#include <millrace/core/batch_walk.hpp>
#include <millrace/runtime/configuration.hpp>
#include <millrace/tests/support/kill_points.hpp>
#include <millrace/tests/support/other_user.hpp>
#include <millrace/tests/support/service.hpp>
#include <millrace/tests/support/skipped.hpp>
#include <millrace/tests/system/data_processes.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <tuple>
#include <vector>

using namespace millrace;
using namespace millrace::testing;
using nlohmann::json;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

constexpr uid_t nobody = 65534;
constexpr std::uint64_t mib = 1 << 20;

// Lists shared memory without the directories that other tests make there at the same time.
std::set<std::string> shared_memory() {
  std::set<std::string> out;
  for (auto& entry : fs::directory_iterator{"/dev/shm"})
    if (entry.is_regular_file())
      out.insert(entry.path().string());
  return out;
}

// A machine that has much to do is not a lost one.
const std::string patient = "channel: { peer_timeout: 1h }\n";
const std::string over_tcp = "tcp: { listen: ['127.0.0.1:0'] }\n";

/// Three nodes with a data server each.
struct data_processes {
  explicit data_processes(const std::string& more = patient) {
    std::string text = "staging: { size: 8MiB, huge_pages: off }\n"
                       "client: { connect_timeout: 2s, reconnect_backoff_max: 100ms }\n"
                       "reading: { retry: 200ms }\n"
                       "data: { capacity: 8MiB, region_size: 1MiB }\n" +
      more + "cluster:\n  nodes:\n";
    for (auto* name : {"n0", "n1", "n2"})
      text += fmt::format(
        "    - {{ name: {0}, listen: 'unix:{1}/{0}.sock', providers: [{{ name: p-{0}, bucket: "
        "memory, capacity: 1MiB }}] }}\n",
        name, dir.path.string());
    file = dir.write("cluster.yaml", text);
    elsewhere = dir.write("elsewhere.yaml", text + "transport: { prefer: [tcp] }\n");
    for (auto* name : {"n0", "n1", "n2"})
      start(name);
    descriptors = count_descriptors();
  }

  void start(const std::string& name) {
    auto& one = nodes[name];
    one = std::make_unique<child_process>(
      std::vector<std::string>{MILLRACE_PROGRAM, "serve", "-c", file, "--node", name});
    one->read_line();
  }
  void kill(const std::string& name) {
    nodes[name]->signal(SIGKILL);
    BOOST_TEST(nodes[name]->wait() == 128 + SIGKILL);
  }

  /// Returns a client that maps no memory of the nodes, or one that does.
  client connect(bool maps = false) const {
    return client::of(load_configuration(maps ? file : elsewhere).value()).value();
  }
  std::vector<std::string> peer(
    const std::string& verb, const std::string& name, const std::string& path = {},
    bool maps = true) const {
    return {MILLRACE_DATA_PEER, maps ? file : elsewhere, verb, name, path};
  }
  outcome data(std::vector<std::string> words, std::optional<uid_t> uid = std::nullopt) const {
    words.insert(words.begin(), "data");
    words.insert(words.end(), {"-c", file});
    return run_millrace(std::move(words), uid);
  }

  json status() const {
    auto seen = run_millrace({"status", "--json", "-c", file});
    BOOST_TEST_REQUIRE(seen.code == 0, seen.err);
    return json::parse(seen.out).at("nodes");
  }
  std::uint64_t used_bytes() const {
    std::uint64_t sum = 0;
    for (auto& node : status())
      sum += node.at("data").at("used_bytes").get<std::uint64_t>();
    return sum;
  }
  /// Returns whether sets get to have so much memory, while nothing is being filled.
  bool settles(std::uint64_t least_bytes, std::uint64_t most_bytes) const {
    return eventually([&] {
      auto fills = std::ranges::any_of(
        status(), [](auto& node) { return node.at("data").at("filling") != 0; });
      auto used = used_bytes();
      return !fills && used >= least_bytes && used <= most_bytes;
    });
  }
  std::size_t count_descriptors() const {
    std::size_t sum = 0;
    for (auto& [name, one] : nodes)
      sum += one->descriptors();
    return sum;
  }
  /// The servers have no more than they began with.
  void check_nothing_is_left() const {
    BOOST_TEST(eventually([&] { return used_bytes() == 0; }));
    BOOST_TEST(eventually([&] { return count_descriptors() <= descriptors; }));
    for (auto& node : status())
      for (auto* what : {"sets", "filling", "readers"})
        BOOST_TEST(node.at("data").at(what) == 0, node.dump());
  }

  scratch dir;
  std::string file, elsewhere; // the configuration, and that of clients on another host
  std::map<std::string, std::unique_ptr<child_process>> nodes;
  std::size_t descriptors = 0;
};

preload_options among(std::uint32_t servers) {
  preload_options out;
  out.servers = servers;
  return out;
}

// Runs a command that a kill point ends.
template <class Command>
void check_killed_at(const char* point, Command command) {
  ::setenv("MILLRACE_KILL_POINT", point, 1);
  auto killed = command();
  ::unsetenv("MILLRACE_KILL_POINT");
  BOOST_TEST(killed.code == 128 + SIGKILL, killed.out + killed.err);
}

template <class T>
status outcome_of(const future<T>& f) {
  return f.result() ? status{} : f.result().error();
}

/// A rank of a job of two in a process of its own, which reads a folder through a window.
class window_rank {
public:
  window_rank(
    const data_processes& at, std::string folder, bool maps, std::uint64_t rank,
    std::uint64_t identity)
    : at_(at), folder_(std::move(folder)), maps_(maps), rank_(rank),
      expected_({folder_files, 8, 2, remainder_kind::shorter}, rank, {identity, 3, 0}, {}) {
    begin();
  }

  /// Takes what it has printed next, and compares it with the order.
  void read_batch() {
    std::istringstream line{process_->read_line()};
    std::uint64_t id = 0;
    line >> state_ >> from_window_;
    std::vector<std::uint64_t> ids;
    while (line >> id)
      ids.push_back(id);
    BOOST_TEST_REQUIRE(ids == expected_.next().samples, boost::test_tools::per_element());
  }
  std::uint64_t from_window() const { return from_window_; }

  void restart() {
    kill_and_begin([] {});
  }
  template <class Meanwhile>
  void kill_and_begin(Meanwhile meanwhile) {
    stop();
    meanwhile();
    begin();
  }
  void stop() {
    process_->signal(SIGKILL);
    BOOST_TEST(process_->wait() == 128 + SIGKILL, process_->err());
  }

private:
  void begin() {
    auto words = at_.peer("train", "w", folder_, maps_);
    words.insert(words.end(), {std::to_string(rank_), state_});
    process_ = std::make_unique<child_process>(words);
    from_window_ = 0;
  }

  const data_processes& at_;
  const std::string folder_;
  const bool maps_;
  const std::uint64_t rank_;
  batch_walk expected_;
  std::unique_ptr<child_process> process_;
  std::string state_; // after what was taken
  std::uint64_t from_window_ = 0;
};

bool names(const status& why, const std::string& word) {
  return why.to_string().find(word) != std::string::npos;
}

} // namespace

BOOST_AUTO_TEST_SUITE(data_processes_die)

// The bytes that tcp moves may be encrypted.
BOOST_DATA_TEST_CASE(
  an_epoch_goes_on_when_a_data_server_is_killed, boost::unit_test::data::make({false, true}),
  encrypts) {
  auto tcp = encrypts ? "tcp: { listen: ['127.0.0.1:0'], encrypt: true }\n" : over_tcp;
  data_processes at{patient + tcp};
  auto path = write_samples(at.dir / "a.npy", 900);
  auto c = at.connect();
  auto set = c.working_set("s");
  auto nodes = set.preload({path}, among(3)).get().set.division.nodes;
  auto lost = nodes[encrypts ? 0 : 2];
  auto reader = set.open({{}, {path}}).get();
  std::vector<std::uint64_t> seen;
  {
    auto from = reader.load_batches({.batch_size = 16, .seed = 3}).value();
    while (auto got = from.next().get()) {
      for (std::size_t i = 0; i < got->ids().size(); ++i) {
        std::span bytes{got->field(0).data + i * sample_bytes, sample_bytes};
        BOOST_TEST_REQUIRE(is_sample(bytes, got->ids()[i]));
        seen.push_back(got->ids()[i]);
      }
      if (seen.size() == 160) {
        BOOST_TEST_REQUIRE(reader.samples_from_files() == 0u);
        at.kill(lost);
      }
    }
  }
  auto order = reader.order(3, 0);
  BOOST_TEST_REQUIRE(seen.size() == 900u);
  for (std::uint64_t i = 0; i < 900; ++i)
    BOOST_TEST_REQUIRE(seen[i] == order.at(i));
  // The other parts still come from their servers.
  BOOST_TEST(reader.samples_from_files() > 0u);
  BOOST_TEST(eventually([&] { // once the loader's last reads have ended
    auto before = reader.samples_from_files();
    return read_all(reader).ok() && reader.samples_from_files() == before + 300;
  }));
  at.start(lost);
  BOOST_TEST(eventually([&] { return outcome_of(set.preload({path}, among(3))).ok(); }));
  BOOST_TEST(eventually([&] {
    auto from_files = reader.samples_from_files();
    return read_all(reader).ok() && reader.samples_from_files() == from_files;
  }));
}

BOOST_AUTO_TEST_CASE(a_data_server_that_stands_still_does_not_hold_up_reading) {
  data_processes at{over_tcp + "channel: { heartbeat: 100ms, peer_timeout: 3s }\n"};
  auto path = write_samples(at.dir / "a.npy", 300);
  auto c = at.connect();
  auto set = c.working_set("s");
  auto nodes = set.preload({path}, among(3)).get().set.division.nodes;
  auto reader = set.open({{}, {path}}).get();
  auto without_files = set.open().get();
  auto& still = *at.nodes[nodes[1]];
  still.signal(SIGSTOP);
  BOOST_TEST_REQUIRE(still.wait_stopped());
  auto begun = std::chrono::steady_clock::now();
  BOOST_TEST(read_all(reader).ok());
  BOOST_TEST(reader.samples_from_files() >= 100u);
  auto why = read_all(without_files);
  BOOST_TEST(!why.ok());
  BOOST_TEST(names(why, nodes[1]), why.to_string());
  BOOST_TEST((std::chrono::steady_clock::now() - begun < 30s));
  still.signal(SIGCONT);
  // It has ended the lease of a reader that it had not heard from.
  BOOST_TEST(eventually([&] { return read_all(without_files).ok(); }));
  BOOST_TEST(eventually([&] {
    auto from_files = reader.samples_from_files();
    return read_all(reader).ok() && reader.samples_from_files() == from_files;
  }));
}

BOOST_DATA_TEST_CASE(
  a_killed_preload_leaves_nothing_behind,
  boost::unit_test::data::make({"set.block_moved", "set.half_published"}), point) {
  if (!has_kill_points())
    return;
  auto shared = shared_memory();
  {
    data_processes at;
    auto path = write_samples(at.dir / "a.npy", 900);
    auto preload = [&] { return at.data({"preload", "s", path, "--servers", "3"}); };
    check_killed_at(point, preload);
    auto set = at.connect(true).working_set("s");
    BOOST_TEST((outcome_of(set.open()).code() == errc::not_found));
    // Where parts were published, the next preload or unload finds them.
    auto halfway = std::string{point} == "set.half_published";
    BOOST_TEST(eventually([&] { return at.used_bytes() == (halfway ? 2 * mib : 0); }));
    auto again = preload();
    BOOST_TEST(again.code == 0, again.err);
    BOOST_TEST(read_all(set.open().get()).ok());
    BOOST_TEST(eventually([&] { return at.used_bytes() == 3 * mib; }));
    set.unload().get();
    // A preload that nobody repeats.
    check_killed_at(point, preload);
    auto gone = outcome_of(set.unload());
    BOOST_TEST((gone.ok() || gone.code() == errc::not_found || gone.code() == errc::busy));
    { auto closed = std::move(set); }
    at.check_nothing_is_left();
  }
  BOOST_TEST(shared_memory() == shared, boost::test_tools::per_element());
}

// The parts of an append are published at the other nodes, all at once, and then at the home.
BOOST_DATA_TEST_CASE(
  a_killed_append_leaves_the_set_as_it_was,
  boost::unit_test::data::make({2u, 3u}) *
    boost::unit_test::data::make({"set.block_moved", "set.part_published", "set.half_published"}),
  servers, point) {
  if (!has_kill_points())
    return;
  auto shared = shared_memory();
  {
    data_processes at;
    auto first = write_samples(at.dir / "a.npy", 600);
    auto second = write_samples(at.dir / "b.npy", 300, 600);
    auto others = write_samples(at.dir / "c.npy", 60, 600);
    auto append = [&](const std::string& path) { return at.data({"append", "s", path}); };
    auto each = servers * mib; // of a set, or of an append
    // What a killed append leaves.
    auto is_published = std::string{point} != "set.block_moved";
    auto left_max = is_published ? each - mib : 0;
    auto left_min = std::string{point} == "set.part_published" ? mib : left_max;
    auto has_left = [&](std::uint64_t beside) {
      return at.settles(beside + left_min, beside + left_max);
    };
    auto c = at.connect(true);
    auto set = c.working_set("s");
    auto before = set.preload({first}, among(servers)).get().set;
    auto reader = set.open().get();
    auto check_unchanged = [&] {
      BOOST_TEST(has_left(each));
      BOOST_TEST((set.describe().get() == before));
      BOOST_TEST(read_all(reader).ok());
      auto opened = set.open().get();
      BOOST_TEST((opened.info() == before));
      BOOST_TEST(read_all(opened).ok());
    };
    check_killed_at(point, [&] { return append(others); });
    check_unchanged();
    // What it has left does not add up, whichever files are appended next.
    check_killed_at(point, [&] { return append(second); });
    check_unchanged();
    auto again = append(second);
    BOOST_TEST(again.code == 0, again.err);
    BOOST_TEST(again.out.find("900 samples") != std::string::npos, again.out);
    BOOST_TEST(eventually([&] { return at.used_bytes() == 2 * each; }));
    BOOST_TEST(read_all(reader).ok());
    auto grown = set.open().get();
    BOOST_TEST(read_all(grown).ok());
    BOOST_TEST(grown.verify().get().damaged == 0u);
    BOOST_TEST_REQUIRE(grown.info().samples == 900u);
    {
      auto together = c.working_set("t");
      together.preload({first, second}, among(servers)).get();
      auto order = grown.order(7, 2), wanted = together.open().get().order(7, 2);
      for (std::uint64_t i = 0; i < 900; ++i)
        BOOST_TEST_REQUIRE(order.at(i) == wanted.at(i));
      together.unload().get();
    }
    // An append that nobody repeats.
    check_killed_at(point, [&] { return append(others); });
    BOOST_TEST(has_left(2 * each));
    BOOST_TEST(set.open().get().info().samples == 900u);
    set.unload().get();
    { auto closed = std::tuple{std::move(reader), std::move(grown), std::move(set), std::move(c)}; }
    at.check_nothing_is_left();
  }
  BOOST_TEST(shared_memory() == shared, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_set_goes_with_the_last_killed_process_of_its_job) {
  data_processes at;
  auto path = write_samples(at.dir / "a.npy", 900);
  auto shared = shared_memory();
  {
    child_process first{at.peer("hold", "s", path)};
    BOOST_TEST(first.read_line() == "read, 0 from files");
    child_process second{at.peer("hold", "s", path)};
    BOOST_TEST(second.read_line() == "read, 0 from files");
    first.signal(SIGKILL);
    first.wait();
    for (int i = 0; i < 20; ++i)
      BOOST_TEST(second.read_line() == "read, 0 from files");
    BOOST_TEST(at.used_bytes() == 3 * mib);
    second.signal(SIGKILL);
    second.wait();
  }
  at.check_nothing_is_left();
  BOOST_TEST(shared_memory() == shared, boost::test_tools::per_element());
}

// Each batch is the next one of the order, also after its process was killed and started anew.
BOOST_DATA_TEST_CASE(
  ranks_read_through_a_window_while_processes_die, boost::unit_test::data::make({true, false}),
  maps) {
  data_processes at{patient + over_tcp};
  auto folder = write_folder(at.dir / "files");
  auto set = at.connect(maps).working_set("w");
  auto identity = set.preload({folder}, in_window()).get().set.identity;
  window_rank first{at, folder, maps, 0, identity}, second{at, folder, maps, 1, identity};
  auto both_read = [&](int batches) {
    for (int i = 0; i < batches; ++i) {
      first.read_batch();
      second.read_batch();
    }
  };
  auto both_find = [&] { // samples in the window
    auto before = std::pair{first.from_window(), second.from_window()};
    return eventually([&] {
      both_read(1);
      return first.from_window() > before.first && second.from_window() > before.second;
    });
  };
  both_read(30); // more than an epoch
  BOOST_TEST(both_find());
  second.restart();
  both_read(30);
  BOOST_TEST(both_find());
  auto home = set.node().value();
  at.kill(home);
  both_read(40);
  second.kill_and_begin([&] { // the home is there again, and the rank preloads the window
    at.start(home);
  });
  both_read(30);
  BOOST_TEST(both_find());
  first.stop();
  second.stop();
  BOOST_TEST(eventually([&] { return outcome_of(set.unload()).ok(); }));
  { auto closed = std::move(set); }
  at.check_nothing_is_left();
}

BOOST_AUTO_TEST_CASE(a_killed_reader_gives_its_memory_back) {
  data_processes at;
  auto path = write_samples(at.dir / "a.npy", 900);
  BOOST_TEST(at.data({"preload", "s", path, "--servers", "3"}).code == 0);
  child_process reader{at.peer("read", "s", path)};
  BOOST_TEST(reader.read_line() == "read, 0 from files");
  BOOST_TEST(at.data({"unload", "s"}).code == 0);
  BOOST_TEST(reader.read_line() == "read, 0 from files");
  BOOST_TEST(at.used_bytes() == 3 * mib);
  reader.signal(SIGKILL);
  reader.wait();
  at.check_nothing_is_left();
}

BOOST_AUTO_TEST_CASE(killed_processes_of_a_stream_leave_it_to_others) {
  data_processes at;
  for (auto* killed : {"consume", "produce"}) {
    child_process producer{at.peer("produce", "t")};
    BOOST_TEST(producer.read_line() == "appended");
    child_process reader{at.peer("consume", "t")};
    BOOST_TEST(reader.read_line() == "got 8");
    auto& dies = killed[0] == 'c' ? reader : producer;
    dies.signal(SIGKILL);
    dies.wait();
    // Another process takes its place.
    child_process other{at.peer(killed, "t")};
    auto& lives = killed[0] == 'c' ? producer : reader;
    auto lines = lines_of(lives.out());
    other.read_line();
    BOOST_TEST(eventually([&] { return lines_of(lives.out()) > lines + 10; }));
  }
  BOOST_TEST(at.used_bytes() == mib);
  at.connect(true).stream("t").remove().get();
  at.check_nothing_is_left();
}

BOOST_AUTO_TEST_CASE(files_are_opened_with_the_rights_of_the_client) {
  if (auto why = why_not_as(nobody, MILLRACE_PROGRAM); !why.empty())
    return millrace::testing::skipped("a working set of another user: " + why);
  data_processes at{patient + over_tcp + "node: { allow_users: [nobody], socket_mode: 0666 }\n"};
  fs::permissions(
    at.dir.path, fs::perms::owner_all | fs::perms::others_exec | fs::perms::group_exec);
  ::chmod(at.file.c_str(), 0644);
  ::chmod(at.elsewhere.c_str(), 0644);
  auto path = write_samples(at.dir / "a.npy", 900);
  ::chmod(path.c_str(), 0600);
  // The nodes are root's, and could read it.
  auto refused = at.data({"preload", "s", path, "--servers", "3"}, nobody);
  BOOST_TEST(refused.code == 1);
  BOOST_TEST(refused.err.find("Permission denied") != std::string::npos, refused.err);
  BOOST_TEST(at.data({"preload", "s", path, "--servers", "3"}).code == 0);
  // Another user reads the set, and does not unload it.
  auto verified = at.data({"verify", "s"}, nobody);
  BOOST_TEST(verified.code == 0, verified.err);
  auto kept = at.data({"unload", "s"}, nobody);
  BOOST_TEST(kept.code == 1);
  BOOST_TEST(kept.err.find("user 0") != std::string::npos, kept.err);
  // Nobody reads the file for it when a data server is lost.
  child_process reader{at.peer("read", "s", path, false), nobody};
  BOOST_TEST(reader.read_line() == "read, 0 from files", reader.err());
  for (auto& [name, one] : at.nodes)
    at.kill(name);
  BOOST_TEST(reader.wait() == 1);
  BOOST_TEST(reader.err().find(path + ": Permission denied") != std::string::npos, reader.err());
}

BOOST_AUTO_TEST_SUITE_END()

// Tests clients that preload the same files at once: they share the reading, and what one of them
// leaves, because it is lost, is cancelled or finds damage, others read.
#include <millrace/tests/runtime/data_cluster.hpp>
#include <millrace/tests/runtime/data_node.hpp>
#include <millrace/tests/support/made_images.hpp>

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t samples = 50'000; // 12 blocks

template <class Holds>
bool comes(Holds holds) {
  auto until = std::chrono::steady_clock::now() + 60s;
  while (!holds() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(1ms);
  return holds();
}

/// A preload that stands still when it has moved its first block, until it may go on.
struct stalled {
  std::atomic<bool> has_begun = false, may_go_on = false, waits = false;
  std::atomic<std::uint64_t> done = 0;

  preload_options options(preload_options out = {}) {
    out.progress = [this](std::uint64_t now, std::uint64_t) {
      has_begun = true;
      done = now;
      return comes([this] { return may_go_on.load(); });
    };
    out.waits = [this](const status&) { waits = true; };
    return out;
  }
  ~stalled() { may_go_on = true; }
};

/// One that goes on, and says when it has nothing to read any more.
struct running : stalled {
  running() { may_go_on = true; }
};

std::uint64_t joins(data_node& at) { return at.direct->status().get().front().value().data.joins; }

void check_clean(const working_set& set) {
  auto damage = set.open().get().verify().get();
  BOOST_TEST(damage.damaged == 0u);
  BOOST_TEST(damage.samples > 0u);
}

} // namespace

BOOST_AUTO_TEST_SUITE(shared_preloads)

BOOST_AUTO_TEST_CASE(clients_that_preload_at_once_share_the_reading) {
  data_node at{64 * mib};
  auto path = at.file("a.npy", samples);
  stalled leads;
  running second, third;
  auto one = at.connect(), two = at.connect(), three = at.connect();
  auto first = one.working_set("s").preload({path}, leads.options());
  BOOST_TEST_REQUIRE(comes([&] { return leads.has_begun.load(); }));
  auto helps = two.working_set("s").preload({path}, second.options());
  auto also = three.working_set("s").preload({path}, third.options());
  BOOST_TEST(comes([&] { return second.waits && third.waits; }));
  BOOST_TEST(joins(at) == 2u);
  leads.may_go_on = true;
  auto made = first.get(), got = helps.get(), last = also.get();
  BOOST_TEST(!made.existed);
  BOOST_TEST((got.existed && last.existed));
  BOOST_TEST(got.read_bytes + last.read_bytes > 0u);
  BOOST_TEST(made.read_bytes > 0u);
  BOOST_TEST(made.read_bytes + got.read_bytes + last.read_bytes == samples * at.sample_bytes);
  BOOST_TEST(leads.done == samples * at.sample_bytes); // what others have read, too
  auto set = one.working_set("s");
  check_clean(set);
  check_batch(set.open().get(), {0, 1, samples / 2, samples - 1});
  auto now = [&] { return at.direct->status().get().front().value().data; };
  BOOST_TEST(comes([&] { return now().readers == 0; }));
  set.unload().get();
  BOOST_TEST(at.frees_all_but(0));
}

BOOST_AUTO_TEST_CASE(what_a_lost_client_was_reading_is_read_by_another) {
  data_node at{64 * mib};
  auto path = at.file("a.npy", samples);
  stalled leads, lost;
  auto first = at.direct->working_set("s").preload({path}, leads.options());
  BOOST_TEST_REQUIRE(comes([&] { return leads.has_begun.load(); }));
  auto client = at.connect();
  auto helps = client.working_set("s").preload({path}, lost.options());
  BOOST_TEST_REQUIRE(comes([&] { return lost.has_begun.load(); }));
  at.cut_connections();
  leads.may_go_on = true;
  auto made = first.get();
  BOOST_TEST(made.read_bytes == samples * at.sample_bytes);
  lost.may_go_on = true;
  static_cast<void>(helps.result()); // it finds the set, or hears of the cut
  check_clean(at.direct->working_set("s"));
}

BOOST_AUTO_TEST_CASE(another_client_begins_again_when_the_first_one_is_lost) {
  data_node at{64 * mib};
  auto path = at.file("a.npy", samples);
  stalled lost;
  running second;
  auto client = at.connect();
  auto first = client.working_set("s").preload({path}, lost.options());
  BOOST_TEST_REQUIRE(comes([&] { return lost.has_begun.load(); }));
  auto helps = at.direct->working_set("s").preload({path}, second.options());
  BOOST_TEST(comes([&] { return second.waits.load(); }));
  at.cut_connections();
  auto made = helps.get();
  BOOST_TEST(!made.existed);
  lost.may_go_on = true;
  static_cast<void>(first.result());
  check_clean(at.direct->working_set("s"));
  BOOST_TEST(made.read_bytes >= samples * at.sample_bytes); // some of it twice
}

BOOST_AUTO_TEST_CASE(a_client_that_is_cancelled_leaves_its_part_to_the_others) {
  data_node at{64 * mib};
  auto path = at.file("a.npy", samples);
  stalled leads;
  auto first = at.connect().working_set("s").preload({path}, leads.options());
  BOOST_TEST_REQUIRE(comes([&] { return leads.has_begun.load(); }));
  preload_options stops;
  stops.progress = [](auto, auto) { return false; };
  auto cancelled = at.connect().working_set("s").preload({path}, stops);
  BOOST_TEST((code_of(cancelled) == errc::cancelled), words_of(cancelled));
  leads.may_go_on = true;
  BOOST_TEST(first.get().read_bytes == samples * at.sample_bytes);
  check_clean(at.direct->working_set("s"));
}

// Whenever the leader is cancelled: before it has published the set, or when it is there.
BOOST_AUTO_TEST_CASE(a_set_that_a_helper_has_reported_stays_when_the_leader_is_cancelled) {
  data_node at{64 * mib};
  auto path = at.file("a.npy", samples);
  auto one = at.connect(), two = at.connect();
  auto set = at.direct->working_set("s");
  for (auto round = 0; round < 6; ++round) {
    stalled leads;
    running second;
    auto first = one.working_set("s").preload({path}, leads.options());
    BOOST_TEST_REQUIRE(comes([&] { return leads.has_begun.load(); }));
    auto helps = two.working_set("s").preload({path}, second.options());
    BOOST_TEST(comes([&] { return second.waits.load(); }));
    leads.may_go_on = true;
    auto is_there = [&] { return set.describe().result().has_value(); };
    BOOST_TEST(comes([&] { return round % 2 == 0 ? is_there() : leads.done > 0; }));
    first.cancel();
    BOOST_TEST(helps.get().read_bytes > 0u);
    check_clean(set);
    set.unload().get();
    BOOST_TEST(at.frees_all_but(0));
  }
}

BOOST_AUTO_TEST_CASE(what_the_program_of_a_helper_throws_is_its_own_error) {
  data_node at{64 * mib};
  auto path = at.file("a.npy", samples);
  stalled leads;
  auto first = at.connect().working_set("s").preload({path}, leads.options());
  BOOST_TEST_REQUIRE(comes([&] { return leads.has_begun.load(); }));
  preload_options throws;
  throws.progress = [](auto, auto) -> bool { throw std::runtime_error{"the program's"}; };
  auto helps = at.connect().working_set("s").preload({path}, throws);
  BOOST_TEST((code_of(helps) == errc::internal), words_of(helps));
  BOOST_TEST(words_of(helps).find("the program's") != std::string::npos, words_of(helps));
  leads.may_go_on = true;
  BOOST_TEST(first.get().read_bytes == samples * at.sample_bytes);
  check_clean(at.direct->working_set("s"));
}

// The first client decides about damage, whoever finds it.
BOOST_AUTO_TEST_CASE(damage_that_a_helper_finds_is_found_by_the_first_client) {
  data_node at{64 * mib};
  auto folder = at.dir.path() + "/photos";
  std::filesystem::create_directories(folder);
  for (std::uint32_t i = 0; i < 36; ++i) // 3 in a block
    std::ofstream{folder + "/" + std::to_string(10 + i), std::ios::binary}
      << png_of(made_pixels(600, 600, i), 600, 600);
  std::ofstream{folder + "/45"} << "damaged";
  for (auto policy : {damage_policy::fail, damage_policy::skip}) {
    preload_options how;
    how.on_error = policy;
    how.fields = {"x"};
    how.decode = {"x=rgb"};
    stalled leads;
    running second;
    auto one = at.connect();
    auto first = one.working_set("s").preload({folder}, leads.options(how));
    BOOST_TEST_REQUIRE(comes([&] { return leads.has_begun.load(); }));
    auto client = at.connect();
    auto helps = client.working_set("s").preload({folder}, second.options(how));
    BOOST_TEST(comes([&] { return second.waits.load(); }));
    BOOST_TEST(!first.ready());
    leads.may_go_on = true;
    if (policy == damage_policy::fail) {
      BOOST_TEST((code_of(first) == errc::corrupt_data), words_of(first));
      BOOST_TEST(words_of(first).find("photos/45") != std::string::npos, words_of(first));
      BOOST_TEST((code_of(helps) == errc::corrupt_data), words_of(helps));
      BOOST_TEST(at.frees_all_but(0));
      continue;
    }
    for (auto* each : {&first, &helps}) {
      auto made = each->get();
      BOOST_TEST((made.set.left_out == std::vector{folder + "/45"}));
      BOOST_TEST(made.skipped.size() == 1u);
      BOOST_TEST(made.set.samples == 35u);
    }
    check_clean(at.direct->working_set("s"));
  }
}

// A damaged entry of NPZ is found by who reads all of it.
BOOST_AUTO_TEST_CASE(arrays_with_one_checksum_are_read_by_one_client) {
  data_node at{64 * mib};
  auto path = write_npz(at.dir.path() + "/a.npz", samples, true);
  stalled leads;
  running second;
  auto one = at.connect(), two = at.connect();
  auto first = one.working_set("s").preload({path}, leads.options());
  BOOST_TEST_REQUIRE(comes([&] { return leads.has_begun.load(); }));
  auto waits = two.working_set("s").preload({path}, second.options());
  BOOST_TEST(comes([&] { return second.waits.load(); }));
  BOOST_TEST(joins(at) == 0u);
  leads.may_go_on = true;
  BOOST_TEST((code_of(first) == errc::corrupt_data), words_of(first));
  BOOST_TEST((code_of(waits) == errc::corrupt_data), words_of(waits));
}

BOOST_AUTO_TEST_CASE(samples_that_vary_are_shared_with_their_tables) {
  data_node at{64 * mib};
  auto folder = at.dir.path() + "/files";
  std::filesystem::create_directories(folder);
  auto bytes = pattern(200'000, 3);
  for (std::size_t i = 0; i < 400; ++i)
    std::ofstream{folder + "/" + std::to_string(1000 + i), std::ios::binary}.write(
      reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(i * 500));
  stalled leads;
  running second;
  auto first = at.connect().working_set("s").preload({folder}, leads.options());
  BOOST_TEST_REQUIRE(comes([&] { return leads.has_begun.load(); }));
  auto client = at.connect();
  auto helps = client.working_set("s").preload({folder}, second.options());
  BOOST_TEST(comes([&] { return second.waits.load(); }));
  leads.may_go_on = true;
  auto made = first.get(), got = helps.get();
  BOOST_TEST(got.read_bytes > 0u);
  auto set = at.direct->working_set("s");
  check_clean(set);
  auto reader = set.open().get();
  std::vector<std::uint64_t> ids{0, 1, 200, 399};
  BOOST_TEST((reader.sizes(0, ids).get() == std::vector<std::uint64_t>{0, 500, 100'000, 199'500}));
  std::vector<std::byte> into(199'500);
  reader.read(0, 399, into).get();
  BOOST_TEST(is_pattern(into, 0, 3));
}

BOOST_AUTO_TEST_CASE(a_set_that_is_divided_is_shared) {
  data_cluster at{3, 24};
  auto path = at.file("a.npy", samples);
  stalled leads;
  running second;
  auto one = at.connect(), two = at.connect(false);
  auto first = one.working_set("s").preload({path}, leads.options(among(3)));
  BOOST_TEST_REQUIRE(comes([&] { return leads.has_begun.load(); }));
  auto helps = two.working_set("s").preload({path}, second.options(among(0)));
  BOOST_TEST(comes([&] { return second.waits.load(); }));
  leads.may_go_on = true;
  auto made = first.get(), got = helps.get();
  BOOST_TEST(got.existed);
  BOOST_TEST(got.read_bytes >= samples * at.sample_bytes / 4);
  BOOST_TEST(made.read_bytes + got.read_bytes == samples * at.sample_bytes);
  check_clean(one.working_set("s"));
  check_batch(one.working_set("s").open().get(), {0, samples / 3, samples / 2, samples - 1});
  one.working_set("s").unload().get();
  BOOST_TEST(at.frees_all());
}

BOOST_AUTO_TEST_CASE(a_client_of_other_files_waits_and_is_refused) {
  data_node at{64 * mib};
  auto path = at.file("a.npy", samples), other = at.file("b.npy", samples);
  stalled leads;
  running second;
  auto first = at.connect().working_set("s").preload({path}, leads.options());
  BOOST_TEST_REQUIRE(comes([&] { return leads.has_begun.load(); }));
  auto client = at.connect();
  auto helps = client.working_set("s").preload({other}, second.options());
  BOOST_TEST(comes([&] { return second.waits.load(); }));
  BOOST_TEST(joins(at) == 0u);
  leads.may_go_on = true;
  BOOST_TEST(first.get().read_bytes == samples * at.sample_bytes);
  BOOST_TEST((code_of(helps) == errc::already_exists), words_of(helps));
}

BOOST_AUTO_TEST_SUITE_END()

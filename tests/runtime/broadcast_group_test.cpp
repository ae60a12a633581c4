// Tests groups through the public API: what members get, who is named when one does not come, and
// how a group goes on without one that is lost.
#include <millrace/actors/broadcast/group_options.hpp>
#include <millrace/runtime/client/broadcast_group.hpp>
#include <millrace/storage/memory/memory_options.hpp>
#include <millrace/tests/runtime/one_node.hpp>
#include <millrace/tests/support/forked_child.hpp>
#include <millrace/tests/support/pattern.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;
namespace data = boost::unit_test::data;

namespace {

constexpr auto long_time = 60s;
constexpr auto short_time = 300ms;
constexpr std::uint64_t chunk = 64 << 10;

using pending = future<broadcast_receipt>;

template <class T>
errc code_of(const future<T>& f) {
  BOOST_TEST_REQUIRE(f.wait_for(long_time));
  return f.result() ? errc::ok : f.result().error().code();
}

template <class T>
std::string words_of(const future<T>& f) {
  BOOST_TEST_REQUIRE(f.wait_for(long_time));
  return f.result() ? std::string{} : std::string{f.result().error().detail()};
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Each member has a client of its own.
struct group_node : one_node {
  std::vector<client> clients;
  std::vector<broadcast_group> members;

  explicit group_node(std::uint32_t size = 0, std::uint64_t memory = 64 << 20) {
    config::provider_settings models;
    models.name = "models";
    models.options.edit<storage::memory_bucket_options>().capacity_bytes = 16 << 20;
    settings = with_provider(dir.path(), models);
    auto& groups = settings.options.edit<actors::group_options>();
    groups.memory_bytes = memory;
    groups.ring_bytes = 4 * chunk;
    groups.chunk_bytes = chunk;
    start();
    for (std::uint32_t rank = 0; rank < size; ++rank)
      clients.push_back(connect());
    if (size > 0)
      form("g");
  }

  static group_options rank_of(std::uint32_t rank, std::uint32_t size) {
    group_options o;
    o.rank = rank;
    o.size = size;
    o.who = "member-" + std::to_string(rank);
    o.timeout = long_time;
    return o;
  }

  void form(const std::string& name) {
    std::vector<future<broadcast_group>> joined;
    auto size = static_cast<std::uint32_t>(clients.size());
    for (std::uint32_t rank = 0; rank < size; ++rank)
      joined.push_back(clients[rank].join_group(name, rank_of(rank, size)));
    members.clear();
    for (auto& one : joined)
      members.push_back(one.get());
  }
};

tensor_view view_of(std::vector<std::byte>& bytes) {
  return {{"w", dtype::u8, {bytes.size()}}, bytes.data(), {}};
}

pending begin(
  const broadcast_group& of, std::vector<std::byte>& bytes, std::uint32_t root,
  std::chrono::milliseconds timeout = long_time) {
  broadcast_options o;
  o.root = root;
  o.timeout = timeout;
  return of.broadcast({view_of(bytes)}, o);
}

// All members broadcast from `root`; each of them waits on a thread of its own.
void broadcast_from(std::vector<broadcast_group>& members, std::uint32_t root, std::uint64_t size) {
  auto salt = 7 * root + size;
  std::vector<std::vector<std::byte>> bytes(members.size(), std::vector<std::byte>(size));
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (std::size_t i = 0; i < members.size(); ++i)
    threads.emplace_back([&, i] {
      if (members[i].rank() == root)
        bytes[i] = pattern(size, salt);
      auto done = begin(members[i], bytes[i], root).result();
      right += done && done->size_bytes == size && is_pattern(bytes[i], 0, salt);
    });
  for (auto& one : threads)
    one.join();
  BOOST_TEST(right == static_cast<int>(members.size()));
}

} // namespace

BOOST_AUTO_TEST_SUITE(broadcast_groups)

BOOST_DATA_TEST_CASE(
  all_members_get_the_bytes_of_the_root,
  data::make({0ul, 1ul, 4095ul, chunk - 1, chunk, chunk + 1, 3 * chunk, 40 * chunk + 5}), size) {
  group_node at{4};
  for (std::uint32_t root = 0; root < 4; ++root)
    broadcast_from(at.members, root, size);
  BOOST_TEST(at.members[2].epoch() == 1u);
  BOOST_TEST(at.members[2].members().at(3).who == "member-3");
}

BOOST_AUTO_TEST_CASE(a_node_in_this_process_has_members_too) {
  group_node at;
  at.clients = {at.connect(), *at.direct};
  at.form("g");
  broadcast_from(at.members, 0, 5 * chunk);
  broadcast_from(at.members, 1, 5 * chunk);
}

BOOST_AUTO_TEST_CASE(a_group_of_one_is_ready_at_once) {
  group_node at{1};
  std::vector<std::byte> bytes(5 * chunk);
  BOOST_TEST(begin(at.members[0], bytes, 0).ready());
  broadcast_from(at.members, 0, 5 * chunk);
}

BOOST_AUTO_TEST_CASE(several_tensors_and_strides_are_one_run_of_bytes) {
  group_node at{2};
  std::vector<float> matrix{1, 2, 3, 4, 5, 6};
  std::vector<float> columns(3), whole(3);
  float scalar = 7, taken = 0;
  tensor_view column{{"c", dtype::f32, {3}}, reinterpret_cast<std::byte*>(&matrix[1]), {8}};
  broadcast_options o;
  auto sent = at.members[0].broadcast(
    {column, {{"s", dtype::f32, {}}, reinterpret_cast<std::byte*>(&scalar), {}}}, o);
  auto got = at.members[1].broadcast(
    {{{"x", dtype::f32, {3}}, reinterpret_cast<std::byte*>(columns.data()), {}},
     {{"y", dtype::f32, {}}, reinterpret_cast<std::byte*>(&taken), {}}},
    o);
  BOOST_TEST(sent.get().size_bytes == 16u);
  BOOST_TEST(got.get().size_bytes == 16u);
  BOOST_TEST((columns == std::vector<float>{2, 4, 6}));
  BOOST_TEST(taken == 7.f);
}

// Several broadcasts of several roots are under way, and nobody waits for most of them.
BOOST_AUTO_TEST_CASE(broadcasts_go_on_in_the_order_of_the_calls) {
  group_node at{3};
  constexpr std::uint32_t rounds = 200;
  constexpr std::uint64_t size = 10'000;
  std::vector<std::vector<std::vector<std::byte>>> bytes(3);
  std::vector<pending> all;
  for (std::uint32_t round = 0; round < rounds; ++round)
    for (std::uint32_t i = 0; i < 3; ++i) {
      auto& mine = bytes[i].emplace_back(size);
      if (round % 3 == i)
        write_pattern(mine.data(), 0, size, round);
    }
  for (std::uint32_t i = 0; i < 3; ++i)
    for (std::uint32_t round = 0; round < rounds; ++round)
      all.push_back(begin(at.members[i], bytes[i][round], round % 3));
  for (auto& one : all)
    BOOST_TEST_REQUIRE((code_of(one) == errc::ok));
  for (std::uint32_t i = 0; i < 3; ++i)
    for (std::uint32_t round = 0; round < rounds; ++round)
      BOOST_TEST(is_pattern(bytes[i][round], 0, round));
}

BOOST_AUTO_TEST_CASE(what_nobody_waits_for_ends_too) {
  group_node at{2};
  auto from = pattern(100 * chunk, 3);
  std::vector<std::byte> to(from.size());
  auto sent = begin(at.members[0], from, 0);
  auto got = begin(at.members[1], to, 0);
  BOOST_TEST(eventually([&] { return sent.ready() && got.ready(); }));
  BOOST_TEST((to == from));
}

BOOST_AUTO_TEST_CASE(a_continuation_may_begin_the_next_one) {
  group_node at{2};
  auto from = pattern(3 * chunk, 3);
  std::vector<std::byte> to(from.size()), again(from.size());
  auto second = std::make_shared<promise<broadcast_receipt>>();
  auto chained = second->get_future();
  begin(at.members[1], to, 0).then([&, second](auto& first) {
    if (first)
      begin(at.members[1], again, 0).then([second](auto& r) { second->set(r); });
  });
  begin(at.members[0], from, 0).get();
  begin(at.members[0], from, 0).get();
  BOOST_TEST((code_of(chained) == errc::ok));
  BOOST_TEST((again == from));
}

BOOST_AUTO_TEST_CASE(members_that_do_not_come_are_named) {
  group_node at{3};
  auto from = pattern(40 * chunk, 1);
  std::vector<std::byte> to(from.size()), late(from.size());
  auto sent = begin(at.members[0], from, 0, short_time);
  auto got = begin(at.members[1], to, 0, short_time);
  BOOST_TEST((code_of(sent) == errc::deadline_exceeded));
  BOOST_TEST(says(words_of(sent), "rank 2 (member-2) has not read"), words_of(sent));
  BOOST_TEST((code_of(got) != errc::ok));
  // The root has given it up.
  auto third = begin(at.members[2], late, 0);
  BOOST_TEST((code_of(third) == errc::cancelled), words_of(third));
  BOOST_TEST(says(words_of(third), "rank 0 (member-0), the root, gave up broadcast 0"));
  broadcast_from(at.members, 1, 5 * chunk);
}

BOOST_AUTO_TEST_CASE(a_root_that_does_not_come_is_named) {
  group_node at{2};
  std::vector<std::byte> to(100), from = pattern(100, 1);
  auto got = begin(at.members[1], to, 0, short_time);
  BOOST_TEST((code_of(got) == errc::deadline_exceeded));
  BOOST_TEST(says(words_of(got), "rank 0 (member-0), the root, has sent 0 of its bytes"));
  // It comes late. The member that gave up reads it, and the next one is the next one of all.
  BOOST_TEST((code_of(begin(at.members[0], from, 0)) == errc::ok));
  broadcast_from(at.members, 0, 3 * chunk);
  BOOST_TEST((to == std::vector<std::byte>(100)));
}

BOOST_AUTO_TEST_CASE(each_broadcast_has_its_own_deadline) {
  group_node at{2};
  std::vector<std::byte> to(100), more(100);
  auto waits = begin(at.members[1], to, 0);
  auto first = begin(at.members[1], to, 0, short_time);
  std::this_thread::sleep_for(50ms);
  auto second = begin(at.members[1], more, 0, short_time);
  BOOST_TEST((code_of(second) == errc::deadline_exceeded));
  BOOST_TEST(says(words_of(second), "it waits for broadcast 0: rank 0"), words_of(second));
  BOOST_TEST((code_of(first) == errc::deadline_exceeded));
  BOOST_TEST(!waits.ready());
  // One that has failed already is the first one.
  waits.cancel();
  BOOST_TEST((code_of(begin(at.members[1], more, 0, short_time)) == errc::deadline_exceeded));
}

BOOST_AUTO_TEST_CASE(tensors_of_another_size_are_refused_and_the_next_broadcast_is_whole) {
  group_node at{3};
  auto from = pattern(9 * chunk, 1);
  std::vector<std::byte> to(from.size()), small(8 * chunk);
  auto sent = begin(at.members[0], from, 0);
  auto got = begin(at.members[1], to, 0);
  auto refused = begin(at.members[2], small, 0);
  BOOST_TEST((code_of(refused) == errc::invalid_argument));
  BOOST_TEST(says(words_of(refused), "sends 589824 bytes, and the tensors here have 524288"));
  BOOST_TEST((code_of(sent) == errc::ok));
  BOOST_TEST((code_of(got) == errc::ok));
  BOOST_TEST((to == from));
  broadcast_from(at.members, 2, 5 * chunk);
}

BOOST_AUTO_TEST_CASE(two_roots_are_refused) {
  group_node at{3};
  for (int i = 0; i < 20; ++i) {
    auto one = pattern(3 * chunk, 1), two = pattern(3 * chunk, 2);
    std::vector<std::byte> to(one.size());
    auto first = begin(at.members[0], one, 0);
    auto second = begin(at.members[1], two, 1);
    auto third = begin(at.members[2], to, 0);
    auto codes = {code_of(first), code_of(second)};
    BOOST_TEST(std::ranges::count(codes, errc::ok) == 1);
    BOOST_TEST(std::ranges::count(codes, errc::invalid_argument) == 1);
    BOOST_TEST(
      (code_of(third) == (code_of(first) == errc::ok ? errc::ok : errc::invalid_argument)));
    BOOST_TEST((one == pattern(3 * chunk, 1)));
    BOOST_TEST((two == pattern(3 * chunk, 2)));
  }
  broadcast_from(at.members, 2, 5 * chunk);
}

BOOST_AUTO_TEST_CASE(a_root_that_is_no_member_is_refused) {
  group_node at{2};
  std::vector<std::byte> to(10);
  BOOST_TEST((code_of(begin(at.members[0], to, 2)) == errc::invalid_argument));
  broadcast_from(at.members, 0, 10);
}

BOOST_AUTO_TEST_CASE(one_that_is_cancelled_touches_nothing_afterwards) {
  group_node at{2};
  auto from = pattern(100 * chunk, 1);
  std::vector<std::byte> to(from.size());
  auto got = begin(at.members[1], to, 0);
  got.cancel();
  std::ranges::fill(to, std::byte{1});
  BOOST_TEST((code_of(got) == errc::cancelled));
  BOOST_TEST((code_of(begin(at.members[0], from, 0)) == errc::ok));
  BOOST_TEST((to == std::vector<std::byte>(from.size(), std::byte{1})));
  // At the root, in the middle.
  auto sent = begin(at.members[0], from, 0);
  sent.cancel();
  got = begin(at.members[1], to, 0);
  BOOST_TEST((code_of(got) == errc::cancelled));
  broadcast_from(at.members, 0, 5 * chunk);
}

BOOST_AUTO_TEST_CASE(a_group_goes_on_without_a_member_that_has_gone) {
  group_node at{4};
  auto from = pattern(40 * chunk, 1);
  std::vector<std::byte> to(from.size()), last(from.size());
  auto sent = begin(at.members[0], from, 0);
  auto got = begin(at.members[1], to, 0);
  at.members.erase(at.members.begin() + 2);
  BOOST_TEST((code_of(sent) == errc::peer_lost));
  BOOST_TEST(says(words_of(sent), "rank 2 of group g (member-2) has gone: it left"));
  BOOST_TEST((code_of(got) == errc::peer_lost));
  BOOST_TEST((code_of(begin(at.members[2], last, 0)) == errc::peer_lost));
  std::vector<future<void>> renewed;
  for (auto& one : at.members)
    renewed.push_back(one.renew(long_time));
  for (auto& one : renewed)
    BOOST_TEST((code_of(one) == errc::ok), words_of(one));
  BOOST_TEST(at.members[0].epoch() == 2u);
  BOOST_TEST(at.members[0].members().size() == 3u);
  for (auto root : {0u, 1u, 3u})
    broadcast_from(at.members, root, 5 * chunk);
  BOOST_TEST((code_of(begin(at.members[0], to, 2)) == errc::invalid_argument));
}

BOOST_AUTO_TEST_CASE(what_was_sent_is_received_after_its_root_has_gone) {
  group_node at{3};
  auto from = pattern(3 * chunk, 1);
  std::vector<std::byte> one(from.size()), two(from.size()), more(from.size());
  auto got = begin(at.members[1], one, 0);
  BOOST_TEST((code_of(begin(at.members[0], from, 0)) == errc::ok));
  at.members.erase(at.members.begin());
  BOOST_TEST((code_of(got) == errc::ok), words_of(got));
  BOOST_TEST((code_of(begin(at.members[0], more, 0)) == errc::peer_lost));
  // The epoch has been over for some time.
  got = begin(at.members[1], two, 0);
  BOOST_TEST((code_of(got) == errc::ok), words_of(got));
  BOOST_TEST((one == from));
  BOOST_TEST((two == from));
  BOOST_TEST((code_of(begin(at.members[1], more, 0)) == errc::peer_lost));
  BOOST_TEST((code_of(begin(at.members[1], more, 2)) == errc::peer_lost));
}

BOOST_AUTO_TEST_CASE(one_that_joins_again_is_in_the_next_epoch) {
  group_node at{3};
  at.members.pop_back();
  auto again = at.clients[2].join_group("g", at.rank_of(2, 3));
  std::vector<future<void>> renewed{at.members[0].renew(long_time)};
  BOOST_TEST(!again.wait_for(50ms));
  renewed.push_back(at.members[1].renew(long_time));
  for (auto& one : renewed)
    BOOST_TEST((code_of(one) == errc::ok), words_of(one));
  at.members.push_back(again.get());
  BOOST_TEST(at.members[2].epoch() == 2u);
  broadcast_from(at.members, 2, 5 * chunk);
}

BOOST_AUTO_TEST_CASE(who_does_not_go_on_is_named) {
  group_node at{3};
  auto renewed = at.members[0].renew(short_time);
  BOOST_TEST((code_of(renewed) == errc::deadline_exceeded));
  BOOST_TEST(says(words_of(renewed), "ranks 1, 2 have not asked to go on with epoch 2"));
  broadcast_from(at.members, 0, 5 * chunk); // the epoch goes on
  std::vector<future<void>> all;
  for (auto& one : at.members)
    all.push_back(one.renew(long_time));
  for (auto& one : all)
    BOOST_TEST((code_of(one) == errc::ok), words_of(one));
  broadcast_from(at.members, 2, 5 * chunk);
}

BOOST_AUTO_TEST_CASE(a_root_that_renews_gives_its_broadcast_up) {
  group_node at{2};
  auto from = pattern(40 * chunk, 1);
  std::vector<std::byte> to(from.size());
  auto sent = begin(at.members[0], from, 0);
  auto renewed = at.members[0].renew(long_time);
  BOOST_TEST((code_of(sent) == errc::cancelled));
  auto got = begin(at.members[1], to, 0);
  BOOST_TEST((code_of(got) == errc::cancelled), words_of(got));
  BOOST_TEST((code_of(begin(at.members[0], from, 0)) == errc::cancelled));
  BOOST_TEST((code_of(at.members[1].renew(long_time)) == errc::ok));
  BOOST_TEST((code_of(renewed) == errc::ok));
  broadcast_from(at.members, 0, 5 * chunk);
}

BOOST_AUTO_TEST_CASE(a_group_renews_in_the_memory_of_one_ring) {
  group_node at{0, 5 * chunk};
  at.clients = {at.connect(), at.connect()};
  at.form("g");
  for (int i = 0; i < 3; ++i) {
    auto one = at.members[0].renew(long_time), two = at.members[1].renew(long_time);
    BOOST_TEST((code_of(one) == errc::ok), words_of(one));
    BOOST_TEST((code_of(two) == errc::ok), words_of(two));
    broadcast_from(at.members, 1, 5 * chunk);
  }
}

BOOST_AUTO_TEST_CASE(who_does_not_join_is_named) {
  group_node at;
  auto one = at.connect(), two = at.connect();
  auto options = at.rank_of(1, 3);
  options.timeout = short_time;
  auto joined = one.join_group("g", options);
  BOOST_TEST((code_of(joined) == errc::deadline_exceeded));
  BOOST_TEST(says(words_of(joined), "ranks 0, 2 of 3 have not joined"), words_of(joined));
  // Its rank is free again.
  at.clients = {one, two};
  at.form("g");
  broadcast_from(at.members, 0, 100);
}

BOOST_AUTO_TEST_CASE(wrong_ranks_and_sizes_are_refused) {
  group_node at{2};
  auto other = at.connect();
  auto refusal = [&](std::uint32_t rank, std::uint32_t size) {
    return code_of(other.join_group("g", at.rank_of(rank, size)));
  };
  BOOST_TEST((refusal(0, 3) == errc::invalid_argument));
  BOOST_TEST((refusal(2, 2) == errc::invalid_argument));
  BOOST_TEST((refusal(1, 2) == errc::already_exists));
  BOOST_TEST((refusal(0, 100'000) == errc::invalid_argument));
  BOOST_TEST((code_of(other.join_group("", at.rank_of(0, 2))) == errc::invalid_argument));
  auto elsewhere = at.rank_of(0, 2);
  elsewhere.node = "n7";
  BOOST_TEST((code_of(other.join_group("h", elsewhere)) == errc::not_found));
  broadcast_from(at.members, 0, 100);
}

BOOST_AUTO_TEST_CASE(groups_have_the_memory_that_they_were_given) {
  group_node none{0, 0};
  auto refused = none.direct->join_group("g", none.rank_of(0, 1));
  BOOST_TEST((code_of(refused) == errc::unsupported));
  BOOST_TEST(says(words_of(refused), "groups.memory"));
  group_node at{0, 5 * chunk}; // one ring
  at.clients = {at.connect(), at.connect()};
  at.form("g");
  auto held = at.members;
  auto one = at.clients[0].join_group("h", at.rank_of(0, 2));
  auto two = at.clients[1].join_group("h", at.rank_of(1, 2));
  BOOST_TEST((code_of(one) == errc::busy));
  BOOST_TEST(says(words_of(two), "groups.memory"), words_of(two));
  // The memory returns with the last member.
  at.members.clear();
  held.clear();
  BOOST_TEST(eventually([&] {
    one = at.clients[0].join_group("h", at.rank_of(0, 2));
    two = at.clients[1].join_group("h", at.rank_of(1, 2));
    return code_of(one) == errc::ok && code_of(two) == errc::ok;
  }));
}

BOOST_AUTO_TEST_CASE(one_that_leaves_gets_its_futures_at_once) {
  group_node at{2};
  std::vector<std::byte> to(100);
  auto got = begin(at.members[1], to, 0);
  BOOST_TEST((code_of(at.members[1].leave()) == errc::ok));
  BOOST_TEST((code_of(got) == errc::cancelled));
  BOOST_TEST((code_of(begin(at.members[1], to, 0)) == errc::cancelled));
  BOOST_TEST((code_of(at.members[1].renew()) == errc::cancelled));
  BOOST_TEST((code_of(at.members[1].leave()) == errc::ok));
}

BOOST_AUTO_TEST_CASE(broadcasts_end_with_the_client) {
  group_node at{2};
  std::vector<std::byte> to(100), other(100);
  auto got = begin(at.members[1], to, 0);
  at.clients.pop_back();
  BOOST_TEST((code_of(got) == errc::cancelled), words_of(got));
  BOOST_TEST((code_of(begin(at.members[0], other, 1)) == errc::peer_lost));
}

BOOST_AUTO_TEST_CASE(broadcasts_end_with_the_node) {
  group_node at{2};
  std::vector<std::byte> to(100);
  auto got = begin(at.members[1], to, 0);
  at.stop();
  BOOST_TEST((code_of(got) == errc::unavailable), words_of(got));
  BOOST_TEST((code_of(at.members[0].renew(long_time)) == errc::unavailable));
}

#if !defined(__SANITIZE_THREAD__)
BOOST_AUTO_TEST_CASE(a_forked_child_has_no_group) {
  group_node at{2};
  BOOST_TEST(in_forked_child([&] {
               std::vector<std::byte> to(100);
               auto got = at.members[0].broadcast({view_of(to)}, {});
               at.members.clear();
               return got.result().error().code() == errc::unavailable ? 0 : 1;
             }) == 0);
  broadcast_from(at.members, 0, 100);
}
#endif

BOOST_AUTO_TEST_SUITE_END()

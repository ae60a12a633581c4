// Tests the parts of the verbs driver that need no device: addresses, pairs of rails, requests,
// messages.
#include <millrace/tests/transport/gpu_host.hpp>
#include <millrace/transport/fabric.hpp>
#include <millrace/transport/memory/memory_distance.hpp>
#include <millrace/transport/verbs/cm_connection.hpp>
#include <millrace/transport/verbs/gid_rule.hpp>
#include <millrace/transport/verbs/messages.hpp>
#include <millrace/transport/verbs/transfer_plan.hpp>
#include <millrace/transport/verbs/verbs_state.hpp>

#include <arpa/inet.h>
#include <boost/test/unit_test.hpp>

#include <random>

using namespace millrace;
using namespace millrace::net;
using namespace millrace::transport;
using namespace millrace::transport::verbs;
using millrace::testing::gpu_host;

namespace {

gid_bytes address(const char* text) {
  gid_bytes out{};
  BOOST_REQUIRE(inet_pton(AF_INET6, text, out.data()) == 1);
  return out;
}

rail_info rail_at(const char* text, bool infiniband = false) {
  rail_info out;
  out.gid = address(text);
  out.infiniband = infiniband;
  out.mtu = 4096;
  out.message_bytes_max = 1u << 20;
  return out;
}

const gid_entry link_local{0, address("fe80::1"), gid_type::roce_v2};
const gid_entry link_local_v1{1, address("fe80::1"), gid_type::roce_v1};
const gid_entry ipv4_v1{2, address("::ffff:10.0.0.1"), gid_type::roce_v1};
const gid_entry ipv4{3, address("::ffff:10.0.0.1"), gid_type::roce_v2};
const gid_entry global{4, address("2001:db8::1"), gid_type::roce_v2};
const gid_entry nil{5, address("::"), gid_type::roce_v2};

std::uint32_t chosen(std::vector<gid_entry> entries) {
  return choose_gid(entries, std::nullopt).value().entry.index;
}

} // namespace

BOOST_AUTO_TEST_SUITE(verbs_gid_rule)

BOOST_AUTO_TEST_CASE(what_carries_furthest_is_chosen) {
  BOOST_TEST(chosen({link_local, link_local_v1, ipv4_v1, ipv4, global, nil}) == 3u);
  BOOST_TEST(chosen({link_local, link_local_v1, ipv4_v1, global, nil}) == 4u);
  BOOST_TEST(chosen({nil, ipv4_v1, link_local_v1, link_local}) == 0u);
  BOOST_TEST(chosen({ipv4_v1, link_local_v1}) == 1u);
  BOOST_TEST(chosen({{9, address("fe80::2"), gid_type::infiniband}, link_local_v1}) == 9u);
}

BOOST_AUTO_TEST_CASE(a_setting_overrules_and_is_said_to) {
  std::vector<gid_entry> all{link_local, ipv4, nil};
  auto set = choose_gid(all, 0);
  BOOST_TEST_REQUIRE(set.has_value());
  BOOST_TEST(set->entry.index == 0u);
  BOOST_TEST(set->rule == "set by gid_index");
  BOOST_TEST(choose_gid(all, std::nullopt)->rule == "RoCE v2 with an IPv4 address");
  BOOST_TEST((choose_gid(all, 7).error().code() == errc::not_found));
  BOOST_TEST((choose_gid(all, 5).error().code() == errc::not_found)); // there, but empty
  BOOST_TEST((choose_gid({}, std::nullopt).error().code() == errc::not_found));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(verbs_pairs)

BOOST_AUTO_TEST_CASE(rails_of_one_subnet_belong_together_whatever_their_order) {
  std::vector<rail_info> a{rail_at("::ffff:10.1.0.1"), rail_at("::ffff:10.2.0.1")};
  std::vector<rail_info> b{rail_at("::ffff:10.2.0.2"), rail_at("::ffff:10.1.0.2")};
  BOOST_TEST((pair_rails(a, b) == std::vector<rail_pairing>{{0, 1}, {1, 0}}));
  BOOST_TEST((pair_rails(b, a) == std::vector<rail_pairing>{{0, 1}, {1, 0}}));
}

BOOST_AUTO_TEST_CASE(every_rail_of_the_side_with_more_is_used) {
  std::vector<rail_info> one{rail_at("::ffff:10.0.0.1")};
  std::vector<rail_info> three{
    rail_at("::ffff:10.0.0.2"), rail_at("::ffff:10.0.0.3"), rail_at("::ffff:10.0.0.4")};
  BOOST_TEST((pair_rails(one, three) == std::vector<rail_pairing>{{0, 0}, {0, 1}, {0, 2}}));
  BOOST_TEST((pair_rails(three, one) == std::vector<rail_pairing>{{0, 0}, {1, 0}, {2, 0}}));
}

BOOST_AUTO_TEST_CASE(rails_of_different_networks_are_no_pair) {
  std::vector<rail_info> v4{rail_at("::ffff:10.0.0.1")};
  std::vector<rail_info> v6{rail_at("2001:db8::1")};
  std::vector<rail_info> ib{rail_at("fe80::1", true)};
  BOOST_TEST(pair_rails(v4, v6).empty());
  BOOST_TEST(pair_rails(v4, ib).empty());
  BOOST_TEST(pair_rails(v6, ib).empty());
  BOOST_TEST(pair_rails(v4, {}).empty());
  BOOST_TEST(pair_rails(ib, ib).size() == 1u);
}

BOOST_AUTO_TEST_CASE(slower_rails_have_less_under_way) {
  std::vector<std::uint64_t> rates{1000, 500, 1, 0};
  BOOST_TEST((depths(rates, 100) == std::vector<std::uint32_t>{100, 50, 2, 100}));
  BOOST_TEST((depths({}, 100).empty()));
}

BOOST_AUTO_TEST_CASE(of_several_rails_the_nearest_take_turns) {
  using enum distance;
  std::vector<rail_distance> rails = {
    {4, elsewhere, elsewhere},
    {5, same_node, elsewhere},
    {6, same_node, same_node},
    {7, elsewhere, same_node},
    {8, same_node, same_node}};
  BOOST_TEST(choose_rail(rails, 0).value() == 6u);
  BOOST_TEST(choose_rail(rails, 1).value() == 8u);
  BOOST_TEST(choose_rail(rails, 2).value() == 6u);
  // One near device is better than none, whichever side it is on.
  rails = {{4, elsewhere, elsewhere}, {5, same_node, elsewhere}, {7, elsewhere, same_node}};
  BOOST_TEST(choose_rail(rails, 0).value() == 5u);
  BOOST_TEST(choose_rail(rails, 1).value() == 7u);
  // Behind the switch of a GPU there is one of them.
  rails = {{4, same_node, same_root}, {5, same_node, same_switch}, {7, same_node, same_root}};
  BOOST_TEST(choose_rail(rails, 1).value() == 5u);
  rails = {{1, elsewhere, elsewhere}, {4, elsewhere, elsewhere}};
  BOOST_TEST(choose_rail(rails, 3).value() == 4u);
  BOOST_TEST(!choose_rail({}, 0).has_value());
}

BOOST_AUTO_TEST_CASE(devices_behind_the_switch_of_a_gpu_are_nearest) {
  BOOST_TEST((distance_over_pci("mlx5_0", "0000:02:00.0", gpu_host) == distance::same_switch));
  BOOST_TEST((distance_over_pci("mlx5_1", "0000:02:00.0", gpu_host) == distance::same_root));
  BOOST_TEST((distance_over_pci("mlx5_2", "0000:02:00.0", gpu_host) == std::nullopt));
  BOOST_TEST((distance_over_pci("mlx5_9", "0000:02:00.0", gpu_host) == std::nullopt));
  BOOST_TEST((distance_over_pci("mlx5_0", "0000:77:00.0", gpu_host) == std::nullopt));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(verbs_requests)

BOOST_AUTO_TEST_CASE(runs_that_touch_on_both_sides_become_one) {
  std::byte room[100];
  auto arranged = arrange(
    {{30, room + 30, 10, 0},
     {0, room, 10, 0},
     {20, room + 20, 10, 0},
     {10, room + 10, 10, 0},
     {40, room + 50, 10, 0},
     {50, room + 60, 10, 1},
     {60, room + 70, 0, 1}});
  BOOST_TEST_REQUIRE(arranged.size() == 3u);
  BOOST_TEST(arranged[0].length == 40u);
  BOOST_TEST(arranged[1].remote_offset == 40u);
  BOOST_TEST(arranged[2].memory == 1u);
}

// Any cut of any runs moves every byte once, between the right places, within all limits.
BOOST_AUTO_TEST_CASE(requests_move_every_byte_once_within_the_limits) {
  std::mt19937 random{7};
  std::vector<std::byte> local(1 << 16);
  for (int round = 0; round < 300; ++round) {
    std::uint64_t region = 1 + random() % 5000;
    std::vector<std::uint64_t> ends;
    for (std::uint64_t end = 0; end < region; ends.push_back(end))
      end = std::min<std::uint64_t>(region, end + 1 + random() % 700);
    std::vector<local_run> runs;
    std::vector<std::byte*> expected(region); // where each byte of the region shall lie
    auto* at = local.data();
    for (std::uint64_t offset = 0; offset < region;) {
      auto length = std::min<std::uint64_t>(region - offset, 1 + random() % 200);
      if (random() % 5 != 0) {
        runs.push_back({offset, at, length, 0});
        for (std::uint64_t i = 0; i < length; ++i)
          expected[offset + i] = at + i;
      }
      at += length + random() % 2 * 3;
      offset += length;
    }
    std::shuffle(runs.begin(), runs.end(), random);
    request_cutter cutter{arrange(std::move(runs))};
    request_limits limits{1 + random() % 8, 1 + random() % 1000};
    std::vector<std::byte*> moved(region);
    while (!cutter.at_end()) {
      auto r = cutter.cut(limits, ends);
      BOOST_TEST_REQUIRE((r.length > 0 && r.length <= limits.bytes_max));
      BOOST_TEST_REQUIRE(r.local.size() <= limits.runs_max);
      auto end = *std::upper_bound(ends.begin(), ends.end(), r.remote_offset);
      BOOST_TEST_REQUIRE(r.remote_offset + r.length <= end);
      auto offset = r.remote_offset;
      for (auto& p : r.local)
        for (std::uint64_t i = 0; i < p.length; ++i) {
          BOOST_TEST_REQUIRE(!moved[offset]);
          moved[offset++] = p.data + i;
        }
      BOOST_TEST_REQUIRE(offset == r.remote_offset + r.length);
    }
    BOOST_TEST_REQUIRE((moved == expected));
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(verbs_bounds)

BOOST_AUTO_TEST_CASE(options_out_of_bounds_are_refused_by_name) {
  auto loop = io_loop::start({}).value();
  auto refused = [&](auto change) {
    fabric_options o;
    o.movers = 1;
    o.prefer = {"local", "verbs"};
    change(o.drivers.edit<verbs_options>());
    auto made = fabric::create(o, loop);
    BOOST_TEST_REQUIRE(!made.has_value());
    BOOST_TEST((made.error().code() == errc::invalid_argument));
    return made.error().detail();
  };
  BOOST_TEST(refused([](verbs_options& o) {
               o.queue_depth = 3;
             }) == "verbs.queue_depth: '3' is below the least allowed, 4");
  BOOST_TEST(
    refused([](verbs_options& o) { o.mtu = 1500; }) ==
    "verbs.mtu (1500) is not the size of a packet: 256, 512, 1024, 2048 or 4096 bytes; 0 takes "
    "the smaller value of the two ports");
  BOOST_TEST(refused([](verbs_options& o) {
               o.devices = {"rxe0", "rxe1:"};
             }) == "verbs.devices: 'rxe1:' is not a device such as mlx5_0 or mlx5_0:1");
  refused([](verbs_options& o) { o.sge_max = 0; });
  refused([](verbs_options& o) { o.message_bytes_max = 4095; });
  refused([](verbs_options& o) { o.setup_threads = 0; });
  refused([](verbs_options& o) { o.gid_index = 256; });
  loop->stop();
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(verbs_messages)

namespace {

granted good_grant() {
  granted m;
  m.region_bytes = 30;
  m.pairs = {{0, 1}, {3, 2}};
  m.ranges = {{10, 0x1000, {1, 2}}, {20, 0x5000, {3, 4}}};
  return m;
}

bool refused(const granted& m) { return check(m).code() == errc::protocol_error; }

} // namespace

BOOST_AUTO_TEST_CASE(a_grant_is_whole_and_consistent) {
  BOOST_TEST(check(good_grant()).ok());
  auto m = good_grant();
  m.region_bytes = 31;
  BOOST_TEST(refused(m));
  m = good_grant();
  m.region_bytes = 29;
  BOOST_TEST(refused(m));
  m = good_grant();
  m.ranges[1].keys.pop_back();
  BOOST_TEST(refused(m));
  m = good_grant();
  m.ranges[0].length = 0;
  BOOST_TEST(refused(m));
  m = good_grant();
  m.ranges[1].length = ~0ull;
  BOOST_TEST(refused(m));
  m = good_grant();
  m.ranges[0].address = ~0ull - 3;
  BOOST_TEST(refused(m));
  m = good_grant();
  m.pairs[0].pair = rails_max;
  BOOST_TEST(refused(m));
  m.pairs.resize(rails_max + 1);
  BOOST_TEST(refused(m));
}

BOOST_AUTO_TEST_CASE(numbers_that_no_device_has_are_refused) {
  verbs::connect good{0, 1, 0xff'ffff, 0xff'ffff, rail_at("::ffff:10.0.0.1"), "10.0.0.1:47000", {}};
  BOOST_TEST(check(good).ok());
  auto m = good;
  m.number = 0x100'0000;
  BOOST_TEST(!check(m).ok());
  m = good;
  m.psn = 0x100'0000;
  BOOST_TEST(!check(m).ok());
  m = good;
  m.rail.mtu = 1000;
  BOOST_TEST(!check(m).ok());
  m = good;
  m.rail.message_bytes_max = 100;
  BOOST_TEST(!check(m).ok());
  m = good;
  m.cm_address = std::string(81, '1');
  BOOST_TEST(!check(m).ok());
  m = good;
  m.pair = rails_max;
  BOOST_TEST(!check(m).ok());
  hello h;
  BOOST_TEST(check(h).ok());
  h.version = 2;
  BOOST_TEST((check(h).code() == errc::unsupported_version));
  h.version = 1;
  h.rails.resize(rails_max + 1, good.rail);
  BOOST_TEST((check(h).code() == errc::protocol_error));
  ask a;
  BOOST_TEST(!check(a).ok());
  a.dir = 2;
  BOOST_TEST(check(a).ok());
}

BOOST_AUTO_TEST_CASE(a_request_by_rdma_cm_says_whose_it_is) {
  cm_words words{random_id<cm_token>(), 63, 0x0102'0304};
  auto bytes = words.encode();
  BOOST_TEST((cm_words::decode(bytes) == words));
  // Devices append to what they carry.
  std::vector<std::byte> padded(bytes.begin(), bytes.end());
  padded.resize(196);
  BOOST_TEST((cm_words::decode(padded) == words));
  padded.resize(cm_words::size_bytes - 1);
  BOOST_TEST(!cm_words::decode(padded).has_value());
  BOOST_TEST(!cm_words::decode({}).has_value());
}

BOOST_AUTO_TEST_CASE(what_was_found_is_said_with_the_reason) {
  verbs_options options;
  options.devices = {"no-such-device"};
  auto state = describe_verbs_devices(options);
  BOOST_TEST(!state.remark.empty());
  BOOST_TEST(!state.locked_memory.empty());
  for (auto& port : state.ports)
    BOOST_TEST(!port.remark.empty());
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(regions_and_devices)

namespace {

tensor_view bytes_at(std::byte* data, std::uint64_t length) {
  return {{"t", dtype::u8, {length}}, data, {}};
}

} // namespace

BOOST_AUTO_TEST_CASE(dense_ranges_follow_the_tensors_and_join_where_they_touch) {
  std::byte room[100];
  auto list = gather_list::of(
    {bytes_at(room, 10), bytes_at(room + 10, 20), bytes_at(room + 50, 5), bytes_at(room + 40, 10)},
    access_mode::read);
  auto ranges = list->dense_ranges();
  BOOST_TEST_REQUIRE(ranges.has_value());
  BOOST_TEST_REQUIRE(ranges->size() == 3u);
  BOOST_TEST(
    (ranges->at(0).data == room && ranges->at(0).length == 30 && ranges->at(0).offset == 0));
  BOOST_TEST((ranges->at(1).data == room + 50 && ranges->at(1).offset == 30));
  BOOST_TEST((ranges->at(2).data == room + 40 && ranges->at(2).offset == 35));
  tensor_view strided{{"s", dtype::u8, {4, 2}}, room, {8, 1}};
  auto with_strides = gather_list::of({bytes_at(room, 10), strided}, access_mode::read);
  BOOST_TEST(!with_strides->dense_ranges().has_value());
}

BOOST_AUTO_TEST_CASE(hooks_run_once_before_withdrawing_returns_unless_forgotten) {
  std::byte room[100];
  auto r = expose({bytes_at(room, 100)}, access_mode::read).value();
  auto h = r.handle();
  auto ref = find_region(h.region, h.key, access_mode::read).value();
  int ran = 0, forgotten = 0;
  BOOST_TEST(ref.on_withdraw([&] { ++ran; }).has_value());
  ref.forget(ref.on_withdraw([&] { ++forgotten; }).value());
  BOOST_TEST(ran == 0);
  r.withdraw();
  BOOST_TEST(ran == 1);
  BOOST_TEST(forgotten == 0);
  auto late = ref.on_withdraw([&] { ++ran; });
  BOOST_TEST((!late && late.error().code() == errc::permission_denied));
  r.withdraw();
  BOOST_TEST(ran == 1);
}

BOOST_AUTO_TEST_SUITE_END()

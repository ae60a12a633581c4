// Tests transfers with device memory through staging memory of its owner: the bytes, the bounds,
// and every early end.
#include "staged_world.hpp"

#include <millrace/core/digest.hpp>
#include <millrace/transport/staged/staged_driver.hpp>

#include <future>

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::net;
using namespace millrace::transport;
using namespace millrace::transport::staged;
using namespace millrace::transport::staged::testing;

BOOST_AUTO_TEST_SUITE(staged_cutter)

BOOST_AUTO_TEST_CASE(chunks_are_filled_in_the_order_of_the_ops) {
  std::vector<std::byte> room(1000);
  transfer t{
    .dir = direction::read,
    .ops = {
      {.remote_offset = 900, .local = room.data(), .length = 70},
      {.remote_offset = 5, .local = room.data() + 70, .length = 60},
      {.remote_offset = 80}}};
  cutter cut{t, 100};
  BOOST_TEST(cut.region_end() == 970u);
  auto first = cut.next();
  BOOST_TEST((first.ranges == std::vector<segment>{{900, 70}, {5, 30}}));
  BOOST_TEST_REQUIRE(first.ops.size() == 2u);
  BOOST_TEST((first.ops[1].remote_offset == 70u && first.ops[1].local == room.data() + 70));
  BOOST_TEST(!cut.at_end());
  auto second = cut.next();
  BOOST_TEST((second.ranges == std::vector<segment>{{35, 30}}));
  BOOST_TEST((second.ops[0].remote_offset == 0u && second.ops[0].local == room.data() + 100));
  BOOST_TEST(cut.at_end());
}

BOOST_AUTO_TEST_CASE(many_ranges_are_bounded_and_none_is_one_empty_content) {
  std::vector<std::byte> room(ranges_max + 1);
  transfer many;
  for (std::size_t i = 0; i <= ranges_max; ++i)
    many.ops.push_back({.remote_offset = i, .local = room.data() + i, .length = 1});
  cutter cut{many, chunk_bytes};
  BOOST_TEST(cut.next().ranges.size() == ranges_max);
  BOOST_TEST(cut.next().ranges.size() == 1u);
  BOOST_TEST(cut.at_end());
  transfer none;
  cutter empty{none, chunk_bytes};
  BOOST_TEST(!empty.at_end());
  BOOST_TEST(empty.next().ranges.empty());
  BOOST_TEST(empty.at_end());
}

BOOST_AUTO_TEST_CASE(digest_blocks_are_not_divided) {
  std::vector<std::byte> room(4 * digest_block_bytes);
  copy_op op{.local = room.data() + 100, .length = 3 * digest_block_bytes, .lead = 100, .tail = 50};
  transfer t{.dir = direction::write, .ops = {op}, .digests = true};
  cutter cut{t, digest_block_bytes + 1000};
  std::uint64_t digests = 0, bytes = 0;
  while (!cut.at_end()) {
    auto p = cut.next();
    for (auto& o : p.ops) {
      auto at = static_cast<std::uint64_t>(o.local - o.lead - room.data());
      BOOST_TEST(at % digest_block_bytes == 0u);
      digests += digest_count(o.lead + o.length + o.tail);
      bytes += o.length;
    }
    BOOST_TEST(p.bytes <= digest_block_bytes + 1000);
  }
  BOOST_TEST(bytes == op.length);
  BOOST_TEST(digests == digest_count(100 + op.length + 50));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(staged_transfers)

BOOST_AUTO_TEST_CASE(options_outside_their_bounds_are_refused) {
  BOOST_TEST(config::check_options("staged", staged_options{}).ok());
  auto refused = [](const staged_options& o, const std::string& why) {
    auto outcome = config::check_options("staged", o);
    BOOST_TEST((outcome.code() == errc::invalid_argument));
    BOOST_TEST(outcome.detail() == why);
  };
  refused({.chunks_max = 0}, "staged.chunks_max: '0' is below the least allowed, 1");
  refused(
    {.size_bytes = 4 << 20, .chunk_bytes = 8 << 20},
    "staged.chunk (8MiB) must not be above staged.size (4MiB)");
}

BOOST_AUTO_TEST_CASE(bytes_pass_in_both_directions_through_few_chunks) {
  world w;
  auto size = 20 * chunk_bytes + 77;
  auto source = w.expose_tensor(size, access_mode::read, 3);
  std::vector<std::byte> here(size);
  auto in = w.move(direction::read, source.handle, here, true);
  BOOST_TEST_REQUIRE(in.has_value(), why(in));
  BOOST_TEST((here == pattern(size, 3)));
  BOOST_TEST(in->driver == "staged");
  BOOST_TEST(in->carrier == "local");
  BOOST_TEST_REQUIRE(in->digests.size() == digest_count(size));
  for (std::size_t i = 0; i < in->digests.size(); ++i) {
    auto at = i * digest_block_bytes;
    BOOST_TEST(in->digests[i] == digest(here.data() + at, std::min(digest_block_bytes, size - at)));
  }
  auto target = w.expose_tensor(size, access_mode::write);
  here = pattern(size, 4);
  auto out = w.move(direction::write, target.handle, here);
  BOOST_TEST_REQUIRE(out.has_value(), why(out));
  BOOST_TEST((w.content(target) == here));
  BOOST_TEST(w.pool->now().chunks == 6u);
  BOOST_TEST(w.device.pins() == 1u);
}

BOOST_AUTO_TEST_CASE(a_write_is_acknowledged_when_the_device_has_the_bytes) {
  world w;
  auto target = w.expose_tensor(100, access_mode::write, 1);
  std::promise<void> go;
  auto gate = go.get_future().share();
  w.device.on_copy([gate] {
    gate.wait();
    return status{};
  });
  std::vector<std::byte> here = pattern(100, 2);
  held_completion<transfer_report> done;
  w.submit(direction::write, target.handle, here, done);
  BOOST_TEST(eventually([&] { return w.device.copies() == 1; }));
  BOOST_TEST(!done.ready());
  go.set_value();
  BOOST_TEST(done.take().has_value());
  BOOST_TEST((w.content(target) == here));
}

BOOST_AUTO_TEST_CASE(host_and_device_tensors_are_one_region) {
  world w;
  auto on_device = pattern(100'000, 1), on_host = pattern(100'000, 2);
  auto* data = w.device.allocate(100'000);
  std::copy(on_device.begin(), on_device.end(), w.device.shadow(data));
  auto exposed = expose(
                   {{{"a", dtype::u8, {100'000}}, data, {}},
                    {{"b", dtype::u8, {100'000}}, on_host.data(), {}},
                    {{"c", dtype::u8, {10, 10}}, data, {1000, 1}}},
                   access_mode::read)
                   .value();
  std::vector<std::byte> here(200'100);
  auto moved = w.move(direction::read, exposed.handle(), here);
  BOOST_TEST_REQUIRE(moved.has_value(), why(moved));
  BOOST_TEST(std::equal(on_device.begin(), on_device.end(), here.begin()));
  BOOST_TEST(std::equal(on_host.begin(), on_host.end(), here.begin() + 100'000));
  for (int row = 0; row < 10; ++row)
    BOOST_TEST(std::equal(
      on_device.begin() + row * 1000, on_device.begin() + row * 1000 + 10,
      here.begin() + 200'000 + row * 10));
}

BOOST_AUTO_TEST_CASE(more_transfers_than_chunks_take_turns) {
  world w;
  auto source = w.expose_tensor(3 * chunk_bytes, access_mode::read, 5);
  std::vector<std::vector<std::byte>> here(12, std::vector<std::byte>(3 * chunk_bytes));
  std::vector<held_completion<transfer_report>> done(12);
  for (std::size_t i = 0; i < done.size(); ++i)
    w.submit(direction::read, source.handle, here[i], done[i]);
  BOOST_TEST(w.asking->chunks() <= w.options.chunks_max);
  for (std::size_t i = 0; i < done.size(); ++i) {
    BOOST_TEST(done[i].take().has_value());
    BOOST_TEST((here[i] == pattern(3 * chunk_bytes, 5)));
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(staged_ends)

BOOST_AUTO_TEST_CASE(withdrawing_waits_for_the_copy_and_ends_the_transfer) {
  world w;
  auto target = w.expose_tensor(8 * chunk_bytes, access_mode::write, 1);
  std::promise<void> go;
  auto gate = go.get_future().share();
  w.device.on_copy([gate] {
    gate.wait();
    return status{};
  });
  std::vector<std::byte> here = pattern(8 * chunk_bytes, 2);
  held_completion<transfer_report> done;
  w.submit(direction::write, target.handle, here, done);
  BOOST_TEST(eventually([&] { return w.device.copies() > 0; }));
  auto withdrawing = std::async(std::launch::async, [&] { target.exposed.withdraw(); });
  // It is refused already, and not yet let go of.
  BOOST_TEST(eventually([&] {
    return !find_region(
              target.handle.region, target.handle.key, access_mode::write, memory_reach::any)
              .has_value();
  }));
  BOOST_TEST((withdrawing.wait_for(std::chrono::seconds{0}) == std::future_status::timeout));
  go.set_value();
  withdrawing.get();
  auto copied = w.device.copies();
  auto kept = w.content(target);
  auto moved = done.take();
  BOOST_TEST_REQUIRE(!moved.has_value());
  BOOST_TEST((moved.error().code() == errc::permission_denied));
  BOOST_TEST(eventually([&] { return w.all_is_back(); }));
  BOOST_TEST(w.device.copies() == copied);
  BOOST_TEST((w.content(target) == kept));
}

BOOST_AUTO_TEST_CASE(what_the_device_cannot_copy_ends_one_transfer) {
  world w;
  auto source = w.expose_tensor(3 * chunk_bytes, access_mode::read, 1);
  auto target = w.expose_tensor(3 * chunk_bytes, access_mode::write);
  std::vector<std::byte> here(3 * chunk_bytes);
  for (auto dir : {direction::read, direction::write}) {
    auto& with = dir == direction::read ? source : target;
    w.device.on_copy([] { return status{errc::io_error, "fake:0 fell off the bus"}; });
    auto moved = w.move(dir, with.handle, here);
    BOOST_TEST_REQUIRE(!moved.has_value());
    BOOST_TEST((moved.error().code() == errc::io_error));
    BOOST_TEST((moved.error().detail().find("fake:0") != std::string::npos));
    BOOST_TEST(eventually([&] { return w.all_is_back(); }));
    w.device.on_copy(nullptr);
    moved = w.move(dir, with.handle, here);
    BOOST_TEST(moved.has_value(), why(moved));
  }
}

BOOST_AUTO_TEST_CASE(a_carrier_that_fails_leaves_nothing_by_which_late_bytes_could_come) {
  world w;
  auto target = w.expose_tensor(100, access_mode::write, 1);
  bulk_handle seen;
  w.carry = [&](transfer t, completion<transfer_report> done) {
    seen = t.remote;
    done(fail(errc::io_error, "the network is gone"));
  };
  std::vector<std::byte> here = pattern(100, 2);
  auto moved = w.move(direction::write, target.handle, here);
  BOOST_TEST((!moved && moved.error().code() == errc::io_error));
  BOOST_TEST(eventually([&] { return w.all_is_back(); }));
  BOOST_TEST(!find_region(seen.region, seen.key, access_mode::write).has_value());
  BOOST_TEST((w.content(target) == pattern(100, 1)));
}

BOOST_AUTO_TEST_CASE(a_peer_that_dies_gives_everything_back) {
  world w;
  auto target = w.expose_tensor(2 * chunk_bytes, access_mode::write);
  raw_peer peer{w};
  BOOST_TEST(w.lending->on_stage(w.request(1, target, {{0, 100}})).ok());
  BOOST_TEST(w.lending->on_stage(w.request(2, target, {{100, 100}})).ok());
  auto one = peer.wait_lent(1);
  peer.wait_lent(2);
  // The third is being emptied while the connection ends.
  std::promise<void> go;
  auto gate = go.get_future().share();
  w.device.on_copy([gate] {
    gate.wait();
    return status{};
  });
  BOOST_TEST(w.lending->on_commit({2}).ok());
  BOOST_TEST(eventually([&] { return w.device.copies() == 1; }));
  w.lending->close();
  go.set_value();
  BOOST_TEST(eventually([&] { return w.all_is_back(); }));
  BOOST_TEST(!find_region(one.region, one.key, access_mode::write).has_value());
  target.exposed.withdraw();
  BOOST_TEST(eventually([&] { return exposed_regions() == w.regions_before; }));
}

BOOST_AUTO_TEST_CASE(an_owner_that_dies_ends_what_waits_and_what_moves) {
  world w;
  auto source = w.expose_tensor(9 * chunk_bytes, access_mode::read);
  std::vector<completion<transfer_report>> moving;
  std::mutex mutex;
  w.carry = [&](transfer, completion<transfer_report> done) {
    std::lock_guard guard{mutex};
    moving.push_back(std::move(done));
  };
  std::vector<std::byte> here(9 * chunk_bytes);
  std::vector<held_completion<transfer_report>> done(2);
  for (auto& d : done)
    w.submit(direction::read, source.handle, here, d);
  BOOST_TEST(eventually([&] {
    std::lock_guard guard{mutex};
    return moving.size() == w.options.chunks_max;
  }));
  w.asking->close({errc::peer_lost, "n7 is gone"});
  // A driver may still write to the local memory until the fabric reports the transfers.
  BOOST_TEST((!done[0].ready() || !done[1].ready()));
  for (auto& d : moving)
    d(fail(errc::peer_lost, "n7 is gone"));
  for (auto& d : done) {
    auto outcome = d.take();
    BOOST_TEST((!outcome && outcome.error().code() == errc::peer_lost));
  }
  auto late = w.move(direction::read, source.handle, here);
  BOOST_TEST((!late && late.error().code() == errc::peer_lost));
}

BOOST_AUTO_TEST_CASE(an_owner_that_does_not_answer_is_given_up) {
  world w;
  auto source = w.expose_tensor(100, access_mode::read);
  std::vector<std::uint64_t> released;
  w.to_owner->deliver = [&](message_kind kind, wire_reader& r) {
    if (kind == message_kind::release)
      released.push_back(read<release>(r).number);
    return status{};
  };
  std::vector<std::byte> here(100);
  held_completion<transfer_report> done;
  w.submit(direction::read, source.handle, here, done);
  w.asking->expire(steady_clock::now());
  BOOST_TEST(!done.ready());
  w.asking->expire(steady_clock::now() + std::chrono::hours{2});
  auto outcome = done.take();
  BOOST_TEST((!outcome && outcome.error().code() == errc::deadline_exceeded));
  // What comes late is given back.
  w.asking->on_staged({1, 0, {}, 5, {}});
  BOOST_TEST((released == std::vector<std::uint64_t>{1}));
}

BOOST_AUTO_TEST_SUITE_END()

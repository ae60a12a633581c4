// Tests the bounds of what one peer and this process owe each other.
#include <millrace/config/section.hpp>
#include <millrace/core/codec.hpp>
#include <millrace/tests/support/fake_channel.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/skipped.hpp>
#include <millrace/transport/shm/peer_link.hpp>

#include <boost/test/unit_test.hpp>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <optional>
#include <vector>

using namespace millrace;
using namespace millrace::net;
using namespace millrace::testing;
using namespace millrace::transport;
using namespace millrace::transport::shm;

namespace {

// Keeps what is told of moves, and why it was closed.
class kept_channel : public fake_channel {
public:
  explicit kept_channel(const peer_id& id = this_peer()) : fake_channel(id, "n7") {}

  status send(
    frame_kind, std::uint64_t, std::span<const std::byte> body, std::span<const int>) override {
    wire_reader reader{body};
    std::string driver;
    message_kind kind{};
    reader(driver, kind);
    answers all;
    asks questions;
    mapped += kind == message_kind::map ? 1 : 0;
    announced += kind == message_kind::announce ? 1 : 0;
    if (kind == message_kind::answers && reader(all))
      told.push_back(all.outcomes.size());
    if (kind == message_kind::asks && reader(questions)) {
      asked.push_back(questions.moves.size());
      for (auto& m : questions.moves)
        numbers.push_back(m.number);
    }
    return sends;
  }
  void close(status why, std::uint32_t) override { closed = why; }

  status sends;
  std::vector<std::size_t> told;  // outcomes in each message
  std::vector<std::size_t> asked; // moves in each message
  std::vector<std::uint64_t> numbers;
  std::size_t announced = 0; // arenas
  std::size_t mapped = 0;    // questions
  std::optional<status> closed;
};

struct fixture {
  std::shared_ptr<kept_channel> channel = std::make_shared<kept_channel>();
  shm_options options;
  std::shared_ptr<lent_places> mappings =
    std::make_shared<lent_places>(8, "mappings (shm.mapped_max)");

  std::unique_ptr<peer_link> link() const { return link(channel); }
  std::unique_ptr<peer_link> link(const std::shared_ptr<kept_channel>& c) const {
    return std::make_unique<peer_link>(c, 64u << 20, options, mappings);
  }
  template <class T>
  static bool passed(const result<T>& r, errc code) {
    return r ? code == errc::ok : r.error().code() == code;
  }
};

// A sealed memfd, as a peer would announce it.
class sealed_memory {
public:
  sealed_memory(std::uint64_t size_bytes, unsigned flags)
    : fd_(memfd_create("peer", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags)) {
    if (fd_ && (flags & MFD_HUGETLB) == 0)
      BOOST_REQUIRE(posix_fallocate(fd(), 0, static_cast<off_t>(size_bytes)) == 0);
    else if (fd_)
      BOOST_REQUIRE(ftruncate(fd(), static_cast<off_t>(size_bytes)) == 0);
    if (fd_)
      BOOST_REQUIRE(fcntl(fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  }
  int fd() const noexcept { return fd_.get(); }

private:
  unique_fd fd_;
};

constexpr auto hour = std::chrono::hours{1};
constexpr std::uint64_t arena_bytes = 4u << 20; // whole pages of the pool, too

} // namespace

BOOST_FIXTURE_TEST_SUITE(shm_link, fixture)

BOOST_AUTO_TEST_CASE(more_transfers_than_the_bound_find_the_peer_busy) {
  options.transfers_max = 2;
  auto l = link();
  held_completion<copied> first, second, third, fourth;
  l->asking.ask({}, {first.callback(), 0, 0, nullptr});
  l->asking.ask({}, {second.callback(), 0, 0, nullptr});
  l->asking.ask({}, {third.callback(), 0, 0, nullptr});
  BOOST_TEST(passed(third.take(), errc::busy));
  BOOST_TEST(channel->numbers.size() == 2u);
  l->asking.on_answers({{moved{channel->numbers[0], 0, "", {}, false}}});
  BOOST_TEST(passed(first.take(), errc::ok));
  l->asking.ask({}, {fourth.callback(), 0, 0, nullptr});
  BOOST_TEST(channel->numbers.size() == 3u);
  l->close({errc::peer_lost, "the test ends"});
  BOOST_TEST(passed(second.take(), errc::peer_lost));
  BOOST_TEST(passed(fourth.take(), errc::peer_lost));
}

BOOST_AUTO_TEST_CASE(a_peer_that_answers_nothing_is_given_up) {
  auto l = link();
  l->asking.expire(steady_clock::now() + hour);
  BOOST_TEST(!channel->closed.has_value());
  held_completion<copied> done;
  l->asking.ask({}, {done.callback(), 0, 0, nullptr});
  l->asking.expire(steady_clock::now());
  BOOST_TEST(!channel->closed.has_value());
  l->asking.expire(steady_clock::now() + hour);
  BOOST_TEST_REQUIRE(channel->closed.has_value());
  BOOST_TEST((channel->closed->code() == errc::deadline_exceeded));
  l->close(*channel->closed);
  BOOST_TEST(passed(done.take(), errc::deadline_exceeded));
}

BOOST_AUTO_TEST_CASE(more_questions_for_regions_than_the_bound_find_the_peer_busy) {
  options.transfers_max = 1;
  auto l = link();
  held_completion<mapped_region> first, second;
  l->mapping.ask({}, access_mode::read, first.callback());
  l->mapping.ask({}, access_mode::read, second.callback());
  BOOST_TEST(passed(second.take(), errc::busy));
  BOOST_TEST(channel->mapped == 1u);
  l->close({errc::peer_lost, "the test ends"});
  BOOST_TEST(passed(first.take(), errc::peer_lost));
  held_completion<mapped_region> late;
  l->mapping.ask({}, access_mode::read, late.callback());
  BOOST_TEST(passed(late.take(), errc::peer_lost));
  BOOST_TEST(channel->mapped == 1u);
}

BOOST_AUTO_TEST_CASE(a_question_for_a_region_that_cannot_be_sent_fails) {
  auto l = link();
  channel->sends = {errc::busy, "the queue is full"};
  held_completion<mapped_region> done;
  l->mapping.ask({}, access_mode::read, done.callback());
  BOOST_TEST(passed(done.take(), errc::busy));
}

// Each is remembered, also when there is no place for it.
BOOST_AUTO_TEST_CASE(a_peer_announces_no_more_arenas_than_regions_were_asked_for) {
  auto l = link();
  std::vector<held_completion<mapped_region>> done(2);
  BOOST_TEST((l->mapping.count_arena().code() == errc::protocol_error));
  l = link();
  for (auto& d : done)
    l->mapping.ask({}, access_mode::read, d.callback());
  BOOST_TEST(l->mapping.count_arena().ok());
  BOOST_TEST(l->mapping.count_arena().ok());
  BOOST_TEST((l->mapping.count_arena().code() == errc::protocol_error));
  l->close({errc::peer_lost, "the test ends"});
}

// However much else it answers.
BOOST_AUTO_TEST_CASE(a_peer_that_does_not_say_where_a_region_lies_is_given_up) {
  auto l = link();
  l->mapping.expire(steady_clock::now() + hour);
  BOOST_TEST(!channel->closed.has_value());
  held_completion<mapped_region> done;
  l->mapping.ask({}, access_mode::read, done.callback());
  l->mapping.expire(steady_clock::now());
  BOOST_TEST(!channel->closed.has_value());
  l->asking.on_answers({});
  l->mapping.expire(steady_clock::now() + hour);
  BOOST_TEST_REQUIRE(channel->closed.has_value());
  l->close(*channel->closed);
  BOOST_TEST(passed(done.take(), errc::deadline_exceeded));
}

// A caller that gave up waits for the end of the process before it uses the memory again.
BOOST_AUTO_TEST_CASE(what_the_peer_may_still_touch_is_handed_back) {
  auto l = link();
  auto hold = std::make_shared<int>(7);
  held_completion<copied> done;
  l->asking.ask({}, {done.callback(), 0, 0, hold});
  auto touched = l->close({errc::deadline_exceeded, "no answer"});
  BOOST_TEST_REQUIRE(touched.size() == 1u);
  BOOST_TEST(touched.front() == hold);
}

BOOST_AUTO_TEST_CASE(ends_that_wait_for_others_are_told_without_them) {
  auto l = link();
  for (int i = 0; i < 12; ++i)
    BOOST_TEST(l->lending.began({100, 100}).ok());
  BOOST_TEST(l->lending.ended(moved{1, 0, "", {}, false}, {100, 100}));
  BOOST_TEST(channel->told.empty());
  l->send_held();
  BOOST_TEST((channel->told == std::vector<std::size_t>{1}));
  l->send_held();
  BOOST_TEST((channel->told == std::vector<std::size_t>{1}));
  BOOST_TEST(l->lending.ended(moved{2, 0, "", {}, false}, {100, 100}));
  // No more than a quarter of what is under way.
  BOOST_TEST(!l->lending.ended(moved{3, 0, "", {}, false}, {100, 100}));
  BOOST_TEST((channel->told == std::vector<std::size_t>{1, 2}));
}

BOOST_AUTO_TEST_CASE(questions_wait_for_others_while_the_peer_has_enough_to_do) {
  auto l = link();
  std::vector<held_completion<copied>> done(12);
  auto ask = [&](std::size_t i) {
    return l->asking.ask({}, {done[i].callback(), 1 << 20, 0, nullptr});
  };
  for (std::size_t i = 0; i < 8; ++i)
    BOOST_TEST(!ask(i));
  BOOST_TEST(channel->asked == std::vector<std::size_t>(8, 1));
  BOOST_TEST(ask(8));
  BOOST_TEST(channel->asked.size() == 8u);
  BOOST_TEST(!ask(9));
  BOOST_TEST(channel->asked.back() == 2u);
  // One that waits goes at the latest when `send_held` is called, or when the peer runs short.
  BOOST_TEST(ask(10));
  l->send_held();
  BOOST_TEST(channel->asked.back() == 1u);
  BOOST_TEST(ask(11));
  auto answer = [&](std::size_t i) {
    l->asking.on_answers({{moved{channel->numbers[i], 0, "", {}, false}}});
  };
  for (std::size_t i = 0; i < 4; ++i) {
    BOOST_TEST(channel->numbers.size() == 11u);
    answer(i);
  }
  BOOST_TEST(channel->numbers.size() == 12u);
  for (std::size_t i = 4; i < 12; ++i)
    answer(i);
  for (auto& d : done)
    BOOST_TEST(passed(d.take(), errc::ok));
}

BOOST_AUTO_TEST_CASE(the_more_is_under_way_the_more_goes_together) {
  auto l = link();
  std::vector<held_completion<copied>> done(200);
  for (auto& d : done)
    l->asking.ask({}, {d.callback(), 1, 0, nullptr});
  BOOST_TEST(*std::ranges::max_element(channel->asked) == 16u);
  BOOST_TEST(channel->asked.size() < 40u);
  l->close({errc::peer_lost, "the test ends"});
}

BOOST_AUTO_TEST_CASE(large_transfers_do_not_keep_others_waiting) {
  auto l = link();
  std::vector<held_completion<copied>> done(10);
  for (auto& d : done)
    BOOST_TEST(!l->asking.ask({}, {d.callback(), 64u << 20, 0, nullptr}));
  BOOST_TEST(channel->numbers.size() == done.size());
  l->close({errc::peer_lost, "the test ends"});
}

BOOST_AUTO_TEST_CASE(transfers_of_many_pieces_go_alone) {
  auto l = link();
  std::vector<held_completion<copied>> done(12);
  auto ask = [&](std::size_t i, std::size_t pieces) {
    move m;
    m.ops.resize(pieces);
    return l->asking.ask(std::move(m), {done[i].callback(), 1, 0, nullptr});
  };
  for (std::size_t i = 0; i < 8; ++i)
    BOOST_TEST(!ask(i, 1));
  BOOST_TEST(ask(8, 200));
  BOOST_TEST(!ask(9, 30'000));
  BOOST_TEST((channel->asked == std::vector<std::size_t>(10, 1)));
  BOOST_TEST(ask(10, 200));
  BOOST_TEST(ask(11, 200));
  BOOST_TEST((channel->asked == std::vector<std::size_t>(11, 1)));
  l->close({errc::peer_lost, "the test ends"});
}

// Its memory is still to be touched.
BOOST_AUTO_TEST_CASE(answers_to_what_was_not_asked_yet_are_ignored) {
  auto l = link();
  std::vector<held_completion<copied>> done(9);
  for (auto& d : done)
    l->asking.ask({}, {d.callback(), 1, 0, nullptr});
  BOOST_TEST_REQUIRE(channel->numbers.size() == 8u);
  auto early = channel->numbers.back() + 1;
  l->asking.on_answers({{moved{early, 0, "", {}, false}}});
  BOOST_TEST(!done.back().ready());
  l->send_held();
  BOOST_TEST_REQUIRE(channel->numbers.back() == early);
  l->asking.on_answers({{moved{early, 0, "", {}, false}}});
  BOOST_TEST(passed(done.back().take(), errc::ok));
  l->close({errc::peer_lost, "the test ends"});
}

BOOST_AUTO_TEST_CASE(questions_that_cannot_be_sent_fail_together) {
  auto l = link();
  std::vector<held_completion<copied>> done(10);
  for (std::size_t i = 0; i < 9; ++i)
    l->asking.ask({}, {done[i].callback(), 1, 0, nullptr});
  channel->sends = {errc::busy, "the queue is full"};
  BOOST_TEST(!l->asking.ask({}, {done[9].callback(), 1, 0, nullptr}));
  BOOST_TEST(passed(done[8].take(), errc::busy));
  BOOST_TEST(passed(done[9].take(), errc::busy));
  BOOST_TEST(!done[7].ready());
  l->close({errc::peer_lost, "the test ends"});
}

BOOST_AUTO_TEST_CASE(moves_beyond_the_backlog_are_busy_until_others_end) {
  options.backlog_bytes_max = 1000;
  auto l = link();
  BOOST_TEST(l->lending.began({0, 900}).ok());
  BOOST_TEST((l->lending.began({0, 101}).code() == errc::busy));
  l->lending.ended({}, {0, 101});
  BOOST_TEST(l->lending.began({0, 100}).ok());
}

BOOST_AUTO_TEST_CASE(a_move_weighs_what_its_lists_take) {
  move m;
  auto nothing = weigh(m).memory_bytes;
  BOOST_TEST(nothing > 0u);
  m.ops.resize(1000);
  auto pieces = weigh(m).memory_bytes;
  BOOST_TEST(pieces >= nothing + 1000 * sizeof(copy_op));
  m.digests = true;
  m.ops.front().length = 1u << 30;
  BOOST_TEST(weigh(m).memory_bytes >= pieces + 4096 * sizeof(std::uint64_t));
  BOOST_TEST(weigh(m).bytes == 1u << 30);
}

// The one who gave them can take them out again, and the next access would be a signal.
BOOST_AUTO_TEST_CASE(huge_pages_of_another_user_are_out_of_reach_and_the_connection_lives) {
  sealed_memory huge{arena_bytes, MFD_HUGETLB}, plain{arena_bytes, 0};
  if (huge.fd() < 0) {
    millrace::testing::skipped("huge pages of another user: this kernel has no pool of them");
    return;
  }
  channel->set_user(geteuid() + 1);
  auto l = link();
  BOOST_TEST(l->lending.map({1, arena_bytes}, huge.fd()).ok());
  BOOST_TEST(l->lending.map({2, arena_bytes}, plain.fd()).ok());
  auto refused = l->lending.resolve({0, 1, 0, 4096, 0, 0});
  BOOST_TEST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code() == errc::unsupported));
  BOOST_TEST(l->lending.resolve({0, 2, 0, 4096, 0, 0}).has_value());
  // Its number is taken nevertheless.
  BOOST_TEST((l->lending.map({1, arena_bytes}, plain.fd()).code() == errc::protocol_error));
}

BOOST_AUTO_TEST_CASE(another_user_does_not_get_our_huge_pages) {
  auto huge = arena::create({.name = "huge", .size_bytes = arena_bytes}).value();
  auto plain =
    arena::create({.name = "plain", .size_bytes = arena_bytes, .huge_pages = false}).value();
  if (!huge->huge()) {
    millrace::testing::skipped("our huge pages and another user: the system's pool has too few");
    return;
  }
  channel->set_user(geteuid() + 1);
  auto l = link();
  BOOST_TEST(l->asking.announce_arena(huge).ok());
  BOOST_TEST((l->asking.offer({huge, 0}, 4096).code() == errc::unsupported));
  BOOST_TEST(channel->announced == 0u);
  BOOST_TEST((l->asking.lend(huge).code() == errc::unsupported));
  BOOST_TEST(l->asking.offer({plain, 0}, 4096).ok());
  BOOST_TEST(channel->announced == 1u);
  channel->set_user(geteuid());
  BOOST_TEST(l->asking.offer({huge, 0}, 4096).ok());
  BOOST_TEST(channel->announced == 2u);
}

// The kernel bounds the mappings of a process, so the connections of one peer share them.
BOOST_AUTO_TEST_CASE(mappings_of_one_process_leave_room_for_those_of_another) {
  sealed_memory memory{arena_bytes, 0};
  auto first = link(), second = link();
  auto other = link(std::make_shared<kept_channel>(random_id<peer_id>()));
  for (std::uint64_t n = 1; n <= 2; ++n) {
    BOOST_TEST(first->lending.map({n, arena_bytes}, memory.fd()).ok());
    BOOST_TEST(second->lending.map({n, arena_bytes}, memory.fd()).ok());
  }
  auto refused = second->lending.map({3, arena_bytes}, memory.fd());
  BOOST_TEST((refused.code() == errc::busy));
  BOOST_TEST(refused.detail().find("shm.mapped_max") != std::string::npos);
  BOOST_TEST(other->lending.map({1, arena_bytes}, memory.fd()).ok());
  // A place returns when the memory is unmapped, which a move under way delays.
  auto reached = first->lending.resolve({0, 1, 0, 4096, 0, 0});
  BOOST_TEST_REQUIRE(reached.has_value());
  first->lending.unmap(1);
  first->lending.take_unmapped().clear();
  BOOST_TEST(mappings->taken() == 5u);
  reached = fail(errc::cancelled, "the move is over");
  BOOST_TEST(mappings->taken() == 4u);
  BOOST_TEST(second->lending.map({3, arena_bytes}, memory.fd()).ok());
}

BOOST_AUTO_TEST_CASE(options_have_bounds) {
  BOOST_TEST(config::check_options("shm", options).ok());
  options.transfers_max = 0;
  BOOST_TEST((config::check_options("shm", options).code() == errc::invalid_argument));
}

BOOST_AUTO_TEST_SUITE_END()

// Tests how one process maps regions of another, and what becomes of peers that lie about it.
#include <millrace/core/codec.hpp>
#include <millrace/tests/net/channel_support.hpp>
#include <millrace/tests/support/exposed_matrix.hpp>
#include <millrace/tests/support/fabric_handler.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/transport/driver_message.hpp>
#include <millrace/transport/shm/messages.hpp>
#include <millrace/transport/shm/shm_options.hpp>

#include <sys/mman.h>

#include <fstream>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

using namespace millrace;
using namespace millrace::net;
using namespace millrace::net::testing;
using namespace millrace::transport;
using millrace::testing::await;
using millrace::testing::exposed_matrix;
using millrace::testing::fabric_handler;
using millrace::testing::held_completion;
using millrace::testing::pattern;
using millrace::testing::why;
using millrace::testing::write_pattern;
using shm::message_kind;

namespace {

constexpr std::uint64_t arena_bytes = 64u << 10;
constexpr std::uint64_t region_bytes = 8192;
constexpr int arena_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int reader_seals = arena_seals | F_SEAL_FUTURE_WRITE;

// Counts the mappings of this process whose line contains a word.
std::size_t mappings_of(const std::string& word) {
  std::ifstream maps{"/proc/self/maps"};
  std::size_t n = 0;
  for (std::string line; std::getline(maps, line);)
    n += line.find(word) != std::string::npos;
  return n;
}

std::shared_ptr<fabric> shm_fabric(const std::shared_ptr<io_loop>& loop) {
  fabric_options o;
  o.prefer = {"shm"};
  o.movers = 1;
  o.drivers.edit<shm_options>().mapped_max = 4;
  return fabric::create(o, loop).value();
}

result<mapped_region> map(
  const std::shared_ptr<fabric>& f, const bulk_handle& remote,
  access_mode how = access_mode::read) {
  return await<mapped_region>([&](auto done) { f->map(remote, how, std::move(done)); });
}

// Maps as soon as the peer has said that it answers.
result<mapped_region> map_when_introduced(
  const std::shared_ptr<fabric>& f, const bulk_handle& remote,
  access_mode how = access_mode::read) {
  auto outcome = map(f, remote, how);
  for (int i = 0; i < 3000 && !outcome && outcome.error().code() == errc::unsupported; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds{10});
    outcome = map(f, remote, how);
  }
  return outcome;
}

// A fabric that listens. The handler of the other side is the test's.
struct listening {
  temp_dir dir;
  std::shared_ptr<io_loop> loop = make_loop();
  std::shared_ptr<fabric> served = shm_fabric(loop);
  std::string address = "unix:" + dir.path + "/s";
  std::shared_ptr<listener> door =
    listener::open(
      loop, {.address = address, .allow_uids = {}}, {.local_name = "served"},
      [handler = std::make_shared<fabric_handler>(served)](const peer_info&) { return handler; })
      .value();

  ~listening() { loop->stop(); }

  std::shared_ptr<channel> connect(const std::string& name, std::shared_ptr<channel_handler> h) {
    return connect_to(loop, address, {.local_name = name}, std::move(h)).value();
  }
};

// A peer that makes its messages by hand.
struct liar : listening {
  std::shared_ptr<recorder> heard = std::make_shared<recorder>();
  std::shared_ptr<channel> line;

  // `able`: what the liar says that it answers; nothing: it says nothing, as old builds do.
  explicit liar(std::optional<shm::abilities> able = shm::abilities{true, true}) {
    line = connect("liar", heard);
    if (able)
      say(message_kind::abilities, *able);
    round_trip();
  }

  template <class Message>
  void say(message_kind kind, const Message& m, int fd = -1) {
    std::ignore = transport::send(*line, kind, m, {&fd, fd >= 0 ? 1u : 0u});
  }

  // Returns the messages of a kind that have come, and how many descriptors came with each.
  template <class Message>
  std::vector<std::pair<Message, std::size_t>> came(message_kind wanted) const {
    std::vector<std::pair<Message, std::size_t>> out;
    for (auto& f : heard->frames) {
      wire_reader reader{f.body};
      std::string driver;
      message_kind kind{};
      Message m;
      reader(driver, kind);
      if (driver == driver_of(kind) && kind == wanted && reader(m))
        out.emplace_back(std::move(m), f.fds.size());
    }
    return out;
  }
  // Waits until `count` messages of a kind have come, and returns the last one.
  template <class Message>
  Message wait_for(message_kind kind, std::size_t count) {
    Message last;
    BOOST_TEST_REQUIRE(heard->wait([&] {
      auto all = came<Message>(kind);
      if (all.size() >= count)
        last = all.back().first;
      return all.size() >= count;
    }));
    return last;
  }
  std::size_t announcements() {
    std::size_t n = 0;
    heard->look([&] {
      n = came<shm::announce>(message_kind::announce).size();
      return true;
    });
    return n;
  }

  // Asks the served process to map a region.
  shm::map_answer question(const bulk_handle& handle) {
    say(message_kind::map, shm::map_question{++asked, handle.region, handle.key});
    return wait_for<shm::map_answer>(message_kind::mapped, asked);
  }
  // What was said before has been taken.
  void round_trip() { BOOST_TEST_REQUIRE(question({}).number == asked); }

  // A region of the liar.
  static bulk_handle own_region() {
    bulk_handle h;
    h.owner = this_peer();
    h.region = 1'000'000;
    h.key = random_id<region_key>();
    h.length_bytes = region_bytes;
    return h;
  }
  // Lets the served process ask for it, and returns the number of the question.
  std::uint64_t be_asked(access_mode how = access_mode::read) {
    served->map(own_region(), how, answered.callback());
    return wait_for<shm::map_question>(message_kind::map, ++questions).number;
  }

  // The other side closed the connection, and the question ended with this.
  void check_thrown_out(errc code = errc::protocol_error) {
    BOOST_TEST(heard->wait_closings(1));
    auto outcome = answered.take();
    BOOST_TEST_REQUIRE(!outcome.has_value());
    BOOST_TEST((outcome.error().code() == code), why(outcome));
  }

  std::uint64_t asked = 0;
  std::size_t questions = 0;
  held_completion<mapped_region> answered;
};

// Memory as a peer announces it, full of a pattern.
struct peers_memory {
  unique_fd fd{memfd_create("liars-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING)};

  explicit peers_memory(int seals = reader_seals) {
    auto bytes = pattern(arena_bytes, 3);
    BOOST_TEST_REQUIRE(write(fd.get(), bytes.data(), bytes.size()) == ssize_t{arena_bytes});
    BOOST_TEST_REQUIRE(fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
  }
};

constexpr shm::announce readable(std::uint64_t arena) { return {arena, arena_bytes, true}; }
constexpr shm::announce writable(std::uint64_t arena) { return {arena, arena_bytes, false, true}; }

shm::map_answer at(
  std::uint64_t number, std::uint64_t arena, std::uint64_t offset,
  std::uint64_t length = region_bytes) {
  return {number, 0, "", arena, offset, length};
}

bool shows(const mapped_region& m, std::uint64_t offset) {
  auto expected = pattern(arena_bytes, 3);
  return m.size_bytes == region_bytes &&
    std::equal(m.data, m.data + m.size_bytes, expected.data() + offset);
}

} // namespace

BOOST_AUTO_TEST_SUITE(shm_map)

BOOST_AUTO_TEST_CASE(regions_of_one_arena_share_a_mapping_that_cannot_be_written) {
  listening w;
  auto reading = shm_fabric(w.loop);
  auto handler = std::make_shared<fabric_handler>(reading);
  auto line = w.connect("reader", handler);
  auto memory = w.served
                  ->make_memory(
                    {.name = "shared-by-two",
                     .size_bytes = arena_bytes,
                     .huge_pages = false,
                     .sharing = arena_sharing::read_only})
                  .value();
  std::vector<memory_block> blocks;
  std::vector<region> regions;
  std::vector<mapped_region> mapped;
  for (std::uint64_t salt : {1, 2}) {
    auto& block = blocks.emplace_back(memory->allocate(region_bytes, 4096).value());
    write_pattern(block.data, 0, region_bytes, salt);
    tensor_view view{{"x", dtype::u8, {region_bytes}}, block.data, {}};
    regions.push_back(expose({view}, access_mode::read).value());
  }
  BOOST_TEST(mappings_of("shared-by-two") == 1u);
  for (auto& r : regions) {
    auto outcome = map_when_introduced(reading, r.handle());
    BOOST_TEST_REQUIRE(outcome.has_value(), why(outcome));
    mapped.push_back(*outcome);
  }
  BOOST_TEST(mappings_of("shared-by-two") == 2u);
  for (std::uint64_t i : {0, 1}) {
    auto expected = pattern(region_bytes, i + 1);
    BOOST_TEST(std::equal(expected.begin(), expected.end(), mapped[i].data));
    auto* page = const_cast<std::byte*>(mapped[i].data);
    BOOST_TEST(mprotect(page, region_bytes, PROT_READ | PROT_WRITE) == -1);
    BOOST_TEST(errno == EACCES);
  }
  line->close({});
  BOOST_TEST(handler->wait_closed());
  regions.clear();
  blocks.clear();
  memory.reset();
  BOOST_TEST(std::equal(mapped[0].data, mapped[0].data + 100, pattern(100, 1).data()));
}

BOOST_AUTO_TEST_CASE(memory_that_peers_map_themselves_is_no_local_side_of_a_transfer) {
  listening w;
  auto submitting = shm_fabric(w.loop);
  auto line = w.connect("submitter", std::make_shared<fabric_handler>(submitting));
  for (auto sharing : {arena_sharing::read_only, arena_sharing::read_write}) {
    auto memory =
      submitting->make_memory({.name = "local-side", .size_bytes = arena_bytes, .sharing = sharing})
        .value();
    auto block = memory->allocate(4096, 64).value();
    exposed_matrix there{{1, 4096, 0}, access_mode::read, 3};
    auto moved = await<transfer_report>([&](auto done) {
      submitting->submit(
        {.dir = direction::read,
         .remote = there.handle(),
         .ops = {{.local = block.data, .length = 4096}}},
        std::move(done));
    });
    BOOST_TEST_REQUIRE(!moved.has_value());
    BOOST_TEST((moved.error().code() == errc::unsupported), why(moved));
    BOOST_TEST(line->is_open());
  }
}

BOOST_AUTO_TEST_CASE(two_peers_write_to_one_region) {
  listening w;
  auto memory =
    w.served
      ->make_memory(
        {.name = "written-by-two", .size_bytes = arena_bytes, .sharing = arena_sharing::read_write})
      .value();
  auto block = memory->allocate(region_bytes, 4096).value();
  tensor_view view{{"x", dtype::u8, {region_bytes}}, block.data, {}};
  auto shared = expose({view}, access_mode::write).value();
  std::vector<std::shared_ptr<fabric>> peers;
  std::vector<std::shared_ptr<channel>> lines;
  std::vector<mapped_region> mapped;
  for (auto name : {"first", "second"}) {
    peers.push_back(shm_fabric(w.loop));
    lines.push_back(w.connect(name, std::make_shared<fabric_handler>(peers.back())));
    auto outcome = map_when_introduced(peers.back(), shared.handle(), access_mode::write);
    BOOST_TEST_REQUIRE(outcome.has_value(), why(outcome));
    mapped.push_back(*outcome);
  }
  BOOST_TEST(mappings_of("written-by-two") == 3u);
  mapped[0].writable[100] = std::byte{1};
  mapped[1].writable[101] = std::byte{2};
  BOOST_TEST((mapped[1].data[100] == std::byte{1}));
  BOOST_TEST((block.data[101] == std::byte{2}));
}

BOOST_AUTO_TEST_CASE(only_who_has_a_handle_gets_the_descriptor_and_only_once) {
  exposed_matrix memory{{1, region_bytes, 0, arena_sharing::read_only}, access_mode::read, 3};
  liar l;
  auto before = l.announcements();
  auto guessed = memory.handle();
  guessed.key.bytes[0] ^= 1;
  BOOST_TEST((l.question(guessed).code == static_cast<std::uint8_t>(errc::permission_denied)));
  BOOST_TEST(l.announcements() == before);
  for (int i = 0; i < 1000; ++i)
    l.say(
      message_kind::map, shm::map_question{++l.asked, memory.handle().region, memory.handle().key});
  auto last = l.wait_for<shm::map_answer>(message_kind::mapped, l.asked);
  BOOST_TEST(last.code == 0u);
  BOOST_TEST(last.length == region_bytes);
  BOOST_TEST(l.announcements() == before + 1);
}

BOOST_AUTO_TEST_CASE(arenas_that_peers_map_themselves_are_not_announced_when_a_channel_opens) {
  struct with_memory : listening {
    std::shared_ptr<memory_source> memory =
      served
        ->make_memory(
          {.name = "kept", .size_bytes = arena_bytes, .sharing = arena_sharing::read_only})
        .value();
    std::shared_ptr<memory_source> written =
      served
        ->make_memory(
          {.name = "written", .size_bytes = arena_bytes, .sharing = arena_sharing::read_write})
        .value();
    std::shared_ptr<memory_source> offered =
      served->make_memory({.name = "offered", .size_bytes = arena_bytes}).value();
  } w;
  auto heard = std::make_shared<recorder>();
  auto line = w.connect("listener", heard);
  std::vector<std::uint64_t> announced;
  // The driver introduces itself after the announcements.
  BOOST_TEST_REQUIRE(heard->wait([&] {
    announced.clear();
    bool introduced = false;
    for (auto& f : heard->frames) {
      wire_reader reader{f.body};
      std::string driver;
      message_kind kind{};
      shm::announce what;
      reader(driver, kind);
      introduced |= driver == "shm" && kind == message_kind::abilities;
      if (driver == "shm" && kind == message_kind::announce && reader(what)) {
        announced.push_back(what.arena);
        BOOST_TEST((sharing_of(what) == arena_sharing::transfers));
      }
    }
    return introduced;
  }));
  BOOST_TEST(announced.size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_peer_of_an_older_build_is_not_asked) {
  liar older{std::nullopt};
  auto outcome = map(older.served, liar::own_region());
  BOOST_TEST_REQUIRE(!outcome.has_value());
  BOOST_TEST((outcome.error().code() == errc::unsupported));
  older.round_trip();
  BOOST_TEST(
    older.heard->look([&] { return older.came<shm::map_question>(message_kind::map).empty(); }));
}

BOOST_AUTO_TEST_CASE(a_peer_of_a_build_that_lends_for_reading_is_asked_for_no_more) {
  liar older{shm::abilities{true}};
  auto outcome = map(older.served, liar::own_region(), access_mode::write);
  BOOST_TEST_REQUIRE(!outcome.has_value());
  BOOST_TEST((outcome.error().code() == errc::unsupported));
  older.round_trip();
  BOOST_TEST(
    older.heard->look([&] { return older.came<shm::map_question>(message_kind::map).empty(); }));
}

// To be written it must not have been announced as what is only read, and the other way round.
BOOST_AUTO_TEST_CASE(an_arena_is_mapped_only_as_it_was_asked_for) {
  for (auto how : {access_mode::read, access_mode::write}) {
    auto written = how == access_mode::write;
    peers_memory memory{written ? reader_seals : arena_seals};
    liar l;
    auto number = l.be_asked(how);
    l.say(message_kind::announce, written ? readable(7) : writable(7), memory.fd.get());
    l.say(message_kind::mapped, at(number, 7, 0));
    l.check_thrown_out();
  }
}

BOOST_AUTO_TEST_CASE(an_arena_to_write_that_cannot_be_written_ends_the_connection) {
  peers_memory memory;
  liar l;
  l.be_asked(access_mode::write);
  l.say(message_kind::announce, writable(7), memory.fd.get());
  BOOST_TEST(l.heard->wait_closings(1));
  BOOST_TEST(!l.answered.take().has_value());
  BOOST_TEST(mappings_of("liars-memory") == 0u);
}

BOOST_AUTO_TEST_CASE(a_peer_that_closes_ends_the_questions) {
  liar l;
  l.be_asked();
  l.line->close({});
  auto outcome = l.answered.take();
  BOOST_TEST_REQUIRE(!outcome.has_value());
}

BOOST_AUTO_TEST_CASE(what_was_mapped_stays_when_the_peer_forgets_it) {
  peers_memory memory;
  liar l;
  auto number = l.be_asked();
  l.say(message_kind::announce, readable(7), memory.fd.get());
  l.say(message_kind::mapped, at(number, 7, 4096));
  auto mapped = l.answered.take();
  BOOST_TEST_REQUIRE(mapped.has_value(), why(mapped));
  BOOST_TEST(shows(*mapped, 4096));
  l.say(message_kind::forget, shm::forget{7});
  l.round_trip();
  BOOST_TEST(shows(*mapped, 4096));
  BOOST_TEST(mappings_of("liars-memory") == 1u);
  // Movers and the populating of page tables may still hold it.
  *mapped = {};
  for (int i = 0; i < 3000 && mappings_of("liars-memory") > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds{10});
  BOOST_TEST(mappings_of("liars-memory") == 0u);
}

BOOST_AUTO_TEST_CASE(answers_for_which_nothing_waits_are_ignored) {
  peers_memory memory;
  liar l;
  l.say(message_kind::mapped, at(12345, 7, 0));
  auto number = l.be_asked();
  l.say(message_kind::announce, readable(7), memory.fd.get());
  l.say(message_kind::mapped, at(number, 7, 0));
  l.say(message_kind::mapped, at(number, 7, 4096));
  auto mapped = l.answered.take();
  BOOST_TEST_REQUIRE(mapped.has_value(), why(mapped));
  BOOST_TEST(shows(*mapped, 0));
  l.round_trip();
  BOOST_TEST(l.line->is_open());
}

BOOST_AUTO_TEST_CASE(a_refusal_of_the_owner_is_passed_on) {
  liar l;
  auto answer = at(l.be_asked(), 0, 0);
  answer.code = static_cast<std::uint8_t>(errc::permission_denied);
  answer.detail = "not for you";
  l.say(message_kind::mapped, answer);
  auto outcome = l.answered.take();
  BOOST_TEST_REQUIRE(!outcome.has_value());
  BOOST_TEST((outcome.error().code() == errc::permission_denied));
  BOOST_TEST(outcome.error().detail() == "not for you");
}

BOOST_AUTO_TEST_CASE(more_arenas_than_may_be_mapped_are_unsupported_and_the_connection_lives) {
  peers_memory memory;
  liar l;
  std::vector<mapped_region> kept;
  result<mapped_region> outcome = fail(errc::unavailable, "not asked");
  std::uint64_t arena = 0;
  // The liar is this process, which may hold all four places.
  for (; arena < 6 && (arena == 0 || outcome); ++arena) {
    auto number = l.be_asked();
    l.say(message_kind::announce, readable(arena), memory.fd.get());
    l.say(message_kind::mapped, at(number, arena, 0));
    outcome = l.answered.take();
    l.answered = {};
    if (outcome)
      kept.push_back(*outcome);
  }
  BOOST_TEST(kept.size() == 4u);
  BOOST_TEST_REQUIRE(!outcome.has_value());
  BOOST_TEST((outcome.error().code() == errc::unsupported), why(outcome));
  BOOST_TEST(mappings_of("liars-memory") == 4u);
  l.round_trip();
  BOOST_TEST(l.line->is_open());
}

BOOST_AUTO_TEST_CASE(an_answer_with_another_place_ends_the_connection) {
  const shm::map_answer wrong[] = {
    at(0, 8, 0),                   // an arena that was not announced
    at(0, 7, arena_bytes - 4096),  // beyond its end
    at(0, 7, ~0ull - 4095),        // which wraps around
    at(0, 7, arena_bytes + 1),     // beyond it
    at(0, 7, 0, region_bytes - 1), // another size
    at(0, 7, 0, ~0ull),            // a size that wraps around
  };
  for (auto answer : wrong)
    BOOST_TEST_CONTEXT(answer.arena << " " << answer.offset << " " << answer.length) {
      peers_memory memory;
      liar l;
      answer.number = l.be_asked();
      l.say(message_kind::announce, readable(7), memory.fd.get());
      l.say(message_kind::mapped, answer);
      l.check_thrown_out();
    }
}

BOOST_AUTO_TEST_CASE(an_arena_for_transfers_is_no_place_to_read) {
  peers_memory memory{arena_seals};
  liar l;
  auto number = l.be_asked();
  l.say(message_kind::announce, shm::announce{7, arena_bytes}, memory.fd.get());
  l.say(message_kind::mapped, at(number, 7, 0));
  l.check_thrown_out();
}

// Its pages could be taken out, and the next read would be charged to this process.
BOOST_AUTO_TEST_CASE(an_arena_that_others_may_still_write_is_not_mapped_for_reading) {
  peers_memory memory{arena_seals};
  liar l;
  l.be_asked();
  l.say(message_kind::announce, readable(7), memory.fd.get());
  l.check_thrown_out(errc::permission_denied);
  BOOST_TEST(mappings_of("liars-memory") == 0u);
}

BOOST_AUTO_TEST_CASE(an_arena_shorter_than_announced_is_not_mapped) {
  peers_memory memory;
  liar l;
  l.be_asked();
  l.say(message_kind::announce, shm::announce{7, arena_bytes + 1, true}, memory.fd.get());
  l.check_thrown_out(errc::permission_denied);
}

BOOST_AUTO_TEST_CASE(an_arena_without_its_descriptor_ends_the_connection) {
  liar l;
  l.be_asked();
  l.say(message_kind::announce, readable(7));
  l.check_thrown_out();
}

BOOST_AUTO_TEST_CASE(an_arena_to_read_for_which_nobody_asked_ends_the_connection) {
  peers_memory memory;
  liar l;
  l.say(message_kind::announce, readable(7), memory.fd.get());
  BOOST_TEST(l.heard->wait_closings(1));
  BOOST_TEST(mappings_of("liars-memory") == 0u);
}

// The copy would be a write to memory that is mapped for reading, or that a whole group shares.
void check_that_no_move_goes_to(const shm::announce& what, access_mode how, int seals) {
  peers_memory memory{seals};
  exposed_matrix victims{{1, 4096, 0}, access_mode::read, 5};
  liar l;
  auto number = l.be_asked(how);
  l.say(message_kind::announce, what, memory.fd.get());
  l.say(message_kind::mapped, at(number, 7, 0));
  auto mapped = l.answered.take();
  BOOST_TEST_REQUIRE(mapped.has_value(), why(mapped));
  shm::move m;
  m.number = 1;
  m.region = victims.handle().region;
  m.key = victims.handle().key;
  m.dir = static_cast<std::uint8_t>(direction::read);
  m.ops = {{0, 7, 0, 4096, 0, 0}};
  l.say(message_kind::asks, shm::asks{{m}});
  auto answers = l.wait_for<shm::answers>(message_kind::answers, 1);
  BOOST_TEST_REQUIRE(answers.outcomes.size() == 1u);
  BOOST_TEST((answers.outcomes[0].code == static_cast<std::uint8_t>(errc::permission_denied)));
  BOOST_TEST(shows(*mapped, 0));
}

BOOST_AUTO_TEST_CASE(a_move_into_memory_that_is_mapped_otherwise_is_refused) {
  check_that_no_move_goes_to(readable(7), access_mode::read, reader_seals);
  check_that_no_move_goes_to(writable(7), access_mode::write, arena_seals);
}

BOOST_AUTO_TEST_SUITE_END()

// Tests the provider's actor under the deterministic scheduler, with a fake fabric and a virtual
// clock.
#include "store_fixture.hpp"

#include <millrace/core/digest.hpp>
#include <millrace/storage/rocksdb/rocksdb_bucket.hpp>
#include <millrace/storage/rocksdb/stored_record.hpp>
#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/held_pool.hpp>
#include <millrace/tests/support/scratch_directory.hpp>

#include <boost/test/unit_test.hpp>
#include <sys/mman.h>

#include <numeric>

using namespace millrace;
using namespace millrace::actors;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

// Answers nothing before the test says so.
class silent_bucket : public storage::bucket {
public:
  std::string_view kind() const noexcept override { return "silent"; }
  storage::bucket_capabilities capabilities() const noexcept override { return {}; }
  void reserve(
    model_spec, std::vector<described_layer>,
    completion<std::unique_ptr<storage::reservation>> done) override {
    keep(std::move(done));
  }
  void open(
    std::string, std::uint64_t, completion<std::shared_ptr<storage::opened_model>> done) override {
    keep(std::move(done));
  }
  void erase(std::string, std::uint64_t, completion<void> done) override { keep(std::move(done)); }
  void pin(std::string, bool, completion<void> done) override { keep(std::move(done)); }
  void list(
    std::string, std::string, std::uint32_t, completion<std::vector<model_summary>> done) override {
    keep(std::move(done));
  }
  void resolve(std::vector<layer_id>, completion<std::vector<described_layer>> done) override {
    keep(std::move(done));
  }
  storage::bucket_stats stats() const override { return {}; }
  status close(std::uint32_t) override { return {}; }

  std::vector<std::function<void()>> held;

private:
  template <class T>
  void keep(completion<T> done) {
    held.push_back([done = std::move(done)] { done(fail(errc::not_found, "nothing here")); });
  }
};

// Addresses behind which memory comes when it is touched, so a test may claim more than there is.
class claimed_memory_source : public memory_source {
public:
  result<memory_block> allocate(std::uint64_t size_bytes, std::size_t) override {
    auto* at = ::mmap(
      nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
      0);
    BOOST_TEST_REQUIRE(at != MAP_FAILED);
    auto owner = std::shared_ptr<void>{at, [size_bytes](void* p) { ::munmap(p, size_bytes); }};
    return memory_block{static_cast<std::byte*>(at), size_bytes, std::move(owner)};
  }
  bool contiguous() const noexcept override { return true; }
  std::uint64_t capacity_bytes() const noexcept override { return 1ull << 40; }
  std::uint64_t used_bytes() const noexcept override { return 0; }
};

struct fixture : store_fixture {
  void restart_with_room_for(std::uint64_t bytes) {
    bucket =
      storage::open_memory_bucket({bytes}, std::make_shared<claimed_memory_source>()).value();
    restart();
  }
};

constexpr std::uint64_t tiny_bytes = 4096;

/// The provider keeps its models in RocksDB. Its bucket has one I/O thread.
struct disk_fixture : store_fixture {
  disk_fixture() {
    open_bucket();
    staging = std::make_shared<staging_lender>(
      std::make_shared<heap_memory_source>(4 * options().window_bytes));
    BOOST_REQUIRE(testing::store(*bucket, spec_of("m", {tiny_bytes}), 1));
    restart();
  }
  ~disk_fixture() {
    stop();
    bucket = nullptr; // before its directory
  }

  storage::rocksdb_bucket_options options() const {
    storage::rocksdb_bucket_options chosen;
    chosen.path = directory.path() + "/bucket";
    chosen.io_threads = 1;
    chosen.window_bytes = 512 << 10;
    return chosen;
  }

  void open_bucket() {
    auto opened = storage::open_rocksdb_bucket(options());
    BOOST_REQUIRE_MESSAGE(opened, why(opened));
    bucket = *opened;
  }

  void stop_bucket() {
    stop();
    BOOST_REQUIRE(bucket->close(10'000).ok());
    bucket.reset();
  }

  /// Loads in a message, while the bucket's thread is busy.
  result<load_reply> load_at_once() {
    held_pool held{*bucket};
    BOOST_REQUIRE(held.holds());
    load_request l;
    l.model = "m";
    l.selections = {{{"t0", dtype::u8, {tiny_bytes}}, false, 0}};
    auto loading = ask(l);
    BOOST_REQUIRE(answered());
    return outcome<load_reply>(loading);
  }

  scratch_directory directory;
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(tensor_store_actor_tests, fixture)

BOOST_AUTO_TEST_CASE(a_model_is_visible_only_after_its_bytes_have_moved) {
  auto pending = ask(request("m"));
  BOOST_TEST(fabric->waiting.size() == 1u);
  BOOST_TEST(!visible("m"));
  fabric->finish();
  sched.run();
  auto r = outcome<store_receipt>(pending);
  BOOST_TEST_REQUIRE(r.has_value());
  BOOST_TEST(r->driver == "fake");
  BOOST_TEST(visible("m"));
}

BOOST_AUTO_TEST_CASE(several_requests_in_one_message_are_answered_when_all_have_ended) {
  store_many_request many;
  for (auto* name : {"a", "", "b"})
    many.items.push_back(request(name));
  auto pending = ask(many);
  BOOST_TEST(fabric->waiting.size() == 2u);
  for (int i = 0; i < 2; ++i) {
    fabric->finish();
    sched.run();
  }
  auto r = outcome<outcomes_of<store_receipt>>(pending);
  BOOST_TEST_REQUIRE((r && r->items.size() == 3));
  BOOST_TEST((r->items[0].code == 0 && r->items[0].receipt.model == "a"));
  BOOST_TEST((r->items[1].code == static_cast<std::uint8_t>(errc::invalid_argument)));
  BOOST_TEST((r->items[2].code == 0 && r->items[2].receipt.model == "b"));
  BOOST_TEST((visible("a") && visible("b")));
  auto none = ask(store_many_request{});
  sched.run();
  BOOST_TEST((outcome<outcomes_of<store_receipt>>(none)->items.empty()));
}

BOOST_AUTO_TEST_CASE(one_message_has_a_bound_of_requests) {
  load_many_request many;
  many.items.resize(requests_together_max + 1);
  auto pending = ask(many);
  sched.run();
  auto r = outcome<outcomes_of<load_reply>>(pending);
  BOOST_TEST_REQUIRE(!r.has_value());
  BOOST_TEST((r.error().code() == errc::invalid_argument));
}

BOOST_AUTO_TEST_CASE(the_end_of_the_actor_answers_all_requests_of_a_message) {
  store_many_request many;
  many.items = {request("a"), request("b")};
  auto pending = ask(many);
  caf::anon_send_exit(store, caf::exit_reason::kill);
  sched.run();
  auto r = outcome<outcomes_of<store_receipt>>(pending);
  BOOST_TEST_REQUIRE((r && r->items.size() == 2));
  for (auto& item : r->items)
    BOOST_TEST((item.code == static_cast<std::uint8_t>(errc::unavailable)));
}

BOOST_AUTO_TEST_CASE(a_failed_transfer_leaves_nothing_and_returns_its_cause) {
  auto pending = ask(request("m"));
  fabric->fail_oldest({errc::peer_lost, "client:7 is gone"});
  sched.run();
  auto r = outcome<store_receipt>(pending);
  BOOST_TEST((r.error().code() == errc::peer_lost));
  BOOST_TEST(r.error().detail().find("client:7") != std::string::npos);
  BOOST_TEST(!visible("m"));
  BOOST_TEST(bucket->stats().used_bytes == 0u);
}

BOOST_AUTO_TEST_CASE(beyond_the_bounds_requests_wait_and_then_are_refused) {
  auto a = ask(request("a")), b = ask(request("b")), c = ask(request("c")), d = ask(request("d"));
  BOOST_TEST(fabric->submitted == 2u);
  BOOST_TEST((outcome<store_receipt>(d).error().code() == errc::busy));
  fabric->finish();
  sched.run();
  BOOST_TEST(outcome<store_receipt>(a).has_value());
  BOOST_TEST(fabric->submitted == 3u);
  fabric->finish();
  fabric->finish();
  sched.run();
  BOOST_TEST(outcome<store_receipt>(b).has_value());
  BOOST_TEST(outcome<store_receipt>(c).has_value());
}

// The memory behind the greedy requests is never served.
BOOST_AUTO_TEST_CASE(a_process_that_never_serves_its_stores_keeps_nobody_waiting) {
  limits.stores_max = 64;
  limits.queued_max = 64;
  restart();
  auto greedy = process_of("user 1");
  for (int i = 0; i < 200; ++i)
    ask(request_of(greedy, "greedy"));
  auto taken = fabric->waiting.size();
  BOOST_TEST(taken == 32u);
  for (int i = 0; i < 10; ++i) {
    auto pending = ask(request_of(process_of("user 2"), "m" + std::to_string(i)));
    BOOST_TEST_REQUIRE(fabric->waiting.size() == taken + 1);
    std::swap(fabric->waiting.front(), fabric->waiting.back());
    fabric->finish();
    sched.run();
    BOOST_TEST(outcome<store_receipt>(pending).has_value());
    std::swap(fabric->waiting.front(), fabric->waiting.back());
  }
}

BOOST_AUTO_TEST_CASE(processes_that_wait_take_turns) {
  limits.queued_max = 64;
  restart();
  auto greedy = process_of("user 1"), late = process_of("user 1");
  for (int i = 0; i < 10; ++i)
    ask(request_of(greedy, "greedy"));
  auto first = ask(request_of(late, "first")), second = ask(request_of(late, "second"));
  // One of the greedy process is in flight, and one of the late one.
  BOOST_TEST(fabric->submitted == 2u);
  for (int i = 0; i < 4; ++i) {
    fabric->finish();
    sched.run();
  }
  BOOST_TEST(outcome<store_receipt>(first).has_value());
  BOOST_TEST(outcome<store_receipt>(second).has_value());
}

BOOST_AUTO_TEST_CASE(a_share_of_the_queue_that_is_full_is_named) {
  limits.queued_max = 4;
  restart();
  auto greedy = process_of("user 1"), other = process_of("user 1");
  ask(request_of(greedy, "a"));
  ask(request_of(other, "b"));
  ask(request_of(other, "c"));
  for (int i = 0; i < 2; ++i)
    ask(request_of(greedy, "d"));
  auto refused = ask(request_of(greedy, "e"));
  auto why = outcome<store_receipt>(refused).error();
  BOOST_TEST((why.code() == errc::busy));
  BOOST_TEST(why.detail().find("this process, which is its share") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(staging_memory_is_shared_by_processes) {
  limits.stores_max = 64;
  staging = std::make_shared<staging_lender>(std::make_shared<heap_memory_source>(4 * 4096));
  restart();
  auto greedy = process_of("user 1");
  for (int i = 0; i < 10; ++i)
    ask(request_of(greedy, "greedy"));
  BOOST_TEST(fabric->submitted == 2u);
  auto pending = ask(request_of(process_of("user 2"), "m"));
  BOOST_TEST_REQUIRE(fabric->submitted == 3u);
  std::swap(fabric->waiting.front(), fabric->waiting.back());
  fabric->finish();
  sched.run();
  BOOST_TEST(outcome<store_receipt>(pending).has_value());
  // The greedy process does not get more, and each of its own that ends makes room for the next.
  BOOST_TEST(fabric->waiting.size() == 2u);
  fabric->finish();
  sched.run();
  BOOST_TEST(fabric->waiting.size() == 2u);
}

BOOST_AUTO_TEST_CASE(bytes_that_do_not_come_in_time_end_the_store) {
  limits.progress_timeout_ms = 1000;
  restart();
  auto r = request("m");
  r.timeout_ms = 3'000'000;
  auto pending = ask(r);
  pass(900ms);
  BOOST_TEST(!answered());
  pass(1s);
  auto why = outcome<store_receipt>(pending).error();
  BOOST_TEST((why.code() == errc::deadline_exceeded));
  BOOST_TEST(why.detail().find("limits.progress_timeout") != std::string::npos);
  // The bytes may still come: the memory stays taken until then.
  BOOST_TEST(bucket->stats().used_bytes > 0u);
  fabric->finish();
  sched.run();
  BOOST_TEST(bucket->stats().used_bytes == 0u);
}

BOOST_AUTO_TEST_CASE(a_claimed_size_buys_no_time) {
  restart_with_room_for(8ull << 30);
  auto r = request("m", 4ull << 30);
  r.timeout_ms = limits.request_timeout_max_ms;
  auto pending = ask(r);
  pass(2min);
  BOOST_TEST(!answered());
  pass(10s);
  BOOST_TEST_REQUIRE(answered());
  auto why = outcome<store_receipt>(pending).error();
  BOOST_TEST((why.code() == errc::deadline_exceeded));
  BOOST_TEST(why.detail().find("limits.progress_timeout") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(long_transfers_move_in_portions_which_have_a_time_each) {
  constexpr std::uint64_t bytes = 130ull << 20;
  restart_with_room_for(1ull << 30);
  std::vector<std::uint64_t> digests(digest_count(bytes));
  std::iota(digests.begin(), digests.end(), 1);
  auto finish = [&](std::size_t first, std::size_t last) {
    fabric->finish(std::byte{7}, {digests.data() + first, digests.data() + last});
    sched.run();
  };
  auto r = request("m", bytes);
  r.timeout_ms = limits.request_timeout_max_ms;
  r.checksums = true;
  auto storing = ask(r);
  BOOST_TEST_REQUIRE(fabric->waiting.size() == 2u);
  pass(80s);
  // The second piece ends first.
  std::swap(fabric->waiting.front(), fabric->waiting.back());
  finish(128, 384);
  BOOST_TEST_REQUIRE(fabric->waiting.size() == 2u);
  finish(0, 128);
  pass(50s);
  BOOST_TEST(!answered());
  finish(384, digests.size());
  BOOST_TEST(outcome<store_receipt>(storing).has_value());
  // A load compares its digests with those of the store, in their order.
  auto l = load_of("m", bytes);
  l.timeout_ms = limits.request_timeout_max_ms;
  auto loading = ask(l);
  BOOST_TEST_REQUIRE(fabric->waiting.size() == 2u);
  finish(0, 128);
  finish(128, 384);
  finish(384, digests.size());
  auto loaded = outcome<load_reply>(loading);
  BOOST_TEST_REQUIRE(loaded.has_value());
  BOOST_TEST(loaded->verified);
}

// An error is told when no piece can touch the memory any more.
BOOST_AUTO_TEST_CASE(a_piece_that_fails_ends_the_store_after_the_piece_beside_it) {
  restart_with_room_for(1ull << 30);
  auto r = request("m", 512ull << 20);
  r.timeout_ms = limits.request_timeout_max_ms;
  auto pending = ask(r);
  fabric->fail_oldest({errc::peer_lost, "client:7 is gone"});
  sched.run();
  BOOST_TEST(!answered());
  BOOST_TEST_REQUIRE(fabric->waiting.size() == 1u);
  fabric->fail_oldest({errc::peer_lost, "client:7 is gone for long"});
  sched.run();
  BOOST_TEST(fabric->submitted == 2u);
  auto why = outcome<store_receipt>(pending).error();
  BOOST_TEST((why.code() == errc::peer_lost));
  BOOST_TEST(why.detail().find("for long") == std::string::npos);
  BOOST_TEST(bucket->stats().used_bytes == 0u);
}

BOOST_AUTO_TEST_CASE(a_late_store_is_given_up_and_its_late_bytes_are_dropped) {
  auto pending = ask(request("m"));
  sched.advance_time(900ms);
  sched.run();
  for (int i = 0; i < 4; ++i) {
    sched.advance_time(250ms);
    sched.run();
  }
  BOOST_TEST((outcome<store_receipt>(pending).error().code() == errc::deadline_exceeded));
  // A mover may still be writing: the memory stays taken until it is done.
  BOOST_TEST(bucket->stats().used_bytes > 0u);
  fabric->finish();
  sched.run();
  BOOST_TEST(bucket->stats().used_bytes == 0u);
  BOOST_TEST(!visible("m"));
}

// The process stands still until all is over, and finds the bytes there.
BOOST_AUTO_TEST_CASE(a_store_whose_time_is_over_is_not_published) {
  auto pending = ask(request("m"));
  fabric->finish();
  sched.advance_time(2s);
  sched.run();
  BOOST_TEST((outcome<store_receipt>(pending).error().code() == errc::deadline_exceeded));
  BOOST_TEST(!visible("m"));
  BOOST_TEST(bucket->stats().used_bytes == 0u);
}

BOOST_AUTO_TEST_CASE(ending_the_actor_answers_everyone) {
  auto a = ask(request("a")), b = ask(request("b")), c = ask(request("c"));
  caf::anon_send_exit(store, caf::exit_reason::kill);
  sched.run();
  for (auto* p : {&a, &b, &c})
    BOOST_TEST((outcome<store_receipt>(*p).error().code() == errc::unavailable));
}

BOOST_AUTO_TEST_CASE(ending_the_actor_answers_what_the_bucket_has_not_answered_yet) {
  auto silent = std::make_shared<silent_bucket>();
  bucket = silent;
  restart();
  auto describing = ask(describe_request{"m", 0});
  auto listing = ask(list_request{});
  auto erasing = ask(erase_request{"m"});
  auto pinning = ask(pin_request{"m", true});
  auto resolving = ask(resolve_request{});
  BOOST_TEST_REQUIRE(silent->held.size() == 5u);
  stop();
  auto given_up = [&](auto outcome) {
    return !outcome && outcome.error().code() == errc::unavailable;
  };
  BOOST_TEST_REQUIRE(answered());
  BOOST_TEST(given_up(outcome<model_record>(describing)));
  BOOST_TEST_REQUIRE(answered());
  BOOST_TEST(given_up(outcome<model_list>(listing)));
  BOOST_TEST_REQUIRE(answered());
  BOOST_TEST(given_up(outcome<done_reply>(erasing)));
  BOOST_TEST_REQUIRE(answered());
  BOOST_TEST(given_up(outcome<done_reply>(pinning)));
  BOOST_TEST_REQUIRE(answered());
  BOOST_TEST(given_up(outcome<layer_list>(resolving)));
  for (auto& answer : silent->held)
    answer();
  sched.run();
  BOOST_TEST(!answered());
}

BOOST_AUTO_TEST_CASE(what_a_silent_bucket_owes_is_given_up_in_time) {
  auto silent = std::make_shared<silent_bucket>();
  bucket = silent;
  limits.request_timeout_ms = 2000;
  restart();
  auto described = ask(describe_request{"m", 0});
  auto listed = ask(list_request{});
  auto erased = ask(erase_request{"m"});
  auto pinned = ask(pin_request{"m", true});
  auto resolved = ask(resolve_request{});
  auto located = ask(locate_request{"default", "m"});
  pass(1s);
  BOOST_TEST(!answered());
  pass(2s);
  auto is_late = [&]<class Reply>(auto& pending, Reply) {
    auto answer = outcome<Reply>(pending);
    return !answer && answer.error().code() == errc::deadline_exceeded;
  };
  BOOST_TEST_REQUIRE(answered());
  BOOST_TEST(is_late(described, model_record{}));
  BOOST_TEST(is_late(listed, model_list{}));
  BOOST_TEST(is_late(erased, done_reply{}));
  BOOST_TEST(is_late(pinned, done_reply{}));
  BOOST_TEST(is_late(resolved, layer_list{}));
  BOOST_TEST(is_late(located, location{}));
  // What comes later answers nothing, and nothing is watched any more.
  for (auto& answer : silent->held)
    answer();
  sched.run();
  BOOST_TEST(!answered());
  pass(1s);
  BOOST_TEST(!sched.has_pending_timeout());
}

BOOST_AUTO_TEST_CASE(an_ended_actor_and_a_bucket_that_never_answers_let_go_of_each_other) {
  auto silent = std::make_shared<silent_bucket>();
  bucket = silent;
  restart();
  load_request load;
  load.model = "m";
  ask(request("m"));
  ask(load);
  ask(describe_request{"m", 0});
  BOOST_TEST_REQUIRE(silent->held.size() == 3u);
  stop();
  store = nullptr;
  // Only the questions are held now: no actor, and so no bucket.
  BOOST_TEST(silent.use_count() == 2);
  std::weak_ptr<silent_bucket> gone = silent;
  silent = nullptr;
  bucket = nullptr;
  BOOST_TEST(gone.expired());
}

BOOST_AUTO_TEST_CASE(few_bytes_need_no_transfer) {
  auto r = request("m", 100);
  r.source = {};
  r.eager.assign(100, 42);
  r.checksums = true;
  auto pending = ask(std::move(r));
  BOOST_TEST(outcome<store_receipt>(pending).has_value());
  BOOST_TEST(fabric->submitted == 0u);
  load_request l;
  l.model = "m";
  l.selections = {{{"t", dtype::u8, {100}}, false, 0}};
  auto loaded = ask(l);
  auto receipt = outcome<load_reply>(loaded);
  BOOST_TEST((receipt->eager == small_bytes(100, 42)));
  BOOST_TEST(receipt->verified);
}

BOOST_AUTO_TEST_CASE(bytes_that_changed_at_rest_are_never_returned_as_good) {
  auto r = request("m", 100);
  r.source = {};
  r.eager.assign(100, 42);
  r.checksums = true;
  auto stored = ask(std::move(r));
  BOOST_TEST(outcome<store_receipt>(stored).has_value());
  // Flip one bit where the model rests.
  bucket->open("m", 0, [](result<std::shared_ptr<storage::opened_model>> model) {
    (*model)->fetch(
      {{0, 0, 100}}, {}, [](result<storage::window> w) { w->pieces[0].data[50] ^= std::byte{1}; });
  });
  load_request l;
  l.model = "m";
  l.selections = {{{"t", dtype::u8, {1}}, true, 3}};
  auto loaded = ask(l);
  auto outcome_of_load = outcome<load_reply>(loaded);
  BOOST_TEST((outcome_of_load.error().code() == errc::corrupt_data));
  BOOST_TEST(outcome_of_load.error().detail().find("tensor t") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(digests_of_a_push_are_compared_with_those_of_the_store) {
  auto r = request("m", 10'000);
  r.checksums = true;
  auto stored = ask(std::move(r));
  std::vector<std::byte> bytes(10'000, std::byte{7});
  auto good = digest(bytes.data(), bytes.size());
  fabric->finish(std::byte{7}, {good});
  sched.run();
  BOOST_TEST(outcome<store_receipt>(stored).has_value());
  auto l = load_of("m");
  auto fine = ask(l);
  fabric->finish({}, {good});
  sched.run();
  BOOST_TEST(outcome<load_reply>(fine).has_value());
  auto bad = ask(l);
  fabric->finish({}, {good + 1});
  sched.run();
  BOOST_TEST((outcome<load_reply>(bad).error().code() == errc::corrupt_data));
}

// A process may have several connections, and one thread of it waits at this one.
BOOST_AUTO_TEST_CASE(bytes_are_moved_by_the_channel_that_asked) {
  auto who = process_of("user 1");
  who.connection = 17;
  auto storing = ask(request_of(who, "m"));
  BOOST_TEST(fabric->waiting.front().what.channel == 17u);
  fabric->finish();
  sched.run();
  BOOST_TEST(outcome<store_receipt>(storing).has_value());
  auto l = load_of("m");
  l.from = who;
  auto loading = ask(l);
  BOOST_TEST(fabric->waiting.front().what.channel == 17u);
  fabric->finish();
  sched.run();
  BOOST_TEST(outcome<load_reply>(loading).has_value());
}

BOOST_AUTO_TEST_CASE(a_reader_keeps_the_version_it_opened) {
  auto first = ask(request("m"));
  fabric->finish(std::byte{1});
  sched.run();
  BOOST_TEST(outcome<store_receipt>(first).has_value());
  auto l = load_of("m");
  auto loading = ask(l);
  auto second = ask(request("m"));
  std::swap(fabric->waiting[0], fabric->waiting[1]);
  fabric->finish(std::byte{2});
  sched.run();
  BOOST_TEST(outcome<store_receipt>(second).has_value());
  // The load still pushes the bytes of the first version.
  BOOST_TEST((*fabric->waiting[0].what.ops[0].local == std::byte{1}));
  fabric->finish();
  sched.run();
  BOOST_TEST(outcome<load_reply>(loading).has_value());
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(tensor_store_on_disk, disk_fixture)

BOOST_AUTO_TEST_CASE(a_small_model_in_memory_is_loaded_while_the_disk_is_busy) {
  auto loaded = load_at_once();
  BOOST_REQUIRE_MESSAGE(loaded, why(loaded));
  BOOST_TEST(loaded->verified);
  BOOST_REQUIRE(loaded->eager.size() == tiny_bytes);
  BOOST_TEST(
    is_filled(reinterpret_cast<const std::byte*>(loaded->eager.data()), tiny_bytes, 1, 0, 0));
}

BOOST_AUTO_TEST_CASE(bytes_in_memory_that_changed_at_rest_are_not_returned_as_good) {
  auto version = (*testing::open(*bucket, "m"))->record().version;
  stop_bucket();
  {
    using namespace storage::rocksdb;
    auto db =
      index::open(options().path + "/index", false, *index_reserve::open(options().path, 0));
    BOOST_REQUIRE_MESSAGE(db, why(db));
    auto other = encode_stream(version, std::string(tiny_bytes, 'x'));
    BOOST_REQUIRE((*db)->write({{keys::stream("m"), other}}).ok());
  }
  open_bucket();
  restart();
  BOOST_REQUIRE(testing::open(*bucket, "m")); // brings it into memory
  auto loaded = load_at_once();
  BOOST_REQUIRE(!loaded);
  BOOST_TEST((loaded.error().code() == errc::corrupt_data), why(loaded));
  BOOST_TEST(loaded.error().detail().find("tensor t0") != std::string::npos, why(loaded));
}

BOOST_AUTO_TEST_SUITE_END()

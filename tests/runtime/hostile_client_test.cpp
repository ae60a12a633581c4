// Tests a peer that may connect but lies. It is refused, nothing is read or written, and the others
// are not affected.
#include <millrace/actors/store/store_messages.hpp>
#include <millrace/actors/wire/envelope.hpp>
#include <millrace/net/network_options.hpp>
#include <millrace/runtime/node/node.hpp>
#include <millrace/storage/memory/memory_options.hpp>
#include <millrace/storage/pmem/pmem_kind.hpp>
#include <millrace/tests/net/channel_support.hpp>
#include <millrace/tests/support/exposed_matrix.hpp>
#include <millrace/tests/support/scratch_directory.hpp>

#include <boost/test/unit_test.hpp>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <random>

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::net;
using namespace millrace::transport;
using actors::load_request;
using actors::store_request;

namespace {

constexpr std::uint64_t buffers_bytes = 64 << 20;

config::settings memory_node(const scratch_directory& dir) {
  config::settings s;
  s.node.listen = {"unix:" + dir.path() + "/n0.sock"};
  s.staging.size_bytes = 4 << 20;
  auto& network = s.options.edit<network_options>();
  network.listener.buffers_bytes_max = buffers_bytes;
  network.channel.peer_timeout_ms = 600'000; // some liars never say that they live
  config::provider_settings fast;
  fast.name = "fast";
  fast.options.edit<storage::memory_bucket_options>().capacity_bytes = 32 << 20;
  s.providers = {fast};
  s.nodes = {{s.node.name, s.node.listen, s.providers}};
  return s;
}

// Speaks the protocol by hand.
class raw_peer : public channel_handler, public std::enable_shared_from_this<raw_peer> {
public:
  void connect_to(const std::shared_ptr<io_loop>& loop, const std::string& address) {
    promise<void> connected;
    net::connect(
      loop, address, {.local_name = "liar"}, shared_from_this(),
      [this, connected](result<std::shared_ptr<channel>> c) {
        if (c)
          channel_ = *c;
        connected.set(c ? result<void>{} : fail(c.error()));
      });
    connected.get_future().get();
  }

  void on_open(const std::shared_ptr<channel>&) override {}
  void on_frame(channel&, frame f) override {
    std::lock_guard guard{mutex_};
    if (f.kind == frame_kind::reply)
      replies_[f.correlation].assign(f.body.begin(), f.body.end());
    changed_.notify_all();
  }
  void on_close(channel&, const status&) override {
    std::lock_guard guard{mutex_};
    closed_ = true;
    changed_.notify_all();
  }

  void send_raw(frame_kind kind, const byte_buffer& body) {
    static_cast<void>(channel_->send(kind, next_++, body));
  }

  template <class Request, class Reply = actors::store_service::reply_of<Request>>
  result<Reply> ask(const Request& request, const std::string& provider = "fast") {
    auto number = next_++;
    auto frame = actors::encode_request<actors::store_service>(provider, request);
    if (auto bad = channel_->send(frame_kind::request, number, frame); !bad.ok())
      return fail(bad);
    std::unique_lock guard{mutex_};
    changed_.wait_for(
      guard, std::chrono::seconds{30}, [&] { return closed_ || replies_.contains(number); });
    if (!replies_.contains(number))
      return fail(errc::peer_lost, "closed");
    return actors::decode_reply<Reply>(replies_[number]);
  }

  bool wait_closed() {
    std::unique_lock guard{mutex_};
    return changed_.wait_for(guard, std::chrono::seconds{30}, [this] { return closed_; });
  }

  void close() { channel_->close({}); }

private:
  std::shared_ptr<channel> channel_;
  std::atomic<std::uint64_t> next_ = 1;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, byte_buffer> replies_;
  bool closed_ = false;
};

struct fixture {
  scratch_directory dir;
  node n = node::embed(memory_node(dir));
  client honest = client::connect(n.address());
  std::shared_ptr<io_loop> loop = io_loop::start({}).value();
  std::shared_ptr<raw_peer> liar = connected();

  ~fixture() {
    liar->close();
    loop->stop();
  }

  std::shared_ptr<raw_peer> connected() {
    auto p = std::make_shared<raw_peer>();
    p->connect_to(loop, n.address());
    return p;
  }

  static store_request request_for(const bulk_handle& handle, std::uint64_t claimed_bytes) {
    store_request r;
    r.spec.name = "lie";
    r.spec.tensors.tensors = {{"m", dtype::u8, {claimed_bytes}}};
    r.source = handle;
    r.timeout_ms = 20'000;
    return r;
  }

  void expect_refused(const store_request& r, errc code) {
    auto outcome = liar->ask(r);
    BOOST_TEST_REQUIRE(!outcome.has_value());
    BOOST_TEST(to_string(outcome.error().code()) == to_string(code));
    expect_alive();
  }

  // The honest client stores and loads as ever, and nothing of the lie is visible.
  void expect_alive() {
    std::vector<std::byte> bytes = pattern(100'000, 1), back(100'000);
    auto repo = honest.repository();
    auto view = tensor_view::dense<std::byte>("a", dtype::u8, {100'000}, bytes);
    BOOST_TEST(repo.store("honest", {view}).result().has_value());
    auto target = tensor_view::dense<std::byte>("a", dtype::u8, {100'000}, back);
    BOOST_TEST(repo.load("honest", {{target, {}}}).result().has_value());
    BOOST_TEST((bytes == back));
    auto models = repo.list().get().found;
    BOOST_TEST(models.size() == 1u);
    auto status = honest.status().get().at(0).value();
    BOOST_TEST(status.providers.at(0).used_bytes < 1u << 20);
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(hostile_clients, fixture)

BOOST_AUTO_TEST_CASE(a_layout_larger_than_the_memory_offered_is_refused) {
  exposed_matrix m{{1, 100'000, 0}, access_mode::read, 1};
  expect_refused(request_for(m.handle(), 200'000), errc::invalid_argument);
}

BOOST_AUTO_TEST_CASE(sizes_that_lie_about_the_region_are_refused) {
  exposed_matrix m{{1, 100'000, 0}, access_mode::read, 1};
  auto handle = m.handle();
  handle.length_bytes = 200'000;
  expect_refused(request_for(handle, 200'000), errc::permission_denied);
  handle.length_bytes = ~0ull;
  expect_refused(request_for(handle, 200'000), errc::invalid_argument);
}

BOOST_AUTO_TEST_CASE(handles_of_other_processes_are_refused) {
  exposed_matrix m{{1, 100'000, 0}, access_mode::read, 1};
  auto handle = m.handle();
  handle.owner = random_id<peer_id>();
  expect_refused(request_for(handle, 100'000), errc::permission_denied);
}

BOOST_AUTO_TEST_CASE(withdrawn_and_forged_handles_are_refused) {
  exposed_matrix m{{1, 100'000, 0}, access_mode::read, 1};
  auto forged = m.handle();
  forged.key = random_id<region_key>();
  expect_refused(request_for(forged, 100'000), errc::permission_denied);
  m.withdraw();
  expect_refused(request_for(m.handle(), 100'000), errc::permission_denied);
}

BOOST_AUTO_TEST_CASE(sizes_that_overflow_are_refused) {
  exposed_matrix m{{1, 100'000, 0}, access_mode::read, 1};
  auto r = request_for(m.handle(), 1);
  r.spec.tensors.tensors = {{"m", dtype::f64, {1ull << 62, 16}}};
  expect_refused(r, errc::invalid_argument);
  r.spec.tensors.tensors = {{"m", dtype::u8, {1ull << 50}}};
  r.source.length_bytes = 1ull << 50;
  expect_refused(r, errc::no_space);
}

BOOST_AUTO_TEST_CASE(graphs_and_layers_that_do_not_fit_are_refused) {
  exposed_matrix m{{1, 100'000, 0}, access_mode::read, 1};
  auto r = request_for(m.handle(), 100'000);
  r.spec.graph = byte_buffer(100, std::byte{0xff});
  auto outcome = liar->ask(r);
  BOOST_TEST(!outcome.has_value());
  expect_alive();
  r = request_for(m.handle(), 100'000);
  r.spec.tensor_layers = {77};
  BOOST_TEST(!liar->ask(r).has_value());
  expect_alive();
}

// It would stay for all models that have the layer.
BOOST_AUTO_TEST_CASE(a_false_description_of_a_layer_is_refused) {
  model_graph graph;
  graph.add({"in", "Linear", {{"bias", "no"}}, {{"w", dtype::u8, {100}}}, {}});
  graph.add({"out", "Linear", {{"bias", "no"}}, {{"w", dtype::u8, {100}}}, {0}});
  auto honest_graph = hashed(graph).value();
  store_request r;
  r.spec.name = "lie";
  r.spec.graph = honest_graph->encoded;
  r.spec.tensors = graph.tensors();
  r.spec.tensor_layers = {0, 1};
  r.eager.assign(200, 7);
  for (std::size_t lied = 0; lied < 2; ++lied) {
    r.layers.clear();
    for (auto& [id, description] : honest_graph->descriptions)
      r.layers.push_back({id, description});
    auto lie = decode<layer_description>(r.layers[lied].description, "").value();
    lie.kind = "Trojan";
    r.layers[lied].description = encode(lie);
    expect_refused(r, errc::invalid_argument);
  }
  r.layers.clear();
  for (auto& [id, description] : honest_graph->descriptions)
    r.layers.push_back({id, description});
  BOOST_TEST(liar->ask(r).has_value());
}

BOOST_AUTO_TEST_CASE(loads_into_memory_that_may_not_be_written_touch_nothing) {
  std::vector<std::byte> bytes = pattern(100'000, 1);
  auto view = tensor_view::dense<std::byte>("a", dtype::u8, {100'000}, bytes);
  honest.repository().store("honest", {view}).get();
  exposed_matrix m{{1, 100'000, 0}, access_mode::read, 9};
  load_request r;
  r.model = "honest";
  r.selections = {{{"a", dtype::u8, {100'000}}, false, 0}};
  r.target = m.handle();
  r.timeout_ms = 20'000;
  auto outcome = liar->ask(r);
  BOOST_TEST_REQUIRE(!outcome.has_value());
  BOOST_TEST((outcome.error().code() == errc::permission_denied));
  BOOST_TEST((m.dense() == pattern(100'000, 9)));
  expect_alive();
}

BOOST_AUTO_TEST_CASE(requests_for_what_is_not_there_are_answered) {
  BOOST_TEST((liar->ask(actors::list_request{}, "elsewhere").error().code() == errc::unavailable));
  byte_buffer unknown;
  wire_writer{unknown}(actors::request_head{"fast", std::uint16_t{999}});
  liar->send_raw(frame_kind::request, unknown);
  BOOST_TEST(liar->ask(actors::list_request{}).has_value());
}

// Empty selections take a few bytes each in a frame, and much more in memory.
BOOST_AUTO_TEST_CASE(a_request_that_decodes_to_too_much_fails_alone) {
  load_request large;
  large.model = "m";
  large.selections.resize(1'000'000);
  auto refused = liar->ask<load_request, actors::load_reply>(large);
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::invalid_argument), refused.error().to_string());
  BOOST_TEST(liar->ask(actors::list_request{}).has_value());
}

// Asks for large answers on many connections and reads none of them.
int ask_without_reading(const std::string& address, int ready) {
  using net::testing::raw_client;
  auto hello = raw_client::own_hello();
  hello.frame_bytes_max = 16 << 20;
  auto body =
    actors::encode_request<actors::store_service>("fast", actors::describe_request{"wide"});
  std::vector<std::unique_ptr<raw_client>> all;
  for (int i = 0; i < 16; ++i) {
    all.push_back(std::make_unique<raw_client>(address));
    if (!all.back()->shake_hands(hello))
      return 1;
    for (std::uint64_t n = 0; n < 8; ++n)
      all.back()->write(frame_kind::request, body, n);
  }
  net::testing::say_ready(ready);
  return ::pause();
}

int ask_and_read(const std::string& address) {
  net::testing::raw_client c{address};
  auto hello = net::testing::raw_client::own_hello();
  hello.frame_bytes_max = 16 << 20;
  if (!c.shake_hands(hello))
    return 1;
  c.write(
    frame_kind::request,
    actors::encode_request<actors::store_service>("fast", actors::describe_request{"wide"}), 1);
  while (auto f = c.read())
    if (f->kind == frame_kind::reply)
      return actors::decode_reply<model_record>(f->body) ? 0 : 2;
  return 3;
}

// Processes that are forked before the fixture's node has threads.
struct other_processes {
  net::testing::child_process greedy{ask_without_reading};
  std::deque<net::testing::child_process> others;

  other_processes() {
    for (int i = 0; i < 5; ++i)
      others.emplace_back([](auto& address, int) { return ask_and_read(address); });
  }
};

struct fixture_with_others : other_processes, fixture {};

BOOST_FIXTURE_TEST_CASE(
  answers_that_are_not_read_leave_room_for_those_of_another_process, fixture_with_others) {
  constexpr std::uint64_t answer_bytes = 4'000'000; // eight of them fit in one share
  store_request r;
  r.spec.name = "wide";
  r.spec.tensors.tensors = {{"w", dtype::u8, {1}}};
  r.spec.metadata = {{"notes", std::string(answer_bytes, 'x')}};
  r.eager = {7};
  BOOST_TEST_REQUIRE(liar->ask(r).has_value());
  auto held = [&] { return honest.status().get().at(0).value().buffers_bytes; };
  greedy.begin(n.address());
  BOOST_TEST_REQUIRE(greedy.wait_ready());
  auto deadline = steady_clock::now() + std::chrono::seconds{30};
  while (held() < answer_bytes && steady_clock::now() < deadline)
    sleep_for(std::chrono::milliseconds{1});
  for (auto& other : others) {
    other.begin(n.address());
    BOOST_TEST(other.wait() == 0);
    BOOST_TEST(held() >= answer_bytes);
    BOOST_TEST(held() <= buffers_bytes / 2 + 1000);
  }
  greedy.signal(SIGKILL);
  while (held() > 0 && steady_clock::now() < deadline)
    sleep_for(std::chrono::milliseconds{1});
  BOOST_TEST(held() == 0u);
}

// Marks of such names would be invisible and take space without bound. One in place of the
// placement would keep the provider from starting.
BOOST_AUTO_TEST_CASE(what_a_provider_keeps_for_itself_is_out_of_reach) {
  scratch_directory kept;
  auto settings = memory_node(kept);
  settings.staging.size_bytes = 32 << 20;
  auto& pool = settings.providers[0];
  pool.bucket = "pmem";
  auto& options = pool.options.edit<storage::pmem_options>().pool;
  options.path = kept.path() + "/pool";
  options.capacity_bytes = 32 << 20;
  settings.nodes[0].providers = settings.providers;
  std::optional<node> served{node::embed(settings)};
  auto bytes = pattern(1000, 1);
  auto view = tensor_view::dense<std::byte>("a", dtype::u8, {1000}, bytes);
  served->client().repository().store("m", {view}).get();
  auto used_bytes = [&] {
    return served->client().status().get().at(0).value().providers.at(0).used_bytes;
  };
  auto before = used_bytes();
  auto peer = std::make_shared<raw_peer>();
  peer->connect_to(loop, served->address());
  for (std::string name : {"\x01placement", "\x01x"})
    for (auto mark : {true, false, true}) {
      auto erased = peer->ask(actors::erase_request{name, {}, mark});
      BOOST_TEST((!erased && erased.error().code() == errc::not_found));
    }
  BOOST_TEST(used_bytes() == before);
  peer->close();
  served.reset();
  served.emplace(node::embed(settings));
  BOOST_TEST(served->down().empty());
  BOOST_TEST(served->client().repository().describe("m").result().has_value());
}

BOOST_AUTO_TEST_CASE(garbage_in_a_frame_closes_that_connection_only) {
  std::mt19937_64 random{1};
  for (auto kind : {frame_kind::request, frame_kind::driver}) {
    auto peer = connected();
    byte_buffer junk(1000);
    for (auto& b : junk)
      b = static_cast<std::byte>(random());
    peer->send_raw(kind, junk);
    BOOST_TEST(peer->wait_closed());
  }
  expect_alive();
}

BOOST_AUTO_TEST_CASE(a_request_cut_at_any_byte_is_survived) {
  exposed_matrix m{{1, 100'000, 0}, access_mode::read, 1};
  auto whole =
    actors::encode_request<actors::store_service>("fast", request_for(m.handle(), 200'000));
  auto peer = connected();
  for (std::size_t n = 0; n < whole.size(); n += 7) {
    auto p = connected();
    p->send_raw(
      frame_kind::request, {whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n)});
    BOOST_TEST(p->wait_closed());
  }
  peer->close();
  expect_alive();
}

BOOST_AUTO_TEST_SUITE_END()

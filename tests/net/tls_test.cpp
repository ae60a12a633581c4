// Tests channels between hosts, among honest sides: secrets, certificates, names, addresses, links.
#include "tls_certificates.hpp"
#include "tls_support.hpp"

#include <millrace/net/channel/link.hpp>
#include <millrace/tests/support/skipped.hpp>

#include <sys/stat.h>

#include <algorithm>
#include <thread>

using namespace millrace;
using namespace millrace::net;
using namespace millrace::net::testing;
using namespace std::chrono_literals;

namespace {

channel_options with(std::shared_ptr<const tls::context> context, const std::string& name = {}) {
  channel_options o;
  o.tls = std::move(context);
  o.local_name = name;
  return o;
}

listener_options at(const std::string& address) {
  listener_options where;
  where.address = address;
  return where;
}

bool holds(const status& s, const std::string& part) {
  return s.detail().find(part) != std::string::npos;
}

status failure(
  service& s, const std::string& address, channel_options o,
  std::shared_ptr<recorder> handler = std::make_shared<recorder>()) {
  auto c = connect_to(s.loop, address, std::move(o), std::move(handler));
  BOOST_REQUIRE(!c);
  return c.error();
}

std::shared_ptr<resolver> knows(std::vector<std::string> numeric) {
  return resolver::make([numeric](const std::string&) -> result<std::vector<socket_address>> {
    std::vector<socket_address> out;
    for (auto& text : numeric)
      out.push_back(*socket_address::parse(text + ":0"));
    return out;
  });
}

bool has_ipv6() {
  unique_fd fd{::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  auto loopback = *socket_address::parse("[::1]:0");
  auto has = fd && ::bind(fd.get(), loopback.get(), loopback.size_bytes()) == 0;
  if (!has)
    millrace::testing::skipped("IPv6: this machine has no loopback address of it");
  return has;
}

service over(const std::string& address) { return service{{}, at(address)}; }

std::string port_of(const std::string& address) { return address.substr(address.rfind(':') + 1); }

/// A TCP listener that does what the test says with each connection.
class plain_server {
public:
  explicit plain_server(std::string greeting) : greeting_(std::move(greeting)) {
    auto any = *socket_address::parse("127.0.0.1:0");
    listening_ = unique_fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    BOOST_REQUIRE(::bind(listening_.get(), any.get(), any.size_bytes()) == 0);
    BOOST_REQUIRE(::listen(listening_.get(), 16) == 0);
    sockaddr_storage found{};
    socklen_t size = sizeof(found);
    ::getsockname(listening_.get(), reinterpret_cast<sockaddr*>(&found), &size);
    address =
      "tls://" + socket_address::from(reinterpret_cast<sockaddr*>(&found), size)->to_string();
    thread_ = std::thread{[this] { run(); }};
  }
  ~plain_server() {
    stop_ = true;
    ::shutdown(listening_.get(), SHUT_RDWR);
    thread_.join();
  }
  std::string address;

private:
  void run() {
    std::vector<unique_fd> kept;
    while (!stop_) {
      unique_fd fd{::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC)};
      if (fd && !greeting_.empty())
        write_all(fd.get(), bytes_in(greeting_));
      if (fd)
        kept.push_back(std::move(fd));
    }
  }
  std::string greeting_;
  std::atomic<bool> stop_ = false;
  unique_fd listening_;
  std::thread thread_;
};

} // namespace

BOOST_AUTO_TEST_SUITE(secrets)

BOOST_AUTO_TEST_CASE(without_anything_that_proves_membership_networks_are_refused_with_the_remedy) {
  service s;
  for (auto address : {"tls://127.0.0.1:7710", "tls://[::1]:7710"}) {
    promise<std::shared_ptr<channel>> p;
    connect(s.loop, address, {}, std::make_shared<recorder>(), [p](auto o) { p.set(o); });
    auto c = p.get_future().result();
    BOOST_REQUIRE(!c);
    BOOST_TEST((c.error().code() == errc::invalid_argument));
    BOOST_TEST(holds(c.error(), "security.secret"));
    auto l = listener::open(s.loop, at(address), {}, refuse_all);
    BOOST_REQUIRE(!l);
    BOOST_TEST((l.error().code() == errc::invalid_argument));
    BOOST_TEST(holds(l.error(), "millrace cluster secret"));
  }
  auto none = tls::context::open({});
  BOOST_REQUIRE(!none);
  BOOST_TEST((none.error().code() == errc::invalid_argument));
}

BOOST_AUTO_TEST_CASE(another_secret_is_refused_and_both_sides_say_so) {
  kept_log lines;
  service s{{}, at("tls://127.0.0.1:0")};
  auto why = failure(s, s.address(), with(make_tls()));
  BOOST_TEST((why.code() == errc::permission_denied));
  BOOST_TEST(holds(why, s.address()));
  BOOST_TEST(holds(why, "has a different secret than the one in"));
  BOOST_TEST(holds(why, "copy of the same file"));
  settle(s.loop);
  BOOST_TEST(
    lines.count("from=127.0.0.1 why=\"permission_denied: the other side has a different secret") ==
    1u);
  BOOST_TEST(s.handler->channels.empty());
}

BOOST_AUTO_TEST_CASE(what_listens_but_speaks_something_else_is_said) {
  service s;
  plain_server http{"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"};
  auto why = failure(s, http.address, {});
  BOOST_TEST((why.code() == errc::protocol_error));
  BOOST_TEST(holds(why, "does not speak TLS 1.3"));
  BOOST_TEST(holds(why, http.address));
}

BOOST_AUTO_TEST_CASE(what_accepts_and_says_nothing_costs_the_timeout_only) {
  service s;
  plain_server mute{""};
  channel_options o;
  o.handshake_timeout_ms = 100;
  auto why = failure(s, mute.address, o);
  BOOST_TEST((why.code() == errc::deadline_exceeded));
  BOOST_TEST(holds(why, "waiting for the TLS handshake"));
}

BOOST_AUTO_TEST_CASE(descriptors_do_not_travel_and_the_channel_lives_on) {
  service s{{}, at("tls://127.0.0.1:0")};
  auto c = s.connect(std::make_shared<recorder>());
  auto refused = c->send(frame_kind::driver, 1, bytes_of(10), std::array{0});
  BOOST_TEST((refused.code() == errc::unsupported));
  BOOST_TEST(c->send(frame_kind::driver, 2, bytes_of(10)).ok());
  BOOST_REQUIRE(s.handler->wait_frames(1));
  BOOST_TEST(s.handler->frames[0].correlation == 2u);
}

BOOST_AUTO_TEST_CASE(keys_can_be_renewed_by_the_peer_while_frames_flow) {
  service s{{}, at("tls://127.0.0.1:0")};
  s.handler->react = [](channel& c, const frame& f) {
    BOOST_TEST(c.send(frame_kind::driver, f.correlation, f.body).ok());
  };
  raw_member m{s.address()};
  BOOST_REQUIRE(m.shake_tls());
  BOOST_REQUIRE(m.shake_hands());
  for (std::uint64_t i = 0; i < 100; ++i) {
    BOOST_REQUIRE(SSL_key_update(m.ssl(), SSL_KEY_UPDATE_REQUESTED) == 1);
    auto body = bytes_of(i * 997, static_cast<std::uint8_t>(i));
    BOOST_REQUIRE(m.write(frame_kind::driver, body, i));
    auto back = m.read();
    BOOST_REQUIRE(back);
    BOOST_TEST(back->correlation == i);
    BOOST_TEST((back->body == body));
  }
}

BOOST_AUTO_TEST_CASE(both_directions_at_once_from_several_threads_arrive_whole) {
  service s{{}, at("tls://127.0.0.1:0")};
  auto client_loop = make_loop();
  auto client = std::make_shared<recorder>();
  auto c = *connect_to(client_loop, s.address(), {}, client);
  BOOST_REQUIRE(s.handler->wait([&] { return s.handler->channels.size() == 1; }));
  constexpr std::uint64_t each = 150;
  auto body = bytes_of(50000);
  auto send_many = [&](channel& from, std::uint64_t thread) {
    for (std::uint64_t i = 0; i < each; ++i)
      while (!from.send(frame_kind::driver, thread << 32 | i, body).ok())
        std::this_thread::sleep_for(1ms);
  };
  std::vector<std::thread> senders;
  for (std::uint64_t t = 0; t < 2; ++t) {
    senders.emplace_back([&, t] { send_many(*c, t); });
    senders.emplace_back([&, t] { send_many(*s.handler->channels[0], t); });
  }
  for (auto& t : senders)
    t.join();
  for (auto* side : {client.get(), s.handler.get()}) {
    BOOST_REQUIRE(side->wait_frames(2 * each));
    std::array<std::uint64_t, 2> next{};
    for (auto& f : side->frames) {
      BOOST_REQUIRE((f.correlation & 0xffffffff) == next[f.correlation >> 32]++);
      BOOST_REQUIRE((f.body == body));
    }
  }
  client_loop->stop();
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(certificates)

BOOST_AUTO_TEST_CASE(members_of_one_authority_connect_under_the_names_in_their_certificates) {
  authority a{"ours"};
  service s{with(a.context("other", "n0"), "n0"), at("tls://127.0.0.1:0")};
  auto node =
    connect_to(s.loop, s.address(), with(a.context("n1"), "n1"), std::make_shared<recorder>());
  BOOST_REQUIRE_MESSAGE(node, (node ? "" : node.error().to_string()));
  BOOST_TEST((*node)->peer().name == "n0");
  BOOST_TEST(
    ((*node)->derive_key("x") ==
     (s.handler->wait([&] { return s.handler->channels.size() == 1; }),
      s.handler->channels[0]->derive_key("x"))));
  auto client =
    connect_to(s.loop, s.address(), with(a.context("any client")), std::make_shared<recorder>());
  BOOST_TEST(client.has_value());
}

BOOST_AUTO_TEST_CASE(a_node_under_another_name_than_its_certificates_is_refused) {
  authority a{"ours"};
  service s{with(a.context("n0"), "n0"), at("tls://127.0.0.1:0")};
  auto liar = failure(s, s.address(), with(a.context("n1", "n1"), "n2"));
  BOOST_TEST((liar.code() == errc::permission_denied));
  BOOST_TEST(holds(liar, "node n2 has a name that is not in its certificate"));
  BOOST_TEST(
    (failure(s, s.address(), with(a.context("n1.x"), ".x")).code() == errc::permission_denied));
  service lying{with(a.context("n5"), "n0"), at("tls://127.0.0.1:0")};
  auto why = failure(s, lying.address(), with(a.context("n1"), "n1"));
  BOOST_TEST((why.code() == errc::permission_denied));
  BOOST_TEST(holds(why, "node n0 has a name"));
  BOOST_TEST(s.handler->channels.empty());
}

BOOST_AUTO_TEST_CASE(another_authority_is_refused_whichever_side_has_it) {
  authority a{"ours"}, b{"theirs"};
  service s{with(a.context("n0"), "n0"), at("tls://127.0.0.1:0")};
  auto why = failure(s, s.address(), with(b.context("n1"), "n1"));
  BOOST_TEST((why.code() == errc::permission_denied));
  BOOST_TEST(holds(why, "is not valid under the authority in"));
  // The client trusts ours, yet shows a certificate of theirs.
  auto mixed = b.issue("n1");
  mixed.authority = a.issue("unused").authority;
  auto shown = failure(s, s.address(), with(*tls::context::open(mixed), "n1"));
  BOOST_TEST((shown.code() == errc::permission_denied));
  BOOST_TEST(holds(shown, "does not accept the certificate in " + mixed.certificate));
  BOOST_TEST(s.handler->channels.empty());
}

BOOST_AUTO_TEST_CASE(secret_and_certificates_do_not_mix_and_the_error_says_so) {
  authority a{"ours"};
  service by_certificate{with(a.context("n0"), "n0"), at("tls://127.0.0.1:0")};
  service by_secret{{}, at("tls://127.0.0.1:0")};
  auto one = failure(by_certificate, by_certificate.address(), {});
  auto other = failure(by_secret, by_secret.address(), with(a.context("n1"), "n1"));
  for (auto& why : {one, other}) {
    BOOST_TEST((why.code() == errc::permission_denied));
    BOOST_TEST(holds(why, "configure `security` alike"));
  }
}

BOOST_AUTO_TEST_CASE(files_that_are_missing_open_to_others_or_do_not_fit_are_named) {
  authority a{"ours"};
  auto good = a.issue("n0");
  auto code = [](const tls::context_options& o, const std::string& part) {
    auto made = tls::context::open(o);
    BOOST_REQUIRE(!made);
    BOOST_TEST(holds(made.error(), part), made.error().to_string());
    return made.error().code();
  };
  auto half = good;
  half.authority.clear();
  BOOST_TEST((code(half, "security.authority") == errc::invalid_argument));
  auto missing = good;
  missing.certificate += ".none";
  BOOST_TEST((code(missing, missing.certificate) == errc::corrupt_data));
  auto other_key = good;
  other_key.key = a.issue("n1").key;
  BOOST_TEST((code(other_key, other_key.key) == errc::invalid_argument));
  auto no_key = good;
  no_key.key = good.certificate;
  BOOST_REQUIRE(::chmod(good.certificate.c_str(), 0600) == 0);
  BOOST_TEST((code(no_key, no_key.key) == errc::corrupt_data));
  BOOST_REQUIRE(::chmod(good.key.c_str(), 0640) == 0);
  BOOST_TEST((code(good, good.key) == errc::permission_denied));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(addresses)

BOOST_AUTO_TEST_CASE(what_is_no_address_is_refused_with_the_reason) {
  service s;
  for (auto address :
       {"tls://", "tls://host", "tls://host:", "tls://:1", "tls://host:70000", "tls://host:x",
        "tls://::1:7", "tls://[]:7", "tls://a b:7", "tls://u@h:7", "tls://h/p:7",
        "tls://127.0.0.1:0"}) {
    auto why = failure(s, address, {});
    BOOST_TEST((why.code() == errc::invalid_argument), address);
    BOOST_TEST(holds(why, address));
  }
  BOOST_TEST((failure(s, "http://host:1", {}).code() == errc::invalid_argument));
}

BOOST_AUTO_TEST_CASE(ipv6_is_listened_on_and_connected_to) {
  if (!has_ipv6())
    return;
  auto s = over("tls://[::1]:0");
  auto c = s.connect(std::make_shared<recorder>());
  BOOST_TEST("tls://" + c->peer().address->to_string() == s.address());
  BOOST_TEST(c->peer().address->host() == "::1");
}

BOOST_AUTO_TEST_CASE(any_address_takes_both_families_and_ipv4_is_seen_as_such) {
  if (!has_ipv6())
    return;
  auto s = over("tls://[::]:0");
  auto port = port_of(s.address());
  for (auto* host : {"127.0.0.1", "[::1]"}) {
    auto address = "tls://" + std::string{host} + ":" + port;
    auto c = connect_to(s.loop, address, {}, std::make_shared<recorder>());
    BOOST_REQUIRE_MESSAGE(c, (c ? "" : c.error().to_string()));
  }
  BOOST_REQUIRE(s.handler->wait([&] { return s.handler->channels.size() == 2; }));
  BOOST_TEST(s.handler->channels[0]->peer().address->host() == "127.0.0.1");
  BOOST_TEST(s.handler->channels[1]->peer().address->host() == "::1");
}

BOOST_AUTO_TEST_CASE(all_addresses_of_a_name_are_listened_on_with_one_port) {
  auto s = over("tls://localhost:0");
  BOOST_TEST(s.address().starts_with("tls://localhost:"));
  auto port = static_cast<std::uint16_t>(std::stoi(port_of(s.address())));
  auto found = look_up("localhost");
  BOOST_REQUIRE(found);
  for (auto& a : *found) {
    auto address = "tls://" + a.with_port(port).to_string();
    BOOST_TEST(connect_to(s.loop, address, {}, std::make_shared<recorder>()).has_value(), address);
  }
  BOOST_TEST(connect_to(s.loop, s.address(), {}, std::make_shared<recorder>()).has_value());
}

BOOST_AUTO_TEST_CASE(a_port_in_use_and_an_address_of_another_machine_are_said) {
  auto s = over("tls://127.0.0.1:0");
  auto code = [&](const std::string& address) {
    channel_options o;
    o.tls = shared_tls();
    auto l = listener::open(s.loop, at(address), o, refuse_all);
    BOOST_REQUIRE(!l);
    BOOST_TEST(holds(l.error(), address));
    return l.error().code();
  };
  BOOST_TEST((code(s.address()) == errc::already_exists));
  BOOST_TEST((code("tls://192.0.2.1:7710") == errc::unavailable));
  BOOST_TEST((code("tls://no-such-name.invalid:7710") == errc::unavailable));
  BOOST_TEST((code("tls://host") == errc::invalid_argument));
}

BOOST_AUTO_TEST_CASE(a_stopped_listener_gives_its_port_back_and_channels_live_on) {
  auto s = over("tls://127.0.0.1:0");
  auto client = std::make_shared<recorder>();
  auto c = s.connect(client);
  raw_member waiting{s.address()};
  s.listening = nullptr;
  BOOST_TEST(!waiting.shake_tls());
  settle(s.loop);
  BOOST_TEST((failure(s, s.address(), {}).code() == errc::unavailable));
  service next{{}, at(s.address())};
  BOOST_TEST(next.address() == s.address());
  BOOST_TEST(c->send(frame_kind::driver, 1, {}).ok());
  BOOST_TEST(s.handler->wait_frames(1));
}

BOOST_AUTO_TEST_CASE(nobody_listening_is_said_with_every_address_tried) {
  service s;
  auto gone = over("tls://127.0.0.1:0").address();
  channel_options o;
  o.names = knows({"127.0.0.1", "127.0.0.2"});
  auto why = failure(s, "tls://node:" + port_of(gone), o);
  BOOST_TEST((why.code() == errc::unavailable));
  BOOST_TEST(holds(why, "127.0.0.1:" + port_of(gone)));
  BOOST_TEST(holds(why, "127.0.0.2:" + port_of(gone)));
  BOOST_TEST(holds(why, "is the service running"));
}

BOOST_AUTO_TEST_CASE(addresses_that_refuse_or_do_not_answer_give_way_to_the_next) {
  auto s = over("tls://127.0.0.1:0");
  channel_options o;
  // The first two refuse; the third belongs to no network and never answers, or cannot be reached.
  o.names = knows({"127.0.0.5", "127.0.0.6", "192.0.2.1", "127.0.0.1"});
  o.stagger_ms = 20;
  auto c =
    connect_to(s.loop, "tls://node:" + port_of(s.address()), o, std::make_shared<recorder>());
  BOOST_REQUIRE_MESSAGE(c, (c ? "" : c.error().to_string()));
  BOOST_TEST((*c)->peer().address->host() == "127.0.0.1");
}

BOOST_AUTO_TEST_CASE(a_name_server_that_hangs_holds_up_nobody_else) {
  auto s = over("tls://127.0.0.1:0");
  struct gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false, passed = false;
  };
  auto g = std::make_shared<gate>();
  channel_options o;
  o.handshake_timeout_ms = 200;
  o.names = resolver::make([g](const std::string&) -> result<std::vector<socket_address>> {
    std::unique_lock lock{g->mutex};
    g->changed.wait(lock, [&] { return g->open; });
    g->passed = true;
    g->changed.notify_all();
    return fail(errc::unavailable, "late");
  });
  o.tls = shared_tls();
  promise<std::shared_ptr<channel>> slow;
  connect(s.loop, "tls://slow:1", o, std::make_shared<recorder>(), [slow](auto c) { slow.set(c); });
  BOOST_TEST(s.connect(std::make_shared<recorder>())->is_open());
  auto late = slow.get_future().result();
  BOOST_REQUIRE(!late);
  BOOST_TEST((late.error().code() == errc::deadline_exceeded));
  BOOST_TEST(holds(late.error(), "name"));
  std::unique_lock lock{g->mutex};
  g->open = true;
  g->changed.notify_all();
  BOOST_TEST(g->changed.wait_for(lock, generous, [&] { return g->passed; }));
}

BOOST_AUTO_TEST_CASE(a_full_service_tells_members_that_it_is_busy) {
  auto where = at("tls://127.0.0.1:0");
  where.connections_max = 1;
  service s{{}, where};
  auto client = std::make_shared<recorder>();
  auto first = s.connect(client);
  auto why = failure(s, s.address(), {});
  BOOST_TEST((why.code() == errc::busy));
  first->close({});
  BOOST_REQUIRE(s.handler->wait_closings(1));
  settle(s.loop);
  BOOST_TEST(s.connect(client)->is_open());
}

BOOST_AUTO_TEST_CASE(listeners_that_share_a_count_share_the_bound) {
  auto where = at("tls://127.0.0.1:0");
  where.connections_max = 1;
  where.connections = shares_of(where);
  service s{{}, where};
  where.address = "unix:" + s.dir.path + "/n0.sock";
  auto listening =
    listener::open(s.loop, where, s.options, [&s](const peer_info&) { return s.handler; });
  BOOST_REQUIRE(listening);
  auto client = std::make_shared<recorder>();
  auto first = s.connect(client);
  auto refused = connect_to(s.loop, where.address, {}, client);
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::busy));
  first->close({});
  BOOST_REQUIRE(s.handler->wait_closings(1));
  settle(s.loop);
  BOOST_TEST(connect_to(s.loop, where.address, {}, client).has_value());
  BOOST_TEST((failure(s, s.address(), {}).code() == errc::busy));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(links_with_several_addresses)

struct linked {
  explicit linked(
    std::vector<std::string> addresses, std::uint32_t timeout_ms = 5000,
    std::uint32_t backoff_ms = 5) {
    link_options o;
    o.addresses = std::move(addresses);
    o.channel.tls = shared_tls();
    o.connect_timeout_ms = timeout_ms;
    o.backoff_min_ms = backoff_ms;
    o.backoff_max_ms = std::max(o.backoff_max_ms, backoff_ms);
    l = net::link::make(loop, o, [this] { return handler; });
  }
  ~linked() {
    l = nullptr;
    loop->stop();
  }
  result<std::shared_ptr<channel>> acquire() {
    promise<std::shared_ptr<channel>> p;
    l->acquire([p](auto outcome) { p.set(outcome); });
    return p.get_future().result();
  }
  std::shared_ptr<io_loop> loop = make_loop();
  std::shared_ptr<recorder> handler = std::make_shared<recorder>();
  std::shared_ptr<net::link> l;
};

BOOST_AUTO_TEST_CASE(the_first_address_that_answers_is_used) {
  service local{{}, at("")};
  auto remote = over("tls://127.0.0.1:0");
  linked both{{local.address(), remote.address()}};
  auto near = both.acquire();
  BOOST_REQUIRE(near);
  BOOST_TEST(!(*near)->peer().address.has_value());
  linked absent{{"unix:" + local.dir.path + "/none.sock", remote.address()}};
  auto far = absent.acquire();
  BOOST_REQUIRE(far);
  BOOST_TEST((*far)->peer().address.has_value());
  BOOST_TEST(absent.l->address() == "unix:" + local.dir.path + "/none.sock");
}

BOOST_AUTO_TEST_CASE(an_address_that_hangs_leaves_time_for_the_next) {
  plain_server mute{""};
  auto remote = over("tls://127.0.0.1:0");
  linked k{{mute.address, remote.address()}, 1000};
  auto c = k.acquire();
  BOOST_REQUIRE_MESSAGE(c, (c ? "" : c.error().to_string()));
  BOOST_TEST("tls://" + (*c)->peer().address->to_string() == remote.address());
}

BOOST_AUTO_TEST_CASE(when_none_answers_every_cause_is_named_and_the_telling_one_counts) {
  temp_dir dir;
  service s{with(make_tls()), at("tls://127.0.0.1:0")};
  auto socket = "unix:" + dir.path + "/none.sock";
  // No second attempt while the test looks.
  linked k{{socket, s.address()}, 5000, 60'000};
  auto c = k.acquire();
  BOOST_REQUIRE(!c);
  BOOST_TEST((c.error().code() == errc::permission_denied));
  BOOST_TEST(holds(c.error(), socket));
  BOOST_TEST(holds(c.error(), s.address()));
  BOOST_TEST(k.l->state().failed == 1u);
}

BOOST_AUTO_TEST_CASE(a_lost_channel_comes_back_by_another_way) {
  auto local = std::make_unique<service>(channel_options{}, at(""));
  auto remote = over("tls://127.0.0.1:0");
  linked k{{local->address(), remote.address()}};
  BOOST_REQUIRE(k.acquire());
  BOOST_REQUIRE(local->handler->wait([&] { return local->handler->channels.size() == 1; }));
  local->handler->channels[0]->close(status{errc::unavailable, "going"});
  local->listening = nullptr;
  BOOST_REQUIRE(remote.handler->wait([&] { return remote.handler->channels.size() == 1; }));
}

BOOST_AUTO_TEST_SUITE_END()

// Keys of the configuration arrive as options of the drivers, and say the same where nothing is said.
#include <millrace/config/load.hpp>
#include <millrace/runtime/transport_options.hpp>

#include <boost/test/unit_test.hpp>

using namespace millrace;

namespace {

config::settings parsed(const std::string& text) {
  auto s = config::parse(text, "t.yaml");
  BOOST_TEST_REQUIRE(s.has_value(), (s ? "" : s.error().to_string()));
  return *s;
}

transport::tcp_options tcp_of(const std::string& text) {
  return runtime::tcp_options_of(parsed(text).tcp);
}
transport::verbs_options verbs_of(const std::string& text) {
  return runtime::verbs_options_of(parsed(text).verbs);
}

} // namespace

#define SAME(a, b, field) BOOST_TEST(((a).field == (b).field), #field)

BOOST_AUTO_TEST_SUITE(transport_options)

BOOST_AUTO_TEST_CASE(defaults_of_the_configuration_are_those_of_shm) {
  auto a = runtime::shm_options_of(parsed("").shm);
  transport::shm_options b;
  BOOST_TEST(transport::check(a).ok());
  SAME(a, b, transfers_max);
  SAME(a, b, backlog_bytes_max);
  SAME(a, b, mapped_max);
  SAME(a, b, batch_delay_ms);
  SAME(a, b, answer_timeout_ms);
}

BOOST_AUTO_TEST_CASE(defaults_of_the_configuration_are_those_of_tcp) {
  auto a = tcp_of("");
  transport::tcp_options b;
  BOOST_TEST(transport::check(a).ok());
  SAME(a, b, listen);
  SAME(a, b, streams);
  SAME(a, b, io_threads);
  SAME(a, b, chunk_bytes);
  SAME(a, b, small_bytes_max);
  SAME(a, b, requests_max);
  SAME(a, b, inflight_bytes_max);
  SAME(a, b, transfers_max);
  SAME(a, b, connect_timeout_ms);
  SAME(a, b, admission_timeout_ms);
  SAME(a, b, stall_timeout_ms);
  SAME(a, b, backoff_min_ms);
  SAME(a, b, backoff_max_ms);
  SAME(a, b, attempts_max);
  SAME(a, b, keepalive_s);
  SAME(a, b, send_buffer_bytes);
  SAME(a, b, receive_buffer_bytes);
  SAME(a, b, admissions_max);
  SAME(a, b, admissions_per_source_max);
  SAME(a, b, checksum);
  SAME(a, b, encrypt);
}

BOOST_AUTO_TEST_CASE(defaults_of_the_configuration_are_those_of_verbs) {
  auto a = verbs_of("");
  transport::verbs_options b;
  BOOST_TEST(transport::check(a).ok());
  SAME(a, b, devices);
  SAME(a, b, gid_index);
  SAME(a, b, mtu);
  SAME(a, b, connect);
  SAME(a, b, setup_threads);
  SAME(a, b, queue_depth);
  SAME(a, b, sge_max);
  SAME(a, b, inline_bytes_max);
  SAME(a, b, message_bytes_max);
  SAME(a, b, inflight_bytes_max);
  SAME(a, b, port_inflight_bytes_max);
  SAME(a, b, signal_interval);
  SAME(a, b, stripe_bytes_min);
  SAME(a, b, poll_us);
  SAME(a, b, sleep_ms);
  SAME(a, b, bind_thread);
  SAME(a, b, connect_timeout_ms);
  SAME(a, b, ack_timeout_ms);
  SAME(a, b, ack_retries);
  SAME(a, b, op_timeout_ms);
  SAME(a, b, op_retries);
  SAME(a, b, probe_interval_ms);
  SAME(a, b, register_retry_ms);
  SAME(a, b, cache_entries_max);
  SAME(a, b, cache_bytes_max);
  SAME(a, b, windows_checked);
  SAME(a, b, watch_unmaps);
  SAME(a, b, grants_max);
  SAME(a, b, windows_max);
  SAME(a, b, backlog_bytes_max);
}

BOOST_AUTO_TEST_CASE(what_is_written_arrives) {
  auto tcp =
    tcp_of("tcp: {listen: ['[::1]:0'], streams: 9, chunk: 2MiB, keepalive: 1500ms, encrypt: true}");
  BOOST_TEST((tcp.listen == std::vector<std::string>{"[::1]:0"}));
  BOOST_TEST((tcp.streams == 9u && tcp.chunk_bytes == 2u << 20 && tcp.encrypt));
  BOOST_TEST(tcp.keepalive_s == 2u);
  BOOST_TEST(tcp_of("tcp: {keepalive: 0}").keepalive_s == 0u);
  BOOST_TEST(transport::check(tcp).ok());
  auto shm = runtime::fabric_options_of(parsed("shm: {backlog_max: 1MiB, mapped_max: 7}")).shm;
  BOOST_TEST((shm.backlog_bytes_max == 1u << 20 && shm.mapped_max == 7u));
  auto verbs =
    verbs_of("verbs: {devices: ['mlx5_0:1'], gid_index: 0, inline_max: 64, watch_unmaps: false}");
  BOOST_TEST((verbs.devices == std::vector<std::string>{"mlx5_0:1"}));
  BOOST_TEST((verbs.gid_index == 0u && verbs.inline_bytes_max == 64u && !verbs.watch_unmaps));
  BOOST_TEST((verbs_of("verbs: {connect: rdma_cm}").connect == transport::verbs_connect::rdma_cm));
  BOOST_TEST((verbs_of("verbs: {windows_checked: true}").windows_checked == true));
  BOOST_TEST((verbs_of("verbs: {windows_checked: false}").windows_checked == false));
  BOOST_TEST(!verbs_of("verbs: {windows_checked: auto}").windows_checked.has_value());
}

BOOST_AUTO_TEST_CASE(drivers_that_are_written_are_asked_for) {
  using runtime::fabric_options_of;
  BOOST_TEST(!fabric_options_of(parsed("")).prefer_is_explicit);
  auto o = fabric_options_of(parsed("transport: {prefer: [verbs, shm], retry_after: 3s}"));
  BOOST_TEST(o.prefer_is_explicit);
  BOOST_TEST((o.prefer == std::vector<std::string>{"verbs", "shm"}));
  BOOST_TEST(o.retry_after_ms == 3000u);
}

BOOST_AUTO_TEST_SUITE_END()

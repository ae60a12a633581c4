// What holds when nothing is said, and that every key reaches its member.
#include "expect.hpp"

#include <millrace/config/schema.hpp>

#include <unistd.h>

#include <cstdlib>

using namespace millrace;
using namespace millrace::config;

namespace {

using list = std::vector<std::string>;

// A document that gives one key.
std::string document_with(const key_spec& key, std::string_view text) {
  auto entry = std::string{key.name} + ": " + std::string{text};
  bool has_name = key.name == "name";
  if (key.section == "providers[]") {
    auto bucket = key.only_for.empty() || key.name == "bucket"
      ? std::string{}
      : ", bucket: " + std::string{key.only_for.front()};
    auto path = key.only_for.empty() || key.name == "path" ? "" : ", path: /p";
    return "providers: [{" + std::string{has_name ? "" : "name: p, "} + entry + bucket + path +
      "}]\n";
  }
  if (key.section == "cluster.nodes[]")
    return "cluster: {nodes: [{" + std::string{has_name ? "" : "name: n, "} + entry +
      ", providers: [{name: p}]}]}\n";
  if (key.section == "cluster")
    return "cluster: {nodes: [{name: n, providers: [{name: p}]}], " + entry + "}\n";
  // A certificate alone makes no sense.
  if (key.section == "security" && key.name != "secret") {
    std::string all = "security: {";
    for (auto* name : {"certificate", "key", "authority"})
      all += std::string{name} + ": " + (key.name == name ? std::string{text} : "/p") + ", ";
    return all + "}\n";
  }
  return std::string{key.section} + ": {" + entry + "}\n";
}

// The same document without the key.
std::string document_without(const key_spec& key) {
  if (key.section == "cluster")
    return "cluster: {nodes: [{name: n, providers: [{name: p}]}]}\n";
  if (key.section != "providers[]")
    return "";
  return key.only_for.empty()
    ? "providers: [{name: p}]\n"
    : "providers: [{name: p, bucket: " + std::string{key.only_for.front()} + ", path: /p}]\n";
}

// A value that is not the default.
std::string other_value(const key_spec& key) {
  switch (key.type) {
  case key_type::name:
    return "other.name-1";
  case key_type::path:
    return "/other";
  case key_type::addresses:
    return "unix:/other.sock";
  case key_type::host:
    return "other.example";
  case key_type::mode:
    return "0640";
  case key_type::boolean:
  case key_type::boolean_or_auto:
    return key.default_text == "true" ? "false" : "true";
  case key_type::count:
    return std::to_string(std::to_string(key.max) == key.default_text ? key.min : key.max);
  case key_type::size:
    return std::to_string(key.min + 1);
  case key_type::duration_ms:
    return key.name.ends_with("backoff_min") ? "1234ms" : "4321ms";
  case key_type::duration_us:
    return "4321us";
  case key_type::choice:
  case key_type::choices: {
    bool first = key.choices.front() == key.default_text;
    auto word = std::string{key.choices[first ? 1 : 0]};
    if (key.name == "bucket")
      word += ", path: /p";
    return key.type == key_type::choice ? word : "[" + word + "]";
  }
  case key_type::users:
    return "[1000, someone]";
  case key_type::endpoints:
    return "['10.1.0.2:0', '[::1]:7711']";
  case key_type::devices:
    return "[rxe0, 'mlx5_0:1']";
  case key_type::count_or_auto:
    return "3";
  }
  return {};
}

} // namespace

BOOST_AUTO_TEST_SUITE(config_defaults)

BOOST_AUTO_TEST_CASE(an_empty_file_is_one_node_with_one_memory_provider) {
  for (auto* text : {"", "\n# nothing\n", "---\n", "{}", "node:\nstaging:\n"}) {
    auto s = good(text);
    BOOST_TEST(s.node.name == "n0");
    BOOST_TEST((s.node.listen == list{default_listen("n0")}));
    BOOST_TEST(s.node.socket_mode == 0600u);
    BOOST_TEST(s.node.allow_users.empty());
    BOOST_TEST(s.node.log_level == "info");
    BOOST_TEST_REQUIRE(s.providers.size() == 1u);
    provider_settings fast;
    fast.name = "fast";
    BOOST_TEST((s.providers[0] == fast));
    BOOST_TEST((s.nodes == std::vector<cluster_node>{{"n0", s.node.listen, {fast}, {}, true}}));
  }
}

BOOST_AUTO_TEST_CASE(the_defaults_are_these) {
  auto s = good("providers: [{name: kept, bucket: rocksdb, path: /p}]");
  BOOST_TEST(s.staging.size_bytes == 256u << 20);
  BOOST_TEST((s.staging.mode == staging_mode::pinned));
  BOOST_TEST((s.staging.huge_pages == wish::automatic && s.staging.lock == wish::automatic));
  BOOST_TEST((s.transport.prefer == list{"local", "shm", "verbs", "tcp", "staged"}));
  BOOST_TEST(s.transport.movers == 0u);
  BOOST_TEST(s.transport.chunk_bytes == 1u << 20);
  BOOST_TEST(s.transport.eager_max_bytes == 4096u);
  BOOST_TEST(s.channel.frame_max_bytes == 16u << 20);
  BOOST_TEST(s.channel.send_queue_max_bytes == 64u << 20);
  BOOST_TEST(s.channel.heartbeat_ms == 2000u);
  BOOST_TEST(s.channel.peer_timeout_ms == 10'000u);
  BOOST_TEST(s.channel.handshake_timeout_ms == 5000u);
  BOOST_TEST(s.channel.requests_max == 256u);
  BOOST_TEST(s.channel.poll_us == 50u);
  BOOST_TEST(s.channel.handshakes_max == 256u);
  BOOST_TEST(s.channel.handshakes_per_source_max == 64u);
  BOOST_TEST(s.channel.stagger_ms == 250u);
  BOOST_TEST(s.channel.lookups_max == 256u);
  BOOST_TEST(s.channel.lookup_threads_max == 4u);
  BOOST_TEST(s.channel.lookup_addresses_max == 16u);
  BOOST_TEST(s.transport.retry_after_ms == 10'000u);
  BOOST_TEST(s.cluster.port == 7710u);
  BOOST_TEST((s.cluster.hosts == host_source::automatic));
  BOOST_TEST(!s.security.configured());
  BOOST_TEST(s.channel.connections_max == 256u);
  BOOST_TEST(s.limits.request_timeout_ms == 60'000u);
  BOOST_TEST(s.limits.request_timeout_max_ms == 3'600'000u);
  BOOST_TEST(s.limits.stores_max == 64u);
  BOOST_TEST(s.limits.loads_max == 256u);
  BOOST_TEST(s.limits.queued_max == 1024u);
  BOOST_TEST(s.limits.windows_max == 8u);
  BOOST_TEST(s.limits.shutdown_timeout_ms == 10'000u);
  BOOST_TEST(s.client.staging_bytes == 64u << 20);
  BOOST_TEST(s.client.request_timeout_ms == 60'000u);
  BOOST_TEST(s.client.connect_timeout_ms == 5000u);
  BOOST_TEST(s.client.reconnect_backoff_min_ms == 50u);
  BOOST_TEST(s.client.reconnect_backoff_max_ms == 2000u);
  BOOST_TEST(s.client.layer_cache_entries == 65'536u);
  auto& p = s.providers.at(0);
  BOOST_TEST(p.capacity_bytes == 1u << 30);
  BOOST_TEST(p.group == "default");
  BOOST_TEST((p.full == when_full::refuse));
  BOOST_TEST(p.io_threads == 4u);
  BOOST_TEST(p.window_bytes == 8u << 20);
  BOOST_TEST(p.inline_max_bytes == 64u << 10);
  BOOST_TEST(p.checksums);
  BOOST_TEST(p.weight == 1u);
}

BOOST_AUTO_TEST_CASE(every_default_of_the_table_is_that_of_its_member) {
  for (auto& key : schema())
    if (!key.default_text.empty())
      BOOST_TEST_CONTEXT(path_of(key))
  BOOST_TEST((good(document_with(key, key.default_text)) == good(document_without(key))));
}

BOOST_AUTO_TEST_CASE(every_key_changes_the_settings) {
  for (auto& key : schema()) {
    // The other value may need room elsewhere, which is then given with the default, too.
    std::string around;
    if (key.name == "windows_max")
      around = "staging: {size: 16GiB}\n";
    if (path_of(key) == "staging.size")
      around = "transport: {chunk: 64KiB}\n";
    auto with = document_with(key, other_value(key)) + around;
    auto without = document_without(key) + around;
    if (key.name == "allow_users") {
      with = "node: {allow_users: [1000, someone], socket_mode: 0666}";
      without = "node: {socket_mode: 0666}";
    }
    if (key.name == "request_timeout_max") {
      with = "limits: {request_timeout: 1s, request_timeout_max: 1s}";
      without = "limits: {request_timeout: 1s}";
    }
    if (key.name == "send_queue_max") {
      with = "channel: {send_queue_max: 1MiB, frame_max: 1MiB}";
      without = "channel: {frame_max: 1MiB}";
    }
    BOOST_TEST_CONTEXT(path_of(key)) BOOST_TEST((good(with) != good(without)));
  }
}

BOOST_AUTO_TEST_CASE(both_ends_of_every_range_are_accepted_and_nothing_beyond) {
  auto unit = [](const key_spec& key) {
    return key.type == key_type::duration_ms ? "ms" : key.type == key_type::duration_us ? "us" : "";
  };
  for (auto& key : schema()) {
    if (key.max == 0 || key.type == key_type::mode)
      continue;
    BOOST_TEST_CONTEXT(path_of(key)) {
      auto over = bad(document_with(key, std::to_string(key.max + 1) + unit(key)));
      BOOST_TEST((over.find("is above the most allowed") != std::string::npos), over);
      if (key.min > 0) {
        auto under = bad(document_with(key, std::to_string(key.min - 1) + unit(key)));
        BOOST_TEST((under.find("is below the least allowed") != std::string::npos), under);
      }
      for (auto end : {key.min, key.max}) {
        auto parsed = parse(document_with(key, std::to_string(end) + unit(key)), "t.yaml");
        // An extreme may not fit the defaults of other keys, which is another error.
        if (!parsed)
          BOOST_TEST((parsed.error().detail().find("allowed") == std::string::npos));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(the_default_address_follows_the_runtime_directory_and_the_name) {
  auto* before = std::getenv("XDG_RUNTIME_DIR");
  std::string kept = before ? before : "";
  setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
  BOOST_TEST((good("node: {name: a}").node.listen == list{"unix:/run/user/7/millrace/a.sock"}));
  auto deep = "/" + std::string(120, 'd');
  setenv("XDG_RUNTIME_DIR", deep.c_str(), 1);
  BOOST_TEST((bad("staging:\nnode: {}\n").find("t.yaml:2:1: the default address unix:/ddd") == 0));
  BOOST_TEST((good("node: {listen: 'unix:/s'}").node.listen == list{"unix:/s"}));
  setenv("XDG_RUNTIME_DIR", "relative", 1);
  auto fallback =
    geteuid() == 0 ? std::string{"/run/millrace"} : "/tmp/millrace-" + std::to_string(geteuid());
  BOOST_TEST(default_listen("n0") == "unix:" + fallback + "/n0.sock");
  unsetenv("XDG_RUNTIME_DIR");
  BOOST_TEST(default_listen("n0") == "unix:" + fallback + "/n0.sock");
  if (before)
    setenv("XDG_RUNTIME_DIR", kept.c_str(), 1);
}

BOOST_AUTO_TEST_CASE(a_full_file_reads_as_written) {
  auto s = good(R"(
node:      { name: n0, listen: unix:/run/millrace/n0.sock, socket_mode: "0666",
             allow_users: [1000, bob] }
staging:   { size: 1GiB, mode: on_demand, huge_pages: off, lock: off }
transport: { prefer: [shm], movers: 3 }
channel:
  poll: 0
  heartbeat: 500ms
providers:
  - { name: fast, bucket: memory, capacity: 4GiB, weight: 3, checksums: false }
  - name: kept
    bucket: rocksdb
    path: /var/lib/millrace/kept
    when_full: evict
)");
  BOOST_TEST((s.node.listen == list{"unix:/run/millrace/n0.sock"}));
  BOOST_TEST(s.node.socket_mode == 0666u);
  BOOST_TEST((s.node.allow_users == std::vector<std::string>{"1000", "bob"}));
  BOOST_TEST(s.staging.size_bytes == 1u << 30);
  BOOST_TEST((s.staging.mode == staging_mode::on_demand));
  BOOST_TEST((s.staging.lock == wish::off));
  BOOST_TEST((s.transport.prefer == std::vector<std::string>{"shm"}));
  BOOST_TEST(s.channel.poll_us == 0u);
  BOOST_TEST(s.channel.heartbeat_ms == 500u);
  BOOST_TEST_REQUIRE(s.providers.size() == 2u);
  BOOST_TEST(s.providers[0].capacity_bytes == 4ull << 30);
  BOOST_TEST(s.providers[0].weight == 3u);
  BOOST_TEST(!s.providers[0].checksums);
  BOOST_TEST((s.providers[1].bucket == bucket_kind::rocksdb));
  BOOST_TEST((s.providers[1].full == when_full::evict));
  BOOST_TEST(s.providers[1].path == "/var/lib/millrace/kept");
}

BOOST_AUTO_TEST_SUITE_END()

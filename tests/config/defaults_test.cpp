// Tests the defaults, and that every key reaches its member.
#include "expect.hpp"

#include <millrace/net/network_options.hpp>
#include <millrace/storage/memory/memory_options.hpp>
#include <millrace/storage/rocksdb/rocksdb_options.hpp>
#include <millrace/tests/support/other_user.hpp>
#include <millrace/tests/support/scratch_directory.hpp>
#include <millrace/tests/support/skipped.hpp>
#include <millrace/transport/fabric_options.hpp>
#include <millrace/transport/tcp/tcp_options.hpp>
#include <millrace/transport/verbs/verbs_options.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

using namespace millrace;
using namespace millrace::config;

namespace {

using list = std::vector<std::string>;

// Restores a variable of the environment at the end of a test.
class variable {
public:
  explicit variable(const char* name) : name_(name) {
    if (auto* value = std::getenv(name))
      before_ = value;
  }
  variable(const variable&) = delete;
  variable& operator=(const variable&) = delete;
  ~variable() {
    if (before_)
      setenv(name_, before_->c_str(), 1);
    else
      unsetenv(name_);
  }

private:
  const char* name_;
  std::optional<std::string> before_;
};

// The paths that a bucket of this kind requires, without `given`.
std::string required_paths(std::string_view kind, std::string_view given = {}) {
  std::string entries;
  for (auto& spec : configuration_schema().bucket(kind)->keys.keys)
    if (spec.required && spec.name != given)
      entries += ", " + std::string{spec.name} + ": /p";
  return entries;
}

// The kind of a bucket that has the key, if the default kind has not.
std::string_view kind_for(const documented_key& key) {
  return key.of_default_kind ? std::string_view{} : key.only_for.front();
}

// The end of a provider's entry for the key: its kind, and what that requires.
std::string kind_entries(const documented_key& key, std::string_view given = {}) {
  auto kind = kind_for(key);
  return (kind.empty() ? "" : ", bucket: " + std::string{kind}) + required_paths(kind, given);
}

// A document that gives one key.
std::string document_with(const documented_key& key, std::string_view text) {
  auto entry = std::string{key.spec.name} + ": " + std::string{text};
  bool has_name = key.spec.name == "name";
  if (key.section == "providers[]") {
    return "providers: [{" + std::string{has_name ? "" : "name: p, "} + entry +
      kind_entries(key, key.spec.name) + "}]\n";
  }
  if (key.section == "cluster.nodes[]")
    return "cluster: {nodes: [{" + std::string{has_name ? "" : "name: n, "} + entry +
      ", providers: [{name: p}]}]}\n";
  if (key.section == "cluster")
    return "cluster: {nodes: [{name: n, providers: [{name: p}]}], " + entry + "}\n";
  // A certificate alone makes no sense.
  if (key.section == "security" && key.spec.name != "secret") {
    std::string all = "security: {";
    for (auto* name : {"certificate", "key", "authority"})
      all += std::string{name} + ": " + (key.spec.name == name ? std::string{text} : "/p") + ", ";
    return all + "}\n";
  }
  return std::string{key.section} + ": {" + entry + "}\n";
}

// The same document without the key.
std::string document_without(const documented_key& key) {
  if (key.section == "cluster")
    return "cluster: {nodes: [{name: n, providers: [{name: p}]}]}\n";
  if (key.section != "providers[]")
    return "";
  return "providers: [{name: p" + kind_entries(key) + "}]\n";
}

// A value that is not the default.
std::string other_value(const documented_key& key) {
  switch (key.spec.type) {
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
    return key.initial_text() == "true" ? "false" : "true";
  case key_type::count:
    return std::to_string(
      std::to_string(key.spec.max) == key.initial_text() ? key.spec.min : key.spec.max);
  case key_type::size:
    return std::to_string(key.spec.min + 1);
  case key_type::duration_ms:
    return fmt::format(
      "{}ms",
      std::min<std::uint64_t>(key.spec.max, key.spec.name.ends_with("backoff_min") ? 1234 : 4321));
  case key_type::duration_us:
    return "4321us";
  case key_type::choice:
  case key_type::choices: {
    bool first = key.spec.choices.front() == key.initial_text();
    auto word = std::string{key.spec.choices[first ? 1 : 0]};
    if (key.spec.name == "bucket")
      word += required_paths(word);
    return key.spec.type == key_type::choice ? word : "[" + word + "]";
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
    fast.bucket = "memory";
    BOOST_TEST((s.providers[0] == fast));
    BOOST_TEST((s.nodes == std::vector<cluster_node>{{"n0", s.node.listen, {fast}, {}, true}}));
  }
}

BOOST_AUTO_TEST_CASE(the_defaults_are_these) {
  auto s = good("providers: [{name: kept, bucket: rocksdb, path: /p}]");
  BOOST_TEST(s.staging.size_bytes == 256u << 20);
  BOOST_TEST((s.staging.huge_pages == wish::automatic && s.staging.lock == wish::automatic));
  auto& fabric = s.options.of<transport::fabric_options>();
  BOOST_TEST((fabric.prefer == transport::driver_names()));
  BOOST_TEST(fabric.movers == 0u);
  BOOST_TEST(fabric.limits.chunk_bytes == 1u << 20);
  BOOST_TEST(fabric.eager_bytes_max == 4096u);
  BOOST_TEST(fabric.retry_after_ms == 10'000u);
  auto& network = s.options.of<net::network_options>();
  BOOST_TEST(network.channel.frame_bytes_max == 16u << 20);
  BOOST_TEST(network.channel.send_queue_bytes_max == 64u << 20);
  BOOST_TEST(network.channel.heartbeat_ms == 2000u);
  BOOST_TEST(network.channel.peer_timeout_ms == 10'000u);
  BOOST_TEST(network.channel.handshake_timeout_ms == 5000u);
  BOOST_TEST(network.channel.requests_max == 256u);
  BOOST_TEST(network.loop.poll_us == 100u);
  BOOST_TEST(network.listener.connections_max == 256u);
  BOOST_TEST(network.listener.buffers_bytes_max == 512u << 20);
  BOOST_TEST(network.listener.handshakes_max == 256u);
  BOOST_TEST(network.listener.handshakes_per_source_max == 64u);
  BOOST_TEST(network.channel.stagger_ms == 250u);
  BOOST_TEST(network.names.lookups_max == 256u);
  BOOST_TEST(network.names.threads_max == 4u);
  BOOST_TEST(network.names.addresses_max == 16u);
  BOOST_TEST(s.cluster.port == 7710u);
  BOOST_TEST((s.cluster.hosts == host_source::names));
  BOOST_TEST(!s.security.configured());
  BOOST_TEST(s.limits.request_timeout_ms == 60'000u);
  BOOST_TEST(s.limits.request_timeout_max_ms == 3'600'000u);
  BOOST_TEST(s.limits.stores_max == 64u);
  BOOST_TEST(s.limits.loads_max == 256u);
  BOOST_TEST(s.limits.queued_max == 1024u);
  BOOST_TEST(s.limits.windows_max == 8u);
  BOOST_TEST(s.limits.shutdown_timeout_ms == 10'000u);
  BOOST_TEST(s.limits.watches_max == 32'768u);
  BOOST_TEST(s.client.staging_bytes == 64u << 20);
  BOOST_TEST(s.client.request_timeout_ms == 60'000u);
  BOOST_TEST(s.client.connect_timeout_ms == 5000u);
  BOOST_TEST(s.client.reconnect_backoff_min_ms == 50u);
  BOOST_TEST(s.client.reconnect_backoff_max_ms == 2000u);
  BOOST_TEST(s.client.layer_cache_entries == 65'536u);
  BOOST_TEST(s.client.mover_nice == 19u);
  BOOST_TEST(s.client.bind_readers);
  BOOST_TEST(s.client.mover_patience_ms == 2000u);
  auto& p = s.providers.at(0);
  BOOST_TEST(p.group == "default");
  auto& kept = p.options.of<storage::rocksdb_bucket_options>();
  BOOST_TEST(kept.capacity_bytes == 1u << 30);
  BOOST_TEST((kept.full == storage::when_full::refuse));
  BOOST_TEST(kept.io_threads == 4u);
  BOOST_TEST(kept.window_bytes == 8u << 20);
  BOOST_TEST(kept.inline_max_bytes == 64u << 10);
  BOOST_TEST(p.checksums);
  BOOST_TEST(p.weight == 1u);
}

BOOST_AUTO_TEST_CASE(every_default_of_the_table_is_that_of_its_member) {
  for (auto& key : configuration_schema().keys())
    if (!key.initial_text().empty())
      BOOST_TEST_CONTEXT(key.path())
  BOOST_TEST((good(document_with(key, key.initial_text())) == good(document_without(key))));
}

BOOST_AUTO_TEST_CASE(every_key_changes_the_settings) {
  for (auto& key : configuration_schema().keys()) {
    // The other value may need room elsewhere, which is then given with the default, too.
    std::string around;
    if (key.spec.name == "windows_max")
      around = "staging: {size: 16GiB}\n";
    if (key.path() == "staging.size")
      around = "transport: {chunk: 64KiB}\n";
    auto with = document_with(key, other_value(key)) + around;
    auto without = document_without(key) + around;
    if (key.spec.name == "allow_users") {
      with = "node: {allow_users: [1000, someone], socket_mode: 0666}";
      without = "node: {socket_mode: 0666}";
    }
    if (key.spec.name == "request_timeout_max") {
      with = "limits: {request_timeout: 1s, request_timeout_max: 1s}";
      without = "limits: {request_timeout: 1s}";
    }
    if (
      key.path() == "data.capacity" || key.path() == "data.region_size" ||
      key.path() == "data.quota")
      with = document_with(key, "1GiB");
    if (key.path() == "reading.inflight_max" || key.path() == "reading.staging")
      with = document_with(key, "24MiB");
    if (key.spec.name == "send_queue_max") {
      with = "channel: {send_queue_max: 1MiB, frame_max: 1MiB}";
      without = "channel: {frame_max: 1MiB}";
    }
    BOOST_TEST_CONTEXT(key.path()) BOOST_TEST((good(with) != good(without)));
  }
}

BOOST_AUTO_TEST_CASE(both_ends_of_every_range_are_accepted_and_nothing_beyond) {
  auto unit = [](const documented_key& key) {
    return key.spec.type == key_type::duration_ms ? "ms"
      : key.spec.type == key_type::duration_us    ? "us"
                                                  : "";
  };
  for (auto& key : configuration_schema().keys()) {
    if (key.spec.max == 0 || key.spec.type == key_type::mode)
      continue;
    BOOST_TEST_CONTEXT(key.path()) {
      auto over = bad(document_with(key, std::to_string(key.spec.max + 1) + unit(key)));
      BOOST_TEST((over.find("is above the most allowed") != std::string::npos), over);
      if (key.spec.min > 0) {
        auto under = bad(document_with(key, std::to_string(key.spec.min - 1) + unit(key)));
        BOOST_TEST((under.find("is below the least allowed") != std::string::npos), under);
      }
      for (auto end : {key.spec.min, key.spec.max}) {
        auto parsed =
          parse_configuration(document_with(key, std::to_string(end) + unit(key)), "t.yaml");
        // An extreme may not fit the defaults of other keys, which is another error.
        if (!parsed)
          BOOST_TEST((parsed.error().detail().find("allowed") == std::string::npos));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(the_default_address_follows_the_runtime_directory_and_the_name) {
  variable runtime_directory{"XDG_RUNTIME_DIR"};
  millrace::testing::scratch_directory dir;
  auto own = dir.path() + "/own";
  BOOST_TEST_REQUIRE(::mkdir(own.c_str(), 0700) == 0);
  setenv("XDG_RUNTIME_DIR", own.c_str(), 1);
  BOOST_TEST((good("node: {name: a}").node.listen == list{"unix:" + own + "/millrace/a.sock"}));
  auto deep = own + "/" + std::string(120, 'd');
  BOOST_TEST_REQUIRE(::mkdir(deep.c_str(), 0700) == 0);
  setenv("XDG_RUNTIME_DIR", deep.c_str(), 1);
  auto too_long = bad("staging:\nnode: {}\n");
  BOOST_TEST(too_long.starts_with("t.yaml:2:1: the default address unix:" + own + "/ddd"));
  BOOST_TEST((good("node: {listen: 'unix:/s'}").node.listen == list{"unix:/s"}));
  unsetenv("XDG_RUNTIME_DIR");
  auto fallback = default_listen("n0");
  // A directory that others can write to, that is not there, or that is no path.
  BOOST_TEST_REQUIRE(::chmod(own.c_str(), 0770) == 0);
  for (auto& unfit : {own, dir.path() + "/none", std::string{"relative"}, std::string{"/tmp"}}) {
    setenv("XDG_RUNTIME_DIR", unfit.c_str(), 1);
    BOOST_TEST(default_listen("n0") == fallback);
  }
}

// A user without a directory under /run gets one in its home, not one that others share.
BOOST_AUTO_TEST_CASE(root_listens_below_run_and_another_user_in_its_home) {
  constexpr uid_t other = 54'321;
  millrace::testing::scratch_directory dir;
  BOOST_TEST_REQUIRE(::chmod(dir.path().c_str(), 0755) == 0);
  if (auto why = millrace::testing::why_not_as(other, dir.path()); !why.empty())
    return millrace::testing::skipped("the default addresses of root and of another user: " + why);
  variable runtime_directory{"XDG_RUNTIME_DIR"}, home{"HOME"};
  unsetenv("XDG_RUNTIME_DIR");
  setenv("HOME", dir.path().c_str(), 1);
  BOOST_TEST(default_listen("n0") == "unix:/run/millrace/n0.sock");
  BOOST_TEST_REQUIRE(::chown(dir.path().c_str(), other, other) == 0);
  auto in_home = millrace::testing::as_user(other, [] { return default_listen("n0"); });
  BOOST_TEST(in_home.starts_with("unix:" + dir.path() + "/.millrace-"), in_home);
}

BOOST_AUTO_TEST_CASE(a_full_file_reads_as_written) {
  auto s = good(R"(
node:      { name: n0, listen: unix:/run/millrace/n0.sock, socket_mode: "0666",
             allow_users: [1000, bob] }
staging:   { size: 1GiB, huge_pages: off, lock: off }
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
  BOOST_TEST((s.staging.lock == wish::off));
  BOOST_TEST((s.options.of<transport::fabric_options>().prefer == list{"shm"}));
  BOOST_TEST(s.options.of<net::network_options>().loop.poll_us == 0u);
  BOOST_TEST(s.options.of<net::network_options>().channel.heartbeat_ms == 500u);
  BOOST_TEST_REQUIRE(s.providers.size() == 2u);
  BOOST_TEST(
    s.providers[0].options.of<storage::memory_bucket_options>().capacity_bytes == 4ull << 30);
  BOOST_TEST(s.providers[0].weight == 3u);
  BOOST_TEST(!s.providers[0].checksums);
  BOOST_TEST(s.providers[1].bucket == "rocksdb");
  auto& kept = s.providers[1].options.of<storage::rocksdb_bucket_options>();
  BOOST_TEST((kept.full == storage::when_full::evict));
  BOOST_TEST(kept.path == "/var/lib/millrace/kept");
}

BOOST_AUTO_TEST_CASE(what_is_written_arrives_at_the_drivers) {
  auto of = [](std::string_view text) { return good(text).options; };
  auto tcp = of("tcp: {listen: ['[::1]:0'], streams: 9, chunk: 2MiB, keepalive: 1500ms}")
               .of<transport::tcp_options>();
  BOOST_TEST((tcp.listen == list{"[::1]:0"}));
  BOOST_TEST((tcp.streams == 9u && tcp.chunk_bytes == 2u << 20 && tcp.keepalive_ms == 1500u));
  auto verbs =
    of("verbs: {devices: ['mlx5_0:1'], gid_index: 0, connect: rdma_cm, watch_unmaps: false}")
      .of<transport::verbs_options>();
  BOOST_TEST((verbs.devices == list{"mlx5_0:1"}));
  BOOST_TEST((verbs.gid_index == 0u && !verbs.watch_unmaps));
  BOOST_TEST((verbs.connect == transport::verbs_connect::rdma_cm));
  auto checked = [&](std::string_view text) {
    return of("verbs: {windows_checked: " + std::string{text} + "}")
      .of<transport::verbs_options>()
      .windows_checked;
  };
  BOOST_TEST((checked("true") == true && checked("false") == false));
  BOOST_TEST(!checked("auto").has_value());
}

BOOST_AUTO_TEST_SUITE_END()

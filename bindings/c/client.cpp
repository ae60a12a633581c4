// Clients and nodes.
#include "handles.hpp"

#include <millrace/config/address.hpp>
#include <millrace/core/environment.hpp>
#include <millrace/runtime/configuration.hpp>
#include <millrace/runtime/node/node.hpp>
#include <millrace/runtime/node/side_thread.hpp>

#include <algorithm>
#include <exception>

using namespace millrace::bindings;
using millrace::errc;
using millrace::status;

struct millrace_node {
  explicit millrace_node(millrace::node n)
    : address(n.address()), of(std::make_shared<millrace::node>(std::move(n))) {}

  millrace::process_mark made_in;
  const std::string address;
  std::mutex mutex;
  std::shared_ptr<millrace::node> of; // null: stopped
};

namespace millrace::bindings {

void end_aside(std::shared_ptr<void> last) noexcept {
  try {
    runtime::run_aside([last = std::move(last)] {});
  } catch (const std::exception&) {
    // There can be no other thread: the object has ended on this one.
  }
}

namespace {

constexpr std::size_t trust_users_max = 1024;

result<std::vector<std::string>> trusted(const call& here, const millrace_client_options& o) {
  if (o.trust_users_count > trust_users_max)
    return fail(here.wrong(
      "options->trust_users_count",
      fmt::format("is {}; at most {}", o.trust_users_count, trust_users_max)));
  if (o.trust_users_count > 0 && !o.trust_users)
    return fail(here.wrong("options->trust_users", "is NULL"));
  std::vector<std::string> users;
  for (std::size_t i = 0; i < o.trust_users_count; ++i) {
    if (!o.trust_users[i])
      return fail(here.wrong(fmt::format("options->trust_users[{}]", i), "is NULL"));
    users.emplace_back(o.trust_users[i]);
  }
  return users;
}

result<config::settings> settings_of(const call& here, const millrace_client_options& o) {
  config::settings s;
  auto timeout = here.timeout("options->timeout_ms", o.timeout_ms);
  if (!timeout)
    return fail(timeout.error());
  auto connect = here.timeout("options->connect_timeout_ms", o.connect_timeout_ms);
  if (!connect)
    return fail(connect.error());
  if (timeout->count() > 0)
    s.client.request_timeout_ms = static_cast<std::uint64_t>(timeout->count());
  if (connect->count() > 0)
    s.client.connect_timeout_ms = static_cast<std::uint64_t>(connect->count());
  if (o.staging_bytes > 0)
    s.client.staging_bytes = o.staging_bytes;
  s.security = {
    .secret = text_or(o.secret, ""),
    .certificate = text_or(o.certificate, ""),
    .key = text_or(o.key, ""),
    .authority = text_or(o.authority, "")};
  auto users = trusted(here, o);
  if (!users)
    return fail(users.error());
  s.client.trust_users = std::move(*users);
  return s;
}

std::string address_of(const char* given) {
  if (given)
    return given;
  auto set = environment("MILLRACE_ADDRESS");
  return set.empty() ? config::default_listen("n0") : set;
}

status check(const call& here, const std::string& address, const config::settings& settings) {
  if (auto bad = config::check_address(address); !bad.ok())
    return here.wrong("address", fmt::format("'{}' is none: {}", address, bad.detail()));
  if (config::is_tls_address(address) && !settings.security.configured())
    return here.wrong("options->secret", fmt::format("is NULL, and {} needs it", address));
  return {};
}

status another_process(const millrace_node& node) {
  return {
    errc::unavailable, "this node belongs to process {}; start one here", node.made_in.process()};
}

} // namespace

} // namespace millrace::bindings

millrace_code millrace_connect(
  const char* address, const millrace_client_options* options, millrace_client** client) {
  clear(client);
  return guarded(__func__, [&](const call& here) -> status {
    if (!client)
      return here.wrong("client", "is NULL");
    auto given = here.options(options);
    if (!given)
      return given.error();
    auto settings = settings_of(here, *given);
    if (!settings)
      return settings.error();
    auto where = address_of(address);
    if (auto bad = check(here, where, *settings); !bad.ok())
      return bad;
    auto opened = millrace::client::open(where, *settings);
    if (!opened)
      return opened.error();
    *client = new millrace_client{std::move(*opened)};
    return {};
  });
}

millrace_code millrace_open(const char* config_file, millrace_client** client) {
  clear(client);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{config_file, "config_file"}, {client, "client"}}); !bad.ok())
      return bad;
    auto settings = millrace::load_configuration(config_file);
    if (!settings)
      return settings.error();
    auto made = millrace::client::of(*settings);
    if (!made)
      return made.error();
    *client = new millrace_client{std::move(*made)};
    return {};
  });
}

void millrace_release(millrace_client* client) { end(client); }

millrace_code millrace_embed(const char* config_file, const char* name, millrace_node** node) {
  clear(node);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{config_file, "config_file"}, {node, "node"}}); !bad.ok())
      return bad;
    *node = new millrace_node{millrace::node::embed(std::string{config_file}, text_or(name, ""))};
    return {};
  });
}

millrace_code millrace_node_client(millrace_node* node, millrace_client** client) {
  clear(client);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{node, "node"}, {client, "client"}}); !bad.ok())
      return bad;
    if (!node->made_in.is_here())
      return another_process(*node);
    std::lock_guard guard{node->mutex};
    if (!node->of)
      return {errc::unavailable, "the node at {} was stopped", node->address};
    *client = new millrace_client{node->of->client()};
    return {};
  });
}

const char* millrace_node_address(const millrace_node* node) {
  return node ? node->address.c_str() : nullptr;
}

millrace_code millrace_node_stop(millrace_node* node, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (!node)
      return here.wrong("node", "is NULL");
    if (!node->made_in.is_here())
      return another_process(*node);
    return begin<void>(request, [&] {
      std::lock_guard guard{node->mutex};
      auto stopping = std::exchange(node->of, nullptr);
      return stopping ? stopping->stop_async() : millrace::ready_future<void>({});
    });
  });
}

void millrace_node_release(millrace_node* node) { end(node); }

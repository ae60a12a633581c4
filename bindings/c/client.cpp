// Clients and nodes.
#include "making.hpp"

#include <millrace/config/address.hpp>
#include <millrace/core/assert.hpp>
#include <millrace/runtime/configuration.hpp>
#include <millrace/runtime/node/node.hpp>
#include <millrace/runtime/node/side_thread.hpp>

#include <algorithm>
#include <exception>

using namespace millrace::bindings;
using millrace::errc;
using millrace::status;

struct millrace_node {
  explicit millrace_node(std::shared_ptr<millrace::node> n)
    : address(n->address()), of(std::move(n)) {}

  millrace::process_mark made_in;
  const std::string address;
  std::mutex mutex;
  std::shared_ptr<millrace::node> of; // null: it is being stopped
  millrace::future<void> stopped;     // then
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

// Checks an option that a configuration has as a key of the section `client`. 0 is the default.
status check_as_key(
  const call& here, std::string_view option, std::uint64_t value, std::string_view key) {
  auto rows = config::keys_of<config::client_settings>().rows;
  auto row = std::ranges::find(rows, key, [](auto& r) { return r.spec.name; });
  MILLRACE_ASSERT(row != rows.end());
  auto [min, max] = std::pair{row->spec.min, row->spec.max};
  if (value == 0 || (value >= min && value <= max))
    return {};
  return here.wrong(option, fmt::format("is {}; it must be 0, or {} to {}", value, min, max));
}

result<config::settings> settings_of(const call& here, const millrace_client_options& o) {
  config::settings s;
  auto timeout = here.timeout("options->timeout_ms", o.timeout_ms);
  if (!timeout)
    return fail(timeout.error());
  auto connect = here.timeout("options->connect_timeout_ms", o.connect_timeout_ms);
  if (!connect)
    return fail(connect.error());
  auto connect_ms = static_cast<std::uint64_t>(connect->count());
  auto bad = check_as_key(here, "options->connect_timeout_ms", connect_ms, "connect_timeout");
  if (bad.ok())
    bad = check_as_key(here, "options->staging_bytes", o.staging_bytes, "staging");
  if (!bad.ok())
    return fail(std::move(bad));
  if (timeout->count() > 0)
    s.client.request_timeout_ms = static_cast<std::uint64_t>(timeout->count());
  if (connect_ms > 0)
    s.client.connect_timeout_ms = connect_ms;
  if (o.staging_bytes > 0)
    s.client.staging_bytes = o.staging_bytes;
  s.security = {
    .secret = text_or(o.secret, ""),
    .certificate = text_or(o.certificate, ""),
    .key = text_or(o.key, ""),
    .authority = text_or(o.authority, "")};
  auto users =
    here.texts("options->trust_users", o.trust_users, o.trust_users_count, trust_users_max);
  if (!users)
    return fail(users.error());
  s.client.trust_users = std::move(*users);
  return s;
}

status check(const call& here, const std::string& address, const config::settings& settings) {
  if (auto bad = config::check_address(address); !bad.ok())
    return here.wrong("address", fmt::format("'{}' is none: {}", address, bad.detail()));
  if (config::is_tls_address(address) && !settings.security.configured())
    return here.wrong("options->secret", fmt::format("is NULL, and {} needs it", address));
  return {};
}

using connection = making<client, millrace_client>;

result<std::unique_ptr<connection>> connecting(
  const call& here, const char* address, const millrace_client_options* options) {
  auto given = here.options(options);
  if (!given)
    return fail(given.error());
  auto settings = settings_of(here, *given);
  if (!settings)
    return fail(settings.error());
  // An empty one is no address.
  auto where = address ? std::string{address} : config::client_address({});
  if (auto bad = check(here, where, *settings); !bad.ok())
    return fail(std::move(bad));
  auto begun = std::make_unique<connection>(
    [](const client& made) { return std::make_unique<millrace_client>(made); });
  begun->begin(client::open_async(where, *settings));
  return begun;
}

using start = making<std::shared_ptr<node>, millrace_node>;

std::unique_ptr<start> starting(const char* config_file, const char* name) {
  auto begun = std::make_unique<start>(
    [](const std::shared_ptr<node>& made) { return std::make_unique<millrace_node>(made); });
  begun->begin(node::embed_async(config_file, text_or(name, "")));
  return begun;
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
    auto begun = connecting(here, address, options);
    return begun ? await_made(*begun, client) : begun.error();
  });
}

millrace_code millrace_connect_begin(
  const char* address, const millrace_client_options* options, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (!request)
      return here.wrong("request", "is NULL");
    auto begun = connecting(here, address, options);
    return begun ? hand_over<void>(std::move(*begun), request) : begun.error();
  });
}

millrace_code millrace_request_client(millrace_request* request, millrace_client** client) {
  return give_made(__func__, request, "client", client);
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
    return await_made(starting(config_file, name), node);
  });
}

millrace_code millrace_embed_begin(
  const char* config_file, const char* name, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{config_file, "config_file"}, {request, "request"}}); !bad.ok())
      return bad;
    return hand_over<void>(starting(config_file, name), request);
  });
}

millrace_code millrace_request_node(millrace_request* request, millrace_node** node) {
  return give_made(__func__, request, "node", node);
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
      if (auto stopping = std::exchange(node->of, nullptr))
        node->stopped = stopping->stop_async();
      // One of its own, so that no caller cancels what others wait for.
      millrace::promise<void> done;
      node->stopped.chain([done](const millrace::result<void>& r) { done.set(r); });
      return done.get_future();
    });
  });
}

void millrace_node_release(millrace_node* node) { end(node); }

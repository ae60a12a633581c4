// The options that all commands with a client share.
#include <millrace/config/address.hpp>
#include <millrace/config/units.hpp>
#include <millrace/runtime/configuration.hpp>
#include <millrace/tools/connection.hpp>

namespace millrace::tools {

namespace {

tl::expected<client, failure> checked(result<client> made) {
  if (made)
    return std::move(*made);
  auto code = made.error().code() == errc::invalid_argument ? exit_usage : exit_failed;
  return tl::unexpected{failure{made.error(), code}};
}

// Sets shorter waits than those of a program, since a person waits.
status limit_waits(config::settings& settings, const std::string& timeout) {
  if (timeout.empty())
    return {};
  auto parsed_us = config::parse_duration_us(timeout);
  if (!parsed_us)
    return parsed_us.error().within("--timeout");
  if (*parsed_us < 1000 || *parsed_us > 86'400'000'000)
    return {errc::invalid_argument, "--timeout: {} is not between 1ms and 24h", timeout};
  settings.client.request_timeout_ms = *parsed_us / 1000;
  settings.client.connect_timeout_ms =
    std::min(settings.client.connect_timeout_ms, settings.client.request_timeout_ms);
  return {};
}

// `named`: where the address comes from.
status check_address(
  const std::string& address, const char* named, const config::settings& settings) {
  if (auto bad = config::check_address(address); !bad.ok())
    return bad.within(named);
  if (config::is_tls_address(address) && !settings.security.configured())
    return {
      errc::invalid_argument,
      "{} {}: name the cluster's secret with --secret FILE, or a configuration that does with -c "
      "FILE",
      named, address};
  return {};
}

} // namespace

void add_connection_options(CLI::App& command, connection_options& options) {
  command
    .add_option(
      "-c,--config", options.config_file,
      "talk to every node that this configuration describes; with --address, connect as it says")
    ->type_name("FILE");
  command
    .add_option(
      "--address", options.address,
      "talk to the cluster of the service at unix:/PATH or tls://HOST:PORT (default: "
      "MILLRACE_ADDRESS of the environment, or that of a service without configuration)")
    ->type_name("ADDRESS");
  command
    .add_option("--secret", options.secret, "the cluster's secret, where no configuration says it")
    ->type_name("FILE");
  command.add_option("--timeout", options.timeout, "longest wait for an answer (default: 60s)")
    ->type_name("TIME");
}

void add_group_option(CLI::App& command, connection_options& options) {
  command.add_option("--group", options.group, "the group of providers that keeps the models")
    ->type_name("NAME")
    ->capture_default_str();
}

tl::expected<client, failure> connect_to(const connection_options& options) {
  config::settings settings;
  if (!options.config_file.empty()) {
    auto loaded = load_configuration(options.config_file);
    if (!loaded)
      return tl::unexpected{failure{loaded.error(), exit_usage}};
    settings = std::move(*loaded);
  }
  if (auto bad = limit_waits(settings, options.timeout); !bad.ok())
    return tl::unexpected{failure{bad, exit_usage}};
  if (!options.secret.empty())
    settings.security = {.secret = options.secret, .certificate = {}, .key = {}, .authority = {}};
  if (options.address.empty() && !options.config_file.empty())
    return checked(client::of(settings));
  auto address = config::client_address(options.address);
  auto named = options.address.empty() ? "MILLRACE_ADDRESS" : "--address";
  if (auto bad = check_address(address, named, settings); !bad.ok())
    return tl::unexpected{failure{bad, exit_usage}};
  return checked(client::open(address, settings));
}

} // namespace millrace::tools

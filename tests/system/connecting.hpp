// Connects the programs of tests to their service, by an address or by the file of a cluster.
#pragma once

#include <millrace/runtime/client/client.hpp>
#include <millrace/runtime/configuration.hpp>

#include <string>

namespace millrace::testing {

/// `where`: "unix:/PATH", or the path of a configuration.
inline client connect_to(const std::string& where) {
  if (!where.starts_with('/'))
    return client::connect(where);
  auto settings = load_configuration(where);
  if (!settings)
    throw error{settings.error()};
  auto made = client::of(*settings);
  if (!made)
    throw error{made.error()};
  return std::move(*made);
}

} // namespace millrace::testing

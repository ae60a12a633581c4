// Runs training jobs against a service whose provider is a pool; `test_trainer` is a process of its
// own. Used by system and lab tests.
// The trainer's path is the definition MILLRACE_TRAINER.
#pragma once

#include <millrace/tests/support/service.hpp>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace millrace::testing {

/// Returns options of a node with one provider of checkpoints.
inline service_options with_pool(const std::string& path) {
  service_options o;
  o.providers = "[{ name: pool, bucket: pmem, path: " + path + ", capacity: 128MiB }]";
  o.more = "checkpoints: { staging_piece: 1MiB, staging_pieces: 4 }\n";
  return o;
}

/// Returns the command of a job that trains up to a step.
inline std::vector<std::string> trainer(
  const service& s, int mib, int steps, const std::string& kill_point = {},
  const std::string& mode = "direct") {
  std::vector<std::string> command;
  if (!kill_point.empty())
    command = {"/usr/bin/env", "MILLRACE_KILL_POINT=" + kill_point};
  command.insert(
    command.end(),
    {MILLRACE_TRAINER, s.address(), std::to_string(mib), std::to_string(steps), mode});
  return command;
}

/// Returns the provider's status of its checkpoints.
inline nlohmann::json checkpoints_of(const service& s) {
  auto status = s.command({"status", "--json"});
  BOOST_TEST_REQUIRE(status.code == 0, status.err);
  return nlohmann::json::parse(status.out)
    .at("nodes")
    .at(0)
    .at("providers")
    .at(0)
    .at("checkpoints");
}

inline bool says(const outcome& o, const std::string& what) {
  return o.out.find(what) != std::string::npos;
}

} // namespace millrace::testing

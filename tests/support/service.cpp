// Writes the configurations of tests, and starts and stops services with them.
#include <millrace/tests/support/service.hpp>

#include <boost/test/unit_test.hpp>
#include <signal.h>

namespace millrace::testing {

std::string write_config(const scratch& where, const service_options& options) {
  return where.write(
    options.node + ".yaml",
    "node:\n  name: " + options.node + "\n  listen: unix:" + (where / (options.node + ".sock")) +
      "\n" + options.node_more + "staging: { size: 32MiB }\nproviders: " + options.providers +
      "\n" + options.more);
}

service::service(const scratch& where, const service_options& options)
  : config_(write_config(where, options)), address_("unix:" + (where / (options.node + ".sock"))) {
  start();
}

void service::start() {
  process_.emplace(std::vector<std::string>{MILLRACE_PROGRAM, "serve", "-c", config_});
  ready_line_ = process_->read_line();
}

void service::kill() {
  process_->signal(SIGKILL);
  BOOST_TEST(process_->wait() == 128 + SIGKILL);
}

int service::stop() {
  process_->signal(SIGTERM);
  return process_->wait();
}

outcome service::command(std::vector<std::string> words) const {
  words.insert(words.end(), {"--address", address_});
  return run_millrace(std::move(words));
}

outcome run_millrace(std::vector<std::string> words, std::optional<uid_t> uid) {
  words.insert(words.begin(), MILLRACE_PROGRAM);
  return run_program(words, uid);
}

} // namespace millrace::testing

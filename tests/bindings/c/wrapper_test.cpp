// Tests the C++17 wrapper: values, exceptions, and waits that keep the request.
#include "c_node.hpp"

#include <millrace.hpp>

#include <algorithm>
#include <chrono>

using namespace millrace::testing;
using namespace std::chrono_literals;
namespace wrapped = millrace::abi;

namespace {

auto with_code(millrace_code code) {
  return [code](const wrapped::error& e) { return e.code() == code && e.what() != std::string{}; };
}

} // namespace

BOOST_FIXTURE_TEST_SUITE(wrapper, c_node)

BOOST_AUTO_TEST_CASE(a_request_can_be_read_after_each_kind_of_wait) {
  auto c = wrapped::client::connect(millrace_node_address(node));
  matrix m{1}, loaded;
  auto put = c.put("m", {m.tensor()});
  put.wait();
  BOOST_TEST(put.receipt().size_bytes == m.elements.size() * sizeof(float));
  auto get = c.load("m", {loaded.tensor()});
  BOOST_TEST(get.wait_for(60s));
  BOOST_TEST(std::string{get.receipt().name} == "m");
  BOOST_TEST(loaded.elements == m.elements);
  auto described = c.describe("m");
  described.wait();
  BOOST_REQUIRE(described.tensors().size() == 1u);
  BOOST_TEST(described.tensors()[0].shape[1] == 32u);
  BOOST_TEST(described.metadata().empty());
  auto listed = c.list();
  listed.wait();
  BOOST_TEST(listed.models().size() == 1u);
  c.erase("m").wait();
  BOOST_CHECK_EXCEPTION(c.erase("m").wait(), wrapped::error, with_code(MILLRACE_NOT_FOUND));
}

BOOST_AUTO_TEST_CASE(the_end_of_a_wait_is_not_the_end_of_the_request) {
  auto c = wrapped::client::connect(millrace_node_address(node));
  auto later = c.newer("later", 0, 3'600s);
  BOOST_TEST(!later.wait_for(0ms));
  BOOST_TEST(!later.wait_for(1ms));
  later.cancel();
  BOOST_CHECK_EXCEPTION(later.wait_for(0ms), wrapped::error, with_code(MILLRACE_CANCELLED));
  BOOST_CHECK_EXCEPTION(
    c.newer("never", 0, 1ms).wait_for(60s), wrapped::error, with_code(MILLRACE_DEADLINE_EXCEEDED));
}

BOOST_AUTO_TEST_CASE(a_shard_is_saved_restored_and_loaded_by_others) {
  auto c = wrapped::client::connect(millrace_node_address(node));
  matrix m{1}, loaded;
  auto saved = m.elements;
  auto options = sized<millrace_checkpoint_options>();
  options.name = "run";
  auto job = c.register_shard(options, {m.tensor()});
  auto saving = job.save(3, MILLRACE_SAVE_SNAPSHOT, "epoch", 5);
  job.begin_fence().wait();
  saving.durable.wait();
  std::fill(m.elements.begin(), m.elements.end(), 0.0F);
  auto restored = job.restore();
  restored.wait();
  BOOST_TEST(m.elements == saved);
  BOOST_TEST(restored.copy_of_extra() == (std::vector<std::uint8_t>{'e', 'p', 'o', 'c', 'h'}));
  auto step = c.newer_step("run", -1, 60s);
  step.wait();
  BOOST_TEST(step.receipt().step == 3u);
  c.load_shard("run", 0, {loaded.tensor()}).wait();
  BOOST_TEST(loaded.elements == saved);
  std::fill(loaded.elements.begin(), loaded.elements.end(), 0.0F);
  c.load_global("run", {loaded.tensor()}, 3).wait();
  BOOST_TEST(loaded.elements == saved);
  auto runs = c.list_runs();
  runs.wait();
  BOOST_REQUIRE(runs.runs().size() == 1u);
  BOOST_TEST(runs.runs()[0].newest_step == 3);
  job.close(true);
  c.erase_run("run").wait();
  BOOST_CHECK_EXCEPTION(
    c.load_shard("run", 0, {loaded.tensor()}).wait(), wrapped::error,
    with_code(MILLRACE_NOT_FOUND));
}

BOOST_AUTO_TEST_CASE(what_cannot_be_made_throws) {
  BOOST_CHECK_EXCEPTION(
    wrapped::client::connect("ftp://x"), wrapped::error, with_code(MILLRACE_INVALID_ARGUMENT));
  BOOST_CHECK_THROW(wrapped::client::open("/nonexistent/file"), wrapped::error);
}

BOOST_AUTO_TEST_SUITE_END()

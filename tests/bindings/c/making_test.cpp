// Tests requests that make an object: of connecting, starting a node, and registering a shard.
#include "c_node.hpp"

#include <millrace/tests/support/forked_child.hpp>
#include <millrace/tests/support/scripted_service.hpp>

#include <millrace.hpp>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

using namespace millrace::testing;
namespace wrapped = millrace::abi;

namespace {

struct making : c_node {
  millrace_request* connecting(const millrace_client_options* options = nullptr) const {
    millrace_request* r = nullptr;
    MUST(millrace_connect_begin(millrace_node_address(node), options, &r));
    return r;
  }

  static void put(millrace_client* c) {
    matrix m;
    auto t = m.tensor();
    MUST(millrace_put(c, "m", &t, 1, nullptr, nullptr));
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(made, making)

BOOST_AUTO_TEST_CASE(a_client_is_taken_once_and_outlives_its_request) {
  auto* r = connecting();
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  millrace_client *c = nullptr, *again = nullptr;
  MUST(millrace_request_client(r, &c));
  BOOST_TEST(millrace_request_client(r, &again) == MILLRACE_NOT_FOUND);
  BOOST_TEST(!again);
  MUST(millrace_wait(&r, 0));
  put(c);
  millrace_release(c);
}

BOOST_AUTO_TEST_CASE(a_request_outlives_the_client_that_was_taken_of_it) {
  auto* r = connecting();
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  millrace_client* c = nullptr;
  MUST(millrace_request_client(r, &c));
  millrace_release(c);
  MUST(millrace_wait(&r, 0));
}

BOOST_AUTO_TEST_CASE(what_is_not_taken_leaves_nothing_behind) {
  expect_nothing_left(1, 50, [&] {
    auto* over = connecting();
    MUST(millrace_wait(&over, MILLRACE_FOREVER));
    auto* running = connecting();
    millrace_detach(&running);
    auto* cancelled = connecting();
    MUST(millrace_cancel(cancelled));
    millrace_detach(&cancelled);
  });
}

BOOST_AUTO_TEST_CASE(a_wait_for_a_connection_ends_while_the_node_is_silent) {
  std::vector<scripted_service::answer<millrace::actors::directory_request>> asked;
  scripted_service silent{{listed("p")}};
  silent.on<millrace::actors::directory_request>(
    [&asked](auto&, auto reply) { asked.push_back(std::move(reply)); });
  millrace_request* r = nullptr;
  MUST(millrace_connect_begin(silent.address().c_str(), nullptr, &r));
  millrace_client* c = nullptr;
  BOOST_TEST(millrace_request_wait(r, 10) == MILLRACE_DEADLINE_EXCEEDED);
  BOOST_TEST(millrace_request_client(r, &c) == MILLRACE_BUSY);
  MUST(millrace_cancel(r));
  BOOST_TEST(millrace_request_wait(r, 60'000) == MILLRACE_CANCELLED);
  BOOST_TEST(millrace_request_client(r, &c) == MILLRACE_CANCELLED);
  BOOST_TEST(!c);
  millrace_detach(&r);
}

// A wait in slices, as docs/c-api.md has it, ends with a request whose failure is MILLRACE_BUSY,
// which a request that is not over gives, too.
BOOST_AUTO_TEST_CASE(a_registration_that_fails_because_the_shard_is_busy_ends_its_wait) {
  matrix m;
  auto t = m.tensor();
  auto* holder = job(t);
  auto options = sized<millrace_checkpoint_options>();
  options.name = "run";
  options.timeout_ms = 300;
  millrace_request* r = nullptr;
  MUST(millrace_register_begin(client, &options, &t, 1, &r));
  millrace_checkpointer* ck = nullptr;
  millrace_code code = MILLRACE_OK;
  do
    code = millrace_request_wait(r, 50);
  while (code == MILLRACE_DEADLINE_EXCEEDED &&
         millrace_request_checkpointer(r, &ck) == MILLRACE_BUSY);
  BOOST_TEST(code == MILLRACE_BUSY);
  BOOST_TEST(millrace_request_checkpointer(r, &ck) == MILLRACE_BUSY);
  BOOST_TEST(!ck);
  millrace_detach(&r);
  MUST(millrace_close(holder, 0, nullptr));
  millrace_checkpointer_release(holder);
}

// They would try again, and have the shard when the program registers it.
BOOST_AUTO_TEST_CASE(registrations_that_were_given_up_do_not_stand_in_the_way) {
  matrix m;
  auto t = m.tensor();
  auto options = sized<millrace_checkpoint_options>();
  options.name = "run";
  for (int i = 0; i < 30; ++i) {
    millrace_request* r = nullptr;
    MUST(millrace_register_begin(client, &options, &t, 1, &r));
    if (i % 2 == 0)
      MUST(millrace_cancel(r));
    millrace_detach(&r);
  }
  auto* ck = job(t);
  MUST(millrace_save(ck, 1, 0, nullptr, 0, nullptr, nullptr));
  MUST(millrace_close(ck, 0, nullptr));
  millrace_checkpointer_release(ck);
}

BOOST_AUTO_TEST_CASE(a_connection_that_fails_says_so_in_its_request) {
  millrace_request* r = nullptr;
  auto begun = millrace_connect_begin("unix:/nonexistent/socket", nullptr, &r);
  auto code = begun == MILLRACE_OK ? millrace_wait(&r, MILLRACE_FOREVER) : begun;
  BOOST_TEST(code == MILLRACE_UNAVAILABLE);
  BOOST_TEST(std::string{millrace_error()}.find("/nonexistent/socket") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_node_is_started_beside_the_program) {
  auto file = another();
  millrace_request* r = nullptr;
  MUST(millrace_embed_begin(file.c_str(), nullptr, &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  millrace_node* other = nullptr;
  MUST(millrace_request_node(r, &other));
  millrace_detach(&r);
  millrace_client* c = nullptr;
  MUST(millrace_node_client(other, &c));
  put(c);
  millrace_release(c);
  MUST(millrace_node_stop(other, nullptr));
  millrace_node_release(other);

  // One that is not taken, is given up, or is released before its request, stops, and gives its
  // address back.
  auto start = [&] {
    auto begun = millrace_embed_begin(file.c_str(), nullptr, &r);
    return begun == MILLRACE_OK && millrace_request_wait(r, MILLRACE_FOREVER) == MILLRACE_OK;
  };
  auto starts_again = [&] {
    return eventually([&] {
      if (start())
        return true;
      millrace_detach(&r);
      return false;
    });
  };
  BOOST_REQUIRE(start());
  millrace_detach(&r);
  BOOST_REQUIRE(starts_again());
  auto* released = r;
  MUST(millrace_request_node(r, &other));
  millrace_node_release(other);
  BOOST_REQUIRE(starts_again());
  millrace_detach(&released);
  millrace_detach(&r);
  BOOST_TEST(starts_again());
  millrace_detach(&r);
  while (millrace_embed_begin(file.c_str(), nullptr, &r) != MILLRACE_OK) {
  }
  MUST(millrace_cancel(r));
  BOOST_TEST(millrace_request_node(r, &other) == MILLRACE_CANCELLED);
  millrace_detach(&r);
  BOOST_TEST(starts_again());
  millrace_detach(&r);
  auto missing = millrace_embed_begin("/nonexistent/file", nullptr, &r);
  BOOST_TEST((missing != MILLRACE_OK || millrace_wait(&r, MILLRACE_FOREVER) != MILLRACE_OK));
  BOOST_TEST(std::string{millrace_error()}.find("/nonexistent/file") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_shard_is_registered_beside_the_program) {
  matrix m{1};
  auto saved = m.elements;
  auto t = m.tensor();
  auto options = sized<millrace_checkpoint_options>();
  options.name = "run";
  millrace_request* r = nullptr;
  MUST(millrace_register_begin(client, &options, &t, 1, &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  millrace_checkpointer* job = nullptr;
  MUST(millrace_request_checkpointer(r, &job));
  millrace_detach(&r);
  MUST(millrace_rebind(job, &t, 1)); // nothing has moved
  MUST(millrace_save(job, 1, MILLRACE_SAVE_DIRECT, nullptr, 0, nullptr, &r));
  MUST(millrace_wait(&r, MILLRACE_FOREVER));
  std::fill(m.elements.begin(), m.elements.end(), 0.0F);
  MUST(millrace_restore(job, -1, nullptr));
  BOOST_TEST(m.elements == saved);
  MUST(millrace_close(job, 0, nullptr));
  millrace_checkpointer_release(job);

  // One that is not taken, or is given up, ends, so that another job can have the shard.
  MUST(millrace_register_begin(client, &options, &t, 1, &r));
  MUST(millrace_wait(&r, MILLRACE_FOREVER));
  MUST(millrace_register_begin(client, &options, &t, 1, &r));
  millrace_detach(&r);
  MUST(millrace_register_begin(client, &options, &t, 1, &r));
  MUST(millrace_cancel(r));
  millrace_detach(&r);
  MUST(millrace_register(client, &options, &t, 1, &job));
  millrace_checkpointer_release(job);
}

BOOST_AUTO_TEST_CASE(in_a_forked_child_nothing_is_taken) {
  std::vector<scripted_service::answer<millrace::actors::directory_request>> asked;
  scripted_service silent{{listed("p")}};
  silent.on<millrace::actors::directory_request>(
    [&asked](auto&, auto reply) { asked.push_back(std::move(reply)); });
  millrace_request *over = connecting(), *running = nullptr;
  MUST(millrace_request_wait(over, MILLRACE_FOREVER));
  MUST(millrace_connect_begin(silent.address().c_str(), nullptr, &running));
  auto child = in_forked_child([&] {
    millrace_client* c = nullptr;
    if (millrace_request_client(over, &c) != MILLRACE_UNAVAILABLE || c)
      return 1;
    if (millrace_request_client(running, &c) != MILLRACE_UNAVAILABLE || c)
      return 2;
    millrace_detach(&running);
    millrace_detach(&over);
    return 0;
  });
  BOOST_TEST(child == 0);
  MUST(millrace_cancel(running));
  millrace_detach(&running);
  millrace_client* c = nullptr;
  MUST(millrace_request_client(over, &c));
  put(c);
  millrace_release(c);
  millrace_detach(&over);
}

BOOST_AUTO_TEST_CASE(the_wrapper_gives_what_its_requests_make) {
  auto connecting = wrapped::client::begin_connect(millrace_node_address(node));
  BOOST_TEST(connecting.wait_for(std::chrono::seconds{60}));
  auto c = connecting.object();
  BOOST_CHECK_THROW(connecting.object(), wrapped::error);
  matrix m;
  auto options = sized<millrace_checkpoint_options>();
  options.name = "run";
  auto job = c.begin_register(options, {m.tensor()}).object();
  job.save(2).durable.wait();
  auto steps = c.list_steps("run");
  steps.wait();
  BOOST_REQUIRE(steps.steps().size() == 1u);
  BOOST_TEST(steps.steps()[0].step == 2u);
  auto shard = c.describe_shard("run", 0);
  shard.wait();
  BOOST_TEST(shard.tensors().size() == 1u);
  BOOST_TEST(shard.axes().empty());
  job.close();
  auto file = another();
  auto other = wrapped::node::begin_embed(file).object();
  other.client().put("m", {m.tensor()}).wait();
  other.stop();
}

BOOST_AUTO_TEST_SUITE_END()

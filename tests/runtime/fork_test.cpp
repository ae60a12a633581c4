// Tests forked children: what the parent opened refuses them at once, and what they open works.
#include "three_providers.hpp"

#include <millrace/runtime/client/completion_queue.hpp>
#include <millrace/runtime/node/node.hpp>
#include <millrace/tests/support/forked_child.hpp>
#include <millrace/tests/support/scripted_service.hpp>

#include <boost/test/unit_test.hpp>
#include <poll.h>

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

using namespace millrace;
using namespace std::chrono_literals;
using testing::in_forked_child;

namespace {

checkpoint_options shard_of_pool() { return {.model = "run", .group = "pool"}; }

// Counts calls, and remembers the first one that was not refused as it should be.
struct refusals {
  std::string owner = "belongs to process " + std::to_string(::getpid()) + ";";
  int calls = 0;
  int first_wrong = 0;

  void see(const status& why) {
    ++calls;
    auto right = why.code() == errc::unavailable && why.detail().find(owner) != std::string::npos;
    if (!right && first_wrong == 0)
      first_wrong = calls;
  }
  template <class T>
  void see(const result<T>& outcome) {
    see(outcome ? status{} : outcome.error());
  }
  template <class T>
  void see(const future<T>& f) {
    see(f.result());
  }
};

// A node, and a client of it with a model and a registered shard.
struct parent : testing::three_providers {
  explicit parent(bool over_socket)
    : n(node::embed(settings)), c(over_socket ? client::connect(n->address()) : n->client()),
      models(c->repository("fast")) {
    models->store("net", tensors()).get();
    job = c->checkpointer(shard_of_pool(), tensors()).get();
    job->save(1).durable.get();
  }

  std::uint64_t connections() const { return n->client().status().get().at(0)->connections; }

  void expect_that_it_works(std::uint64_t step) {
    BOOST_TEST(models->store("net", tensors()).result().has_value());
    BOOST_TEST(job->save(step).durable.result().has_value());
    BOOST_TEST(job->fence().ok());
    std::uint64_t registered = 0;
    auto nodes = n->client().status().get();
    for (auto& provider : nodes.at(0)->providers)
      registered += provider.checkpoints.registered;
    BOOST_TEST(registered == 1u);
  }

  std::optional<node> n;
  std::optional<client> c;
  std::optional<repository> models;
  std::optional<checkpointer> job;
};

void call_repository(refusals& seen, parent& p) {
  auto models = p.c->repository("fast");
  auto graph = model_graph::chain_of({{{"w", dtype::u8, {p.bytes.size()}}}});
  std::vector<load_target> targets{{.into = p.tensors().front()}};
  seen.see(models.store("net", p.tensors()));
  seen.see(models.store("net", graph, p.tensors()));
  seen.see(models.store_many({{.model = "net", .tensors = p.tensors()}}).at(0));
  seen.see(models.store_snapshot("net", p.tensors()).stored);
  seen.see(models.store_snapshot("net", graph, p.tensors()).staged);
  seen.see(models.load("net", targets));
  seen.see(models.load_many({{.model = "net", .targets = targets}}).at(0));
  seen.see(models.load("net", std::vector<std::string>{"w"}, p.bytes));
  seen.see(models.load_layers("net", {}, p.bytes));
  seen.see(models.describe("net"));
  seen.see(models.list());
  seen.see(models.erase("net"));
  seen.see(models.pin("net", true));
  seen.see(models.provider_of("net"));
}

void call_checkpoints(refusals& seen, parent& p) {
  auto all = p.c->checkpoints("pool");
  seen.see(all.list());
  seen.see(all.describe("run"));
  seen.see(all.describe_shard("run", 0));
  seen.see(all.load("run", 0, 1, p.tensors()));
  seen.see(all.verify("run", 0, 1));
  seen.see(all.erase("run"));
  seen.see(all.repack());
  auto& job = *p.job;
  seen.see(job.save(2).staged);
  seen.see(job.save(2).durable);
  seen.see(job.fence());
  seen.see(job.fence_async());
  seen.see(job.rebind(p.tensors()));
  seen.see(job.restore());
  seen.see(job.restore_shard(0, p.tensors()));
  seen.see(job.describe());
  seen.see(job.close_async());
  seen.see(job.close());
  seen.see(p.c->checkpointer(shard_of_pool(), p.tensors()));
}

void call_node(refusals& seen, parent& p) {
  p.c->invalidate(p.bytes.data(), p.bytes.size());
  seen.see(p.c->status());
  seen.see(p.n->client().repository("fast").list());
  p.n->stop();
  auto stopped = p.n->stop_async().result();
  seen.see(
    stopped || stopped.error().detail().find("this node") == std::string::npos ? status{}
                                                                               : stopped.error());
}

} // namespace

BOOST_AUTO_TEST_SUITE(forks)

BOOST_AUTO_TEST_CASE(each_call_in_a_child_is_refused_at_once) {
  for (auto socket : {true, false}) {
    parent p{socket};
    refusals seen;
    // The exit code is the number of the first call that went wrong.
    auto code = in_forked_child([&] {
      call_repository(seen, p);
      call_checkpoints(seen, p);
      call_node(seen, p);
      return seen.calls == 35 ? seen.first_wrong : 97;
    });
    BOOST_TEST(code == 0);
    p.expect_that_it_works(2);
  }
}

BOOST_AUTO_TEST_CASE(a_child_that_destroys_all_ends_nothing) {
  for (auto socket : {true, false}) {
    parent p{socket};
    auto before = p.connections();
    auto code = in_forked_child([&] {
      auto copy = p.job;
      copy.reset();
      p.job.reset();
      p.models.reset();
      p.c.reset();
      p.n.reset();
      return 0;
    });
    BOOST_TEST(code == 0);
    BOOST_TEST(p.connections() == before);
    BOOST_TEST(std::filesystem::exists(p.dir.path() + "/n0.sock"));
    BOOST_TEST(client::open(p.n->address()).has_value());
    p.expect_that_it_works(2);
  }
}

BOOST_AUTO_TEST_CASE(a_child_that_drops_a_registration_sends_nothing) {
  testing::scripted_service service{{testing::listed("p", true)}};
  service.on<actors::list_checkpoints_request>(
    [](auto&, auto reply) { reply(actors::checkpoint_list{}); });
  service.on<actors::enroll_request>([](auto&, auto reply) {
    enroll_receipt r;
    r.registration = 1;
    reply(r);
  });
  service.on<actors::leave_request>([](auto&, auto reply) { reply(actors::done_reply{}); });
  std::vector<std::byte> bytes(100'000);
  std::optional c{client::connect(service.address())};
  std::optional job{
    c->checkpointer({.model = "m"}, {{{"a", dtype::u8, {bytes.size()}}, bytes.data(), {}}}).get()};
  auto code = in_forked_child([&] {
    job.reset();
    c.reset();
    return 0;
  });
  BOOST_TEST(code == 0);
  // What the child had sent would come before the answer to this.
  c->checkpoints().list().get();
  BOOST_TEST(service.asked<actors::leave_request>() == 0u);
  BOOST_TEST(job->close().ok());
  BOOST_TEST(service.asked<actors::leave_request>() == 1u);
}

BOOST_AUTO_TEST_CASE(a_child_does_not_wait_for_what_its_parent_asked) {
  testing::scripted_service service{{testing::listed("p", true)}};
  using answer = testing::scripted_service::answer<actors::list_checkpoints_request>;
  promise<answer> asked;
  service.on<actors::list_checkpoints_request>(
    [asked](auto&, auto reply) { asked.set(std::move(reply)); });
  auto c = client::connect(service.address());
  auto listing = c.checkpoints().list();
  auto reply = asked.get_future().get();
  auto code = in_forked_child([&] {
    auto seen = listing.result();
    return !seen && seen.error().code() == errc::unavailable ? 0 : 1;
  });
  BOOST_TEST(code == 0);
  BOOST_TEST(!listing.ready());
  reply(actors::checkpoint_list{});
  BOOST_TEST(listing.result().has_value());
}

BOOST_AUTO_TEST_CASE(a_child_opens_its_own_client) {
  for (auto socket : {true, false}) {
    parent p{socket};
    auto code = in_forked_child([&] {
      auto own = client::open(p.n->address());
      if (!own)
        return 1;
      std::vector<std::byte> bytes(300'000, std::byte{9}), loaded(bytes.size());
      auto view = [](auto& memory) {
        return tensor_view{{"w", dtype::u8, {memory.size()}}, memory.data(), {}};
      };
      auto models = own->repository("fast");
      if (!models.store("of-child", {view(bytes)}).result())
        return 2;
      if (!models.load("of-child", {{.into = view(loaded)}}).result() || loaded != bytes)
        return 3;
      // The parent's client is refused as before.
      return p.models->describe("net").result() ? 4 : 0;
    });
    BOOST_TEST(code == 0);
    std::vector<std::byte> loaded(300'000);
    p.models->load("of-child", std::vector<std::string>{"w"}, loaded).get();
    BOOST_TEST((loaded == std::vector<std::byte>(300'000, std::byte{9})));
    p.expect_that_it_works(2);
  }
}

BOOST_AUTO_TEST_CASE(a_completion_queue_of_the_parent_takes_and_gives_nothing_in_the_child) {
  auto queue = completion_queue::open().value();
  promise<int> first, second;
  BOOST_REQUIRE(queue.post_when_ready(first.get_future(), 1).ok());
  BOOST_REQUIRE(queue.post_when_ready(second.get_future(), 2).ok());
  first.set(0);
  std::array<std::uint64_t, 4> some{};
  auto seen = in_forked_child([&] {
    second.set(0);
    if (queue.post_when_ready(first.get_future(), 3).code() != errc::unavailable)
      return 1;
    if (queue.poll(some) != 0)
      return 2;
    return queue.wait(some, steady_clock::now() + std::chrono::hours{1}) == 0 ? 0 : 3;
  });
  BOOST_TEST(seen == 0);
  pollfd watched{queue.descriptor(), POLLIN, 0};
  BOOST_TEST(::poll(&watched, 1, 0) == 1);
  BOOST_TEST(queue.poll(some) == 1u);
  BOOST_TEST(::poll(&watched, 1, 0) == 0);
  second.set(0);
  BOOST_TEST(queue.poll(some) == 1u);
}

BOOST_AUTO_TEST_SUITE_END()

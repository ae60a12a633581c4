// Tests a registered shard whose tensors move to other addresses.
#include "three_providers.hpp"

#include <millrace/runtime/node/node.hpp>
#include <millrace/tests/support/scripted_service.hpp>
#include <millrace/transport/memory/region.hpp>

#include <boost/test/unit_test.hpp>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

using namespace millrace;
using namespace std::chrono_literals;
using actors::durable_request;
using actors::enroll_request;
using actors::leave_request;
using actors::save_request;

namespace {

constexpr std::size_t weight_count = 100'000, rows = 40, columns = 50;

// Two tensors of a trainer. The second one can lie with gaps between its rows.
struct moving_tensors {
  std::vector<float> weight = std::vector<float>(weight_count);
  std::vector<float> moment = std::vector<float>(2 * rows * columns);
  std::size_t pitch = columns;

  std::vector<tensor_view> views() {
    auto bytes = static_cast<std::int64_t>(sizeof(float));
    auto views = std::vector{
      tensor_view::dense("weight", dtype::f32, {weight_count}, std::span{weight}),
      tensor_view::dense("moment", dtype::f32, {rows, columns}, std::span{moment})};
    if (pitch != columns)
      views[1].strides_bytes = {static_cast<std::int64_t>(pitch) * bytes, bytes};
    return views;
  }

  float& moment_at(std::size_t i) { return moment[i / columns * pitch + i % columns]; }

  void become(float first) {
    std::iota(weight.begin(), weight.end(), first);
    for (std::size_t i = 0; i < rows * columns; ++i)
      moment_at(i) = first - static_cast<float>(i);
  }

  bool are(float first) {
    moving_tensors expected;
    expected.become(first);
    auto same = weight == expected.weight;
    for (std::size_t i = 0; i < rows * columns; ++i)
      same &= moment_at(i) == expected.moment_at(i);
    return same;
  }
};

// A service that keeps nothing, and remembers the handle of the last registration.
struct scripted {
  testing::scripted_service service{{testing::listed("p", true)}};
  client c = client::connect(service.address());
  bulk_handle source;
  moving_tensors tensors;

  scripted() {
    service.on<actors::list_checkpoints_request>(
      [](auto&, auto reply) { reply(actors::checkpoint_list{}); });
    service.on<enroll_request>([this](auto& request, auto reply) {
      source = request.source;
      enroll_receipt r;
      r.registration = 1;
      reply(r);
    });
    service.on<leave_request>([](auto&, auto reply) { reply(actors::done_reply{}); });
    service.on<save_request>([this](auto& r, auto reply) { reply(receipt_of(r.step)); });
    service.on<durable_request>([this](auto& r, auto reply) { reply(receipt_of(r.step)); });
  }

  static save_receipt receipt_of(std::uint64_t step) {
    save_receipt r;
    r.model = "m";
    r.step = step;
    r.size_bytes = (weight_count + rows * columns) * sizeof(float);
    return r;
  }

  checkpointer attach() { return c.checkpointer({.model = "m"}, tensors.views()).get(); }

  // Returns the requests that a registered shard may send.
  std::size_t asked() const {
    return service.asked<actors::list_checkpoints_request>() +
      service.asked<actors::directory_request>() + service.asked<enroll_request>() +
      service.asked<leave_request>() + service.asked<save_request>() +
      service.asked<durable_request>();
  }

  // Returns whether the handle leads to this memory.
  bool leads_to(const std::vector<float>& weight) const {
    auto found = transport::find_region(source.region, source.key, access_mode::read);
    if (!found)
      return false;
    auto lease = found->lease();
    return lease &&
      lease->memory().dense_at(0, sizeof(float)) ==
      reinterpret_cast<const std::byte*>(weight.data());
  }
};

} // namespace

BOOST_AUTO_TEST_SUITE(rebinding)

BOOST_AUTO_TEST_CASE(saves_and_restores_follow_the_tensors) {
  testing::three_providers disk;
  auto n = node::embed(disk.settings);
  for (auto& c : {n.client(), client::connect(n.address())}) {
    moving_tensors first, second;
    auto job = c.checkpointer({.model = "m", .group = "pool"}, first.views()).get();
    first.become(1);
    auto run = job.save(1).durable.get().run;

    second.pitch = 2 * columns;
    auto moved = second.views();
    BOOST_TEST(job.rebind(moved).ok());
    BOOST_TEST(transport::exposed_regions() == 1u);
    second.become(2);
    BOOST_TEST(job.save(2).durable.get().run == run);
    BOOST_TEST(job.fence().ok());
    BOOST_TEST(job.describe().get().complete_steps.size() == 2u);

    second.become(3);
    BOOST_TEST(job.restore(2).get().version == 2u);
    BOOST_TEST(second.are(2));
    BOOST_TEST(job.restore(1).get().version == 1u);
    BOOST_TEST(second.are(1));
    BOOST_TEST(first.are(1));

    // One of them moves back.
    moved[0] = first.views()[0];
    BOOST_TEST(job.rebind(moved).ok());
    first.become(4);
    second.become(5);
    job.save(3).durable.get();
    moving_tensors loaded;
    c.checkpoints("pool").load("m", 0, 3, loaded.views()).get();
    BOOST_TEST((loaded.weight == first.weight));
    BOOST_TEST(loaded.moment_at(7) == second.moment_at(7));
    BOOST_TEST(job.close(true).ok());
    c.checkpoints("pool").erase("m").get();
  }
}

BOOST_FIXTURE_TEST_CASE(the_provider_is_not_asked, scripted) {
  auto job = attach();
  auto before = asked();
  auto handle = source;
  BOOST_TEST(job.rebind(tensors.views()).ok());
  BOOST_TEST(leads_to(tensors.weight));
  moving_tensors others;
  BOOST_TEST(job.rebind(others.views()).ok());
  BOOST_TEST(leads_to(others.weight));
  BOOST_TEST(transport::exposed_regions() == 1u);
  BOOST_TEST(asked() == before);
  // What had been sent would have come before this.
  BOOST_TEST(job.save(1).durable.result().has_value());
  BOOST_TEST(asked() == before + 2);
  BOOST_TEST((source == handle));
}

BOOST_FIXTURE_TEST_CASE(another_layout_is_refused_by_the_name_of_the_tensor, scripted) {
  auto job = attach();
  moving_tensors others;
  auto refused = [&](const std::vector<tensor_view>& views, const std::string& text) {
    auto why = job.rebind(views);
    BOOST_TEST((why.code() == errc::invalid_argument));
    BOOST_TEST(why.detail().find(text) != std::string::npos, why.to_string());
    BOOST_TEST(why.detail().find("under another name") != std::string::npos);
  };
  auto views = others.views();
  views[1].desc.shape = {columns, rows};
  refused(views, "was moment F32[40, 50] when it was registered and is moment F32[50, 40]");
  views = others.views();
  views[1].desc.type = dtype::i32;
  refused(views, "is moment I32[40, 50]");
  views = others.views();
  views[0].desc.name = "bias";
  refused(views, "was weight F32[100000] when it was registered and is bias F32[100000]");
  views = others.views();
  views.pop_back();
  refused(views, "was moment F32[40, 50] when it was registered and is none");
  views = others.views();
  views.push_back(tensor_view::dense("more", dtype::f32, {1}, std::span{others.weight}));
  refused(views, "was none when it was registered and is more F32[1]");
  BOOST_TEST(leads_to(tensors.weight));
  BOOST_TEST(job.save(1).durable.result().has_value());
}

BOOST_FIXTURE_TEST_CASE(tensors_that_a_save_reads_stay, scripted) {
  auto job = attach();
  using answer = testing::scripted_service::answer<save_request>;
  promise<answer> asked, asked_later;
  service.on<save_request>([asked](auto&, auto reply) { asked.set(std::move(reply)); });
  service.on<durable_request>(
    [asked_later](auto&, auto reply) { asked_later.set(std::move(reply)); });
  moving_tensors others;
  auto save = job.save(1);
  auto reply = asked.get_future().get();
  auto why = job.rebind(others.views());
  BOOST_TEST((why.code() == errc::busy));
  BOOST_TEST(why.detail().find("step 1 of m") != std::string::npos, why.to_string());
  BOOST_TEST(leads_to(tensors.weight));
  // Nothing moves: the save may go on.
  BOOST_TEST(job.rebind(tensors.views()).ok());
  reply(receipt_of(1));
  BOOST_TEST(job.fence().ok());
  BOOST_TEST(!save.durable.ready());
  BOOST_TEST(job.rebind(others.views()).ok());
  BOOST_TEST(leads_to(others.weight));
  asked_later.get_future().get()(receipt_of(1));
  BOOST_TEST(save.durable.result().has_value());
}

BOOST_FIXTURE_TEST_CASE(a_shard_that_registers_again_offers_the_new_memory, scripted) {
  auto job = attach();
  moving_tensors others;
  service.on<save_request>([](auto&, auto reply) { reply(fail(errc::permission_denied, "no")); });
  service.on<durable_request>(
    [](auto&, auto reply) { reply(fail(errc::permission_denied, "no")); });
  BOOST_TEST(!job.save(1).durable.result().has_value());
  BOOST_TEST(!job.fence().ok());
  BOOST_TEST(job.rebind(others.views()).ok());
  service.on<save_request>([this](auto& r, auto reply) { reply(receipt_of(r.step)); });
  service.on<durable_request>([this](auto& r, auto reply) { reply(receipt_of(r.step)); });
  BOOST_TEST(job.save(2).durable.result().has_value());
  BOOST_TEST(service.asked<enroll_request>() == 2u);
  BOOST_TEST(leads_to(others.weight));
}

BOOST_AUTO_TEST_CASE(a_closed_checkpointer_takes_no_tensors) {
  scripted s;
  auto job = s.attach();
  BOOST_TEST(job.close().ok());
  BOOST_TEST((job.rebind(s.tensors.views()).code() == errc::unavailable));
}

BOOST_AUTO_TEST_SUITE_END()

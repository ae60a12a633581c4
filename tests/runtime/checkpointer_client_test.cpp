// Tests a checkpointer with a service that is late, silent, or answers when it is too late.
#include <millrace/net/network_options.hpp>
#include <millrace/runtime/client/calls/placement.hpp>
#include <millrace/runtime/client/client.hpp>
#include <millrace/tests/support/process.hpp>
#include <millrace/tests/support/scripted_service.hpp>
#include <millrace/transport/memory/region.hpp>

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

using namespace millrace;
using namespace std::chrono_literals;
using actors::done_reply;
using actors::durable_request;
using actors::enroll_request;
using actors::leave_request;
using actors::save_request;

namespace {

provider_entry pool(const std::string& name) { return testing::listed(name, true); }

// Registers each client under the next number; saves at once.
struct fixture {
  testing::scripted_service service{{pool("p")}};
  client c = client::connect(service.address());
  std::vector<std::byte> bytes = std::vector<std::byte>(100'000);
  std::atomic<std::uint64_t> registrations = 0;
  std::mutex mutex;
  std::vector<std::uint64_t> left;

  fixture() {
    service.on<actors::list_checkpoints_request>(
      [](auto&, auto reply) { reply(actors::checkpoint_list{}); });
    service.on<leave_request>([this](auto& request, auto reply) {
      std::lock_guard guard{mutex};
      left.push_back(request.registration);
      reply(done_reply{});
    });
    enrolls();
    saves();
  }

  void enrolls() {
    service.on<enroll_request>([this](auto&, auto reply) { reply(next_registration()); });
  }

  enroll_receipt next_registration() {
    enroll_receipt r;
    r.registration = ++registrations;
    return r;
  }

  void saves() {
    service.on<save_request>([this](auto& r, auto reply) { reply(receipt_of(r.step)); });
    service.on<durable_request>([this](auto& r, auto reply) { reply(receipt_of(r.step)); });
  }

  // From now on saves are begun and never heard of again.
  void falls_silent() {
    service.on<save_request>([](auto&, auto) {});
    service.on<durable_request>([](auto&, auto) {});
  }

  void refuses_saves(errc why) {
    service.on<save_request>([why](auto&, auto reply) { reply(fail(why, "no")); });
    service.on<durable_request>([why](auto&, auto reply) { reply(fail(why, "no")); });
  }

  save_receipt receipt_of(std::uint64_t step) const {
    save_receipt r;
    r.model = "m";
    r.step = step;
    r.size_bytes = bytes.size();
    return r;
  }

  checkpointer attach(std::chrono::milliseconds timeout = 30s) {
    checkpoint_options o;
    o.model = "m";
    o.timeout = timeout;
    return c.checkpointer(o, {{{"a", dtype::u8, {bytes.size()}}, bytes.data(), {}}}).get();
  }

  bool has_left(std::uint64_t registration) {
    return testing::eventually([&] {
      std::lock_guard guard{mutex};
      return std::find(left.begin(), left.end(), registration) != left.end();
    });
  }

  // When this returns, the client has handled the replies that were sent before.
  void settle() { c.checkpoints().list().get(); }

  // A save that works, with memory that the service may read.
  void expect_saved(checkpointer& job, std::uint64_t step) {
    auto save = job.save(step);
    BOOST_TEST(save.durable.result().has_value());
    BOOST_TEST(job.fence().ok());
    BOOST_TEST(transport::exposed_regions() == 1u);
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(checkpointer_clients, fixture)

BOOST_AUTO_TEST_CASE(tensors_are_out_of_reach_when_a_save_is_not_heard_of_in_time) {
  auto job = attach(300ms);
  falls_silent();
  auto save = job.save(1);
  BOOST_TEST((save.staged.result().error().code() == errc::deadline_exceeded));
  // The trainer goes on now, and the service may still be reading.
  BOOST_TEST(transport::exposed_regions() == 0u);
  BOOST_TEST(has_left(1));
  BOOST_TEST(!job.fence().ok());
  saves();
  expect_saved(job, 2);
  BOOST_TEST(registrations == 2u);
}

// The service answers that each is saved in the run that it asks for, or in run 5.
struct in_runs : fixture {
  std::vector<std::uint64_t> said;
  std::atomic<std::uint64_t> silent_about = 0; // a step

  in_runs() {
    service.on<actors::restore_request>(
      [](auto&, auto reply) { reply(fail(errc::not_found, "nothing is there")); });
    service.on<save_request>([this](auto& request, auto reply) {
      auto receipt = receipt_of(request.step);
      {
        std::lock_guard guard{mutex};
        said.push_back(request.run_min);
        receipt.run = std::max<std::uint64_t>(request.run_min, 5);
      }
      if (request.step != silent_about)
        reply(receipt);
    });
    service.on<durable_request>([this](auto& request, auto reply) {
      if (request.step != silent_about)
        reply(receipt_of(request.step));
    });
  }
  std::vector<std::uint64_t> all_said() {
    std::lock_guard guard{mutex};
    return said;
  }
};

BOOST_FIXTURE_TEST_CASE(saves_after_a_restore_ask_for_a_later_run_than_those_before, in_runs) {
  auto job = attach();
  BOOST_TEST(!job.restore().result());
  expect_saved(job, 1);
  expect_saved(job, 2);
  BOOST_TEST(!job.restore().result());
  BOOST_TEST(!job.restore().result()); // is the same going back
  expect_saved(job, 2);
  expect_saved(job, 3);
  BOOST_TEST(!job.restore().result());
  expect_saved(job, 2);
  BOOST_TEST((all_said() == std::vector<std::uint64_t>{0, 0, 6, 6, 7}));
}

// Others may have begun the next run meanwhile, which the new registration joins.
BOOST_FIXTURE_TEST_CASE(after_a_cancelled_save_the_next_asks_for_the_same_run, in_runs) {
  auto job = attach();
  expect_saved(job, 1);
  BOOST_TEST(!job.restore().result());
  service.on<enroll_request>([this](auto&, auto reply) {
    auto receipt = next_registration();
    receipt.run = 6;
    reply(receipt);
  });
  silent_about = 2;
  auto first = job.save(2);
  BOOST_TEST_REQUIRE(testing::eventually([&] { return all_said().size() == 2; }));
  first.staged.cancel();
  BOOST_TEST(!first.durable.result().has_value());
  BOOST_TEST(!job.fence().ok());
  expect_saved(job, 3);
  BOOST_TEST(registrations == 2u);
  BOOST_TEST((all_said() == std::vector<std::uint64_t>{0, 6, 6}));
}

BOOST_AUTO_TEST_CASE(a_late_failure_leaves_a_newer_registration_alone) {
  auto job = attach();
  std::vector<std::function<void(result<save_receipt>)>> asked;
  std::vector<std::function<void(result<save_receipt>)>> durable;
  promise<void> both;
  service.on<save_request>([&](auto&, auto reply) { asked.push_back(reply); });
  service.on<durable_request>([&](auto&, auto reply) {
    durable.push_back(reply);
    if (asked.size() == 2)
      both.set({});
  });
  auto first = job.save(1), second = job.save(2);
  both.get_future().get();
  asked[0](fail(errc::deadline_exceeded, "late"));
  BOOST_TEST(!first.staged.result().has_value());
  saves();
  // Fails with what the first has to tell; the one after it is begun.
  BOOST_TEST(!job.save(3).staged.result().has_value());
  BOOST_TEST(job.save(3).durable.result().has_value());
  asked[1](fail(errc::deadline_exceeded, "late"));
  BOOST_TEST(!second.staged.result().has_value());
  BOOST_TEST(!job.fence().ok());
  expect_saved(job, 4);
  BOOST_TEST(registrations == 2u);
  for (auto& reply : durable) // the checkpointer waits for them
    reply(fail(errc::deadline_exceeded, "late"));
}

// Whether it has been sent, waits to be sent, or registers again.
BOOST_AUTO_TEST_CASE(after_a_save_is_cancelled_its_tensors_are_out_of_reach_for_good) {
  auto job = attach();
  service.on<save_request>([](auto&, auto) {});
  service.on<durable_request>([](auto&, auto) {});
  // Each leaves two requests without an answer, and a channel grants 256.
  for (int i = 0; i < 100; ++i) {
    auto save = job.save(1);
    if (i % 2 == 0)
      std::this_thread::sleep_for(std::chrono::microseconds{2 * i});
    save.staged.cancel();
    auto in_reach = transport::exposed_regions();
    for (int looks = 0; looks < 5 && in_reach == 0; ++looks) {
      std::this_thread::sleep_for(100us);
      in_reach = transport::exposed_regions();
    }
    BOOST_TEST_REQUIRE(in_reach == 0u);
    BOOST_TEST(!save.durable.result().has_value());
    BOOST_TEST(!job.fence().ok());
  }
  saves();
  expect_saved(job, 2);
}

BOOST_AUTO_TEST_CASE(a_save_given_up_while_it_registers_again_does_not_spoil_the_next) {
  auto job = attach();
  refuses_saves(errc::not_found);
  promise<std::function<void(result<enroll_receipt>)>> asked;
  service.on<enroll_request>([asked](auto&, auto reply) { asked.set(std::move(reply)); });
  auto save = job.save(1);
  auto reply = asked.get_future().get();
  save.staged.cancel();
  BOOST_TEST(transport::exposed_regions() == 0u);
  BOOST_TEST(!save.durable.result().has_value());
  BOOST_TEST(!job.fence().ok());
  saves();
  enrolls();
  reply(next_registration());
  // The client ends the registration of memory that is gone.
  BOOST_TEST(has_left(2));
  expect_saved(job, 2);
  BOOST_TEST(registrations == 3u);
}

BOOST_AUTO_TEST_CASE(a_save_cancelled_between_two_tries_to_register_again_does_not_try_again) {
  auto job = attach();
  refuses_saves(errc::not_found);
  std::atomic<int> asked = 0;
  service.on<enroll_request>([&](auto&, auto reply) {
    ++asked;
    reply(fail(errc::busy, "a job is attached"));
  });
  auto save = job.save(1);
  BOOST_TEST_REQUIRE(testing::eventually([&] { return asked >= 2; }));
  save.staged.cancel();
  BOOST_TEST(transport::exposed_regions() == 0u);
  // Longer than the pause before the next try.
  for (int looks = 0; looks < 30; ++looks) {
    std::this_thread::sleep_for(20ms);
    BOOST_TEST_REQUIRE(transport::exposed_regions() == 0u);
  }
  BOOST_TEST(!save.durable.result().has_value());
  BOOST_TEST(!job.fence().ok());
  saves();
  enrolls();
  expect_saved(job, 2);
}

BOOST_AUTO_TEST_CASE(who_saves_while_a_given_up_registration_is_on_its_way_gets_one_of_its_own) {
  auto job = attach();
  refuses_saves(errc::not_found);
  promise<std::function<void(result<enroll_receipt>)>> asked;
  service.on<enroll_request>([asked](auto&, auto reply) { asked.set(std::move(reply)); });
  auto save = job.save(1);
  auto reply = asked.get_future().get();
  save.staged.cancel();
  BOOST_TEST(!job.fence().ok());
  saves();
  enrolls();
  auto next = job.save(2);
  reply(next_registration());
  BOOST_TEST(next.durable.result().has_value());
  BOOST_TEST(has_left(2));
  BOOST_TEST(registrations == 3u);
}

BOOST_AUTO_TEST_CASE(a_save_that_waits_for_the_registration_of_a_cancelled_one_goes_on) {
  auto job = attach();
  refuses_saves(errc::not_found);
  promise<std::function<void(result<enroll_receipt>)>> asked;
  service.on<enroll_request>([asked](auto&, auto reply) { asked.set(std::move(reply)); });
  auto first = job.save(1), second = job.save(2);
  auto reply = asked.get_future().get();
  // The second is refused and registers again, too, or does so at once.
  for (int i = 0; i < 3; ++i)
    settle();
  first.staged.cancel();
  BOOST_TEST(transport::exposed_regions() == 0u);
  saves();
  enrolls();
  reply(next_registration());
  BOOST_TEST(has_left(2));
  BOOST_TEST((first.durable.result().error().code() == errc::cancelled));
  auto saved = second.durable.result();
  BOOST_TEST(saved.has_value(), (saved ? "" : saved.error().to_string()));
  BOOST_TEST(!job.fence().ok());
  expect_saved(job, 3);
  BOOST_TEST(registrations == 3u);
}

BOOST_AUTO_TEST_CASE(a_save_under_way_is_asked_for_anew_when_another_one_is_cancelled) {
  auto job = attach();
  std::vector<std::function<void(result<save_receipt>)>> asked;
  service.on<save_request>([&](auto&, auto reply) { asked.push_back(reply); });
  service.on<durable_request>([](auto&, auto) {});
  auto first = job.save(1), second = job.save(2);
  BOOST_TEST_REQUIRE(testing::eventually([&] { return service.asked<durable_request>() == 2u; }));
  saves();
  first.staged.cancel();
  BOOST_TEST(transport::exposed_regions() == 0u);
  for (auto& answer : asked)
    answer(fail(errc::permission_denied, "the tensors were withdrawn"));
  BOOST_TEST((first.durable.result().error().code() == errc::cancelled));
  auto saved = second.durable.result();
  BOOST_TEST(saved.has_value(), (saved ? "" : saved.error().to_string()));
  BOOST_TEST(has_left(1));
  BOOST_TEST(!job.fence().ok());
  expect_saved(job, 3);
  BOOST_TEST(registrations == 2u);
}

// The trainer may have changed its tensors since.
BOOST_AUTO_TEST_CASE(a_save_that_was_read_becomes_durable_when_another_one_is_cancelled) {
  auto job = attach();
  promise<std::function<void(result<save_receipt>)>> asked;
  service.on<durable_request>([asked](auto&, auto reply) { asked.set(std::move(reply)); });
  auto first = job.save(1);
  BOOST_TEST(first.staged.result().has_value());
  auto reply = asked.get_future().get();
  falls_silent();
  auto second = job.save(2);
  second.staged.cancel();
  BOOST_TEST(transport::exposed_regions() == 0u);
  settle();
  {
    std::lock_guard guard{mutex};
    BOOST_TEST(left.empty());
  }
  reply(receipt_of(1));
  BOOST_TEST(first.durable.result().has_value());
  BOOST_TEST(has_left(1));
  BOOST_TEST(service.asked<save_request>() <= 2u);
  BOOST_TEST(!job.fence().ok());
  saves();
  expect_saved(job, 3);
}

// The other one waits for a slot, longer than a former job is waited for.
BOOST_AUTO_TEST_CASE(a_save_after_a_cancelled_one_waits_until_its_registration_is_over) {
  config::settings impatient;
  auto& channel = impatient.options.edit<net::network_options>().channel;
  channel.heartbeat_ms = 100;
  channel.peer_timeout_ms = 500;
  c = client::open(service.address(), impatient).value();
  auto job = attach();
  std::vector<std::function<void(result<save_receipt>)>> asked;
  service.on<save_request>([&](auto&, auto reply) { asked.push_back(reply); });
  service.on<durable_request>([&](auto&, auto reply) { asked.push_back(reply); });
  auto first = job.save(1), second = job.save(2);
  BOOST_TEST_REQUIRE(testing::eventually([&] { return service.asked<durable_request>() == 2u; }));
  service.on<enroll_request>([this](auto&, auto reply) {
    std::lock_guard guard{mutex};
    if (left.empty())
      reply(fail(errc::busy, "a job is attached"));
    else
      reply(next_registration());
  });
  saves();
  first.staged.cancel();
  BOOST_TEST((job.save(3).durable.result().error().code() == errc::cancelled)); // reports it
  auto next = job.save(4);
  BOOST_TEST(!next.durable.wait_for(3500ms));
  for (auto& answer : asked)
    answer(fail(errc::busy, "no slot in time"));
  auto saved = next.durable.result();
  BOOST_TEST(saved.has_value(), (saved ? "" : saved.error().to_string()));
  BOOST_TEST(second.durable.result().has_value());
  BOOST_TEST(has_left(1));
}

BOOST_AUTO_TEST_CASE(memory_that_was_registered_and_cannot_be_read_is_registered_anew) {
  auto job = attach();
  refuses_saves(errc::permission_denied);
  BOOST_TEST(!job.save(1).durable.result().has_value());
  BOOST_TEST(!job.fence().ok());
  BOOST_TEST(has_left(1));
  saves();
  expect_saved(job, 2);
  BOOST_TEST(registrations == 2u);
}

BOOST_AUTO_TEST_CASE(a_former_job_is_waited_for_until_its_host_must_have_been_missed) {
  // Longer than the end of a process takes to be noticed, shorter than that of a host.
  auto missed = steady_clock::now() + 3s;
  service.on<enroll_request>([=, this](auto&, auto reply) {
    if (steady_clock::now() < missed)
      reply(fail(errc::busy, "a job is attached"));
    else
      reply(next_registration());
  });
  auto job = attach();
  BOOST_TEST(registrations == 1u);
}

BOOST_AUTO_TEST_CASE(a_registration_refused_in_the_end_says_what_was_waited_for) {
  service.on<enroll_request>(
    [](auto&, auto reply) { reply(fail(errc::busy, "a job is attached")); });
  BOOST_CHECK_EXCEPTION(attach(200ms), error, [](const error& e) {
    return e.code() == errc::busy &&
      e.why().detail().find("channel.peer_timeout") != std::string::npos;
  });
}

BOOST_AUTO_TEST_CASE(of_several_providers_that_have_a_model_the_one_saved_to_last_is_asked) {
  // A name that is placed in none of the two that have it.
  testing::scripted_service three{{pool("p"), pool("q"), pool("r")}};
  auto client = client::connect(three.address());
  std::string name;
  for (int i = 0; name.empty(); ++i)
    if (runtime::place_checkpoints(std::to_string(i), "", client.providers()).value() == 0)
      name = std::to_string(i);
  auto having = [&](std::uint64_t saved_at_ns) {
    checkpoint_summary m;
    m.model = name;
    m.shards.resize(1);
    m.shards[0].slots = {{slot_state::done, saved_at_ns, saved_at_ns, false}};
    m.complete_steps = {saved_at_ns};
    return actors::checkpoint_list{{m}};
  };
  three.on_for<actors::list_checkpoints_request>(
    [=](const std::string& provider, auto&, auto reply) {
      reply(provider == "p" ? actors::checkpoint_list{} : having(provider == "q" ? 1 : 2));
    });
  auto found = client.checkpoints().describe(name).get();
  BOOST_TEST(found.shards.at(0).slots.at(0).step == 2u);
  // One that cannot be asked may be the one.
  three.on_for<actors::list_checkpoints_request>(
    [](const std::string& provider, auto&, auto reply) {
      if (provider == "r")
        reply(fail(errc::unavailable, "away"));
      else
        reply(actors::checkpoint_list{});
    });
  auto unknown = client.checkpoints().describe(name).result();
  BOOST_TEST_REQUIRE(!unknown.has_value());
  BOOST_TEST((unknown.error().code() == errc::unavailable));
  BOOST_TEST(unknown.error().detail().find("provider r") != std::string::npos);
  // It may have a step that the others do not have, and copies that must go with theirs.
  three.on_for<actors::list_checkpoints_request>(
    [=](const std::string& provider, auto&, auto reply) {
      if (provider == "r")
        reply(fail(errc::unavailable, "away"));
      else
        reply(having(1));
    });
  int erased = 0;
  three.on_for<actors::erase_checkpoint_request>([&](const std::string&, auto&, auto reply) {
    ++erased;
    reply(actors::done_reply{});
  });
  auto all = client.checkpoints();
  BOOST_TEST(all.describe(name, 1).get().shards.size() == 1u);
  for (auto code :
       {all.describe(name).result().error().code(), all.describe(name, 7).result().error().code(),
        all.erase(name).result().error().code(), all.erase(name, 1).result().error().code()})
    BOOST_TEST((code == errc::unavailable));
  BOOST_TEST(erased == 0);
  three.on_for<actors::list_checkpoints_request>(
    [=](const std::string& provider, auto&, auto reply) {
      reply(provider == "r" ? actors::checkpoint_list{} : having(1));
    });
  BOOST_TEST((all.erase(name, 2).result().error().code() == errc::not_found));
  BOOST_TEST(erased == 0);
  BOOST_TEST(all.erase(name).result().has_value());
  BOOST_TEST(erased == 2);
}

// The silent one has steps that the trainer has seen durable; the one that answers has older ones.
BOOST_AUTO_TEST_CASE(while_a_provider_is_silent_no_job_goes_back_to_what_another_one_has) {
  testing::scripted_service two{{pool("p"), pool("q")}};
  auto client = client::connect(two.address());
  checkpoint_summary old;
  old.model = "m";
  old.shards.resize(1);
  old.shards[0].slots = {{slot_state::done, 3, 3, false}};
  old.complete_steps = {3};
  for (std::string silent : {"p", "q"}) { // one of them is where the name is placed
    auto answers = [&](errc code, bool registered) {
      auto had = old;
      had.shards[0].registered = registered;
      two.on_for<actors::list_checkpoints_request>(
        [=](const std::string& provider, auto&, auto reply) {
          if (provider == silent)
            reply(fail(code, "away"));
          else
            reply(actors::checkpoint_list{{had}});
        });
    };
    auto refused = [&](const status& why) {
      return why.code() == errc::unavailable &&
        why.detail().find("provider " + silent) != std::string::npos;
    };
    std::vector<std::byte> bytes(8);
    std::vector<tensor_view> views{{{"a", dtype::u8, {8}}, bytes.data(), {}}};
    checkpoint_options options;
    options.model = "m";
    auto all = client.checkpoints();
    for (auto code : {errc::unavailable, errc::peer_lost, errc::deadline_exceeded}) {
      answers(code, false);
      BOOST_TEST(refused(client.checkpointer(options, views).result().error()));
      BOOST_TEST(refused(all.load("m", 0, {}, views).result().error()));
      BOOST_TEST(refused(all.describe("m").result().error()));
      BOOST_TEST(refused(all.describe("m", 4).result().error()));
      BOOST_TEST((all.describe("m", 3).get() == old));
    }
    // A living job was registered when both could be asked.
    answers(errc::unavailable, true);
    BOOST_TEST(all.describe("m").get().shards.at(0).registered);
  }
}

// A later save that broke off, and one that not all ranks have, do not hide a complete step.
BOOST_AUTO_TEST_CASE(of_several_providers_one_that_has_the_step_complete_is_asked) {
  testing::scripted_service three{{pool("p"), pool("q"), pool("r")}};
  auto client = client::connect(three.address());
  checkpoint_summary half_filled, complete, incomplete;
  half_filled.shards.resize(1);
  half_filled.shards[0].slots = {
    {}, {slot_state::active, 5, 0, false}, {slot_state::done, 7, 9, false}};
  complete.shards.resize(1);
  complete.shards[0].slots = {{slot_state::done, 5, 1, false}};
  complete.complete_steps = {5};
  incomplete.shards.resize(1);
  incomplete.shards[0].slots = {{slot_state::done, 5, 8, false}, {slot_state::done, 0, 2, false}};
  std::map<std::string, checkpoint_summary> kept{
    {"p", half_filled}, {"q", complete}, {"r", incomplete}};
  for (auto& [provider, model] : kept)
    model.model = "m";
  three.on_for<actors::list_checkpoints_request>(
    [kept](const std::string& provider, auto&, auto reply) {
      reply(actors::checkpoint_list{{kept.at(provider)}});
    });
  auto all = client.checkpoints();
  BOOST_TEST((all.describe("m", 5).get() == kept["q"]));
  BOOST_TEST((all.describe("m", 7).get() == kept["p"]));
  BOOST_TEST((all.describe("m", 0).get() == kept["r"]));
  // Nothing is there of it but an empty slot.
  std::vector<std::string> erased;
  three.on_for<actors::erase_checkpoint_request>(
    [&](const std::string& provider, auto&, auto reply) {
      erased.push_back(provider);
      reply(actors::done_reply{});
    });
  BOOST_TEST(all.erase("m", 0).result().has_value());
  BOOST_TEST(erased == std::vector<std::string>{"r"}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(pages_of_any_size_are_listed_until_there_are_no_more) {
  service.on<actors::list_checkpoints_request>([](auto& request, auto reply) {
    auto next = request.after.empty() ? 0 : std::stoi(request.after) + 1;
    checkpoint_summary m;
    m.model = std::to_string(next);
    reply(actors::checkpoint_list{{m}, next < 4});
  });
  BOOST_TEST(c.checkpoints().list().get().found.size() == 5u);
  // One that begins again with every page is left.
  service.on<actors::list_checkpoints_request>([](auto&, auto reply) {
    checkpoint_summary m;
    m.model = "a";
    reply(actors::checkpoint_list{{m}, true});
  });
  BOOST_TEST(c.checkpoints().list().result().has_value());
}

BOOST_AUTO_TEST_CASE(receipts_about_another_step_are_refused) {
  auto job = attach();
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> cases{{1, 1}, {1, 2}, {0, 0}, {0, 1}};
  for (auto& [asked, answered] : cases) {
    auto receipt = receipt_of(answered);
    service.on<save_request>([receipt](auto&, auto reply) { reply(receipt); });
    service.on<durable_request>([receipt](auto&, auto reply) { reply(receipt); });
    auto saved = job.save(asked).durable.result();
    BOOST_TEST(saved.has_value() == (asked == answered));
    BOOST_TEST(job.fence().ok() == (asked == answered));
    actors::load_reply loaded;
    loaded.model = receipt.model;
    loaded.version = receipt.step;
    loaded.size_bytes = receipt.size_bytes;
    service.on<actors::restore_request>([loaded](auto&, auto reply) { reply(loaded); });
    BOOST_TEST(job.restore(asked).result().has_value() == (asked == answered));
    BOOST_TEST(job.restore().result().has_value());
  }
}

BOOST_AUTO_TEST_CASE(a_shard_that_does_not_hold_together_is_refused) {
  shard_spec shard;
  shard.model = "m";
  shard.tensors.tensors = {{"a", dtype::f64, {1ull << 62, 1ull << 62}}};
  service.on<actors::describe_shard_request>([&](auto&, auto reply) { reply(shard); });
  auto refused = c.checkpoints().describe_shard("m", 0).result();
  BOOST_TEST((!refused && refused.error().code() == errc::protocol_error));
  shard.tensors.tensors = {{"a", dtype::f64, {1}}};
  BOOST_TEST(c.checkpoints().describe_shard("m", 0).result().has_value());
  refused = c.checkpoints().describe_shard("n", 0).result();
  BOOST_TEST((!refused && refused.error().code() == errc::protocol_error));
}

BOOST_AUTO_TEST_CASE(a_fence_that_nobody_waits_for_is_ready_when_the_tensors_were_read) {
  auto job = attach();
  BOOST_TEST(job.fence_async().result().has_value());
  promise<std::function<void(result<save_receipt>)>> asked;
  service.on<save_request>([asked](auto&, auto reply) { asked.set(std::move(reply)); });
  promise<std::function<void(result<save_receipt>)>> durable;
  service.on<durable_request>([durable](auto&, auto answer) { durable.set(std::move(answer)); });
  auto save = job.save(1);
  auto reply = asked.get_future().get();
  auto fence = job.fence_async();
  settle();
  BOOST_TEST(!fence.ready());
  reply(receipt_of(1));
  BOOST_TEST(fence.result().has_value());
  BOOST_TEST(job.fence_async().ready());
  durable.get_future().get()(receipt_of(1)); // the checkpointer waits for it
}

BOOST_AUTO_TEST_CASE(a_fence_that_nobody_waits_for_tells_a_failure_once) {
  auto job = attach();
  refuses_saves(errc::no_space);
  auto save = job.save(1);
  auto failed = job.fence_async().result();
  BOOST_TEST((!failed && failed.error().code() == errc::no_space));
  BOOST_TEST(job.fence_async().result().has_value());
}

BOOST_AUTO_TEST_CASE(closing_that_nobody_waits_for_ends_the_registration_after_the_save) {
  auto job = attach();
  promise<std::function<void(result<save_receipt>)>> asked;
  service.on<save_request>([](auto&, auto) {});
  service.on<durable_request>([asked](auto&, auto reply) { asked.set(std::move(reply)); });
  auto save = job.save(1);
  auto reply = asked.get_future().get();
  auto closing = job.close_async();
  settle();
  BOOST_TEST(!closing.ready());
  BOOST_TEST(transport::exposed_regions() == 1u);
  BOOST_TEST((job.save(2).staged.result().error().code() == errc::unavailable));
  reply(receipt_of(1));
  BOOST_TEST(closing.result().has_value());
  BOOST_TEST(transport::exposed_regions() == 0u);
  BOOST_TEST(has_left(1));
  BOOST_TEST(job.close_async().result().has_value());
  auto failing = attach();
  refuses_saves(errc::no_space);
  static_cast<void>(failing.save(1));
  auto lost = failing.close_async().result();
  BOOST_TEST((!lost && lost.error().code() == errc::no_space));
}

BOOST_AUTO_TEST_SUITE_END()

// Tests when objects of the C ABI end: orders of release, thousands of clients, forks, signals.
#include "c_node.hpp"

#include <millrace/tests/support/forked_child.hpp>
#include <millrace/tests/support/skipped.hpp>

#include <malloc.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

using namespace millrace::testing;

namespace {

// The threads that a handler may run on, by name: those that do not block all signals but faults.
std::vector<std::string> threads_that_take_signals() {
  std::uint64_t wanted = 0x7fffffff; // the 31 signals of POSIX
  for (auto spared : {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP, SIGKILL, SIGSTOP})
    wanted &= ~(std::uint64_t{1} << (spared - 1));
  std::vector<std::string> out;
  for (auto& entry : std::filesystem::directory_iterator{"/proc/self/task"}) {
    std::ifstream file{entry.path() / "status"};
    std::string name, blocked;
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("Name:"))
        name = line.substr(6);
      if (line.starts_with("SigBlk:"))
        blocked = line.substr(8);
    }
    // A thread that has just ended has no status.
    if (!blocked.empty() && (std::stoull(blocked, nullptr, 16) & wanted) != wanted)
      out.push_back(name);
  }
  return out;
}

std::size_t allocated_bytes() {
  auto all = ::mallinfo2();
  return all.uordblks + all.hblkhd;
}

} // namespace

BOOST_FIXTURE_TEST_SUITE(lifetimes, c_node)

BOOST_AUTO_TEST_CASE(what_was_made_of_a_client_works_after_its_release) {
  matrix m{1};
  auto saved = m.elements;
  auto* own = connect();
  auto options = sized<millrace_checkpoint_options>();
  options.name = "run";
  auto t = m.tensor();
  millrace_checkpointer* ck = nullptr;
  MUST(millrace_register(own, &options, &t, 1, &ck));
  millrace_release(own);
  millrace_request* durable = nullptr;
  MUST(millrace_save(ck, 1, 0, nullptr, 0, nullptr, &durable));
  MUST(millrace_wait(&durable, MILLRACE_FOREVER));
  std::fill(m.elements.begin(), m.elements.end(), 0.0F);
  MUST(millrace_restore(ck, -1, nullptr));
  BOOST_TEST(m.elements == saved);
  MUST(millrace_close(ck, 0, nullptr));
  millrace_checkpointer_release(ck);
}

BOOST_AUTO_TEST_CASE(a_request_outlives_its_client_and_can_be_cancelled) {
  auto* own = connect();
  millrace_request* r = nullptr;
  MUST(millrace_await(own, nullptr, "never", 0, 3'600'000, &r));
  millrace_release(own);
  MUST(millrace_cancel(r));
  BOOST_TEST(millrace_wait(&r, 60'000) == MILLRACE_CANCELLED);
  BOOST_TEST(!r);
}

BOOST_AUTO_TEST_CASE(a_stopped_node_gives_no_clients_and_stops_once_more) {
  MUST(millrace_node_stop(node, nullptr));
  millrace_client* late = nullptr;
  BOOST_TEST(millrace_node_client(node, &late) == MILLRACE_UNAVAILABLE);
  MUST(millrace_node_stop(node, nullptr));
  BOOST_TEST(millrace_node_address(node));
}

// The second caller could free the tensors while they are being read.
BOOST_AUTO_TEST_CASE(a_second_close_and_a_second_stop_are_over_with_the_first) {
  std::vector<float> elements(4u << 20); // so that the save is under way when it is closed
  std::uint64_t count = elements.size();
  millrace_tensor t{};
  t.name = "w";
  t.data = elements.data();
  t.dtype = MILLRACE_F32;
  t.rank = 1;
  t.shape = &count;
  scratch place;
  auto file = place.write(
    "node.yaml",
    "node: { name: n1, listen: 'unix:" + place / "n1.sock" + "' }\n" +
      "providers: [{ name: pool, bucket: pmem, capacity: 64MiB, path: '" + place / "pool" +
      "' }]\n");
  millrace_node* other = nullptr;
  millrace_client* own = nullptr;
  MUST(millrace_embed(file.c_str(), nullptr, &other));
  MUST(millrace_node_client(other, &own));
  auto options = sized<millrace_checkpoint_options>();
  options.name = "run";
  for (bool asks : {true, false}) {
    millrace_checkpointer* ck = nullptr;
    MUST(millrace_register(own, &options, &t, 1, &ck));
    millrace_request *durable = nullptr, *first = nullptr, *second = nullptr;
    MUST(millrace_save(ck, asks ? 1 : 2, 0, nullptr, 0, nullptr, &durable));
    MUST(millrace_close(ck, 0, &first));
    MUST(millrace_close(ck, 0, asks ? &second : nullptr));
    if (asks)
      MUST(millrace_wait(&second, MILLRACE_FOREVER));
    int over = 0;
    MUST(millrace_test(&durable, &over));
    BOOST_TEST(over == 1);
    MUST(millrace_wait(&first, 60'000));
    millrace_checkpointer_release(ck);
  }
  millrace_release(own);
  millrace_request *first = nullptr, *second = nullptr;
  MUST(millrace_node_stop(other, &first));
  MUST(millrace_node_stop(other, &second));
  MUST(millrace_wait(&second, MILLRACE_FOREVER));
  MUST(millrace_wait(&first, MILLRACE_FOREVER));
  millrace_node_release(other);
}

BOOST_AUTO_TEST_CASE(who_gives_up_waiting_for_a_stop_takes_it_from_nobody) {
  auto file = another();
  millrace_node* other = nullptr;
  MUST(millrace_embed(file.c_str(), nullptr, &other));
  millrace_request *first = nullptr, *second = nullptr;
  MUST(millrace_node_stop(other, &first));
  MUST(millrace_node_stop(other, &second));
  MUST(millrace_cancel(first));
  MUST(millrace_wait(&second, MILLRACE_FOREVER));
  MUST(millrace_node_stop(other, nullptr));
  millrace_detach(&first);
  millrace_node_release(other);
}

BOOST_AUTO_TEST_CASE(a_thousand_clients_leave_nothing_behind) {
  auto cycle = [&] {
    auto* own = connect();
    matrix m;
    auto t = m.tensor();
    MUST(millrace_put(own, "m", &t, 1, nullptr, nullptr));
    millrace_release(own);
  };
  expect_nothing_left(500, 0, cycle);
  // What the allocator keeps for a thread counts as allocated, and may grow now and then. What a
  // client leaves behind, be it 200 bytes, adds up in each round. Sanitizers have an allocator of
  // their own.
  bool grows = true;
  for (int round = 0; round < 3 && grows; ++round) {
    auto bytes_before = allocated_bytes();
    expect_nothing_left(0, 1000, cycle);
    grows = !sanitized && allocated_bytes() > bytes_before + 200'000;
  }
  BOOST_TEST(!grows);
}

BOOST_AUTO_TEST_CASE(fifty_nodes_leave_nothing_behind) {
  auto file = another();
  expect_nothing_left(1, 50, [&] {
    matrix m;
    auto t = m.tensor();
    millrace_node* other = nullptr;
    millrace_client* own = nullptr;
    MUST(millrace_embed(file.c_str(), nullptr, &other));
    MUST(millrace_node_client(other, &own));
    MUST(millrace_put(own, "m", &t, 1, nullptr, nullptr));
    millrace_release(own);
    MUST(millrace_node_stop(other, nullptr));
    millrace_node_release(other);
  });
}

BOOST_AUTO_TEST_CASE(a_forked_child_is_refused_and_opens_its_own) {
  matrix m;
  auto t = m.tensor();
  auto* own = connect();
  auto* ck = job(t);
  millrace_queue* q = nullptr;
  MUST(millrace_queue_create(0, &q));
  millrace_request* open = nullptr;
  MUST(millrace_await(own, nullptr, "later", 0, 3'600'000, &open));
  auto result = in_forked_child([&] {
    std::size_t index = 9, taken = 9;
    std::uint64_t token = 0;
    int place = 0;
    auto refused = [&](millrace_code code) {
      ++place;
      return code == MILLRACE_UNAVAILABLE;
    };
    millrace_request* r = nullptr;
    millrace_client* c = nullptr;
    if (
      !refused(millrace_put(own, "m", &t, 1, nullptr, &r)) ||
      !refused(millrace_get(own, "m", &t, 1, nullptr, nullptr)) ||
      !refused(millrace_list(own, nullptr, nullptr, nullptr)) ||
      !refused(millrace_save(ck, 1, 0, nullptr, 0, nullptr, nullptr)) ||
      !refused(millrace_fence(ck, nullptr)) || !refused(millrace_rebind(ck, &t, 1)) ||
      !refused(millrace_close(ck, 0, nullptr)) || !refused(millrace_node_client(node, &c)) ||
      !refused(millrace_node_stop(node, nullptr)) || !refused(millrace_queue_add(q, open, 1)) ||
      !refused(millrace_queue_poll(q, &token, 1, MILLRACE_FOREVER, &taken)) || taken != 0 ||
      !refused(millrace_waitany(1, &open, MILLRACE_FOREVER, &index)) || index != 0)
      return place;
    auto* address = millrace_node_address(node);
    millrace_checkpointer_release(ck);
    millrace_release(own);
    if (millrace_connect(address, nullptr, &c) != MILLRACE_OK)
      return 50;
    if (millrace_put(c, "of the child", &t, 1, nullptr, nullptr) != MILLRACE_OK)
      return 51;
    millrace_release(c);
    return 0;
  });
  BOOST_TEST(result == 0);
  // The parent goes on.
  MUST(millrace_get(own, "of the child", &t, 1, nullptr, nullptr));
  MUST(millrace_close(ck, 0, nullptr));
  MUST(millrace_cancel(open));
  millrace_detach(&open);
  millrace_checkpointer_release(ck);
  millrace_queue_release(q);
  millrace_release(own);
}

// The threads of the runtime block signals, so the thread that waits gets it, and the program ends.
BOOST_AUTO_TEST_CASE(an_interrupt_ends_a_program_that_waits) {
  child_process program{{MILLRACE_C_WAITING, millrace_node_address(node)}};
  BOOST_TEST(program.read_line() == "waiting");
  program.signal(SIGINT);
  BOOST_TEST(program.wait() == 128 + SIGINT);
}

BOOST_AUTO_TEST_CASE(a_program_whose_handler_returns_gives_its_wait_up_as_the_guide_says) {
  for (auto* way : {"slices", "ppoll"}) {
    BOOST_TEST_CONTEXT(way) {
      child_process program{{MILLRACE_C_WAITING, millrace_node_address(node), way}};
      BOOST_TEST(program.read_line() == "waiting");
      program.signal(SIGINT);
      BOOST_TEST(program.wait() == 0);
    }
  }
}

// Signals would run handlers of the program on threads that it does not know.
BOOST_AUTO_TEST_CASE(the_threads_of_the_library_run_no_handler_of_the_program) {
  const auto own = threads_that_take_signals();
  scratch place;
  auto file = place.write(
    "node.yaml",
    "node: { name: n1, listen: 'unix:" + place / "n1.sock" +
      "' }\n"
      "staging: { size: 64MiB }\n"
      "providers:\n"
      "  - { name: files, bucket: rocksdb, capacity: 64MiB, path: '" +
      place / "files" + "' }\n");
  millrace_node* other = nullptr;
  MUST(millrace_embed(file.c_str(), nullptr, &other));
  millrace_client* c = nullptr;
  MUST(millrace_connect(millrace_node_address(other), nullptr, &c));
  matrix m;
  auto t = m.tensor();
  MUST(millrace_put(c, "m", &t, 1, nullptr, nullptr));
  auto* ck = job(t);
  MUST(millrace_save(ck, 1, MILLRACE_SAVE_SNAPSHOT, nullptr, 0, nullptr, nullptr));
  MUST(millrace_fence(ck, nullptr));
  BOOST_TEST(threads() > 10u);
  BOOST_TEST(threads_that_take_signals() == own, boost::test_tools::per_element());
  // Those of this fixture's node as well.
  BOOST_TEST(own.size() == 1u);
  MUST(millrace_close(ck, 0, nullptr));
  millrace_checkpointer_release(ck);
  millrace_release(c);
  MUST(millrace_node_stop(other, nullptr));
  millrace_node_release(other);
}

BOOST_AUTO_TEST_CASE(a_program_in_c_does_all_of_it) {
  child_process program{{MILLRACE_C_PROGRAM, millrace_node_address(node)}};
  BOOST_TEST(program.wait() == 0);
}

BOOST_AUTO_TEST_CASE(a_process_may_exit_at_any_time_and_use_the_library_meanwhile) {
  auto file = another();
  for (auto* how : {"released", "saving", "untaken", "in-a-handler", "late"})
    for (int i = 0; i < 5; ++i) {
      child_process program{{MILLRACE_C_EXITING, how, file}};
      BOOST_TEST(program.wait() == 0, how);
    }
}

BOOST_AUTO_TEST_CASE(a_child_connects_though_it_was_forked_while_others_did) {
  if (sanitized)
    return skipped("forks beside threads that allocate: the sanitizer's allocator stays locked");
  std::atomic<bool> ends = false;
  std::vector<std::thread> connecting;
  for (int i = 0; i < 3; ++i)
    connecting.emplace_back([&] {
      while (!ends) {
        millrace_client* own = nullptr;
        if (millrace_connect(millrace_node_address(node), nullptr, &own) == MILLRACE_OK)
          millrace_release(own);
      }
    });
  for (int i = 0; i < 30; ++i) {
    auto child = in_forked_child([&] {
      millrace_client* own = nullptr;
      return millrace_connect(millrace_node_address(node), nullptr, &own) == MILLRACE_OK ? 0 : 1;
    });
    BOOST_TEST(child == 0);
  }
  ends = true;
  for (auto& t : connecting)
    t.join();
}

BOOST_AUTO_TEST_CASE(a_library_that_was_opened_at_run_time_can_be_closed_and_opened_again) {
  child_process program{{MILLRACE_C_DLOPEN, MILLRACE_C_LIBRARY, millrace_node_address(node)}};
  BOOST_TEST(program.wait() == 0);
}

BOOST_AUTO_TEST_CASE(two_builds_work_in_one_process_and_in_its_children) {
  child_process program{
    {MILLRACE_C_BUILDS, MILLRACE_C_LIBRARY, MILLRACE_C_OTHER, millrace_node_address(node)}};
  BOOST_TEST(program.wait() == 0);
}

BOOST_AUTO_TEST_CASE(a_job_is_read_from_the_environment) {
  auto info = sized<millrace_job_info>();
  auto result = in_forked_child([&] {
    ::setenv("RANK", "2", 1);
    ::setenv("WORLD_SIZE", "4", 1);
    ::unsetenv("LOCAL_RANK");
    auto* own = &info;
    if (millrace_job(own) != MILLRACE_OK || own->rank != 2 || own->world_size != 4)
      return 1;
    if (own->local_rank != -1 || std::string{own->launcher} != "torchrun")
      return 2;
    ::setenv("RANK", "4", 1);
    return millrace_job(own) == MILLRACE_INVALID_ARGUMENT ? 0 : 3;
  });
  BOOST_TEST(result == 0);
}

BOOST_AUTO_TEST_SUITE_END()

// Tests models and requests by the C functions: bytes, receipts, waits, queues.
#include "c_node.hpp"

#include <poll.h>

#include <array>
#include <atomic>
#include <thread>

using namespace millrace::testing;

namespace {

millrace_request* begun_put(const c_node& n, const char* model, const millrace_tensor& t) {
  millrace_request* r = nullptr;
  MUST(millrace_put(n.client, model, &t, 1, nullptr, &r));
  BOOST_REQUIRE(r);
  return r;
}

// One that stays open until something is stored.
millrace_request* waiting(const c_node& n, const char* model) {
  millrace_request* r = nullptr;
  MUST(millrace_await(n.client, nullptr, model, 0, 60'000, &r));
  BOOST_REQUIRE(r);
  return r;
}

} // namespace

BOOST_FIXTURE_TEST_SUITE(requests, c_node)

BOOST_AUTO_TEST_CASE(a_stored_model_is_loaded_whole_and_by_boxes) {
  matrix stored{1}, loaded;
  auto t = stored.tensor();
  MUST(millrace_put(client, "m", &t, 1, nullptr, nullptr));
  t.data = loaded.elements.data();
  MUST(millrace_get(client, "m", &t, 1, nullptr, nullptr));
  BOOST_TEST(loaded.elements == stored.elements);

  std::array<float, 6> box{};
  const std::uint64_t shape[] = {2, 3}, offsets[] = {10, 5};
  t.data = box.data();
  t.shape = shape;
  t.offsets = offsets;
  MUST(millrace_get(client, "m", &t, 1, nullptr, nullptr));
  for (std::size_t i = 0; i < box.size(); ++i)
    BOOST_TEST(box[i] == stored.elements[(10 + i / 3) * 32 + 5 + i % 3]);
}

BOOST_AUTO_TEST_CASE(a_receipt_can_be_read_before_the_wait_frees_it) {
  matrix m;
  auto* r = begun_put(*this, "m", m.tensor());
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  auto receipt = sized<millrace_receipt>();
  MUST(millrace_request_receipt(r, &receipt));
  BOOST_TEST(std::string{receipt.name} == "m");
  BOOST_TEST(std::string{receipt.provider} == "fast");
  BOOST_TEST(receipt.size_bytes == m.elements.size() * sizeof(float));
  BOOST_TEST(receipt.version > 0u);
  BOOST_TEST(receipt.step == 0u);
  MUST(millrace_wait(&r, 0));
  BOOST_TEST(!r);
  MUST(millrace_wait(&r, 0)); // it is over already
}

BOOST_AUTO_TEST_CASE(a_request_that_is_not_over_gives_no_receipt) {
  auto* r = waiting(*this, "m");
  auto receipt = sized<millrace_receipt>();
  BOOST_TEST(millrace_request_receipt(r, &receipt) == MILLRACE_BUSY);
  BOOST_TEST(millrace_request_count(r) == 0u);
  BOOST_TEST(millrace_wait(&r, 0) == MILLRACE_DEADLINE_EXCEEDED);
  BOOST_TEST(r);
  int over = 1;
  MUST(millrace_test(&r, &over));
  BOOST_TEST(over == 0);
  matrix m;
  auto t = m.tensor();
  MUST(millrace_put(client, "m", &t, 1, nullptr, nullptr));
  MUST(millrace_request_wait(r, 60'000));
  MUST(millrace_request_receipt(r, &receipt));
  BOOST_TEST(receipt.version > 0u);
  MUST(millrace_test(&r, &over));
  BOOST_TEST(over == 1);
  BOOST_TEST(!r);
}

BOOST_AUTO_TEST_CASE(models_are_listed_described_pinned_and_erased) {
  matrix m;
  auto t = m.tensor();
  for (auto* name : {"a/1", "a/2", "b"})
    MUST(millrace_put(client, name, &t, 1, nullptr, nullptr));
  MUST(millrace_pin(client, nullptr, "a/2", 1, nullptr));
  millrace_request* r = nullptr;
  MUST(millrace_list(client, nullptr, "a/", &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  BOOST_TEST(millrace_request_count(r) == 2u);
  auto model = sized<millrace_model>();
  MUST(millrace_request_model(r, 1, &model));
  BOOST_TEST(std::string{model.name} == "a/2");
  BOOST_TEST(model.pinned == 1);
  BOOST_TEST(model.tensors == 1u);
  REFUSED(millrace_request_model(r, 2, &model), "millrace_request_model", "index");
  millrace_tensor described{};
  REFUSED(millrace_request_tensor(r, 0, &described), "millrace_request_tensor", "index");
  BOOST_TEST(!millrace_request_silent(r, 0));
  millrace_detach(&r);

  MUST(millrace_describe(client, nullptr, "b", 0, &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  BOOST_TEST(millrace_request_count(r) == 1u);
  MUST(millrace_request_tensor(r, 0, &described));
  BOOST_TEST(std::string{described.name} == "w");
  BOOST_TEST(described.dtype == MILLRACE_F32);
  BOOST_TEST(described.rank == 2);
  BOOST_TEST(described.shape[0] == 64u);
  BOOST_TEST(!described.data);
  millrace_detach(&r);

  MUST(millrace_erase(client, nullptr, "b", nullptr));
  BOOST_TEST(millrace_erase(client, nullptr, "b", nullptr) == MILLRACE_NOT_FOUND);
  BOOST_TEST(std::string{millrace_error()}.starts_with("not_found: "));
}

BOOST_AUTO_TEST_CASE(a_description_has_the_metadata_of_the_store) {
  matrix m;
  auto t = m.tensor();
  const millrace_pair given[] = {{"git", "abc"}, {"loss", ""}};
  auto o = sized<millrace_put_options>();
  o.metadata = given;
  o.metadata_count = 2;
  MUST(millrace_put(client, "m", &t, 1, &o, nullptr));
  millrace_request* r = nullptr;
  MUST(millrace_describe(client, nullptr, "m", 0, &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  for (std::size_t i = 0; i < 2; ++i) {
    millrace_pair pair{};
    MUST(millrace_request_metadata(r, i, &pair));
    BOOST_TEST(std::string{pair.key} == given[i].key);
    BOOST_TEST(std::string{pair.value} == given[i].value);
  }
  millrace_pair none{"stale", "stale"};
  BOOST_TEST(millrace_request_metadata(r, 2, &none) == MILLRACE_NOT_FOUND);
  BOOST_TEST(!none.key);
  millrace_detach(&r);
}

// The thread that waits frees the request while the other one is still in `millrace_cancel`.
BOOST_AUTO_TEST_CASE(a_request_is_cancelled_by_one_thread_and_freed_by_another) {
  for (int i = 0; i < 200; ++i) {
    auto* r = waiting(*this, "never");
    auto* waited_for = r;
    std::atomic<millrace_code> outcome = -1;
    std::thread other{[&] { outcome = millrace_wait(&waited_for, MILLRACE_FOREVER); }};
    auto cancelled = millrace_cancel(r);
    other.join();
    BOOST_TEST(cancelled == MILLRACE_OK);
    BOOST_TEST(outcome.load() == MILLRACE_CANCELLED);
    BOOST_TEST(!waited_for);
  }
}

BOOST_AUTO_TEST_CASE(all_of_several_are_waited_for_and_each_has_its_outcome) {
  matrix m;
  auto t = m.tensor();
  millrace_request* all[4] = {};
  all[0] = begun_put(*this, "m0", t);
  all[2] = waiting(*this, "missing");
  MUST(millrace_cancel(all[2]));
  all[3] = begun_put(*this, "m3", t);
  millrace_code each[4] = {9, 9, 9, 9};
  BOOST_TEST(millrace_waitall(4, all, MILLRACE_FOREVER, each) == MILLRACE_CANCELLED);
  for (auto* r : all)
    BOOST_TEST(!r);
  BOOST_TEST(each[0] == MILLRACE_OK);
  BOOST_TEST(each[1] == MILLRACE_OK);
  BOOST_TEST(each[2] == MILLRACE_CANCELLED);
  BOOST_TEST(each[3] == MILLRACE_OK);
  MUST(millrace_waitall(0, nullptr, 0, nullptr));
}

BOOST_AUTO_TEST_CASE(when_time_is_up_those_that_are_not_over_stay) {
  matrix m;
  millrace_request* all[2] = {waiting(*this, "later"), begun_put(*this, "m", m.tensor())};
  MUST(millrace_request_wait(all[1], MILLRACE_FOREVER));
  millrace_code each[2];
  BOOST_TEST(millrace_waitall(2, all, 0, each) == MILLRACE_DEADLINE_EXCEEDED);
  BOOST_TEST(each[1] == MILLRACE_OK);
  BOOST_TEST(all[0]);
  BOOST_TEST(!all[1]);
  std::size_t index = 7;
  BOOST_TEST(millrace_waitany(2, all, 0, &index) == MILLRACE_DEADLINE_EXCEEDED);
  BOOST_TEST(index == 2u);
  MUST(millrace_cancel(all[0]));
  BOOST_TEST(millrace_waitany(2, all, 60'000, &index) == MILLRACE_CANCELLED);
  BOOST_TEST(index == 0u);
  MUST(millrace_waitany(2, all, 0, &index)); // none is left
  BOOST_TEST(index == 2u);
}

BOOST_AUTO_TEST_CASE(one_of_several_is_enough_however_often_they_are_asked) {
  matrix m;
  auto t = m.tensor();
  millrace_request* all[2] = {waiting(*this, "x"), waiting(*this, "y")};
  std::size_t index = 0;
  for (int i = 0; i < 100; ++i)
    BOOST_TEST(millrace_waitany(2, all, 0, &index) == MILLRACE_DEADLINE_EXCEEDED);
  std::atomic<millrace_code> stored = -1;
  std::thread other{[&] { stored = millrace_put(client, "y", &t, 1, nullptr, nullptr); }};
  MUST(millrace_waitany(2, all, 60'000, &index));
  other.join();
  BOOST_TEST(stored.load() == MILLRACE_OK);
  BOOST_TEST(index == 1u);
  BOOST_TEST(!all[1]);
  millrace_detach(&all[0]);
}

BOOST_AUTO_TEST_CASE(a_queue_says_which_requests_are_over) {
  matrix m;
  millrace_queue* q = nullptr;
  MUST(millrace_queue_create(2, &q));
  millrace_request* r[2] = {begun_put(*this, "m", m.tensor()), waiting(*this, "later")};
  MUST(millrace_queue_add(q, r[0], 40));
  MUST(millrace_queue_add(q, r[1], 41));
  BOOST_TEST(millrace_queue_add(q, r[1], 42) == MILLRACE_BUSY);
  pollfd descriptor{millrace_queue_fd(q), POLLIN, 0};
  BOOST_TEST(::poll(&descriptor, 1, 60'000) == 1);
  std::uint64_t tokens[4] = {};
  std::size_t taken = 0;
  MUST(millrace_queue_poll(q, tokens, 4, 0, &taken));
  BOOST_TEST(taken == 1u);
  BOOST_TEST(tokens[0] == 40u);
  MUST(millrace_wait(&r[0], 0));
  MUST(millrace_queue_poll(q, tokens, 4, 1, &taken));
  BOOST_TEST(taken == 0u);
  MUST(millrace_cancel(r[1]));
  MUST(millrace_queue_poll(q, tokens, 4, 60'000, &taken));
  BOOST_TEST(taken == 1u);
  millrace_queue_release(q);
  millrace_detach(&r[1]);
}

BOOST_AUTO_TEST_CASE(errors_belong_to_the_thread_that_made_the_call) {
  BOOST_TEST(millrace_erase(client, nullptr, "none", nullptr) == MILLRACE_NOT_FOUND);
  std::string before = millrace_error(), elsewhere = "unset";
  std::thread{[&] { elsewhere = millrace_error(); }}.join();
  BOOST_TEST(elsewhere.empty());
  BOOST_TEST(std::string{millrace_error()} == before);
}

BOOST_AUTO_TEST_SUITE_END()

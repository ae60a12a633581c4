// Tests checkpoints by the C functions: save, fence, restore, extra bytes, rebind, close.
#include "c_node.hpp"

#include <algorithm>
#include <cstring>

using namespace millrace::testing;

namespace {

void save(millrace_checkpointer* ck, std::uint64_t step, const std::string& extra = {}) {
  millrace_request* durable = nullptr;
  MUST(
    millrace_save(ck, step, MILLRACE_SAVE_DIRECT, extra.data(), extra.size(), nullptr, &durable));
  MUST(millrace_wait(&durable, MILLRACE_FOREVER));
}

void close_and_release(millrace_checkpointer* ck) {
  MUST(millrace_close(ck, 0, nullptr));
  millrace_checkpointer_release(ck);
}

} // namespace

BOOST_FIXTURE_TEST_SUITE(checkpoints, c_node)

BOOST_AUTO_TEST_CASE(a_restored_shard_has_its_bytes_and_the_extra_ones) {
  matrix m{1};
  auto saved = m.elements;
  auto* ck = job(m.tensor());
  save(ck, 5, std::string("epoch\0five", 10));
  std::fill(m.elements.begin(), m.elements.end(), -1.0F);
  millrace_request* r = nullptr;
  MUST(millrace_restore(ck, -1, &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  BOOST_TEST(m.elements == saved);
  const void* extra = nullptr;
  std::size_t extra_bytes = 0;
  MUST(millrace_request_extra(r, &extra, &extra_bytes));
  BOOST_REQUIRE(extra_bytes == 10u);
  BOOST_TEST(std::memcmp(extra, "epoch\0five", 10) == 0);
  auto receipt = sized<millrace_receipt>();
  MUST(millrace_request_receipt(r, &receipt));
  BOOST_TEST(receipt.step == 5u);
  BOOST_TEST(receipt.version == 0u);
  BOOST_TEST(std::string{receipt.provider} == "pool");
  millrace_detach(&r);
  close_and_release(ck);
}

BOOST_AUTO_TEST_CASE(a_version_without_extra_bytes_has_none) {
  matrix m;
  auto* ck = job(m.tensor());
  save(ck, 1);
  millrace_request* r = nullptr;
  MUST(millrace_restore(ck, 1, &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  const void* extra = &m;
  std::size_t extra_bytes = 9;
  MUST(millrace_request_extra(r, &extra, &extra_bytes));
  BOOST_TEST(!extra);
  BOOST_TEST(extra_bytes == 0u);
  millrace_detach(&r);
  BOOST_TEST(millrace_restore(ck, 77, nullptr) == MILLRACE_NOT_FOUND);
  close_and_release(ck);
}

BOOST_AUTO_TEST_CASE(the_extra_bytes_are_copied_before_save_returns) {
  matrix m;
  auto* ck = job(m.tensor());
  std::string extra(1000, 'x');
  millrace_request *durable = nullptr, *r = nullptr;
  MUST(millrace_save(ck, 1, MILLRACE_SAVE_SNAPSHOT, extra.data(), extra.size(), nullptr, &durable));
  std::fill(extra.begin(), extra.end(), 'y');
  MUST(millrace_wait(&durable, MILLRACE_FOREVER));
  MUST(millrace_restore(ck, -1, &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  const void* kept = nullptr;
  std::size_t size = 0;
  MUST(millrace_request_extra(r, &kept, &size));
  BOOST_REQUIRE(size == 1000u);
  BOOST_TEST(std::string(static_cast<const char*>(kept), size) == std::string(1000, 'x'));
  millrace_detach(&r);
  close_and_release(ck);
}

BOOST_AUTO_TEST_CASE(a_fence_lets_the_tensors_change) {
  matrix m{1};
  auto saved = m.elements;
  auto* ck = job(m.tensor());
  MUST(millrace_save(ck, 1, MILLRACE_SAVE_DIRECT, nullptr, 0, nullptr, nullptr));
  MUST(millrace_fence(ck));
  std::fill(m.elements.begin(), m.elements.end(), -1.0F);
  MUST(millrace_close(ck, 0, nullptr));
  millrace_checkpointer_release(ck);

  ck = job(m.tensor());
  MUST(millrace_restore(ck, 1, nullptr));
  BOOST_TEST(m.elements == saved);
  close_and_release(ck);
}

BOOST_AUTO_TEST_CASE(staged_comes_before_durable_and_both_have_receipts) {
  matrix m;
  auto* ck = job(m.tensor());
  millrace_request* both[2] = {};
  MUST(millrace_save(ck, 3, MILLRACE_SAVE_SNAPSHOT, nullptr, 0, &both[0], &both[1]));
  for (auto* r : both) {
    MUST(millrace_request_wait(r, MILLRACE_FOREVER));
    auto receipt = sized<millrace_receipt>();
    MUST(millrace_request_receipt(r, &receipt));
    BOOST_TEST(receipt.step == 3u);
  }
  auto receipt = sized<millrace_receipt>();
  MUST(millrace_request_receipt(both[1], &receipt));
  BOOST_TEST(receipt.complete == 1);
  MUST(millrace_waitall(2, both, 0, nullptr));
  close_and_release(ck);
}

BOOST_AUTO_TEST_CASE(tensors_that_have_moved_are_saved_from_their_new_place) {
  matrix before{1}, after{1000}, restored;
  auto* ck = job(before.tensor());
  auto t = before.tensor();
  MUST(millrace_rebind(ck, &t, 1)); // nothing has moved
  t.data = after.elements.data();
  MUST(millrace_rebind(ck, &t, 1));
  save(ck, 1);
  t.data = restored.elements.data();
  MUST(millrace_rebind(ck, &t, 1));
  MUST(millrace_restore(ck, -1, nullptr));
  BOOST_TEST(restored.elements == after.elements);
  close_and_release(ck);
}

BOOST_AUTO_TEST_CASE(a_closed_checkpointer_refuses_to_rebind_even_what_has_not_moved) {
  matrix m;
  auto t = m.tensor();
  auto* ck = job(t);
  MUST(millrace_close(ck, 0, nullptr));
  BOOST_TEST(millrace_rebind(ck, &t, 1) != MILLRACE_OK);
  millrace_request *staged = nullptr, *durable = nullptr;
  BOOST_TEST(millrace_save(ck, 1, 0, nullptr, 0, &staged, &durable) != MILLRACE_OK);
  BOOST_TEST(!staged);
  BOOST_TEST(!durable);
  millrace_checkpointer_release(ck);
}

BOOST_AUTO_TEST_CASE(another_program_awaits_a_step_and_loads_the_shard) {
  matrix m{1}, loaded;
  auto* ck = job(m.tensor());
  auto* reader = connect();
  save(ck, 2);
  millrace_request* r = nullptr;
  MUST(millrace_await_step(reader, nullptr, "run", -1, 60'000, &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  auto receipt = sized<millrace_receipt>();
  MUST(millrace_request_receipt(r, &receipt));
  BOOST_TEST(receipt.step == 2u);
  millrace_detach(&r);
  auto t = loaded.tensor();
  MUST(millrace_get_shard(reader, "run", 0, 2, &t, 1, nullptr, nullptr));
  BOOST_TEST(loaded.elements == m.elements);
  millrace_release(reader);
  close_and_release(ck);
}

BOOST_AUTO_TEST_SUITE_END()

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
  MUST(millrace_fence(ck, nullptr));
  std::fill(m.elements.begin(), m.elements.end(), -1.0F);
  MUST(millrace_save(ck, 2, MILLRACE_SAVE_DIRECT, nullptr, 0, nullptr, nullptr));
  millrace_request* fence = nullptr;
  MUST(millrace_fence(ck, &fence));
  MUST(millrace_wait(&fence, MILLRACE_FOREVER));
  std::fill(m.elements.begin(), m.elements.end(), -2.0F);
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

  float box[2] = {};
  const std::uint64_t extents[] = {1, 2}, offsets[] = {63, 30};
  t.data = box;
  t.shape = extents;
  t.offsets = offsets;
  MUST(millrace_get_shard(reader, "run", 0, 2, &t, 1, nullptr, nullptr));
  BOOST_TEST(box[0] == m.elements[63 * 32 + 30]);
  BOOST_TEST(box[1] == m.elements[63 * 32 + 31]);
  millrace_release(reader);
  close_and_release(ck);
}

BOOST_AUTO_TEST_CASE(a_program_of_another_world_size_loads_the_parts_of_all_shards) {
  const std::uint64_t whole[] = {128, 32}, upper[] = {0, 0}, lower[] = {64, 0};
  matrix halves[2] = {matrix{1}, matrix{5000}};
  millrace_checkpointer* ranks[2] = {};
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    auto t = halves[rank].tensor();
    t.global_shape = whole;
    t.offsets = rank == 0 ? upper : lower;
    auto options = sized<millrace_checkpoint_options>();
    options.name = "run";
    options.rank = rank;
    options.world_size = 2;
    options.life = 7;
    MUST(millrace_register(client, &options, &t, 1, &ranks[rank]));
    MUST(millrace_rebind(ranks[rank], &t, 1)); // nothing has moved
  }
  millrace_request* durable[2] = {};
  for (int rank = 0; rank < 2; ++rank)
    MUST(millrace_save(ranks[rank], 4, 0, nullptr, 0, nullptr, &durable[rank]));
  MUST(millrace_waitall(2, durable, MILLRACE_FOREVER, nullptr));

  auto expected = halves[0].elements;
  expected.insert(expected.end(), halves[1].elements.begin(), halves[1].elements.end());
  std::vector<float> loaded(expected.size());
  auto t = halves[0].tensor();
  t.shape = whole;
  t.data = loaded.data();
  millrace_request* r = nullptr;
  MUST(millrace_get_global(client, "run", -1, &t, 1, nullptr, &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  BOOST_TEST(loaded == expected);
  auto receipt = sized<millrace_receipt>();
  MUST(millrace_request_receipt(r, &receipt));
  BOOST_TEST(receipt.step == 4u);
  BOOST_TEST(receipt.size_bytes == loaded.size() * sizeof(float));
  BOOST_TEST(std::string{receipt.provider} == "pool");
  millrace_detach(&r);

  // A box over both of them.
  const std::uint64_t extents[] = {2, 32}, offsets[] = {63, 0};
  std::vector<float> box(64);
  t.shape = extents;
  t.offsets = offsets;
  t.data = box.data();
  MUST(millrace_get_global(client, "run", 4, &t, 1, nullptr, nullptr));
  BOOST_TEST(box == std::vector<float>(expected.begin() + 63 * 32, expected.begin() + 65 * 32));
  BOOST_TEST(millrace_get_global(client, "run", 5, &t, 1, nullptr, nullptr) == MILLRACE_NOT_FOUND);
  for (auto* ck : ranks)
    close_and_release(ck);
}

BOOST_AUTO_TEST_CASE(steps_are_listed_and_shards_described) {
  const std::uint64_t whole[] = {128, 32}, lower[] = {64, 0};
  matrix m;
  millrace_tensor both[] = {m.tensor("part"), m.tensor("whole")};
  both[0].global_shape = whole;
  both[0].offsets = lower;
  const millrace_pair axis = {"tensor", "1/2"}, note = {"made by", "a test"};
  auto options = sized<millrace_checkpoint_options>();
  options.name = "run";
  options.axes = &axis;
  options.metadata = &note;
  options.axes_count = options.metadata_count = 1;
  millrace_checkpointer* ck = nullptr;
  MUST(millrace_register(client, &options, both, 2, &ck));
  millrace_request* r = nullptr;
  MUST(millrace_list_steps(client, nullptr, "run", &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  BOOST_TEST(millrace_request_count(r) == 0u);
  millrace_detach(&r);
  save(ck, 3);
  save(ck, 5);

  MUST(millrace_list_steps(client, nullptr, "run", &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  BOOST_REQUIRE(millrace_request_count(r) == 2u);
  auto first = sized<millrace_step>(), second = first;
  MUST(millrace_request_step(r, 0, &first));
  MUST(millrace_request_step(r, 1, &second));
  BOOST_TEST(first.step == 3u);
  BOOST_TEST(second.step == 5u);
  BOOST_TEST(first.saved_at_ns > 0u);
  BOOST_TEST(first.saved_at_ns < second.saved_at_ns);
  BOOST_TEST(second.size_bytes == 2 * m.elements.size() * sizeof(float));
  REFUSED(millrace_request_step(r, 2, &first), "millrace_request_step", "index");
  millrace_detach(&r);

  MUST(millrace_describe_shard(client, nullptr, "run", 0, -1, &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  BOOST_REQUIRE(millrace_request_count(r) == 2u);
  millrace_tensor t;
  MUST(millrace_request_tensor(r, 0, &t));
  BOOST_TEST(std::string{t.name} == "part");
  BOOST_TEST(t.shape[0] == 64u);
  BOOST_REQUIRE((t.global_shape && t.offsets));
  BOOST_TEST(t.global_shape[0] == 128u);
  BOOST_TEST(t.offsets[0] == 64u);
  MUST(millrace_request_tensor(r, 1, &t));
  BOOST_TEST((!t.global_shape && !t.offsets));
  millrace_pair pair;
  MUST(millrace_request_axis(r, 0, &pair));
  BOOST_TEST(std::string{pair.value} == "1/2");
  MUST(millrace_request_metadata(r, 0, &pair));
  BOOST_TEST(std::string{pair.value} == "a test");
  BOOST_TEST(millrace_request_axis(r, 1, &pair) == MILLRACE_NOT_FOUND);
  millrace_detach(&r);
  BOOST_TEST(millrace_describe_shard(client, nullptr, "run", 1, -1, nullptr) == MILLRACE_NOT_FOUND);
  BOOST_TEST(millrace_list_steps(client, nullptr, "none", nullptr) == MILLRACE_NOT_FOUND);
  close_and_release(ck);
}

BOOST_AUTO_TEST_CASE(runs_are_listed_and_erased) {
  matrix m;
  auto* ck = job(m.tensor(), "runs/a");
  save(ck, 1);
  save(ck, 2);
  auto* other = job(m.tensor(), "runs/b");
  millrace_request* r = nullptr;
  MUST(millrace_list_runs(client, nullptr, "runs/", &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  BOOST_REQUIRE(millrace_request_count(r) == 2u);
  auto run = sized<millrace_run>();
  MUST(millrace_request_run(r, 0, &run));
  BOOST_TEST(std::string{run.name} == "runs/a");
  BOOST_TEST(std::string{run.provider} == "pool");
  BOOST_TEST(run.newest_step == 2);
  BOOST_TEST(run.size_bytes == m.elements.size() * sizeof(float));
  BOOST_TEST(run.world_size == 1u);
  BOOST_TEST(run.shards == 1u);
  BOOST_TEST(run.complete_steps == 2u);
  BOOST_TEST(run.in_use == 1);
  MUST(millrace_request_run(r, 1, &run));
  BOOST_TEST(std::string{run.name} == "runs/b");
  BOOST_TEST(run.newest_step == -1);
  REFUSED(millrace_request_run(r, 2, &run), "millrace_request_run", "index");
  BOOST_TEST(!millrace_request_silent(r, 0));
  millrace_detach(&r);

  BOOST_TEST(millrace_erase_run(client, nullptr, "runs/a", nullptr) == MILLRACE_BUSY);
  close_and_release(ck);
  MUST(millrace_erase_step(client, nullptr, "runs/a", 1, nullptr));
  matrix loaded;
  auto t = loaded.tensor();
  BOOST_TEST(
    millrace_get_shard(client, "runs/a", 0, 1, &t, 1, nullptr, nullptr) == MILLRACE_NOT_FOUND);
  MUST(millrace_get_shard(client, "runs/a", 0, 2, &t, 1, nullptr, nullptr));
  MUST(millrace_erase_run(client, nullptr, "runs/a", nullptr));
  BOOST_TEST(
    millrace_get_shard(client, "runs/a", 0, -1, &t, 1, nullptr, nullptr) == MILLRACE_NOT_FOUND);
  close_and_release(other);
}

BOOST_AUTO_TEST_SUITE_END()

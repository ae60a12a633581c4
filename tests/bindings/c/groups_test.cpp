// Tests groups of the C ABI.
#include "c_node.hpp"

#include <millrace.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

using namespace millrace::testing;
namespace wrapped = millrace::abi;

namespace {

// Two members, each with a client of its own.
struct pair_of_members : c_node {
  static constexpr std::uint64_t shape[] = {100'000};
  millrace_client* clients[2] = {};
  millrace_group* groups[2] = {};
  std::vector<float> tensors[2] = {std::vector<float>(100'000), std::vector<float>(100'000)};

  pair_of_members() {
    for (auto*& one : clients)
      one = connect();
    millrace_request* joining[2] = {};
    for (std::uint32_t rank = 0; rank < 2; ++rank)
      joining[rank] = join(rank);
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      MUST(millrace_request_wait(joining[rank], MILLRACE_FOREVER));
      MUST(millrace_request_group(joining[rank], &groups[rank]));
      millrace_detach(&joining[rank]);
    }
  }
  ~pair_of_members() {
    for (auto* one : groups)
      millrace_group_release(one);
    for (auto* one : clients)
      millrace_release(one);
  }
  pair_of_members(const pair_of_members&) = delete;
  pair_of_members& operator=(const pair_of_members&) = delete;

  millrace_request* join(std::uint32_t rank, std::int64_t timeout_ms = 60'000) {
    auto options = sized<millrace_group_options>();
    options.rank = rank;
    options.size = 2;
    options.who = rank == 0 ? "trainer" : "replica";
    options.timeout_ms = timeout_ms;
    millrace_request* out = nullptr;
    MUST(millrace_join_group(clients[rank], "g", &options, &out));
    return out;
  }
  millrace_request* broadcast(std::uint32_t rank, std::uint32_t root, std::int64_t timeout_ms = 0) {
    millrace_tensor w{};
    w.name = "w";
    w.data = tensors[rank].data();
    w.dtype = MILLRACE_F32;
    w.rank = 1;
    w.shape = shape;
    millrace_request* out = nullptr;
    MUST(millrace_group_broadcast(groups[rank], &w, 1, root, timeout_ms, &out));
    return out;
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(groups_in_c, pair_of_members)

BOOST_AUTO_TEST_CASE(members_get_the_tensors_of_the_root) {
  BOOST_TEST(millrace_group_epoch(groups[0]) == 1u);
  BOOST_TEST(millrace_group_size(groups[1]) == 2u);
  std::uint32_t rank = 7;
  MUST(millrace_group_rank(groups[1], 1, &rank));
  BOOST_TEST(rank == 1u);
  BOOST_TEST(millrace_group_rank(groups[1], 2, &rank) == MILLRACE_INVALID_ARGUMENT);
  for (std::uint32_t round = 0; round < 4; ++round) {
    auto root = round % 2;
    std::ranges::fill(tensors[root], static_cast<float>(round + 1));
    auto* one = broadcast(0, root);
    auto* two = broadcast(1, root);
    auto receipt = sized<millrace_receipt>();
    MUST(millrace_request_wait(two, MILLRACE_FOREVER));
    MUST(millrace_request_receipt(two, &receipt));
    BOOST_TEST(receipt.version == round);
    BOOST_TEST(receipt.size_bytes == 400'000u);
    MUST(millrace_wait(&one, MILLRACE_FOREVER));
    millrace_detach(&two);
    BOOST_TEST((tensors[0] == tensors[1]));
  }
}

BOOST_AUTO_TEST_CASE(a_member_that_has_gone_is_named_and_comes_again) {
  auto* waits = broadcast(0, 1);
  millrace_group_release(std::exchange(groups[1], nullptr));
  BOOST_TEST(millrace_wait(&waits, MILLRACE_FOREVER) == MILLRACE_PEER_LOST);
  BOOST_TEST(
    std::string{millrace_error()}.find("rank 1 of group g (replica)") != std::string::npos);
  auto* joining = join(1);
  millrace_request* renewing = nullptr;
  MUST(millrace_group_renew(groups[0], 60'000, &renewing));
  MUST(millrace_wait(&renewing, MILLRACE_FOREVER));
  MUST(millrace_request_wait(joining, MILLRACE_FOREVER));
  MUST(millrace_request_group(joining, &groups[1]));
  millrace_group* again = nullptr;
  BOOST_TEST(millrace_request_group(joining, &again) == MILLRACE_NOT_FOUND);
  millrace_detach(&joining);
  BOOST_TEST(millrace_group_epoch(groups[0]) == 2u);
}

BOOST_AUTO_TEST_CASE(wrong_arguments_are_refused) {
  millrace_request* request = nullptr;
  auto options = sized<millrace_group_options>();
  options.size = 2;
  BOOST_TEST(millrace_join_group(nullptr, "g", &options, &request) == MILLRACE_INVALID_ARGUMENT);
  BOOST_TEST(
    millrace_join_group(clients[0], nullptr, &options, &request) == MILLRACE_INVALID_ARGUMENT);
  BOOST_TEST(millrace_join_group(clients[0], "g", nullptr, &request) == MILLRACE_INVALID_ARGUMENT);
  MUST(millrace_join_group(clients[0], "g", &options, &request));
  BOOST_TEST(millrace_wait(&request, MILLRACE_FOREVER) == MILLRACE_ALREADY_EXISTS);
  BOOST_TEST(
    millrace_group_broadcast(nullptr, nullptr, 0, 0, 0, &request) == MILLRACE_INVALID_ARGUMENT);
  BOOST_TEST(
    millrace_group_broadcast(groups[0], nullptr, 0, 0, -5, &request) == MILLRACE_INVALID_ARGUMENT);
  BOOST_TEST(millrace_group_renew(nullptr, 0, &request) == MILLRACE_INVALID_ARGUMENT);
  BOOST_TEST(millrace_group_epoch(nullptr) == 0u);
  BOOST_TEST(millrace_group_size(nullptr) == 0u);
  millrace_group_release(nullptr);
}

BOOST_AUTO_TEST_CASE(in_cpp17) {
  auto one = wrapped::client::connect(millrace_node_address(node));
  auto two = wrapped::client::connect(millrace_node_address(node));
  auto options = sized<millrace_group_options>();
  options.size = 2;
  auto first = wrapped::group::join(one, "h", options);
  options.rank = 1;
  auto second = wrapped::group::join(two, "h", options);
  auto a = first.object(), b = second.object();
  BOOST_TEST((a.ranks() == std::vector<std::uint32_t>{0, 1}));
  std::ranges::fill(tensors[0], 3.f);
  auto sent = a.broadcast({wrapped::dense("w", MILLRACE_F32, {100'000}, tensors[0].data())}, 0);
  auto got = b.broadcast({wrapped::dense("w", MILLRACE_F32, {100'000}, tensors[1].data())}, 0);
  got.wait();
  sent.wait();
  BOOST_TEST((tensors[0] == tensors[1]));
}

BOOST_AUTO_TEST_SUITE_END()

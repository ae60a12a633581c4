// Tests weights by version of the C ABI.
#include "c_node.hpp"

#include <millrace.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

using namespace millrace::testing;
namespace wrapped = millrace::abi;

namespace {

struct publishing : c_node {
  static constexpr std::uint64_t shape[] = {100, 200};
  std::vector<float> trained = std::vector<float>(20'000);
  std::vector<float> loaded = std::vector<float>(20'000);

  static millrace_tensor tensor(std::vector<float>& in) {
    millrace_tensor out{};
    out.name = "w";
    out.data = in.data();
    out.dtype = MILLRACE_F32;
    out.rank = 2;
    out.shape = shape;
    return out;
  }
  millrace_publisher* publisher(const millrace_publisher_options* options = nullptr) {
    auto w = tensor(trained);
    millrace_publisher* out = nullptr;
    MUST(millrace_publisher_create(client, "policy", &w, 1, options, &out));
    return out;
  }
  millrace_follower* follower() {
    millrace_follower* out = nullptr;
    MUST(millrace_follow(client, nullptr, "policy", &out));
    return out;
  }
  void publish(millrace_publisher* by, std::uint64_t version) {
    std::ranges::fill(trained, static_cast<float>(version));
    millrace_request* stored = nullptr;
    MUST(millrace_publish(by, version, nullptr, &stored));
    MUST(millrace_wait(&stored, MILLRACE_FOREVER));
  }
  bool has_loaded(std::uint64_t version) const {
    return std::ranges::all_of(loaded, [&](float x) { return x == static_cast<float>(version); });
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(weights_in_c, publishing)

BOOST_AUTO_TEST_CASE(what_is_published_is_told_and_loaded) {
  millrace_pair pair{"tokenizer", "bpe"};
  auto options = sized<millrace_publisher_options>();
  options.metadata = &pair;
  options.metadata_count = 1;
  options.checksums = 1;
  auto* p = publisher(&options);
  auto* f = follower();
  for (std::uint64_t version : {7u, 9u}) {
    millrace_request* news = nullptr;
    MUST(millrace_follower_next(f, 60'000, &news));
    publish(p, version);
    MUST(millrace_request_wait(news, MILLRACE_FOREVER));
    auto told = sized<millrace_receipt>();
    MUST(millrace_request_receipt(news, &told));
    BOOST_TEST(told.step == version);
    BOOST_TEST(told.version > 0u);
    BOOST_TEST(told.size_bytes == 80'000u);
    millrace_pair kept{};
    MUST(millrace_request_metadata(news, 0, &kept));
    BOOST_TEST(std::string{kept.value} == "bpe");
    millrace_detach(&news);
    auto into = tensor(loaded);
    millrace_request* load = nullptr;
    MUST(millrace_follower_load(f, &into, 1, 0, &load));
    MUST(millrace_request_wait(load, MILLRACE_FOREVER));
    auto given = sized<millrace_receipt>();
    MUST(millrace_request_receipt(load, &given));
    BOOST_TEST(given.step == version);
    millrace_detach(&load);
    BOOST_TEST(has_loaded(version));
  }
  millrace_follower_release(f);
  millrace_publisher_release(p);
}

BOOST_AUTO_TEST_CASE(wrong_arguments_are_named) {
  auto w = tensor(trained);
  auto options = sized<millrace_publisher_options>();
  millrace_publisher* p = nullptr;
  auto refuses = [&](const char* why) {
    auto code = millrace_publisher_create(client, "policy", &w, 1, &options, &p);
    BOOST_TEST(code == MILLRACE_INVALID_ARGUMENT);
    BOOST_TEST(std::string{millrace_error()}.find(why) != std::string::npos, millrace_error());
    BOOST_TEST(!p);
  };
  options.checksums = 2;
  refuses("options->checksums");
  options = sized<millrace_publisher_options>();
  options.reserved = 1;
  refuses("options->reserved");
  options = sized<millrace_publisher_options>();
  options.timeout_ms = -1;
  refuses("options->timeout_ms");
  millrace_follower* f = nullptr;
  BOOST_TEST(millrace_follow(client, nullptr, nullptr, &f) == MILLRACE_INVALID_ARGUMENT);
  BOOST_TEST(millrace_follow(client, nullptr, "", &f) == MILLRACE_INVALID_ARGUMENT);
  BOOST_TEST(millrace_follower_next(nullptr, 0, nullptr) == MILLRACE_INVALID_ARGUMENT);
  BOOST_TEST(millrace_publish(nullptr, 1, nullptr, nullptr) == MILLRACE_INVALID_ARGUMENT);
  p = publisher();
  publish(p, 3);
  BOOST_TEST(millrace_publish(p, 3, nullptr, nullptr) == MILLRACE_INVALID_ARGUMENT);
  auto other = tensor(loaded);
  MUST(millrace_publisher_rebind(p, &other, 1));
  other.dtype = MILLRACE_I32;
  BOOST_TEST(millrace_publisher_rebind(p, &other, 1) == MILLRACE_INVALID_ARGUMENT);
  millrace_publisher_release(p);
  millrace_publisher_release(nullptr);
  millrace_follower_release(nullptr);
}

BOOST_AUTO_TEST_CASE(a_follower_that_is_released_ends_what_waits) {
  auto* f = follower();
  millrace_request* news = nullptr;
  MUST(millrace_follower_next(f, 60'000, &news));
  millrace_follower_release(f);
  BOOST_TEST(millrace_wait(&news, MILLRACE_FOREVER) == MILLRACE_CANCELLED);
}

BOOST_AUTO_TEST_CASE(the_wrapper_publishes_and_follows) {
  auto c = wrapped::client::connect(millrace_node_address(node));
  wrapped::tensors all{tensor(trained)}, into{tensor(loaded)};
  wrapped::publisher p{c, "policy", all};
  wrapped::follower f{c, "policy"};
  for (std::uint64_t version = 1; version <= 3; ++version) {
    std::ranges::fill(trained, static_cast<float>(version));
    auto publication = p.publish(version);
    publication.staged.wait();
    publication.stored.wait();
    auto news = f.next(std::chrono::seconds{60});
    news.wait();
    BOOST_TEST(news.receipt().step == version);
    auto load = f.load(into);
    load.wait();
    BOOST_TEST(load.receipt().step == version);
    BOOST_TEST(has_loaded(version));
  }
  p.rebind(into);
  BOOST_CHECK_THROW(p.publish(3), wrapped::error);
}

BOOST_AUTO_TEST_SUITE_END()

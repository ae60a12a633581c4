// Tests streams of the C ABI.
#include "c_node.hpp"

#include <millrace.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <numeric>
#include <string>

using namespace millrace::testing;
namespace wrapped = millrace::abi;

namespace {

using numbers = std::vector<std::uint64_t>;

struct streaming : c_node {
  static constexpr std::uint64_t shape[] = {4};
  std::uint64_t number = 0;
  std::uint32_t row[4] = {};
  millrace_tensor sample[2]{};

  streaming() : c_node("data: { capacity: 8MiB, region_size: 1MiB }\n") {
    sample[0].name = "number";
    sample[0].dtype = MILLRACE_U64;
    sample[0].data = &number;
    sample[1].name = "row";
    sample[1].dtype = MILLRACE_U32;
    sample[1].rank = 1;
    sample[1].shape = shape;
    sample[1].data = row;
  }

  void create(std::uint64_t capacity = 8, const char* policy = nullptr) {
    auto options = sized<millrace_stream_options>();
    options.capacity = capacity;
    options.policy = policy;
    MUST(millrace_stream_create(client, "s", sample, 2, &options, nullptr));
  }
  millrace_producer* producer(std::uint32_t in_flight = 0) {
    auto options = sized<millrace_producer_options>();
    options.in_flight = in_flight;
    millrace_producer* out = nullptr;
    MUST(millrace_open_producer(client, "s", &options, &out));
    return out;
  }
  millrace_stream_reader* reader(std::uint64_t batch_size) {
    auto options = sized<millrace_stream_reader_options>();
    options.batch_size = batch_size;
    millrace_stream_reader* out = nullptr;
    MUST(millrace_open_stream_reader(client, "s", &options, &out));
    return out;
  }
  millrace_code append(millrace_producer* to, std::uint64_t value, millrace_request** request) {
    number = value;
    std::fill(std::begin(row), std::end(row), static_cast<std::uint32_t>(value));
    return millrace_append(to, sample, 2, request);
  }
  millrace_stream_info now() {
    auto info = sized<millrace_stream_info>();
    MUST(millrace_stream_describe(client, "s", &info));
    return info;
  }
};

// The numbers of a batch, which it gives back.
numbers numbers_of(millrace_batch* batch) {
  auto info = sized<millrace_batch_info>();
  MUST(millrace_batch_describe(batch, &info));
  millrace_tensor number{}, row{};
  MUST(millrace_batch_field(batch, 0, &number));
  MUST(millrace_batch_field(batch, 1, &row));
  numbers out;
  for (std::uint64_t i = 0; i < info.rows; ++i) {
    out.push_back(static_cast<const std::uint64_t*>(number.data)[i]);
    for (int j = 0; j < 4; ++j)
      BOOST_TEST_REQUIRE(static_cast<const std::uint32_t*>(row.data)[4 * i + j] == out.back());
  }
  millrace_batch_release(batch);
  return out;
}

} // namespace

BOOST_FIXTURE_TEST_SUITE(c_streams, streaming)

BOOST_AUTO_TEST_CASE(a_stream_gives_what_was_appended_and_then_ends) {
  create();
  create(); // as each producer may
  auto* to = producer();
  auto* from = reader(3);
  for (std::uint64_t i = 0; i < 5; ++i)
    MUST(append(to, i, nullptr));
  millrace_batch* batch = nullptr;
  MUST(millrace_stream_next(from, 0, 0, &batch));
  BOOST_TEST((numbers_of(batch) == numbers{0, 1, 2}));
  BOOST_TEST((millrace_stream_next(from, 3, 20, &batch) == MILLRACE_DEADLINE_EXCEEDED));
  BOOST_TEST(!batch);
  millrace_request* waiting = nullptr;
  MUST(millrace_stream_next_begin(from, 3, 0, &waiting));
  MUST(millrace_producer_end(to, nullptr));
  MUST(millrace_stream_end(client, "s", nullptr));
  MUST(millrace_request_wait(waiting, MILLRACE_FOREVER));
  MUST(millrace_request_batch(waiting, &batch));
  BOOST_TEST((numbers_of(batch) == numbers{3, 4}));
  MUST(millrace_wait(&waiting, MILLRACE_FOREVER));
  MUST(millrace_stream_next(from, 0, 0, &batch));
  BOOST_TEST(!batch);
  auto info = now();
  BOOST_TEST(info.ended == 1);
  BOOST_TEST(info.appended == 5u);
  BOOST_TEST(info.given == 5u);
  BOOST_TEST(info.producers_ended == 1u);
  BOOST_TEST(info.readers == 1u);
  millrace_producer_release(to);
  millrace_stream_reader_release(from);
  MUST(millrace_stream_remove(client, "s", nullptr));
  BOOST_TEST((millrace_stream_remove(client, "s", nullptr) == MILLRACE_NOT_FOUND));
}

BOOST_AUTO_TEST_CASE(streams_are_listed) {
  create(8, "firo");
  millrace_request* r = nullptr;
  MUST(millrace_list_streams(client, "other", &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  BOOST_TEST(millrace_request_count(r) == 0u);
  MUST(millrace_wait(&r, 0));
  MUST(millrace_list_streams(client, nullptr, &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  BOOST_TEST_REQUIRE(millrace_request_count(r) == 1u);
  auto info = sized<millrace_stream_info>();
  MUST(millrace_request_stream(r, 0, &info));
  BOOST_TEST(std::string{info.name} == "s");
  BOOST_TEST(std::string{info.provider} == "n0");
  BOOST_TEST(std::string{info.owner}.starts_with("user "));
  BOOST_TEST((std::string{info.policy} == "firo" && std::string{info.when_full} == "block"));
  BOOST_TEST((info.capacity == 8u && info.created_at_ns > 0u));
  REFUSED(millrace_request_stream(r, 1, &info), "millrace_request_stream", "index");
  REFUSED(millrace_request_stream(r, 0, nullptr), "millrace_request_stream", "stream");
  MUST(millrace_wait(&r, 0));
  REFUSED(millrace_list_streams(nullptr, nullptr, &r), "millrace_list_streams", "client");
  // A program of the first version has a smaller structure, and a description has no strings.
  info.struct_size = offsetof(millrace_stream_info, name);
  info.name = "untouched";
  MUST(millrace_stream_describe(client, "s", &info));
  BOOST_TEST(std::string{info.name} == "untouched");
  BOOST_TEST(now().name == nullptr);
}

BOOST_AUTO_TEST_CASE(the_wrapper_in_cpp_does_the_same) {
  auto by = wrapped::client::connect(millrace_node_address(node));
  wrapped::stream stream{by, "s"};
  auto options = sized<millrace_stream_options>();
  options.producers = 1;
  auto created = stream.create({sample[0], sample[1]}, &options);
  created.wait();
  BOOST_TEST(std::string{wrapped::streams_of(created).at(0).name} == "s");
  auto to = stream.producer();
  BOOST_TEST_REQUIRE(to.fields().size() == 2u);
  BOOST_TEST(std::string{to.fields()[1].name} == "row");
  auto how = sized<millrace_stream_reader_options>();
  how.batch_size = 2;
  auto from = stream.reader(&how);
  BOOST_TEST(from.fields().size() == 2u);
  BOOST_CHECK_THROW(from.next(0, std::chrono::milliseconds{5}), wrapped::error);
  auto coming = from.begin_next();
  for (number = 0; number < 3; ++number)
    to.append({sample[0], sample[1]}).wait();
  BOOST_TEST((coming.object().ids() == numbers{0, 1}));
  to.end().wait();
  BOOST_TEST((from.next().ids() == numbers{2}));
  BOOST_TEST(!from.next());
  BOOST_TEST((stream.info().ended == 1 && stream.info().appended == 3u));
  auto listing = wrapped::list_streams(by, "s");
  listing.wait();
  BOOST_TEST(wrapped::streams_of(listing).size() == 1u);
  stream.remove().wait();
}

BOOST_AUTO_TEST_CASE(appends_are_under_way_together_and_can_be_cancelled) {
  create(2);
  auto* to = producer(3);
  millrace_request* requests[4] = {};
  for (std::uint64_t i = 0; i < 3; ++i)
    MUST(append(to, i, &requests[i]));
  MUST(millrace_wait(&requests[0], MILLRACE_FOREVER));
  MUST(millrace_wait(&requests[1], MILLRACE_FOREVER));
  millrace_cancel(requests[2]);
  BOOST_TEST((millrace_wait(&requests[2], MILLRACE_FOREVER) == MILLRACE_CANCELLED));
  auto* from = reader(2);
  millrace_batch* batch = nullptr;
  MUST(millrace_stream_next(from, 0, 0, &batch));
  BOOST_TEST((numbers_of(batch) == numbers{0, 1}));
  MUST(append(to, 9, nullptr));
  MUST(millrace_stream_next(from, 1, 0, &batch));
  BOOST_TEST((numbers_of(batch) == numbers{9}));
  millrace_stream_reader_release(from);
  millrace_producer_release(to);
}

BOOST_AUTO_TEST_CASE(wrong_arguments_of_streams_are_refused_by_name) {
  auto options = sized<millrace_stream_options>();
  options.policy = "lifo";
  REFUSED(
    millrace_stream_create(client, "s", sample, 2, &options, nullptr), "millrace_stream_create",
    "lifo");
  options.policy = nullptr;
  options.when_full = "wait";
  REFUSED(
    millrace_stream_create(client, "s", sample, 2, &options, nullptr), "millrace_stream_create",
    "wait");
  REFUSED(
    millrace_stream_create(client, "s", nullptr, 2, nullptr, nullptr), "millrace_stream_create",
    "tensors");
  REFUSED(
    millrace_stream_create(client, "s", sample, 65, nullptr, nullptr), "millrace_stream_create",
    "count");
  REFUSED(
    millrace_stream_create(nullptr, "s", sample, 2, nullptr, nullptr), "millrace_stream_create",
    "client");
  millrace_producer* to = nullptr;
  BOOST_TEST((millrace_open_producer(client, "s", nullptr, &to) == MILLRACE_NOT_FOUND));
  create();
  auto reserved = sized<millrace_producer_options>();
  reserved.reserved = 1;
  REFUSED(
    millrace_open_producer(client, "s", &reserved, &to), "millrace_open_producer",
    "options->reserved");
  REFUSED(
    millrace_open_producer(client, "s", nullptr, nullptr), "millrace_open_producer", "producer");
  to = producer();
  REFUSED(millrace_append(to, nullptr, 2, nullptr), "millrace_append", "tensors");
  BOOST_TEST((millrace_append(to, sample, 1, nullptr) == MILLRACE_INVALID_ARGUMENT));
  BOOST_TEST(millrace_producer_fields(to) == 2u);
  BOOST_TEST(millrace_producer_fields(nullptr) == 0u);
  millrace_tensor field{};
  MUST(millrace_producer_field(to, 1, &field));
  BOOST_TEST(std::string{field.name} == "row");
  BOOST_TEST((field.rank == 1 && field.shape[0] == 4 && field.dtype == MILLRACE_U32));
  REFUSED(millrace_producer_field(to, 2, &field), "millrace_producer_field", "field");
  millrace_batch* batch = nullptr;
  auto* from = reader(1);
  BOOST_TEST(millrace_stream_reader_fields(from) == 2u);
  MUST(millrace_stream_reader_field(from, 0, &field));
  BOOST_TEST(std::string{field.name} == "number");
  REFUSED(millrace_stream_next(from, 0, -1, &batch), "millrace_stream_next", "timeout_ms");
  REFUSED(millrace_stream_next(from, 0, 0, nullptr), "millrace_stream_next", "batch");
  REFUSED(millrace_stream_next(nullptr, 0, 0, &batch), "millrace_stream_next", "reader");
  REFUSED(millrace_stream_next_begin(from, 0, 0, nullptr), "millrace_stream_next_begin", "request");
  millrace_stream_reader_release(from);
  millrace_producer_release(to);
  millrace_stream_reader_release(nullptr);
  millrace_producer_release(nullptr);
}

BOOST_AUTO_TEST_SUITE_END()

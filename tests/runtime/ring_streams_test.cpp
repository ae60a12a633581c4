// Tests loaders whose batches go to memory of a GPU, in the order of its streams: by a library that
// stands in for NVIDIA's, and, as a program of its own, with a GPU.
#include <millrace/tests/runtime/data_node.hpp>
#include <millrace/tests/support/cuda_program.hpp>

#include <boost/test/unit_test.hpp>

#include <deque>
#include <span>
#include <vector>

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t rows = 16;
constexpr std::uint64_t batch_bytes = rows * data_node::sample_bytes;

struct gpu_loading {
  gpu_loading() {
    cuda_program::here().enter();
    at.connect().working_set("digits").preload({at.file("a.npy", 1600)}).get();
  }

  loader load(std::uint32_t prefetch = 1) {
    auto set = at.by(true).working_set("digits");
    return set.open()
      .get()
      .load_batches({.batch_size = rows, .seed = 3, .prefetch = prefetch, .device = "cuda:0"})
      .value();
  }

  static CUdeviceptr address_of(const batch& b) {
    return reinterpret_cast<CUdeviceptr>(b.field(0).data);
  }
  static std::vector<std::byte> read(CUdeviceptr from, CUstream by) {
    std::vector<std::byte> out(batch_bytes);
    CUDA_CALL(
      cuMemcpyAsync, reinterpret_cast<CUdeviceptr>(out.data()), from, std::size_t{batch_bytes}, by);
    CUDA_CALL(cuStreamSynchronize, by);
    return out;
  }
  static bool are_samples(std::span<const std::byte> bytes, const std::vector<std::uint64_t>& ids) {
    for (std::size_t i = 0; i < ids.size(); ++i)
      if (!is_sample(bytes.subspan(i * data_node::sample_bytes, data_node::sample_bytes), ids[i]))
        return false;
    return true;
  }
  static std::vector<std::uint64_t> ids_of(const batch& b) {
    return {b.ids().begin(), b.ids().end()};
  }

  data_node at;
  CUstream stream = make_stream();
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(ring_streams, gpu_loading)

BOOST_AUTO_TEST_CASE(batches_are_on_the_gpu_when_they_are_given) {
  for (std::uint32_t prefetch : {1u, 4u}) {
    auto from = load(prefetch);
    std::size_t batches = 0;
    while (auto got = from.next().get()) {
      BOOST_TEST_REQUIRE(are_samples(read(address_of(*got), stream), ids_of(*got)));
      ++batches;
    }
    BOOST_TEST(batches == 100u);
  }
}

// The stream is behind: copies that read the batches begin after the program has dropped them.
BOOST_AUTO_TEST_CASE(work_in_the_stream_sees_the_batch_that_it_was_given) {
  auto from = load();
  for (int round = 0; round < 5; ++round) {
    unfinished_work before{stream};
    std::vector<std::vector<std::uint64_t>> ids;
    std::deque<cuda_words> copies;
    for (int i = 0; i < 3; ++i) {
      auto got = from.next().get().value();
      BOOST_TEST(got.follow(device_stream{stream}).ok());
      auto& copy = copies.emplace_back(batch_bytes / sizeof(unsigned int));
      auto to = reinterpret_cast<CUdeviceptr>(copy.data());
      CUDA_CALL(cuMemcpyAsync, to, address_of(got), std::size_t{batch_bytes}, stream);
      ids.push_back(ids_of(got));
    }
    auto next = from.next();
    BOOST_TEST(!next.wait_for(50ms));
    before.finish();
    BOOST_TEST(next.wait_for(30s));
    for (int i = 0; i < 3; ++i)
      BOOST_TEST(
        are_samples(read(reinterpret_cast<CUdeviceptr>(copies[i].data()), stream), ids[i]));
  }
}

BOOST_AUTO_TEST_CASE(a_batch_that_follows_no_stream_follows_the_default_one) {
  auto from = load();
  unfinished_work before{nullptr};
  for (int i = 0; i < 3; ++i)
    static_cast<void>(from.next().get());
  auto next = from.next();
  BOOST_TEST(!next.wait_for(50ms));
  before.finish();
  BOOST_TEST(are_samples(read(address_of(*next.get()), stream), ids_of(*next.get())));
}

// A stream that is captured cannot tell. Its batches come back when it can.
BOOST_AUTO_TEST_CASE(a_stream_that_is_captured_holds_places_until_the_graph_is_made) {
  auto from = load();
  CUDA_CALL(cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  for (int i = 0; i < 3; ++i)
    BOOST_TEST(from.next().get().value().follow(device_stream{stream}).ok());
  auto next = from.next();
  BOOST_TEST(!next.wait_for(100ms));
  CUgraph graph = nullptr;
  CUDA_CALL(cuStreamEndCapture, stream, &graph);
  BOOST_TEST(next.wait_for(20s));
}

BOOST_AUTO_TEST_CASE(a_gpu_that_is_not_there_is_told) {
  auto reader = at.by(true).working_set("digits").open().get();
  auto none = reader.load_batches({.device = "cuda:99"});
  BOOST_TEST((none.error().code() == errc::not_found));
}

BOOST_AUTO_TEST_SUITE_END()

// Tests the memory of a real GPU. The test says that it is skipped where there is none.
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/pattern.hpp>
#include <millrace/tests/support/skipped.hpp>
#include <millrace/transport/cuda/cuda_memory.hpp>
#include <millrace/transport/fabric.hpp>
#include <millrace/transport/local/local_driver.hpp>

#include <boost/test/unit_test.hpp>
#include <cuda.h>
#include <dlfcn.h>

#include <cstdlib>
#include <iostream>

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::net;
using namespace millrace::transport;

namespace {

template <class F>
F* symbol(const char* name) {
  static void* library = dlopen("libcuda.so.1", RTLD_NOW);
  return library ? reinterpret_cast<F*>(dlsym(library, name)) : nullptr;
}

struct skip_without_gpu {
  skip_without_gpu() {
    auto found = make_cuda_kind()->examine();
    if (found && !found->empty())
      return;
    millrace::testing::skipped("cuda_gpu: " + (found ? "no GPU" : found.error().detail()));
    std::_Exit(77);
  }
};
BOOST_TEST_GLOBAL_FIXTURE(skip_without_gpu);

// As a program that uses CUDA has them: a context, and memory that came from it.
struct gpu_fixture {
  CUdeviceptr memory = 0;
  static constexpr std::uint64_t size_bytes = 64u << 20;
  std::shared_ptr<mover_pool> movers = std::make_shared<mover_pool>(2);
  std::shared_ptr<driver> local = make_local_driver({.movers = movers});
  std::shared_ptr<arena> host = arena::create({.name = "test", .size_bytes = size_bytes}).value();

  gpu_fixture() {
    CUcontext context = nullptr;
    BOOST_TEST_REQUIRE(
      symbol<CUresult(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain")(&context, 0) ==
      CUDA_SUCCESS);
    BOOST_TEST_REQUIRE(symbol<CUresult(CUcontext)>("cuCtxSetCurrent")(context) == CUDA_SUCCESS);
    BOOST_TEST_REQUIRE(
      symbol<CUresult(CUdeviceptr*, std::size_t)>("cuMemAlloc_v2")(&memory, size_bytes) ==
      CUDA_SUCCESS);
  }
  ~gpu_fixture() { symbol<CUresult(CUdeviceptr)>("cuMemFree_v2")(memory); }

  std::byte* data() const { return reinterpret_cast<std::byte*>(memory); }

  result<transfer_report> move(direction dir, const bulk_handle& remote, std::uint64_t length) {
    held_completion<transfer_report> done;
    local->submit(
      {.dir = dir,
       .remote = remote,
       .ops = {{.local = host->data(), .length = length}},
       .digests = true},
      done.callback());
    return done.take();
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(cuda_gpu, gpu_fixture)

BOOST_AUTO_TEST_CASE(bytes_come_back_as_they_went) {
  BOOST_TEST_REQUIRE(find_device_memory(data()) != nullptr);
  BOOST_TEST(find_device_memory(host->data()) == nullptr);
  auto bytes = pattern(size_bytes, 7);
  std::copy(bytes.begin(), bytes.end(), host->data());
  tensor_view whole{{"t", dtype::u8, {size_bytes}}, data(), {}};
  auto in = expose({whole}, access_mode::write).value();
  auto moved = move(direction::write, in.handle(), size_bytes);
  BOOST_TEST_REQUIRE(moved.has_value(), why(moved));
  std::fill_n(host->data(), size_bytes, std::byte{0});
  auto out = expose({whole}, access_mode::read).value();
  moved = move(direction::read, out.handle(), size_bytes);
  BOOST_TEST_REQUIRE(moved.has_value(), why(moved));
  BOOST_TEST(std::equal(bytes.begin(), bytes.end(), host->data()));
  // Rows apart.
  tensor_view columns{{"c", dtype::u8, {1000, 10}}, data(), {100, 1}};
  auto rows = expose({columns}, access_mode::read).value();
  BOOST_TEST(move(direction::read, rows.handle(), 10'000).has_value());
  for (std::uint64_t k = 0; k < 10'000; k += 7)
    BOOST_TEST((host->data()[k] == bytes[k / 10 * 100 + k % 10]));
}

BOOST_AUTO_TEST_CASE(memory_is_exported_where_the_device_says_so) {
  auto facts = make_cuda_kind()->examine().value();
  auto range = find_device_memory(data())->export_range(data() + 4096, 1 << 20);
  BOOST_TEST(range.has_value() == facts.at(0).dma_buf, why(range));
}

BOOST_AUTO_TEST_SUITE_END()

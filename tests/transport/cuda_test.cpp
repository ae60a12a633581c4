// Tests memory of GPUs with a library that stands in for NVIDIA's driver: what is found, copied,
// pinned and exported.
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/pattern.hpp>
#include <millrace/transport/cuda/cuda_memory.hpp>
#include <millrace/transport/fabric.hpp>
#include <millrace/transport/local/local_driver.hpp>

#include <boost/test/unit_test.hpp>
#include <dlfcn.h>
#include <fcntl.h>

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::net;
using namespace millrace::transport;

namespace {

// The library is loaded and started when a test says so, as a trainer's is.
class fake_driver {
public:
  void load() {
    library_ = dlopen(FAKE_CUDA, RTLD_NOW | RTLD_GLOBAL);
    BOOST_TEST_REQUIRE(library_ != nullptr, dlerror());
  }
  void start() { BOOST_TEST_REQUIRE(call<int(unsigned)>("cuInit")(0) == 0); }
  std::byte* allocate(int device, std::size_t size_bytes) {
    return static_cast<std::byte*>(
      call<void*(int, std::size_t)>("fake_cuda_allocate")(device, size_bytes));
  }
  std::byte* shadow(std::byte* at) {
    return static_cast<std::byte*>(call<void*(void*)>("fake_cuda_shadow")(at));
  }
  void fail_with(int code) { call<void(int)>("fake_cuda_fail_with")(code); }
  void export_as(int fd) { call<void(int)>("fake_cuda_export_as")(fd); }
  unsigned count(const char* of) { return call<unsigned()>(of)(); }

private:
  template <class F>
  F* call(const char* name) {
    auto* f = reinterpret_cast<F*>(dlsym(library_, name));
    BOOST_TEST_REQUIRE(f != nullptr, name);
    return f;
  }

  void* library_ = nullptr;
};

fake_driver& nvidia() {
  static fake_driver d;
  return d;
}

// Allocates memory of a device, and fills it with a pattern.
std::byte* filled(int device, std::size_t size_bytes, std::uint64_t salt) {
  auto* at = nvidia().allocate(device, size_bytes);
  auto bytes = pattern(size_bytes, salt);
  std::copy(bytes.begin(), bytes.end(), nvidia().shadow(at));
  return at;
}

std::vector<std::byte> content(std::byte* at, std::size_t size_bytes) {
  return {nvidia().shadow(at), nvidia().shadow(at) + size_bytes};
}

struct mover {
  std::shared_ptr<mover_pool> movers = std::make_shared<mover_pool>(2);
  std::shared_ptr<transport::driver> local = make_local_driver({.movers = movers});
  std::shared_ptr<arena> memory = arena::create({.name = "test", .size_bytes = 8u << 20}).value();

  result<transfer_report> move(direction dir, const bulk_handle& remote, std::uint64_t length) {
    held_completion<transfer_report> done;
    local->submit(
      {.dir = dir, .remote = remote, .ops = {{.local = memory->data(), .length = length}}},
      done.callback());
    return done.take();
  }
};

tensor_view bytes_at(std::byte* data, std::uint64_t size_bytes) {
  return {{"t", dtype::u8, {size_bytes}}, data, {}};
}

} // namespace

// The order of these cases matters, because the library is loaded once for the whole program.
BOOST_AUTO_TEST_SUITE(cuda)

BOOST_AUTO_TEST_CASE(a_process_without_cuda_stays_without_it) {
  std::byte here[10];
  BOOST_TEST(find_device_memory(here) == nullptr);
  BOOST_TEST(dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW) == nullptr);
  nvidia().load();
  // Loaded is not yet started.
  BOOST_TEST(find_device_memory(here) == nullptr);
  nvidia().start();
  BOOST_TEST(find_device_memory(here) == nullptr);
  auto* there = nvidia().allocate(1, 10);
  auto device = find_device_memory(there);
  BOOST_TEST_REQUIRE(device != nullptr);
  BOOST_TEST(device->name() == "cuda:1");
  BOOST_TEST(find_device_memory(there + 5) == device);
}

BOOST_AUTO_TEST_CASE(bytes_move_between_gpus_and_the_host) {
  mover m;
  constexpr std::uint64_t size = (3u << 20) + 77;
  auto* source = filled(0, size, 3);
  auto exposed = expose({bytes_at(source, size)}, access_mode::read).value();
  BOOST_TEST(exposed.handle().on_device);
  auto in = m.move(direction::read, exposed.handle(), size);
  BOOST_TEST_REQUIRE(in.has_value(), why(in));
  auto expected = pattern(size, 3);
  BOOST_TEST(std::equal(expected.begin(), expected.end(), m.memory->data()));
  auto* target = nvidia().allocate(1, size);
  auto writable = expose({bytes_at(target, size)}, access_mode::write).value();
  auto out = m.move(direction::write, writable.handle(), size);
  BOOST_TEST_REQUIRE(out.has_value(), why(out));
  BOOST_TEST((content(target, size) == expected));
}

BOOST_AUTO_TEST_CASE(rows_apart_go_in_one_order) {
  mover m;
  auto* data = filled(0, 1000 * 100, 4);
  auto before = nvidia().count("fake_cuda_copies_2d");
  auto singles = nvidia().count("fake_cuda_copies");
  tensor_view columns{{"c", dtype::u8, {1000, 10}}, data, {100, 1}};
  auto exposed = expose({columns}, access_mode::read).value();
  BOOST_TEST(m.move(direction::read, exposed.handle(), 10'000).has_value());
  for (std::uint64_t k = 0; k < 10'000; ++k)
    if (m.memory->data()[k] != pattern_byte(k / 10 * 100 + k % 10, 4)) {
      BOOST_TEST(false, "byte " << k);
      break;
    }
  BOOST_TEST(nvidia().count("fake_cuda_copies_2d") == before + 1);
  BOOST_TEST(nvidia().count("fake_cuda_copies") == singles);
  // Backwards no device can.
  tensor_view reversed{{"r", dtype::u8, {1000, 10}}, data + 999 * 100, {-100, 1}};
  auto other = expose({reversed}, access_mode::read).value();
  BOOST_TEST(m.move(direction::read, other.handle(), 10'000).has_value());
  BOOST_TEST((m.memory->data()[0] == pattern_byte(999 * 100, 4)));
  BOOST_TEST((m.memory->data()[9'999] == pattern_byte(9, 4)));
  BOOST_TEST(nvidia().count("fake_cuda_copies_2d") == before + 1);
}

BOOST_AUTO_TEST_CASE(no_copy_leaves_an_allocation) {
  mover m;
  constexpr std::uint64_t size = 4096;
  constexpr std::size_t count = 12;
  std::vector<std::byte*> tensors;
  std::vector<tensor_view> views;
  // Two side by side, and the others at equal distances.
  for (std::size_t i = 0; i < count; ++i) {
    tensors.push_back(filled(0, size, i));
    views.push_back(bytes_at(tensors.back(), size));
    views.back().desc.name = std::to_string(i);
    if (i > 0)
      nvidia().allocate(0, size);
  }
  BOOST_TEST_REQUIRE(tensors[1] == tensors[0] + size);
  auto readable = expose(views, access_mode::read).value();
  auto in = m.move(direction::read, readable.handle(), size * count);
  BOOST_TEST_REQUIRE(in.has_value(), why(in));
  for (std::size_t i = 0; i < count; ++i) {
    auto expected = pattern(size, i);
    BOOST_TEST(std::equal(expected.begin(), expected.end(), m.memory->data() + i * size), i);
  }
  auto writable = expose(views, access_mode::write).value();
  auto turned = pattern(size * count, 77);
  std::copy(turned.begin(), turned.end(), m.memory->data());
  auto out = m.move(direction::write, writable.handle(), size * count);
  BOOST_TEST_REQUIRE(out.has_value(), why(out));
  for (std::size_t i = 0; i < count; ++i)
    BOOST_TEST(
      std::ranges::equal(content(tensors[i], size), std::span{turned}.subspan(i * size, size)), i);
}

// Where the program's allocator gives both of one allocation, a tensor may begin in the middle.
BOOST_AUTO_TEST_CASE(rows_of_tensors_of_one_allocation_go_in_one_order) {
  mover m;
  auto* data = filled(0, 100'000, 6);
  std::vector<tensor_view> views;
  for (std::size_t i = 0; i < 10; ++i) {
    views.push_back(bytes_at(data + i * 10'000, 1000));
    views.back().desc.name = std::to_string(i);
  }
  auto before = nvidia().count("fake_cuda_copies_2d");
  auto exposed = expose(views, access_mode::read).value();
  BOOST_TEST(m.move(direction::read, exposed.handle(), 10'000).has_value());
  BOOST_TEST((m.memory->data()[9'999] == pattern_byte(90'999, 6)));
  BOOST_TEST(nvidia().count("fake_cuda_copies_2d") == before + 1);
}

BOOST_AUTO_TEST_CASE(host_memory_is_pinned_once_and_let_go_of) {
  auto* source = filled(0, 1000, 5);
  auto exposed = expose({bytes_at(source, 1000)}, access_mode::read).value();
  {
    mover m;
    for (int i = 0; i < 3; ++i)
      BOOST_TEST(m.move(direction::read, exposed.handle(), 1000).has_value());
    BOOST_TEST(nvidia().count("fake_cuda_pins") == 1u);
  }
  BOOST_TEST(nvidia().count("fake_cuda_pins") == 0u);
}

BOOST_AUTO_TEST_CASE(a_gpu_that_fails_is_named) {
  mover m;
  auto* source = filled(1, 1000, 6);
  auto exposed = expose({bytes_at(source, 1000)}, access_mode::read).value();
  nvidia().fail_with(719);
  auto moved = m.move(direction::read, exposed.handle(), 1000);
  nvidia().fail_with(0);
  BOOST_TEST_REQUIRE(!moved.has_value());
  BOOST_TEST((moved.error().code() == errc::io_error));
  BOOST_TEST((moved.error().detail().find("cuda:1") != std::string::npos));
  BOOST_TEST((moved.error().detail().find("unspecified launch failure") != std::string::npos));
  BOOST_TEST(m.move(direction::read, exposed.handle(), 1000).has_value());
}

BOOST_AUTO_TEST_CASE(whole_pages_are_exported) {
  auto* data = nvidia().allocate(0, 20'000);
  auto device = find_device_memory(data);
  auto none = device->export_range(data, 100);
  BOOST_TEST((!none && none.error().code() == errc::unsupported));
  unique_fd any{open("/dev/null", O_RDWR)};
  nvidia().export_as(any.get());
  auto range = device->export_range(data + 5000, 10'000);
  BOOST_TEST_REQUIRE(range.has_value(), why(range));
  BOOST_TEST(range->fd.get() >= 0);
  BOOST_TEST(range->offset == reinterpret_cast<std::uintptr_t>(data + 5000) % 4096);
  nvidia().export_as(-1);
}

BOOST_AUTO_TEST_CASE(doctor_learns_what_there_is) {
  auto facts = make_cuda_kind()->examine();
  BOOST_TEST_REQUIRE(facts.has_value(), why(facts));
  BOOST_TEST_REQUIRE(facts->size() == 2u);
  BOOST_TEST(facts->at(1).name == "cuda:1");
  BOOST_TEST(facts->at(1).model == "Fake GPU");
  BOOST_TEST(facts->at(1).size_bytes == 64u << 20);
  BOOST_TEST(!facts->at(1).dma_buf);
}

BOOST_AUTO_TEST_SUITE_END()

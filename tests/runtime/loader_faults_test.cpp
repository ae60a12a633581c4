// Tests loaders that have no memory for a batch, by planted faults.
#include <millrace/runtime/client/calls/loaded_batch.hpp>
#include <millrace/tests/runtime/data_node.hpp>

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <new>
#include <set>
#include <vector>

#if defined(MILLRACE_KILL_POINTS)
#include <millrace/core/planted_fault.hpp>

using namespace millrace;
using namespace millrace::testing;

namespace {

// While it lives, one step of `each` lacks memory, in an irregular order: else the same batch might
// lack it for ever. 1: all steps do.
class lacks_memory {
public:
  explicit lacks_memory(unsigned each) {
    every = each;
    count = 0;
    planted_fault = [](const std::type_info& what) {
      if (what == typeid(runtime::loaded_batch) && (++count * 2654435761u >> 16) % every == 0)
        throw std::bad_alloc{};
    };
  }
  ~lacks_memory() { planted_fault = nullptr; }
  lacks_memory(const lacks_memory&) = delete;
  lacks_memory& operator=(const lacks_memory&) = delete;

private:
  static inline std::atomic<unsigned> every = 1, count = 0;
};

// Reads on to the end of an epoch, after each lack of memory. Returns how often that was.
int read_epoch(const loader& from, std::uint64_t samples) {
  std::set<std::uint64_t> seen;
  int lacks = 0;
  for (;;) {
    auto next = from.next();
    if (!next.result()) {
      BOOST_TEST_REQUIRE((next.result().error().code() == errc::no_space));
      ++lacks;
      continue;
    }
    auto& got = *next.result();
    if (!got)
      break;
    for (auto id : got->ids())
      BOOST_TEST_REQUIRE(seen.insert(id).second);
  }
  BOOST_TEST(seen.size() == samples);
  return lacks;
}

} // namespace

BOOST_AUTO_TEST_SUITE(loaders_without_memory)

BOOST_AUTO_TEST_CASE(who_waits_for_a_batch_hears_that_there_is_no_memory_for_it) {
  data_node at;
  auto set = at.connect().working_set("s");
  set.preload({at.file("a.npy", 300)}).get();
  auto reader = set.open().get();
  for (std::uint32_t prefetch : {1, 4})
    for (unsigned each : {3, 4, 7}) {
      lacks_memory planted{each};
      auto from = reader.load_batches({.batch_size = 16, .prefetch = prefetch}).value();
      BOOST_TEST(read_epoch(from, 300) > 0);
    }
}

// All of them are answered, though no batch is ever read.
BOOST_AUTO_TEST_CASE(calls_that_wait_together_are_all_answered) {
  data_node at;
  auto set = at.connect().working_set("s");
  set.preload({at.file("a.npy", 300)}).get();
  auto from = set.open().get().load_batches({.batch_size = 16, .prefetch = 2}).value();
  std::vector<future<std::optional<batch>>> first;
  first.reserve(2);
  for (int i = 0; i < 2; ++i)
    first.push_back(from.next()); // and what is read ahead
  for (auto& one : first)
    one.get();
  {
    lacks_memory planted{1};
    std::vector<future<std::optional<batch>>> calls;
    calls.reserve(200);
    for (int i = 0; i < 200; ++i)
      calls.push_back(from.next());
    for (auto& one : calls)
      BOOST_TEST_REQUIRE((one.result() || one.result().error().code() == errc::no_space));
  }
  static_cast<void>(from.next().result()); // it may hear of a batch that has failed meanwhile
  BOOST_TEST(from.next().result().has_value());
}

BOOST_AUTO_TEST_CASE(batches_of_several_fields_that_vary_are_given_up_as_well) {
  data_node at;
  auto folder = at.dir.path() + "/files";
  std::filesystem::create_directories(folder);
  for (int i = 0; i < 60; ++i)
    std::ofstream{folder + "/" + std::to_string(i + 100)}
      << std::string(static_cast<std::size_t>(i) * 31, 'x');
  auto set = at.connect().working_set("s");
  set.preload({folder}).get();
  auto reader = set.open().get();
  for (unsigned each : {5, 6, 7, 11}) {
    lacks_memory planted{each};
    auto from = reader.load_batches({.batch_size = 8, .prefetch = 2}).value();
    BOOST_TEST(read_epoch(from, 60) > 0);
  }
}

BOOST_AUTO_TEST_SUITE_END()

#endif

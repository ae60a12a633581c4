// Tests reads of windows that have no memory for one of their steps, by planted faults: each read
// is answered, once nothing writes to its memory any more.
#include <millrace/runtime/client/calls/window_reading.hpp>
#include <millrace/tests/runtime/data_cluster.hpp>

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#if defined(MILLRACE_KILL_POINTS)
#include <millrace/core/planted_fault.hpp>

using namespace millrace;
using namespace millrace::testing;

namespace {

using ids_type = std::vector<std::uint64_t>;
constexpr auto sample_bytes = data_cluster::sample_bytes;

// While it lives, steps of windows lack memory: the one with this number, or one of so many, in an
// irregular order.
class lacks_memory {
public:
  lacks_memory(std::uint32_t step, bool again) {
    number = step;
    repeats = again;
    count = lacked = 0;
    planted_fault = [](const std::type_info& what) {
      if (what != typeid(runtime::window_reading))
        return;
      auto now = ++count;
      if (repeats ? (now * 2654435761u >> 16) % number != 0 : now != number)
        return;
      ++lacked;
      throw std::bad_alloc{};
    };
  }
  ~lacks_memory() { planted_fault = nullptr; }
  lacks_memory(const lacks_memory&) = delete;
  lacks_memory& operator=(const lacks_memory&) = delete;

  static bool has_lacked() { return lacked > 0; }

private:
  static inline std::atomic<std::uint32_t> number = 1, count = 0, lacked = 0;
  static inline std::atomic<bool> repeats = false;
};

// Small files, and some that are written to the window in pieces.
struct files_of_all_sizes {
  explicit files_of_all_sizes(const std::string& in) : folder(in + "/files") {
    std::filesystem::create_directories(folder);
    for (std::uint64_t i = 0; i < 24; ++i) {
      auto bytes = pattern(i % 8 == 7 ? mib / 2 + i : i * 97, i);
      std::ofstream{fmt::format("{}/{:03}", folder, i), std::ios::binary}.write(
        reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
      joined.insert(joined.end(), bytes.begin(), bytes.end());
    }
  }

  // Reads all of them.
  errc read(const set_reader& reader) const {
    ids_type ids(24);
    std::iota(ids.begin(), ids.end(), 0);
    std::vector<std::byte> into(joined.size());
    auto code = code_of(reader.read_batch(0, ids, into));
    if (code == errc::ok)
      BOOST_TEST_REQUIRE((into == joined));
    return code;
  }

  std::string folder;
  std::vector<std::byte> joined;
};

preload_options in_window(std::uint64_t bytes) {
  preload_options out;
  out.window_bytes = bytes;
  return out;
}

loader load(const set_reader& reader, std::uint64_t rank) {
  loader_options options;
  options.batch_size = 32;
  options.rank = rank;
  options.world_size = 2;
  options.prefetch = 3;
  options.seed = 7;
  return reader.load_batches(options).value();
}

// Adds the samples of the next batch. Returns false at the end of an epoch.
bool add_next(const loader& from, ids_type& seen, int& lacks) {
  for (;;) {
    auto next = from.next();
    if (!next.result()) {
      BOOST_TEST_REQUIRE((next.result().error().code() == errc::no_space));
      ++lacks;
      continue;
    }
    auto& batch = *next.result();
    for (std::size_t i = 0; batch && i < batch->ids().size(); ++i) {
      auto* bytes = batch->field(0).data + i * sample_bytes;
      BOOST_TEST_REQUIRE(is_sample({bytes, sample_bytes}, batch->ids()[i]));
      seen.push_back(batch->ids()[i]);
    }
    return batch.has_value();
  }
}

} // namespace

BOOST_AUTO_TEST_SUITE(windows_without_memory)

BOOST_AUTO_TEST_CASE(whichever_step_lacks_memory_the_read_is_answered) {
  data_cluster at{1, 2};
  files_of_all_sizes files{at.dir.path()};
  for (bool maps : {true, false}) {
    auto c = at.connect(maps);
    for (std::uint32_t step = 1; step <= 40; ++step) {
      auto set = c.working_set("s");
      set.preload({files.folder}, in_window(2 * mib)).get();
      {
        auto reader = set.open().get();
        {
          lacks_memory planted{step, false};
          for (int i = 0; i < 3; ++i) {
            auto code = files.read(reader);
            BOOST_TEST_REQUIRE((code == errc::ok || code == errc::no_space));
          }
          BOOST_TEST((step > 15 || lacks_memory::has_lacked()));
        }
        BOOST_TEST_REQUIRE((files.read(reader) == errc::ok));
      }
      set.unload().get();
      BOOST_TEST_REQUIRE(at.frees_all()); // nothing is left with anybody
    }
  }
}

// The places of the ring are lent again after a batch that has failed.
BOOST_AUTO_TEST_CASE(batches_that_failed_are_read_again_with_their_bytes) {
  for (bool maps : {true, false})
    for (std::uint32_t each : {5, 23}) {
      data_cluster at{1, 2};
      auto c = at.connect(maps);
      auto set = c.working_set("s");
      set.preload({at.file("a.npy", 2000)}, in_window(mib)).get();
      auto reader = set.open().get();
      lacks_memory planted{each, true};
      std::vector<loader> ranks{load(reader, 0), load(reader, 1)};
      int lacks = 0;
      for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
        ids_type seen;
        for (auto over = false; !over;)
          for (auto& from : ranks)
            over = !add_next(from, seen, lacks);
        auto order = reader.order(7, epoch);
        BOOST_TEST_REQUIRE(seen.size() == 2000u);
        for (std::uint64_t i = 0; i < 2000; ++i)
          BOOST_TEST_REQUIRE(seen[i] == order.at(i));
      }
      BOOST_TEST(lacks > 0);
    }
}

BOOST_AUTO_TEST_SUITE_END()

#endif

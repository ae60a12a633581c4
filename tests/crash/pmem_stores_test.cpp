// Ends a process at any store that libpmemobj makes. The check accepts the heap that is left.
#include "crash_rounds.hpp"
#include "small_checkpoints.hpp"

#include <millrace/storage/pmem/medium/format.hpp>
#include <millrace/storage/pmem/medium/heap.hpp>
#include <millrace/storage/pmem/medium/heap_check.hpp>
#include <millrace/tests/support/dice.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/scratch_directory.hpp>
#include <millrace/tests/support/store_trap.hpp>

#include <boost/test/unit_test.hpp>

#include <vector>

using namespace millrace;
using namespace millrace::storage::pmem;
using namespace millrace::testing;

namespace {

constexpr std::uint64_t pool_bytes = 32u << 20;

/// Objects of all sizes come and go, up to 60 in one change: more than one log has room for.
class changed_heap {
public:
  explicit changed_heap(std::uint64_t seed) : dice_(seed) {
    auto made = heap::create(directory_.path() + "/pool", pool_bytes);
    BOOST_REQUIRE_MESSAGE(made, why(made));
    heap_ = std::move(*made);
    root_ = heap_->offset_of(heap_->root(true));
  }

  void change_often(int changes) {
    store_trap trap{bytes(), [this] { look(); }};
    for (auto i = 0; i < changes; ++i)
      change_once();
    stores_ = trap.stores();
  }

  std::uint64_t stores() const { return stores_; }
  std::uint64_t with_long_logs() const { return with_long_logs_; }
  std::uint64_t refused() const { return refused_; }
  const std::string& first_reason() const { return first_reason_; }

private:
  std::span<std::byte> bytes() const { return {heap_->base(), pool_bytes}; }

  void look() {
    auto checked = check_heap(bytes(), pool_bytes - heap_at, root_);
    if (!checked && refused_++ == 0)
      first_reason_ = checked.error().to_string();
  }

  void change_once() {
    change now{*heap_};
    std::vector<std::uint64_t> made;
    for (auto count = dice_.percent(20) ? dice_.between(30, 60) : dice_.below(4); count > 0;
         --count) {
      auto large = dice_.percent(10);
      auto size = large ? dice_.between(64u << 10, 3u << 20) : dice_.between(1, 4096);
      if (auto at = now.reserve(size, object_type::data))
        made.push_back(*at);
    }
    auto freed = dice_.percent(20) ? objects_.size() : std::min(dice_.below(4), objects_.size());
    auto kept = objects_;
    for (std::size_t i = 0; i < freed; ++i) {
      auto& one = dice_.one_of(kept);
      now.free(one);
      one = kept.back();
      kept.pop_back();
    }
    with_long_logs_ += now.size() > 40;
    if (auto outcome = now.publish(persist_); !outcome.ok()) {
      BOOST_REQUIRE((outcome.code() == errc::no_space)); // for its log
      return;
    }
    objects_ = std::move(kept);
    objects_.insert(objects_.end(), made.begin(), made.end());
  }

  scratch_directory directory_{"/dev/shm"};
  dice dice_;
  std::unique_ptr<heap> heap_;
  persistence persist_{write_back::cache_lines};
  std::uint64_t root_ = 0;
  std::vector<std::uint64_t> objects_;
  std::uint64_t stores_ = 0, with_long_logs_ = 0, refused_ = 0;
  std::string first_reason_;
};

} // namespace

BOOST_AUTO_TEST_SUITE(pmem_stores)

BOOST_AUTO_TEST_CASE(the_check_accepts_what_a_kill_at_any_store_leaves) {
  std::uint64_t stores = 0, with_long_logs = 0;
  for (std::uint64_t seed = 1; seed <= static_cast<std::uint64_t>(crash_rounds(20)); ++seed) {
    changed_heap subject{seed};
    subject.change_often(100);
    stores += subject.stores();
    with_long_logs += subject.with_long_logs();
    BOOST_TEST(subject.refused() == 0u, "seed " << seed << ": " << subject.first_reason());
  }
  BOOST_TEST_MESSAGE(stores << " stores, " << with_long_logs << " changes with long logs");
  BOOST_TEST(stores > 20'000u);
  BOOST_TEST(with_long_logs > 100u);
}

BOOST_AUTO_TEST_SUITE_END()

// Tests what a forked child finds of its parent's objects.
#include <millrace/core/future.hpp>
#include <millrace/core/identity.hpp>
#include <millrace/core/process_mark.hpp>
#include <millrace/tests/support/forked_child.hpp>

#include <boost/test/unit_test.hpp>

#include <string>

using namespace millrace;
using testing::in_forked_child;

namespace {

struct one_of_a_process {
  int value = 0;
};

struct says_when_destroyed {
  bool& destroyed;
  ~says_when_destroyed() { destroyed = true; }
};

} // namespace

BOOST_AUTO_TEST_SUITE(process_marks)

BOOST_AUTO_TEST_CASE(a_mark_is_here_in_its_process_alone) {
  process_mark mark;
  BOOST_TEST(mark.is_here());
  BOOST_TEST(mark.process() == static_cast<std::uint32_t>(::getpid()));
  BOOST_TEST(this_process() == mark.process());
  auto seen = in_forked_child([&] {
    process_mark own;
    if (mark.is_here() || !own.is_here())
      return 1;
    if (own.process() != static_cast<std::uint32_t>(::getpid()) || this_process() != own.process())
      return 2;
    auto of_grandchild = in_forked_child([&] { return mark.is_here() || own.is_here() ? 3 : 0; });
    return own.is_here() ? of_grandchild : 4;
  });
  BOOST_TEST(seen == 0);
  BOOST_TEST(mark.is_here());
}

BOOST_AUTO_TEST_CASE(a_child_destroys_nothing_that_is_kept_from_it) {
  bool destroyed = false;
  auto object = kept_from_forks(new says_when_destroyed{destroyed});
  auto seen = in_forked_child([&] {
    object = nullptr;
    return destroyed ? 1 : 0;
  });
  BOOST_TEST(seen == 0);
  object = nullptr;
  BOOST_TEST(destroyed);
}

BOOST_AUTO_TEST_CASE(a_child_makes_its_own_of_what_a_process_has_one_of) {
  one_per_process<one_of_a_process>().value = 7;
  auto seen = in_forked_child([] {
    auto& own = one_per_process<one_of_a_process>();
    if (own.value != 0)
      return 1;
    own.value = 8;
    return one_per_process<one_of_a_process>().value == 8 ? 0 : 2;
  });
  BOOST_TEST(seen == 0);
  BOOST_TEST(one_per_process<one_of_a_process>().value == 7);
}

BOOST_AUTO_TEST_CASE(a_child_waits_for_no_future_of_its_parent) {
  promise<int> later, before;
  before.set(7);
  auto pending = later.get_future();
  auto all = when_all(std::vector{pending});
  auto seen = in_forked_child([&] {
    if (before.get_future().result().value_or(0) != 7)
      return 1;
    if (!pending.ready() || !pending.wait_for(std::chrono::hours{1}))
      return 2;
    if (pending.result() || pending.result().error().code() != errc::unavailable)
      return 3;
    int called = 0;
    pending.then([&](const result<int>& r) { called += r ? 0 : 1; });
    pending.cancel();
    if (called != 1)
      return 4;
    return all.result() ? 5 : 0;
  });
  BOOST_TEST(seen == 0);
  later.set(8);
  BOOST_TEST(pending.get() == 8);
  BOOST_TEST(all.get().size() == 1u);
}

BOOST_AUTO_TEST_SUITE_END()

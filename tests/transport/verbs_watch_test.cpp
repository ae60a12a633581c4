// Tests a thread that sleeps on descriptors of which some break.
#include <millrace/net/socket/unique_fd.hpp>
#include <millrace/transport/verbs/descriptor_watch.hpp>

#include <boost/test/unit_test.hpp>
#include <unistd.h>

using namespace millrace::net;
using namespace millrace::transport;
using namespace millrace::transport::verbs;

namespace {

struct two_ends {
  unique_fd read_end, write_end;

  two_ends() {
    int ends[2];
    BOOST_REQUIRE(pipe(ends) == 0);
    read_end = unique_fd{ends[0]};
    write_end = unique_fd{ends[1]};
  }
};

constexpr std::chrono::minutes long_enough{1};

} // namespace

BOOST_AUTO_TEST_SUITE(verbs_descriptor_watch)

BOOST_AUTO_TEST_CASE(what_broke_is_told_once_and_wakes_nobody_any_more) {
  two_ends good, bad;
  descriptor_watch watch{{good.read_end.get(), bad.write_end.get()}};
  BOOST_TEST(watch.sleep(std::chrono::milliseconds{0}).empty());
  bad.read_end = unique_fd{}; // the other end reports an error from now on
  BOOST_TEST((watch.sleep(long_enough) == std::vector<int>{bad.write_end.get()}));
  BOOST_TEST(watch.sleep(std::chrono::milliseconds{0}).empty());
  BOOST_TEST(write(good.write_end.get(), "x", 1) == 1);
  BOOST_TEST(watch.sleep(long_enough).empty()); // ends by what can be read
}

BOOST_AUTO_TEST_SUITE_END()

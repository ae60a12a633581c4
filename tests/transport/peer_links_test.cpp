// Tests how links are found by channel and by peer.
#include <millrace/tests/support/fake_channel.hpp>
#include <millrace/transport/peer_links.hpp>

#include <boost/test/unit_test.hpp>

using namespace millrace;
using millrace::testing::fake_channel;

namespace {

struct fake_link {
  bool works = true;
};

bool works(fake_link& l) { return l.works; }

struct two_channels {
  peer_id peer = random_id<peer_id>();
  fake_channel first{peer, "n1"};
  fake_channel second{peer, "n1"};
  fake_channel other{random_id<peer_id>(), "n2"};
  std::shared_ptr<fake_link> a = std::make_shared<fake_link>();
  std::shared_ptr<fake_link> b = std::make_shared<fake_link>();
  transport::peer_links<fake_link> links;

  two_channels() {
    links.add(first, a);
    links.add(second, b);
    links.add(other, std::make_shared<fake_link>());
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(peer_links, two_channels)

BOOST_AUTO_TEST_CASE(a_link_that_works_is_taken_before_one_that_does_not) {
  BOOST_TEST(links.to(peer, works) == a);
  a->works = false;
  BOOST_TEST(links.to(peer, works) == b);
  b->works = false;
  BOOST_TEST(links.to(peer, works) == nullptr);
}

BOOST_AUTO_TEST_CASE(a_peer_is_reached_until_its_last_channel_goes) {
  BOOST_TEST(links.take(first) == a);
  BOOST_TEST(links.find(first) == nullptr);
  BOOST_TEST(links.to(peer, works) == b);
  BOOST_TEST(links.take(second) == b);
  BOOST_TEST(links.take(second) == nullptr);
  BOOST_TEST(links.to(peer, works) == nullptr);
  BOOST_TEST(a.use_count() == 1);
  BOOST_TEST(links.to(other.peer().id, works) == links.find(other));
}

BOOST_AUTO_TEST_CASE(the_channel_that_asked_is_taken_if_it_works) {
  BOOST_TEST(links.to(peer, works, second.number()) == b);
  BOOST_TEST(links.to(peer, works, first.number()) == a);
  BOOST_TEST(links.to(peer, works, other.number()) == a); // not the peer's
  b->works = false;
  BOOST_TEST(links.to(peer, works, second.number()) == a);
}

BOOST_AUTO_TEST_CASE(nobody_else_is_asked) {
  int asked = 0;
  links.to(peer, [&](auto&) { return ++asked, false; });
  BOOST_TEST(asked == 2);
  BOOST_TEST(links.to(random_id<peer_id>(), [](auto&) { return true; }) == nullptr);
  BOOST_TEST(links.all().size() == 3u);
}

BOOST_AUTO_TEST_SUITE_END()

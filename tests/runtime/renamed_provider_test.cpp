// A provider is renamed while a client asks its group: the old name and the new one answer with one
// id. The node is scripted.
#include <millrace/runtime/client/client.hpp>
#include <millrace/tests/support/scripted_service.hpp>

#include <boost/test/unit_test.hpp>

#include <atomic>

using namespace millrace;

namespace {

/// A node whose provider had another name before it was started anew.
struct renamed {
  testing::scripted_service service{{testing::listed("old"), testing::listed("new")}};
  std::atomic<bool> stays = false; // its old name
  std::atomic<int> asked = 0;      // by this name

  renamed() {
    service.on_for<actors::locate_request>([this](auto& name, auto&, auto reply) {
      if (name == "old" && asked++ > 0 && !stays)
        return reply(fail(errc::not_found, "this node has no provider old"));
      millrace::group_member m;
      m.id = "old";
      m.name = "new";
      m.node = "n0";
      m.addresses = {service.address()};
      actors::location where;
      where.id = m.id;
      where.history = {"default", {{1, {m}}}, 1};
      reply(where);
    });
    service.on<actors::list_request>([](auto&, auto reply) { reply(actors::model_list{}); });
  }

  result<listed<model_summary>> list() const {
    return client::connect(service.address()).repository().list().result();
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(renamed_provider, renamed)

// Found by seeds 516 and 606 of the simulator.
BOOST_AUTO_TEST_CASE(a_provider_that_is_renamed_while_it_is_asked_is_one) {
  auto all = list();
  BOOST_TEST(all.has_value(), (all ? "" : all.error().to_string()));
  BOOST_TEST(asked > 1);
}

BOOST_AUTO_TEST_CASE(two_that_keep_one_id_are_refused) {
  stays = true;
  auto all = list();
  BOOST_REQUIRE(!all);
  BOOST_TEST((all.error().code() == errc::invalid_argument), all.error().to_string());
  BOOST_TEST(all.error().detail().find("have the same id, old") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()

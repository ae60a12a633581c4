// Tests regions: withdrawals by several threads, hooks, leases.
#include <millrace/core/future.hpp>
#include <millrace/transport/memory/region.hpp>

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <thread>

using namespace millrace;
using namespace millrace::net;
using namespace millrace::transport;

namespace {

region exposed(std::vector<std::byte>& bytes) {
  tensor_view all{{"a", dtype::u8, {bytes.size()}}, bytes.data(), {}};
  return expose(gather_list::of({all}, access_mode::read).value(), access_mode::read);
}

region_ref found(const region& r) {
  auto handle = r.handle();
  return find_region(handle.region, handle.key, access_mode::read).value();
}

} // namespace

BOOST_AUTO_TEST_SUITE(regions)

BOOST_AUTO_TEST_CASE(the_second_withdrawal_returns_after_the_hooks_of_the_first) {
  std::vector<std::byte> bytes(100);
  auto r = exposed(bytes);
  promise<void> withdrawing, go_on;
  std::atomic<bool> taken_back = false;
  BOOST_TEST(found(r)
               .on_withdraw([&] {
                 withdrawing.set({});
                 go_on.get_future().get();
                 taken_back = true;
               })
               .has_value());
  std::thread first{[&] { r.withdraw(); }};
  withdrawing.get_future().get();
  BOOST_TEST(!r);
  bool seen = false;
  std::thread second{[&] {
    r.withdraw();
    seen = taken_back;
  }};
  go_on.set({});
  first.join();
  second.join();
  BOOST_TEST(seen);
  BOOST_TEST(exposed_regions() == 0u);
}

BOOST_AUTO_TEST_CASE(many_threads_withdraw_one_region) {
  std::vector<std::byte> bytes(100);
  for (int i = 0; i < 200; ++i) {
    auto r = exposed(bytes);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] { r.withdraw(); });
    for (auto& t : threads)
      t.join();
    BOOST_TEST(exposed_regions() == 0u);
  }
}

BOOST_AUTO_TEST_CASE(a_handle_leads_to_the_memory_that_replaces_the_old_one) {
  std::vector<std::byte> bytes(100), others(100);
  auto r = exposed(bytes);
  auto before = found(r);
  auto handle = r.handle();
  tensor_view all{{"a", dtype::u8, {others.size()}}, others.data(), {}};
  auto old = r.replace(gather_list::of({all}, access_mode::read).value());
  BOOST_TEST((r.handle() == handle));
  BOOST_TEST(found(r).lease()->memory().dense_at(0, 100) == others.data());
  // What has begun goes on until the old memory is withdrawn.
  BOOST_TEST(before.lease()->memory().dense_at(0, 100) == bytes.data());
  old.withdraw();
  BOOST_TEST(!before.lease().has_value());
  BOOST_TEST(found(r).lease().has_value());
  BOOST_TEST(exposed_regions() == 1u);
  r.withdraw();
  BOOST_TEST(exposed_regions() == 0u);
}

BOOST_AUTO_TEST_CASE(a_withdrawn_region_lends_nothing_and_takes_no_hook) {
  std::vector<std::byte> bytes(100);
  auto r = exposed(bytes);
  auto ref = found(r);
  BOOST_TEST(ref.lease().has_value());
  r.withdraw();
  BOOST_TEST((ref.lease().error().code() == errc::permission_denied));
  BOOST_TEST((ref.on_withdraw([] {}).error().code() == errc::permission_denied));
}

BOOST_AUTO_TEST_CASE(a_region_is_dense_when_its_bytes_follow_each_other_on_the_host) {
  std::vector<std::byte> bytes(100);
  auto whole = exposed(bytes);
  BOOST_TEST(found(whole).dense() == bytes.data());
  tensor_view rows{{"a", dtype::u8, {10, 5}}, bytes.data(), {10, 1}};
  auto strided = expose(gather_list::of({rows}, access_mode::read).value(), access_mode::read);
  BOOST_TEST(found(strided).dense() == nullptr);
  auto empty = expose(gather_list{}, access_mode::read);
  BOOST_TEST(found(empty).dense() == nullptr);
}

BOOST_AUTO_TEST_SUITE_END()

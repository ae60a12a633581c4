// Tests blocks that threads keep: their sizes, their bound, and what becomes of them when threads
// end.
#include <millrace/core/codec.hpp>
#include <millrace/core/kept_blocks.hpp>

#include <boost/test/unit_test.hpp>

#include <cstring>
#include <thread>
#include <vector>

using namespace millrace;

namespace {

// Runs `f` on a thread that has kept nothing.
template <class F>
void on_new_thread(F f) {
  std::thread{f}.join();
}

// Blocks of this size, all of them filled and in use at once.
std::vector<void*> take(std::size_t count, std::size_t size_bytes) {
  std::vector<void*> out;
  for (std::size_t i = 0; i < count; ++i) {
    out.push_back(take_kept(size_bytes));
    std::memset(out.back(), static_cast<int>(i), size_bytes);
  }
  return out;
}

void give(const std::vector<void*>& blocks, std::size_t size_bytes) {
  for (auto* block : blocks)
    give_kept(block, size_bytes);
}

bool is_filled(const void* block, std::size_t size_bytes, std::size_t number) {
  auto* bytes = static_cast<const unsigned char*>(block);
  for (std::size_t i = 0; i < size_bytes; ++i)
    if (bytes[i] != static_cast<unsigned char>(number))
      return false;
  return true;
}

} // namespace

BOOST_AUTO_TEST_SUITE(kept_blocks)

BOOST_AUTO_TEST_CASE(blocks_of_any_size_do_not_overlap) {
  for (std::size_t size : {1u, 1024u, 1025u, 2048u, 2049u, 4096u, 5000u, 65536u, 65537u, 200'000u})
    for (int round = 0; round < 3; ++round) {
      auto blocks = take(20, size);
      for (std::size_t i = 0; i < blocks.size(); ++i)
        BOOST_TEST(is_filled(blocks[i], size, i));
      give(blocks, size);
    }
}

#if !defined(__SANITIZE_ADDRESS__) // there every block is freed
BOOST_AUTO_TEST_CASE(a_thread_takes_the_block_again_that_it_gave_last) {
  on_new_thread([] {
    auto* block = take_kept(4096);
    give_kept(block, 4096);
    auto kept = kept_bytes();
    auto* again = take_kept(3000); // of the same list
    BOOST_TEST(again == block);
    BOOST_TEST(kept == 4096u);
    BOOST_TEST(kept_bytes() == 0u);
    give_kept(again, 3000);
  });
}
#endif

BOOST_AUTO_TEST_CASE(what_a_thread_keeps_is_bounded) {
  on_new_thread([] {
    for (std::size_t size : {65536u, 5000u, 2048u}) {
      give(take(1000, size), size);
      BOOST_TEST(kept_bytes() <= kept_bytes_max);
    }
    auto before = kept_bytes();
    give(take(10, 1024), 1024);
    give(take(10, 65537), 65537);
    BOOST_TEST(kept_bytes() == before); // such sizes are not kept
  });
}

// The sanitizers would report a block that is freed twice, or never.
BOOST_AUTO_TEST_CASE(blocks_may_be_given_back_by_another_thread_and_at_the_end_of_one) {
  std::vector<void*> blocks;
  on_new_thread([&] { blocks = take(100, 4096); });
  on_new_thread([&] { give(blocks, 4096); });
  on_new_thread([] {
    static thread_local small_bytes made_first; // destroyed after what the thread keeps
    static_cast<void>(made_first);
    give_kept(take_kept(4096), 4096);
    made_first.assign(4096, 7);
  });
}

BOOST_AUTO_TEST_CASE(such_bytes_travel_as_others_do) {
  small_bytes sent(5000, 9);
  sent.back() = 1;
  auto wire = encode(sent);
  BOOST_TEST((wire == encode(std::vector<std::uint8_t>(sent.begin(), sent.end()))));
  auto arrived = decode<small_bytes>(wire, "bytes");
  BOOST_REQUIRE(arrived);
  BOOST_TEST((*arrived == sent));
  wire.pop_back();
  BOOST_TEST(!decode<small_bytes>(wire, "bytes"));
}

BOOST_AUTO_TEST_SUITE_END()

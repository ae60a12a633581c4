// Tests block checksums that are computed at once and piece by piece.
#include <millrace/core/digest.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <string_view>
#include <vector>

BOOST_AUTO_TEST_SUITE(digests)

BOOST_AUTO_TEST_CASE(a_digest_does_not_depend_on_the_pieces_it_is_computed_from) {
  std::vector<std::byte> bytes(millrace::digest_block_bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  for (std::size_t size : {0, 1, 240, 241, 1023, 1024, 1025, 70'000, 262'144})
    for (std::size_t step : {1, 7, 256, 1024, 5000}) {
      millrace::running_digest sum;
      for (std::size_t at = 0; at < size; at += step)
        sum.add(bytes.data() + at, std::min(step, size - at));
      BOOST_TEST(sum.value() == millrace::digest(bytes.data(), size));
    }
}

BOOST_AUTO_TEST_CASE(texts_are_told_apart_by_their_lengths) {
  auto of = [](std::initializer_list<std::string_view> texts) {
    millrace::running_digest sum;
    for (auto text : texts)
      sum.add_text(text);
    return sum.value();
  };
  BOOST_TEST(of({"ab", "c"}) == of({"ab", "c"}));
  BOOST_TEST(of({"ab", "c"}) != of({"a", "bc"}));
  BOOST_TEST(of({"abc"}) != of({"abc", ""}));
}

BOOST_AUTO_TEST_SUITE_END()

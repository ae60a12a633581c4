// Tests sizes, durations and the nearest word.
#include <millrace/config/nearest.hpp>
#include <millrace/config/units.hpp>

#include <boost/test/unit_test.hpp>

#include <array>

using namespace millrace;
using namespace millrace::config;

BOOST_AUTO_TEST_SUITE(config_units)

BOOST_AUTO_TEST_CASE(sizes_take_binary_units) {
  BOOST_TEST(parse_size("0").value() == 0u);
  BOOST_TEST(parse_size("4096").value() == 4096u);
  BOOST_TEST(parse_size("12B").value() == 12u);
  BOOST_TEST(parse_size("64KiB").value() == 65'536u);
  BOOST_TEST(parse_size("64 KiB").value() == 65'536u);
  BOOST_TEST(parse_size("512MiB").value() == 512u << 20);
  BOOST_TEST(parse_size("3GiB").value() == 3ull << 30);
  BOOST_TEST(parse_size("2TiB").value() == 2ull << 40);
  BOOST_TEST(parse_size("18446744073709551615").value() == ~0ull);
}

BOOST_AUTO_TEST_CASE(other_sizes_are_refused) {
  for (auto* text :
       {"", " ", "-1", "+1", "1.5GiB", "GiB", "1 ", "1  GiB", " 1", "0x10", "1GiBs",
        "18446744073709551616", "99999999999TiB", "1KiB2", "1_000"})
    BOOST_TEST_CONTEXT(text)
  BOOST_TEST((parse_size(text).error().code() == errc::invalid_argument));
}

BOOST_AUTO_TEST_CASE(decimal_and_short_units_suggest_the_binary_one) {
  for (auto* text : {"5GB", "5G", "5gib", "5g"})
    BOOST_TEST((parse_size(text).error().detail().ends_with("; did you mean '5GiB'?")));
  BOOST_TEST((parse_size("5kB").error().detail().ends_with("; did you mean '5KiB'?")));
}

BOOST_AUTO_TEST_CASE(durations_need_a_unit) {
  BOOST_TEST(parse_duration_us("0").value() == 0u);
  BOOST_TEST(parse_duration_us("50us").value() == 50u);
  BOOST_TEST(parse_duration_us("500ms").value() == 500'000u);
  BOOST_TEST(parse_duration_us("5s").value() == 5'000'000u);
  BOOST_TEST(parse_duration_us("2m").value() == 120'000'000u);
  BOOST_TEST(parse_duration_us("1h").value() == 3'600'000'000u);
  for (auto* text : {"", "5", "s", "1.5s", "-1s", "5 sec", "5S", "99999999999999999h"})
    BOOST_TEST_CONTEXT(text)
  BOOST_TEST((parse_duration_us(text).error().code() == errc::invalid_argument));
}

BOOST_AUTO_TEST_CASE(what_is_printed_reads_back) {
  for (std::uint64_t size : {0ull, 1ull, 1023ull, 1024ull, 1536ull, 1ull << 20, 3ull << 40, ~0ull})
    BOOST_TEST(parse_size(format_size(size)).value() == size);
  for (std::uint64_t us :
       {0ull, 1ull, 999ull, 1000ull, 1'500'000ull, 60'000'000ull, 86'400'000'000ull})
    BOOST_TEST(parse_duration_us(format_duration_us(us)).value() == us);
  BOOST_TEST(format_size(100) == "100");
  BOOST_TEST(format_size(1536) == "1536");
  BOOST_TEST(format_size(256u << 20) == "256MiB");
  BOOST_TEST(format_duration_us(90'000'000) == "90s");
}

BOOST_AUTO_TEST_CASE(the_nearest_word_is_found_if_it_is_near) {
  constexpr std::array<std::string_view, 5> words = {
    "size", "mode", "huge_pages", "peer_timeout", "weight"};
  BOOST_TEST(nearest("siez", words) == "size");
  BOOST_TEST(nearest("SIZE", words) == "size");
  BOOST_TEST(nearest("hugepages", words) == "huge_pages");
  BOOST_TEST(nearest("huge-pages", words) == "huge_pages");
  BOOST_TEST(nearest("wieght", words) == "weight");
  BOOST_TEST(nearest("peer", words) == "peer_timeout");
  BOOST_TEST(nearest("bananas", words) == "");
  BOOST_TEST(nearest("", words) == "");
  BOOST_TEST(nearest(std::string(10'000, 'x'), words) == "");
}

BOOST_AUTO_TEST_SUITE_END()

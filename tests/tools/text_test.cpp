// Tests sizes, durations, tables and names as people see them.
#include <millrace/tools/text.hpp>

#include <boost/test/unit_test.hpp>

#include <sstream>

using namespace millrace::tools;

BOOST_AUTO_TEST_SUITE(text_for_people)

BOOST_AUTO_TEST_CASE(sizes_have_three_digits_and_never_1024_of_a_unit) {
  BOOST_TEST(human_size(0) == "0 B");
  BOOST_TEST(human_size(1023) == "1023 B");
  BOOST_TEST(human_size(1024) == "1 KiB");
  BOOST_TEST(human_size(1536) == "1.50 KiB");
  BOOST_TEST(human_size(20 * 1024 + 512) == "20.5 KiB");
  BOOST_TEST(human_size((1u << 20) - 1) == "1.00 MiB");
  BOOST_TEST(human_size(std::uint64_t{3} << 40) == "3 TiB");
  BOOST_TEST(human_size(UINT64_MAX) == "16 EiB");
}

BOOST_AUTO_TEST_CASE(durations_have_at_most_two_units) {
  BOOST_TEST(human_duration(0) == "0 ms");
  BOOST_TEST(human_duration(59'999) == "59 s");
  BOOST_TEST(human_duration(60'000) == "1 min");
  BOOST_TEST(human_duration(3'725'000) == "1 h 2 min");
  BOOST_TEST(human_duration(90'000'000) == "1 d 1 h");
}

BOOST_AUTO_TEST_CASE(computed_times_have_three_digits) {
  BOOST_TEST(human_seconds(0) == "0.00 us");
  BOOST_TEST(human_seconds(1.5e-6) == "1.50 us");
  BOOST_TEST(human_seconds(9.996e-6) == "10.0 us");
  BOOST_TEST(human_seconds(250e-6) == "250 us");
  BOOST_TEST(human_seconds(999.6e-6) == "1.00 ms");
  BOOST_TEST(human_seconds(0.0125) == "12.5 ms");
  BOOST_TEST(human_seconds(3725) == "3725 s");
}

BOOST_AUTO_TEST_CASE(times_are_utc) {
  BOOST_TEST(human_time(1'700'000'000'000'000'000) == "2023-11-14 22:13:20Z");
}

BOOST_AUTO_TEST_CASE(control_characters_are_spelt_out) {
  BOOST_TEST(printable("a\nb\x1b[0m\x7f") == "a\\x0ab\\x1b[0m\\x7f");
  BOOST_TEST(
    printable("\xc2\x9b"
              "31m é") == "\\x9b31m é");
  BOOST_TEST(printable("\xc2") == "\xc2");
}

BOOST_AUTO_TEST_CASE(columns_line_up) {
  table t{{"name", ">size"}};
  t.add({"é", "10"});
  t.add({"longer", "9"});
  std::ostringstream out;
  t.print(out, "  ");
  BOOST_TEST(out.str() == "  name    size\n  é         10\n  longer     9\n");
}

BOOST_AUTO_TEST_SUITE_END()

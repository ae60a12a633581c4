// Reads files that are made to do harm. They are refused quickly, with bounded memory, and never
// crash the reader.
#include "expect.hpp"

#include <millrace/config/document.hpp>

#include <random>

using namespace millrace;
using namespace millrace::config;

namespace {

std::string repeated(std::string_view part, std::size_t times) {
  std::string text;
  for (std::size_t i = 0; i < times; ++i)
    text += part;
  return text;
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

} // namespace

BOOST_AUTO_TEST_SUITE(config_hostile)

BOOST_AUTO_TEST_CASE(a_file_above_the_bound_is_refused) {
  BOOST_TEST(
    bad(std::string(document_bytes_max + 1, '#')) == "t.yaml:1:1: larger than 1048576 bytes");
  BOOST_TEST(good(std::string(document_bytes_max, '#')).node.name == "n0");
  // A device without end is read no further than the bound.
  BOOST_TEST(has(load_configuration("/dev/zero").error().detail(), "larger than"));
}

BOOST_AUTO_TEST_CASE(deep_nesting_is_refused) {
  for (auto* part : {"[", "{a: ", "- ", "? ", "[[], "})
    for (std::size_t times : {20u, 1000u, 100'000u})
      BOOST_TEST_CONTEXT(part << " x " << times) bad(repeated(part, times));
  BOOST_TEST(has(bad(repeated("- ", 1000)), "t.yaml:1:33: nested more than 16 levels deep"));
}

BOOST_AUTO_TEST_CASE(many_values_are_refused) {
  BOOST_TEST(has(bad("providers: [" + repeated("a,", 400'000) + "]"), "more than 20000 values"));
  std::string keys;
  for (int i = 0; i < 30'000; ++i)
    keys += "k" + std::to_string(i) + ": 1\n";
  BOOST_TEST(has(bad(keys), "more than 20000 values"));
}

BOOST_AUTO_TEST_CASE(aliases_that_multiply_are_refused) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 20; ++i) {
    auto before = " *a" + std::to_string(i - 1);
    auto name = "a" + std::to_string(i);
    bomb += name + ": &" + name + " [" + repeated(before + " ,", 9) + "]\n";
  }
  BOOST_TEST(has(bad(bomb), "more than 20000 values"));
}

BOOST_AUTO_TEST_CASE(an_alias_inside_itself_is_refused) {
  BOOST_TEST(bad("node: &n {name: *n}") == "t.yaml:1:17: an alias inside the value it stands for");
  BOOST_TEST(bad("&n [*n]") == "t.yaml:1:5: an alias inside the value it stands for");
}

BOOST_AUTO_TEST_CASE(a_modest_alias_is_what_it_stands_for) {
  auto s = good("staging: {size: &s 512MiB}\nclient: {staging: *s}\n");
  BOOST_TEST(s.client.staging_bytes == 512u << 20);
}

BOOST_AUTO_TEST_CASE(text_that_is_not_utf8_is_refused) {
  BOOST_TEST(bad("node: {}\n# caf\xe9\n") == "t.yaml:2:1: not UTF-8");
  BOOST_TEST(bad(std::string("\xff\xfe{\0}\0", 6)) == "t.yaml:1:4: a control character");
  BOOST_TEST(bad(std::string("a\0b", 3)) == "t.yaml:1:2: a control character");
  // The parser takes this one for the end of the file.
  BOOST_TEST(bad("node: {}\n \x04\nstaging: 7") == "t.yaml:2:2: a control character");
  BOOST_TEST(good("\xef\xbb\xbfnode: {name: bom}\r\n").node.name == "bom");
}

BOOST_AUTO_TEST_CASE(errors_repeat_no_more_of_the_file_than_fits_a_line) {
  auto key = std::string(100'000, 'k');
  BOOST_TEST(bad(key.substr(0, 1000) + ": 1").size() < 300u);
  BOOST_TEST(bad("node: {name: " + key + "}").size() < 300u);
  BOOST_TEST(bad("staging: {size: " + key + "}").size() < 300u);
  BOOST_TEST(
    bad("staging: {lock: \"a\\u0007\\nb\"}") ==
    "t.yaml:1:17: staging.lock: 'a??b' is not one of auto, off");
}

BOOST_AUTO_TEST_CASE(random_text_is_refused_or_read) {
  std::mt19937 random{3};
  std::string_view alphabet = "{}[]:,-?!&*|>%@`'\"#~ \n\t\\0a1k";
  std::size_t refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text;
    for (auto left = random() % 60; left > 0; --left)
      text += alphabet[random() % alphabet.size()];
    refused += parse_configuration(text, "t.yaml") ? 0 : 1;
  }
  BOOST_TEST(refused > 10'000u);
}

BOOST_AUTO_TEST_CASE(every_beginning_of_a_file_is_refused_or_read) {
  std::string whole = "node: {name: a, allow_users: [b], socket_mode: 0666}\nproviders:\n"
                      "  - name: kept\n    bucket: rocksdb\n    path: \"/x\\u00e9\"\n";
  for (std::size_t n = 0; n < whole.size(); ++n)
    if (auto cut = parse_configuration(whole.substr(0, n), "t.yaml"); !cut)
      BOOST_TEST((cut.error().detail().find("t.yaml:") == 0));
}

BOOST_AUTO_TEST_SUITE_END()

// Samples that are found by their paths.
#include "data_node.hpp"

#include <millrace/runtime/client/calls/set_find.hpp>

#include <boost/test/unit_test.hpp>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

using namespace millrace;
using millrace::testing::data_node;

namespace {

using numbers = std::vector<std::uint64_t>;
constexpr std::size_t path_field = 1;

// Files 0 to 19 in two folders; names of one and of two digits.
struct of_folder {
  data_node at;
  client to = at.connect();

  of_folder() {
    auto folder = at.dir.path() + "/all";
    for (int i = 0; i < 20; ++i) {
      auto in = folder + (i < 7 ? "/a" : "/b");
      std::filesystem::create_directories(in);
      std::ofstream{in + "/" + std::to_string(i)} << std::string(static_cast<std::size_t>(i), 'x');
    }
    preload_options options;
    options.labels = "folders";
    to.working_set("s").preload({folder}, options).get();
  }

  set_reader open() const { return to.working_set("s").open().get(); }
};

// Files of a folder are sorted by their names.
std::uint64_t place_of(const set_reader& reader, const std::string& path) {
  for (std::uint64_t i = 0; i < reader.info().samples; ++i) {
    std::string text(reader.sizes(path_field, {i}).get().front(), '\0');
    reader.read(path_field, i, std::as_writable_bytes(std::span{text})).get();
    if (text == path)
      return i;
  }
  return ~std::uint64_t{0};
}

} // namespace

BOOST_FIXTURE_TEST_SUITE(find_samples, of_folder)

BOOST_AUTO_TEST_CASE(samples_are_found_by_their_paths_in_the_order_of_the_texts) {
  auto reader = open();
  std::vector<std::string> wanted{"b/19", "a/0", "b/7", "a/0"};
  auto found = reader.find(path_field, wanted).get();
  BOOST_TEST_REQUIRE(found.size() == wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i)
    BOOST_TEST(found[i] == place_of(reader, wanted[i]), wanted[i]);
  BOOST_TEST(reader.find(path_field, {}).get().empty());
}

BOOST_AUTO_TEST_CASE(blocks_of_samples_are_looked_at_one_after_the_other) {
  auto reader = open();
  runtime::stop_mark mark;
  for (auto at_once : {1u, 3u, 19u, 20u, 21u}) {
    auto found = runtime::find_samples(reader, path_field, {"b/9", "a/3", "b/19"}, mark, at_once);
    BOOST_TEST_REQUIRE(found.has_value());
    numbers right{place_of(reader, "b/9"), place_of(reader, "a/3"), place_of(reader, "b/19")};
    BOOST_TEST(*found == right, boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(a_text_that_no_sample_has_is_named) {
  auto missing = open().find(path_field, {"a/0", "a/77", "c"});
  BOOST_TEST((missing.result().error().code() == errc::not_found));
  BOOST_TEST(missing.result().error().to_string().find("path is 'a/77'") != std::string::npos);
  // A path is not a part of one.
  BOOST_TEST((open().find(path_field, {"b/1"}).result().error().code() == errc::not_found));
}

BOOST_AUTO_TEST_CASE(other_fields_have_no_texts) {
  auto reader = open();
  auto none = reader.find(2, {"a/0"});
  BOOST_TEST((none.result().error().code() == errc::invalid_argument));
  auto arrays = at.file("x.npy", 4);
  to.working_set("arrays").preload({arrays}).get();
  auto numbers_only = to.working_set("arrays").open().get().find(0, {"a"});
  BOOST_TEST((numbers_only.result().error().code() == errc::invalid_argument));
}

BOOST_AUTO_TEST_CASE(a_search_that_is_cancelled_ends) {
  auto reader = open();
  runtime::stop_mark mark;
  mark.stop();
  auto found = runtime::find_samples(reader, path_field, {"b/19"}, mark, 1);
  BOOST_TEST((!found && found.error().code() == errc::cancelled));
}

BOOST_AUTO_TEST_SUITE_END()

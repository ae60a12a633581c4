// Tests the commands for models, in a bucket that no service has open.
#include <millrace/storage/rocksdb/rocksdb_bucket.hpp>
#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/heap_memory_source.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/scratch_directory.hpp>
#include <millrace/tools/run.hpp>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <fstream>
#include <map>
#include <sstream>

using namespace millrace;
using namespace millrace::testing;
using nlohmann::json;

namespace {

constexpr std::uint64_t mib = 1u << 20;

struct bucket_place {
  scratch_directory dir;
  std::string path = dir.path() + "/bucket";

  std::shared_ptr<storage::bucket> open() const {
    storage::rocksdb_bucket_options options;
    options.path = path;
    options.window_bytes = mib;
    options.segment_bytes = 8 * mib;
    auto opened = storage::open_rocksdb_bucket(std::move(options));
    BOOST_REQUIRE_MESSAGE(opened, why(opened));
    return *opened;
  }

  json verify(int expected) const {
    std::ostringstream out;
    std::ostringstream err;
    auto code = tools::run({"models", "verify", path, "--json"}, out, err);
    BOOST_TEST(code == expected, err.str() << out.str());
    return json::parse(code == 1 && out.str().empty() ? err.str() : out.str());
  }

  // The bytes of every file.
  std::map<std::string, std::string> files() const {
    std::map<std::string, std::string> all;
    for (auto& entry : std::filesystem::recursive_directory_iterator{path})
      if (entry.is_regular_file()) {
        std::ostringstream text;
        text << std::ifstream{entry.path()}.rdbuf();
        all[entry.path()] = text.str();
      }
    return all;
  }

  // Changes one byte of every segment.
  void damage_segments(std::uint64_t at) const {
    for (auto& entry : std::filesystem::directory_iterator{path + "/segments"}) {
      std::fstream file{entry.path(), std::ios::in | std::ios::out | std::ios::binary};
      file.seekg(static_cast<std::streamoff>(at));
      auto byte = static_cast<char>(file.get() ^ 1);
      file.seekp(static_cast<std::streamoff>(at));
      file.put(byte);
    }
  }
};

void store_three(storage::bucket& subject) {
  BOOST_REQUIRE(store(subject, spec_of("large", {3 * mib + 5, 0, 100}), 1));
  BOOST_REQUIRE(store(subject, spec_of("small", {100}), 2));
  BOOST_REQUIRE(store(subject, spec_of("empty", {0}), 3));
}

} // namespace

BOOST_AUTO_TEST_SUITE(models_at_rest)

BOOST_AUTO_TEST_CASE(whole_models_are_verified_and_nothing_is_changed) {
  bucket_place place;
  store_three(*place.open());
  auto before = place.files();
  auto said = place.verify(0);
  BOOST_TEST(said.at("ok") == true);
  // A model without bytes has no checksums.
  BOOST_TEST(said.at("verified") == 2);
  BOOST_TEST(said.at("without_checksums") == 1);
  BOOST_TEST(said.at("read_bytes") == 3 * mib + 5 + 100 + 100);
  BOOST_TEST((place.files() == before));
  BOOST_TEST(check_model(*place.open(), "large", 1).ok());
}

BOOST_AUTO_TEST_CASE(a_flipped_bit_is_found_and_the_others_are_verified) {
  bucket_place place;
  store_three(*place.open());
  place.damage_segments(2 * mib);
  auto said = place.verify(1);
  BOOST_TEST(said.at("ok") == false);
  BOOST_TEST(said.at("verified") == 1);
  BOOST_REQUIRE(said.at("damaged").size() == 1u);
  auto& damaged = said.at("damaged").at(0);
  BOOST_TEST(damaged.at("name") == "large");
  BOOST_TEST(damaged.at("error").at("code") == "corrupt_data");
  BOOST_TEST(damaged.at("error").at("detail").get<std::string>().starts_with("tensor t0 differs"));
}

BOOST_AUTO_TEST_CASE(a_shorter_segment_is_found) {
  bucket_place place;
  store_three(*place.open());
  for (auto& entry : std::filesystem::directory_iterator{place.path + "/segments"})
    std::filesystem::resize_file(entry.path(), mib);
  BOOST_TEST(place.verify(1).at("damaged").size() == 1u);
  for (auto& entry : std::filesystem::directory_iterator{place.path + "/segments"})
    std::filesystem::remove(entry.path());
  // Only what the index has was read.
  auto said = place.verify(1);
  BOOST_TEST(said.at("damaged").at(0).at("size_bytes") == 3 * mib + 105);
  BOOST_TEST(said.at("read_bytes") == 100);
}

BOOST_AUTO_TEST_CASE(an_open_bucket_and_other_places_are_refused) {
  bucket_place place;
  auto code_of = [&] { return place.verify(1).at("error").at("code").get<std::string>(); };
  BOOST_TEST(code_of() == "not_found");
  auto subject = place.open();
  BOOST_TEST(code_of() == "busy");
  auto detail = place.verify(1).at("error").at("detail").get<std::string>();
  BOOST_TEST(detail.find("process " + std::to_string(::getpid())) != std::string::npos, detail);
}

BOOST_AUTO_TEST_CASE(salvage_writes_what_is_whole_and_no_record_of_the_provider) {
  bucket_place place;
  {
    auto subject = place.open();
    store_three(*subject);
    auto own = std::string{storage::own_name_prefix} + "own";
    BOOST_REQUIRE(testing::store(*subject, spec_of(own, {}), 1));
  }
  place.damage_segments(2 * mib);
  BOOST_TEST(place.verify(1).at("without_checksums") == 1);
  std::ostringstream out;
  auto code =
    tools::run({"models", "salvage", place.path, place.dir.path() + "/out", "--json"}, out, out);
  BOOST_TEST(code == 1);
  auto said = json::parse(out.str());
  BOOST_TEST(said.at("saved").size() == 2u, out.str());
  BOOST_TEST(said.at("lost").size() == 1u, out.str());
}

BOOST_AUTO_TEST_SUITE_END()

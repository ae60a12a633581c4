// Tests what the index of a RocksDB bucket takes for the rest of a power cut, and what for damage.
#include <millrace/storage/rocksdb/rocksdb_bucket.hpp>
#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/file_contents.hpp>
#include <millrace/tests/support/heap_memory_source.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/scratch_directory.hpp>

#include <boost/test/unit_test.hpp>

#include <map>

using namespace millrace;
using namespace millrace::storage;
using namespace millrace::testing;

namespace {

namespace fs = std::filesystem;

rocksdb_bucket_options options_at(const std::string& path) {
  rocksdb_bucket_options options;
  options.path = path;
  options.capacity_bytes = 64u << 20;
  options.window_bytes = 1u << 20;
  options.segment_bytes = 4u << 20;
  return options;
}

/// A bucket that holds three models, and copies of it as a power cut leaves them: without the mark
/// of an orderly stop.
struct cut_bucket {
  cut_bucket() {
    BOOST_REQUIRE_MESSAGE(subject, why(subject));
    for (auto name : {"a", "b", "c"})
      BOOST_REQUIRE(store(**subject, spec_of(name, {300}), 1));
  }

  std::string copy(const std::string& name) const {
    auto to = directory.path() + "/" + name;
    fs::copy(directory.path() + "/bucket", to, fs::copy_options::recursive);
    fs::permissions(to, fs::perms::owner_all);
    return to;
  }

  scratch_directory directory;
  result<std::shared_ptr<bucket>> subject =
    open_rocksdb_bucket(options_at(directory.path() + "/bucket"));
};

std::map<std::string, std::string> logs_of(const std::string& bucket_path) {
  std::map<std::string, std::string> all;
  for (auto& entry : fs::directory_iterator{bucket_path + "/index"})
    if (entry.path().extension() == ".log")
      all[entry.path().filename().string()] = contents_of(entry.path());
  return all;
}

/// Changes a byte of the log, counted from its end if `at` is negative.
void flip_in_log(const std::string& bucket_path, std::int64_t at) {
  for (auto& entry : fs::directory_iterator{bucket_path + "/index"})
    if (entry.path().extension() == ".log" && entry.file_size() > 0) {
      auto content = contents_of(entry.path());
      content[static_cast<std::size_t>(at < 0 ? std::ssize(content) + at : at)] ^= 0x40;
      std::ofstream{entry.path(), std::ios::binary} << content;
    }
}

} // namespace

BOOST_AUTO_TEST_SUITE(log_checks)

BOOST_AUTO_TEST_CASE(the_last_batch_may_be_torn) {
  cut_bucket cut;
  for (std::int64_t at : {-1, -100}) {
    auto path = cut.copy("copy" + std::to_string(at));
    flip_in_log(path, at);
    auto opened = open_rocksdb_bucket(options_at(path));
    BOOST_TEST_REQUIRE(opened.has_value(), why(opened));
    BOOST_TEST(check_model(**opened, "a", 1).ok());
    BOOST_TEST(check_model(**opened, "b", 1).ok());
    BOOST_TEST(!open(**opened, "c").has_value());
    BOOST_REQUIRE(store(**opened, spec_of("c", {300}), 2));
    opened = fail(errc::ok, "");
    opened = open_rocksdb_bucket(options_at(path));
    BOOST_TEST_REQUIRE(opened.has_value(), why(opened));
    BOOST_TEST(check_model(**opened, "c", 2).ok());
  }
}

// The removal of a log need not be durable when changes in the next one are.
BOOST_AUTO_TEST_CASE(a_torn_log_may_come_back_beside_the_one_after_it) {
  cut_bucket cut;
  auto path = cut.copy("torn"), again = cut.directory.path() + "/again";
  flip_in_log(path, -1);
  auto old = logs_of(path);
  auto opened = open_rocksdb_bucket(options_at(path));
  BOOST_TEST_REQUIRE(opened.has_value(), why(opened));
  BOOST_REQUIRE(store(**opened, spec_of("d", {300}), 1));
  auto copy_again = [&] {
    fs::copy(path, again, fs::copy_options::recursive);
    fs::permissions(again, fs::perms::owner_all);
    for (auto& [name, content] : old) {
      BOOST_TEST(!fs::exists(again + "/index/" + name));
      std::ofstream{again + "/index/" + name, std::ios::binary} << content;
    }
  };
  copy_again();
  auto second = open_rocksdb_bucket(options_at(again));
  BOOST_TEST_REQUIRE(second.has_value(), why(second));
  for (auto name : {"a", "b", "d"})
    BOOST_TEST(check_model(**second, name, 1).ok());
  BOOST_TEST(!open(**second, "c").has_value());
  second = fail(errc::ok, "");
  // Had an acknowledged change been lost there, the next log would begin with a later one.
  fs::remove_all(again);
  BOOST_REQUIRE(old.size() == 1);
  old.begin()->second.resize(old.begin()->second.size() / 2);
  copy_again();
  auto refused = open_rocksdb_bucket(options_at(again));
  BOOST_TEST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code() == errc::corrupt_data), why(refused));
}

BOOST_AUTO_TEST_CASE(what_was_acknowledged_before_it_may_not_be_damaged) {
  cut_bucket cut;
  for (std::int64_t at : {0, 5, 300}) {
    auto path = cut.copy("copy" + std::to_string(at));
    flip_in_log(path, at);
    auto opened = open_rocksdb_bucket(options_at(path));
    BOOST_TEST_REQUIRE(!opened.has_value(), "byte " << at);
    BOOST_TEST((opened.error().code() == errc::corrupt_data), why(opened));
  }
}

BOOST_AUTO_TEST_SUITE_END()

// Tests that files are samples with their bytes, names and labels, that names are expanded, and
// that what does not belong to a set is refused or left out.
#include "opened_samples.hpp"

#include <millrace/storage/samples/label_file.hpp>
#include <millrace/storage/samples/name_patterns.hpp>
#include <millrace/storage/samples/sample_reader.hpp>
#include <millrace/tests/support/process.hpp>

#include <boost/test/unit_test.hpp>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <numeric>

using namespace millrace;
using namespace millrace::storage::samples;
using millrace::testing::check_refused;
using millrace::testing::opened;
using millrace::testing::scratch;
using names = std::vector<std::string>;

namespace {

namespace fs = std::filesystem;

std::string text(sample_reader& from, std::size_t field, std::uint64_t first, std::uint64_t count) {
  auto lengths = from.lengths(field).subspan(first, count);
  std::string out(std::accumulate(lengths.begin(), lengths.end(), std::uint64_t{0}), '\0');
  auto bad = from.read(field, first, count, std::as_writable_bytes(std::span{out}));
  BOOST_TEST_REQUIRE(bad.ok(), bad.to_string());
  return out;
}

std::vector<std::int64_t> labels(sample_reader& from, std::size_t field) {
  std::vector<std::int64_t> out(from.samples());
  auto bad = from.read(field, 0, out.size(), std::as_writable_bytes(std::span{out}));
  BOOST_TEST_REQUIRE(bad.ok(), bad.to_string());
  return out;
}

// Files in folders, one of them without bytes.
struct folders : scratch {
  folders() {
    for (auto* folder : {"dog", "cat/small", ".git", "ant"})
      fs::create_directories(path / folder);
    write("dog/a.jpg", "dog a");
    write("dog/b.npy", "no array");
    write("cat/1.jpg", "");
    write("cat/small/2.jpg", "small cat");
    write("cat/.hidden", "hidden");
    write(".git/x", "hidden");
  }
  std::string root() const { return path.string(); }
};

// While it exists, this process can open nothing.
class no_descriptors {
public:
  no_descriptors() {
    BOOST_REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    auto none = before_;
    none.rlim_cur = 0;
    BOOST_REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  ~no_descriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

private:
  struct rlimit before_ {};
};

} // namespace

BOOST_AUTO_TEST_SUITE(fileset_samples)

BOOST_AUTO_TEST_CASE(each_file_of_a_directory_is_a_sample) {
  folders files;
  auto subject = opened({files.root()}, {.labels = "folders"});
  BOOST_TEST(subject->samples() == 4u);
  BOOST_TEST_REQUIRE(subject->fields().size() == 3u);
  BOOST_TEST(subject->fields()[0].varies);
  BOOST_TEST((subject->fields()[0].sample == tensor_desc{"x", dtype::u8, {0}}));
  BOOST_TEST((subject->fields()[2].sample == tensor_desc{"label", dtype::i64, {}}));
  BOOST_TEST(text(*subject, 0, 0, 4) == "small catdog ano array");
  BOOST_TEST(text(*subject, 0, 2, 1) == "dog a");
  BOOST_TEST(text(*subject, 1, 0, 4) == "cat/1.jpgcat/small/2.jpgdog/a.jpgdog/b.npy");
  // The folder without files counts, too, as in torchvision.
  BOOST_TEST((labels(*subject, 2) == std::vector<std::int64_t>{1, 1, 2, 2}));
  std::string part(3, '\0');
  BOOST_TEST((subject->read_part(0, 1, 0, std::as_writable_bytes(std::span{part})).ok()));
  BOOST_TEST(part == "sma");
  auto some = opened({files.root()}, {.fields = {"path"}});
  BOOST_TEST_REQUIRE(some->fields().size() == 1u);
  BOOST_TEST(text(*some, 0, 2, 1) == "dog/a.jpg");
  check_refused({files.root()}, errc::invalid_argument, {"label"}, {.fields = {"label"}});
  files.write("c.jpg", "in no folder");
  check_refused({files.root()}, errc::invalid_argument, {"c.jpg"}, {.labels = "folders"});
}

BOOST_AUTO_TEST_CASE(a_list_of_files_keeps_its_order) {
  folders files;
  auto a = files / "dog/a.jpg", b = files / "cat/small/2.jpg", array = files / "dog/b.npy";
  auto subject = opened({a, b, a});
  BOOST_TEST(text(*subject, 0, 0, 3) == "dog asmall catdog a");
  BOOST_TEST(text(*subject, 1, 1, 1) == b);
  BOOST_TEST(text(*opened({array}, {.kind = sample_kind::files}), 0, 0, 1) == "no array");
  check_refused({a, array}, errc::unsupported, {"a.jpg"});
  check_refused({array}, errc::corrupt_data, {"b.npy"});
  check_refused({a, files.root()}, errc::invalid_argument, {"directory"});
  check_refused({a}, errc::invalid_argument, {"one directory"}, {.labels = "folders"});
  check_refused({files.root()}, errc::corrupt_data, {"b.npy"}, {.kind = sample_kind::arrays});
}

BOOST_AUTO_TEST_CASE(labels_come_from_a_file) {
  folders files;
  auto csv = files.write(".labels.csv", "path,label\r\ndog/a.jpg,-4\ndog/b.npy,7\n\ncat/1.jpg,0\n");
  check_refused({files.root()}, errc::invalid_argument, {"cat/small/2.jpg"}, {.labels = csv});
  files.write(".labels.csv", "dog/a.jpg,-4\ndog/b.npy,7\ncat/1.jpg,0\ncat/small/2.jpg,9\nmore,1");
  auto subject = opened({files.root()}, {.labels = csv});
  BOOST_TEST((labels(*subject, 2) == std::vector<std::int64_t>{0, 9, -4, 7}));
  auto before = subject->source();
  files.write(".labels.csv", "dog/a.jpg,4\ndog/b.npy,7\ncat/1.jpg,0\ncat/small/2.jpg,9\nothers,1");
  BOOST_TEST(opened({files.root()}, {.labels = csv})->source() != before);
  // A folder without files moves the numbers of the others; a name is the sample of a field.
  auto of_folders = [&] { return opened({files.root()}, {.labels = "folders"})->source(); };
  before = of_folders();
  BOOST_TEST(of_folders() == before);
  fs::create_directories(files / "bee");
  BOOST_TEST(of_folders() != before);
  auto a = files / "dog/a.jpg", same = files / "dog/../dog/a.jpg";
  BOOST_TEST(opened({a})->source() != opened({same})->source());
  check_refused({files.root()}, errc::not_found, {"none.csv"}, {.labels = files / "none.csv"});
}

BOOST_AUTO_TEST_CASE(lines_of_labels_are_parsed) {
  auto parsed = parse_labels("\xef\xbb\xbf\"a,\"\"b\",1\nc d,-9223372036854775808\n");
  BOOST_TEST_REQUIRE(parsed.has_value());
  BOOST_TEST((*parsed == label_map{{"a,\"b", 1}, {"c d", INT64_MIN}}));
  for (auto* wrong :
       {"a", "a,", "a,x", "a,1.5", "a,1,2", "a,9223372036854775808", ",1", "\"a,1", "\"a\"b,1",
        "a,1\na,2", "x,1\npath,label"}) {
    auto refused = parse_labels(wrong);
    BOOST_TEST_REQUIRE(!refused.has_value(), wrong);
    BOOST_TEST(refused.error().detail().find("line ") != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(what_is_no_file_of_the_directory_is_refused_or_left_out) {
  folders files;
  scratch elsewhere;
  auto secret = elsewhere.write("secret", "secret");
  auto refused = [&](const std::string& name, const names& words) {
    check_refused({files.root()}, errc::invalid_argument, words);
    std::vector<damaged_file> left_out;
    auto rest = opened({files.root()}, {.skips_damaged = true}, &left_out);
    BOOST_TEST(rest->samples() == 4u);
    BOOST_TEST_REQUIRE(left_out.size() == 1u);
    BOOST_TEST(left_out[0].path.ends_with(name));
    fs::remove(files / name);
  };
  fs::create_symlink(secret, files / "dog/out");
  refused("dog/out", {"dog/out", "leaves the directory"});
  fs::create_directory_symlink(elsewhere.path, files / "dog/away");
  refused("dog/away", {"dog/away", "leaves the directory"});
  fs::create_directory_symlink("..", files / "dog/whole");
  refused("dog/whole", {"dog/whole: ", "no regular file"});
  fs::create_symlink("loop", files / "dog/loop");
  refused("dog/loop", {"dog/loop", "no file"});
  fs::create_directory_symlink(files / "cat", files / "dog/inside");
  check_refused({files.root()}, errc::invalid_argument, {"cat", "no regular file"});
  fs::remove(files / "dog/inside");
  BOOST_REQUIRE(::mkfifo((files / "dog/fifo").c_str(), 0600) == 0);
  refused("dog/fifo", {"dog/fifo", "no regular file"});
  fs::create_symlink(files / "dog/a.jpg", files / "dog/link");
  auto subject = opened({files.root()});
  BOOST_TEST(text(*subject, 0, 4, 1) == "dog a");
  BOOST_TEST(text(*subject, 1, 4, 1) == "dog/link");
}

BOOST_AUTO_TEST_CASE(a_set_without_files_is_refused) {
  scratch files;
  auto none = files / "none.jpg";
  check_refused({none}, errc::not_found, {"none.jpg"}, {.skips_damaged = true});
  BOOST_REQUIRE(::mkfifo((files / "fifo").c_str(), 0600) == 0);
  check_refused(
    {files.path.string()}, errc::invalid_argument, {"no file can be read", "fifo"},
    {.skips_damaged = true});
}

BOOST_AUTO_TEST_CASE(only_damage_is_left_out) {
  for (auto code : {EMFILE, ENFILE, ENOMEM, ETIMEDOUT, ESTALE})
    BOOST_TEST(!is_damage(status_from_errno(code, "opening a.jpg")), code);
  for (auto code : {EIO, ENOENT, EACCES})
    BOOST_TEST(is_damage(status_from_errno(code, "opening a.jpg").within("reading")), code);
  BOOST_TEST(!is_damage({errc::cancelled, "cancelled by the caller"}));
  folders files;
  auto subject = opened({files.root()}, {.skips_damaged = true});
  std::string into(5, '\0');
  status bad;
  {
    no_descriptors none;
    bad = subject->read(0, 2, 1, std::as_writable_bytes(std::span{into}));
    BOOST_TEST(!open_samples({files / "dog/a.jpg"}, {.skips_damaged = true}).has_value());
  }
  BOOST_TEST(!bad.ok());
  BOOST_TEST(subject->damaged().empty());
  BOOST_TEST(subject->read(0, 2, 1, std::as_writable_bytes(std::span{into})).ok());
  BOOST_TEST(into == "dog a");
}

BOOST_AUTO_TEST_CASE(opening_ends_when_nobody_wants_the_files) {
  folders files;
  auto asked = 0;
  sample_options options{.skips_damaged = true, .is_stopped = [&] { return ++asked == 2; }};
  check_refused({files.root()}, errc::cancelled, {}, options);
  BOOST_TEST(asked == 2);
}

BOOST_AUTO_TEST_CASE(a_file_that_changes_is_blamed) {
  folders files;
  auto subject = opened({files.root()});
  files.write("dog/a.jpg", "dog b");
  fs::last_write_time(files / "dog/a.jpg", fs::file_time_type{});
  std::string into(5, '\0');
  auto bad = subject->read(0, 2, 1, std::as_writable_bytes(std::span{into}));
  BOOST_TEST((bad.code() == errc::corrupt_data), bad.to_string());
  BOOST_TEST_REQUIRE(subject->damaged().size() == 1u);
  auto left_out = subject->damaged();
  auto rest = opened({files.root()}, {.skips_damaged = true}, &left_out);
  BOOST_TEST(rest->samples() == 3u);
  BOOST_TEST(text(*rest, 0, 0, 3) == "small catno array");
}

BOOST_AUTO_TEST_CASE(braces_stand_for_names) {
  auto expanded = [](std::string_view text) { return expand_braces(text).value_or(names{"?"}); };
  BOOST_TEST(expanded("plain") == names{"plain"});
  BOOST_TEST((expanded("a{b,c}d") == names{"abd", "acd"}));
  BOOST_TEST((expanded("{a,b}{1..3}") == names{"a1", "a2", "a3", "b1", "b2", "b3"}));
  BOOST_TEST(
    (expanded("s-{0008..0011}.npy") ==
     names{"s-0008.npy", "s-0009.npy", "s-0010.npy", "s-0011.npy"}));
  BOOST_TEST((expanded("{3..1}") == names{"3", "2", "1"}));
  BOOST_TEST((expanded("{a,{b,c}d,}") == names{"a", "bd", "cd", ""}));
  for (auto* literal : {"{", "}", "{}", "{a}", "{a..b}", "{1..}", "{1..2", "a}b{c", "{-1..2}"})
    BOOST_TEST(expanded(literal) == names{literal});
  BOOST_TEST((expanded("{x{1,2}") == names{"{x1", "{x2"}));
  for (auto& many : names{"{1..99999999}", "{1..2000}{1..2000}", std::string(5000, '{')})
    BOOST_TEST((expand_braces(many).error().code() == errc::invalid_argument));
  std::string power;
  for (int i = 0; i < 500; ++i)
    power += "{a,b}";
  BOOST_TEST((expand_braces(power).error().code() == errc::invalid_argument));
}

BOOST_AUTO_TEST_CASE(patterns_stand_for_the_files_that_are_there) {
  folders files;
  auto root = files.root() + "/";
  BOOST_TEST(
    (expand_names({root + "*/*.jpg"}).value() == names{root + "cat/1.jpg", root + "dog/a.jpg"}));
  BOOST_TEST(
    (expand_names({root + "{dog,cat}/[a1].jpg"}).value() ==
     names{root + "dog/a.jpg", root + "cat/1.jpg"}));
  BOOST_TEST((expand_names({root, ""}).error().code() == errc::invalid_argument));
  auto none = expand_names({root + "*.png"});
  BOOST_TEST((none.error().code() == errc::not_found));
  BOOST_TEST(none.error().detail().find("*.png") != std::string::npos);
  // By bytes, whatever the locale is.
  files.write("dog/B.jpg", ""), files.write("dog/_.jpg", "");
  BOOST_TEST(
    (expand_names({root + "dog/*.jpg"}).value() ==
     names{
       root + "dog/B.jpg",
       root + "dog/_.jpg",
       root + "dog/a.jpg",
     }));
  result<names> unlisted;
  {
    no_descriptors none;
    unlisted = expand_names({root + "*/*.jpg"});
  }
  BOOST_TEST_REQUIRE(!unlisted.has_value());
  BOOST_TEST(unlisted.error().detail().find("listing " + files.root()) != std::string::npos);
  fs::remove(files / "dog/B.jpg"), fs::remove(files / "dog/_.jpg");
  // A file that is there has its own name.
  auto odd = files.write("{a,b}*", "odd");
  BOOST_TEST(expand_names({odd}).value() == names{odd});
  BOOST_TEST(text(*opened({root + "*/*.jpg"}), 0, 0, 2) == "dog a");
}

BOOST_AUTO_TEST_SUITE_END()

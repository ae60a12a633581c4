// Tests that the files of tar archives are samples with their bytes, names and numbers, and that
// archives which are not what they say are refused, or what is damaged in them is left out.
#include "opened_samples.hpp"

#include <millrace/storage/samples/sample_reader.hpp>
#include <millrace/storage/samples/tar_index.hpp>
#include <millrace/tests/support/crafted_tar.hpp>
#include <millrace/tests/support/file_contents.hpp>
#include <millrace/tests/support/process.hpp>

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <filesystem>
#include <map>
#include <numeric>
#include <sstream>
#include <thread>

using namespace millrace;
using namespace millrace::storage::samples;
using millrace::testing::check_refused;
using millrace::testing::crafted_tar;
using millrace::testing::opened;
using millrace::testing::scratch;
using entries = std::vector<millrace::testing::crafted_tar_entry>;
using names = std::vector<std::string>;

namespace {

names fields_of(const sample_reader& reader) {
  names out;
  for (auto& field : reader.fields())
    out.push_back(field.sample.name);
  return out;
}

std::size_t field_of(const sample_reader& reader, const std::string& name) {
  auto all = fields_of(reader);
  auto found = std::ranges::find(all, name);
  BOOST_TEST_REQUIRE((found != all.end()), name);
  return static_cast<std::size_t>(found - all.begin());
}

std::string text(
  sample_reader& from, const std::string& name, std::uint64_t first, std::uint64_t count = 1) {
  auto field = field_of(from, name);
  auto lengths = from.lengths(field).subspan(first, count);
  std::string out(std::accumulate(lengths.begin(), lengths.end(), std::uint64_t{0}), '\0');
  auto bad = from.read(field, first, count, std::as_writable_bytes(std::span{out}));
  BOOST_TEST_REQUIRE(bad.ok(), bad.to_string());
  return out;
}

std::vector<std::int64_t> numbers(sample_reader& from, const std::string& name) {
  auto field = field_of(from, name);
  BOOST_TEST((from.fields()[field].sample.type == dtype::i64));
  std::vector<std::int64_t> out(from.samples());
  auto bad = from.read(field, 0, out.size(), std::as_writable_bytes(std::span{out}));
  BOOST_TEST_REQUIRE(bad.ok(), bad.to_string());
  return out;
}

names keys_of(sample_reader& from) {
  names out;
  for (std::uint64_t i = 0; i < from.samples(); ++i)
    out.push_back(text(from, "key", i));
  return out;
}

const entries three = {{"a.jpg", "image a"}, {"a.cls", "1"}, {"b.jpg", "image of b"},
                       {"b.cls", "-2\n"},    {"c.jpg", ""},  {"c.cls", " 300 \r\n"}};

// One sample that is as `three`, and what a test adds.
entries with(entries more) {
  auto all = three;
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

} // namespace

BOOST_AUTO_TEST_SUITE(tar_samples)

BOOST_AUTO_TEST_CASE(archives_that_tarfile_and_gnu_tar_wrote_have_the_bytes_that_were_put_there) {
  scratch files;
  auto ran = millrace::testing::run_python(
    {TAR_PEER, files.path.string()}, "tar archives of other programs");
  if (!ran)
    return;
  std::map<std::string, std::unique_ptr<sample_reader>> readers;
  std::map<std::string, std::uint64_t> seen;
  std::istringstream lines{ran->out};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream parts{line};
    std::string archive, key, field, hex, bytes;
    std::getline(std::getline(std::getline(parts, archive, '\t'), key, '\t'), field, '\t') >> hex;
    for (std::size_t i = 0; i < hex.size(); i += 2)
      bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    auto& subject = readers[archive];
    if (!subject)
      subject = opened({files / archive});
    BOOST_TEST((fields_of(*subject) == names{"cls", "jpg", "seg.png", "key"}));
    auto sample = seen[archive]++ / 3;
    BOOST_TEST(text(*subject, "key", sample) == key, line.substr(0, 80));
    if (field == "cls")
      BOOST_TEST(numbers(*subject, "cls")[sample] == std::stoi(bytes));
    else
      BOOST_TEST((text(*subject, field, sample) == bytes), line.substr(0, 80));
  }
  BOOST_TEST(readers.size() == 8u);
  for (auto& [archive, subject] : readers)
    BOOST_TEST(subject->samples() * 3 == seen[archive], archive);
  // Braces and several archives.
  auto all = opened({files / "{pax,gnu}.tar", files / "gnu.tgz"});
  BOOST_TEST(all->samples() == 120u);
  BOOST_TEST(text(*all, "jpg", 0, 120).size() == 3 * text(*all, "jpg", 0, 40).size());
  BOOST_TEST(all->prefers_order());
  BOOST_TEST(!readers["pax.tar"]->prefers_order());
}

BOOST_AUTO_TEST_CASE(names_are_divided_at_the_first_dot_of_the_last_part) {
  auto divided = [](std::string_view name) {
    auto parts = divide_tar_name(name);
    return parts ? parts->key + "|" + parts->extension : "none";
  };
  BOOST_TEST(divided("a.jpg") == "a|jpg");
  BOOST_TEST(divided("dir.d/a.seg.PNG") == "dir.d/a|seg.png");
  BOOST_TEST(divided("../../etc/passwd.x") == "../../etc/passwd|x");
  BOOST_TEST(divided("/a.x") == "/a|x");
  for (auto* odd :
       {"", "a", "dir.d/a", ".hidden", "dir/.hidden", "._a.jpg", "a.", "dir/", "dir.d/"})
    BOOST_TEST(divided(odd) == "none", odd);
}

BOOST_AUTO_TEST_CASE(files_beside_each_other_are_samples) {
  scratch files;
  auto path = files.write(
    "x.tar",
    crafted_tar(with({{"README", "no sample"}, {".hidden.jpg", "no sample"}, {"d/", "", '5'}})));
  auto subject = opened({path, path});
  BOOST_TEST(subject->samples() == 6u);
  BOOST_TEST((fields_of(*subject) == names{"cls", "jpg", "key"}));
  BOOST_TEST((numbers(*subject, "cls") == std::vector<std::int64_t>{1, -2, 300, 1, -2, 300}));
  BOOST_TEST(text(*subject, "jpg", 0, 6) == "image aimage of bimage aimage of b");
  BOOST_TEST((keys_of(*subject) == names{"a", "b", "c", "a", "b", "c"}));
  auto one = opened({path}, {.fields = {"key", "jpg"}});
  BOOST_TEST((fields_of(*one) == names{"key", "jpg"}));
  BOOST_TEST(subject->source() != one->source());
  // By their bytes, where that is wanted.
  BOOST_TEST((fields_of(*opened({path}, {.kind = sample_kind::files})) == names{"x", "path"}));
}

BOOST_AUTO_TEST_CASE(parts_of_a_sample_are_read) {
  scratch files;
  std::string large(300000, '\0');
  for (std::size_t i = 0; i < large.size(); ++i)
    large[i] = static_cast<char>(i * i % 253);
  files.write("x.tar", crafted_tar({{"a.bin", "first"}, {"b.bin", large}, {"c.bin", "last"}}));
  BOOST_TEST_REQUIRE(
    millrace::testing::run_program({"/usr/bin/gzip", "-k", files / "x.tar"}).code == 0);
  for (auto* name : {"x.tar", "x.tar.gz"}) {
    auto subject = opened({files / name});
    // Forwards, and back again.
    for (std::uint64_t offset : {0u, 64u, 128000u, 299968u, 64000u}) {
      std::string part(std::min<std::size_t>(100000, large.size() - offset), '\0');
      auto bad = subject->read_part(0, 1, offset, std::as_writable_bytes(std::span{part}));
      BOOST_TEST_REQUIRE(bad.ok(), bad.to_string());
      BOOST_TEST((part == large.substr(offset, part.size())), name << " at " << offset);
    }
    BOOST_TEST(text(*subject, "bin", 2) == "last");
    BOOST_TEST(text(*subject, "bin", 0) == "first");
  }
}

BOOST_AUTO_TEST_CASE(texts_that_are_no_numbers_stay_bytes) {
  scratch files;
  auto path = files.write(
    "x.tar", crafted_tar({{"a.cls", "cat"}, {"b.cls", "7"}, {"c.cls", "99999999999999999999"}}));
  auto subject = opened({path});
  BOOST_TEST(text(*subject, "cls", 0, 2) == "cat7");
  // One among numbers is damage.
  path = files.write("y.tar", crafted_tar({{"a.cls", "1"}, {"b.cls", "7"}, {"c.cls", "7 8"}}));
  check_refused({path}, errc::corrupt_data, {path + ":c", "cls", "no whole number"});
  std::vector<damaged_file> left_out;
  auto rest = opened({path}, {.skips_damaged = true}, &left_out);
  BOOST_TEST((numbers(*rest, "cls") == std::vector<std::int64_t>{1, 7}));
  BOOST_TEST_REQUIRE(left_out.size() == 1u);
  BOOST_TEST(left_out[0].path == path + ":c");
}

BOOST_AUTO_TEST_CASE(samples_of_other_fields_are_damaged) {
  scratch files;
  auto check = [&](const entries& odd, const std::string& word) {
    auto path = files.write("x.tar", crafted_tar(with(odd)));
    check_refused({path}, errc::corrupt_data, {path + ":odd", word});
    std::vector<damaged_file> left_out;
    auto rest = opened({path}, {.skips_damaged = true}, &left_out);
    BOOST_TEST((keys_of(*rest) == names{"a", "b", "c"}));
    BOOST_TEST_REQUIRE(left_out.size() == 1u);
    BOOST_TEST(left_out[0].path == path + ":odd");
    // What is left out stays so, and the source is that of the archives.
    auto again = opened({path}, {.skips_damaged = true}, &left_out);
    BOOST_TEST(left_out.size() == 1u);
    BOOST_TEST(again->source() == rest->source());
  };
  check({{"odd.jpg", "x"}}, "no cls");
  check({{"odd.jpg", "x"}, {"odd.cls", "1"}, {"odd.txt", "y"}}, "txt");
  check({{"odd.jpg", "x"}, {"odd.cls", "1"}, {"odd.jpg", "y"}}, "there twice");
  check({{"odd.jpg", "x"}, {"odd.cls", "", '2', 0, "a.cls"}}, "a link");
  check({{"odd.jpg", "", '1', 0, "a.jpg"}, {"odd.cls", "1"}}, "a link");
  check({{"odd.jpg", "", '3'}, {"odd.cls", "1"}}, "no regular file");
  check({{"odd.jpg", "", '6'}, {"odd.cls", "1"}}, "no regular file");
  // With the fields that all have, nothing is odd.
  auto path = files.write("x.tar", crafted_tar(with({{"d.jpg", "x"}, {"d.txt", "y"}})));
  BOOST_TEST(opened({path}, {.fields = {"jpg", "key"}})->samples() == 4u);
}

BOOST_AUTO_TEST_CASE(sparse_files_are_damaged) {
  scratch files;
  std::filesystem::resize_file(files.write("holes.bin", ""), 1u << 20);
  files.write("plain.bin", "plain"), files.write("q.bin", "q"), files.write("r.bin", "r");
  for (auto* format : {"--format=gnu", "--format=posix"}) {
    auto ran = millrace::testing::run_program(
      {"/usr/bin/tar", format, "-S", "-cf", files / "x.tar", "-C", files.path.string(), "holes.bin",
       "plain.bin", "q.bin", "r.bin"});
    BOOST_TEST_REQUIRE(ran.code == 0, ran.err);
    check_refused({files / "x.tar"}, errc::corrupt_data, {"x.tar:holes", "sparse"});
    auto rest = opened({files / "x.tar"}, {.skips_damaged = true});
    BOOST_TEST(text(*rest, "bin", 0, 3) == "plainqr");
  }
}

BOOST_AUTO_TEST_CASE(what_is_no_set_of_archives_is_refused) {
  scratch files;
  auto good = files.write("good.tar", crafted_tar(three));
  auto other = files.write("x.jpg", "image");
  check_refused({good, other}, errc::invalid_argument, {other, "files"});
  check_refused({good}, errc::invalid_argument, {"labels"}, {.labels = "folders"});
  check_refused(
    {good}, errc::invalid_argument, {"no field png", "cls, jpg, key"}, {.fields = {"png"}});
  check_refused({good}, errc::unsupported, {good}, {.kind = sample_kind::arrays});
  check_refused({files / "none.tar"}, errc::not_found, {"none.tar"});
  auto key = files.write("key.tar", crafted_tar({{"a.key", "x"}}));
  check_refused({key}, errc::invalid_argument, {"key", "choose the fields"});
  auto different = files.write("different.tar", crafted_tar({{"a.x", ""}, {"b.y", ""}}));
  check_refused({different}, errc::invalid_argument, {"no extension"});
  entries many;
  for (auto i = 0; i < 1100; ++i)
    many.push_back({std::to_string(i) + ".e" + std::to_string(i), ""});
  auto extensions = files.write("extensions.tar", crafted_tar(many));
  check_refused({extensions}, errc::invalid_argument, {extensions, "1024"});
}

BOOST_AUTO_TEST_CASE(a_key_that_comes_again_is_named) {
  scratch files;
  auto path = files.write("x.tar", crafted_tar(with({{"a.txt", "late"}})));
  check_refused({path}, errc::invalid_argument, {path, "files of a", "sort"});
}

BOOST_AUTO_TEST_CASE(archives_that_are_not_what_they_say_are_refused_or_left_out) {
  scratch files;
  auto good = files.write("good.tar", crafted_tar(three));
  auto whole = crafted_tar(three);
  auto flipped = whole;
  flipped[1024 + 5] ^= 1; // in the second header
  std::map<std::string, std::string> bad = {
    {"empty.tar", ""},
    {"nothing.tar", std::string(10240, '\0')},
    {"text.tar", "this is no archive at all"},
    {"zip.tar", "PK\x03\x04" + std::string(600, 'x')},
    {"header.tar", whole.substr(0, 300)},
    {"in_bytes.tar", whole.substr(0, 512 + 3)},
    {"at_entry.tar", whole.substr(0, whole.size() - 1024)}, // all that lacks is the end mark
    {"flipped.tar", flipped},
    {"bomb.tar", crafted_tar({{"a.jpg", "", '0', 077777777777}})},
    {"plain_cut.tar.gz", whole.substr(0, 512 + 3)},
    {"plain_end.tar.zst", whole.substr(0, whole.size() - 1024)},
    {"long.tar", crafted_tar({{"././@LongLink", std::string(5000, 'n') + '\0', 'L'}, {"a.x", ""}})},
    {"huge.tar", crafted_tar({{"././@LongLink", "", 'L', 1u << 30}, {"a.x", ""}})},
    {"pax.tar", crafted_tar({{"p", "9999999999 path=a\n", 'x'}, {"a.x", ""}})},
    {"pax_size.tar", crafted_tar({{"p", "28 size=9223372036854775807\n", 'x'}, {"a.x", ""}})},
    {"pax_less.tar", crafted_tar({{"p", "11 size=-1\n", 'x'}, {"a.x", ""}})},
  };
  for (auto& [name, content] : bad) {
    auto path = files.write(name, content);
    auto reader = open_samples({path});
    BOOST_TEST_REQUIRE(!reader.has_value(), name);
    BOOST_TEST(is_damage(reader.error()), reader.error().to_string());
    if (name == "nothing.tar")
      continue;
    BOOST_TEST(reader.error().detail().find(path) != std::string::npos, reader.error().to_string());
    std::vector<damaged_file> left_out;
    auto rest = opened({path, good}, {.skips_damaged = true}, &left_out);
    BOOST_TEST(rest->samples() == 3u, name);
    BOOST_TEST_REQUIRE(left_out.size() == 1u, name);
    BOOST_TEST(left_out[0].path == path);
  }
  // One that is not compressed, against its name, is read all the same.
  BOOST_TEST((keys_of(*opened({files.write("plain.tar.gz", whole)})) == names{"a", "b", "c"}));
  check_refused({files / "nothing.tar"}, errc::invalid_argument, {"no samples"});
  check_refused({files / "at_entry.tar"}, errc::corrupt_data, {"cut short"});
  check_refused({files / "bomb.tar"}, errc::corrupt_data, {"a.jpg", "cut short"});
}

BOOST_AUTO_TEST_CASE(a_small_archive_that_unpacks_to_much_is_refused) {
  scratch files;
  entries many;
  for (int i = 0; i < 100; ++i)
    many.push_back({"s" + std::to_string(100 + i) + ".bin", std::string(1u << 20, '\0')});
  files.write("lies.tar", crafted_tar({{"a.jpg", "", '0', 077777777777}}));
  files.write("many.tar", crafted_tar(many));
  auto good = files.write("good.tar", crafted_tar({{"a.bin", "x"}}));
  for (std::string name : {"lies.tar", "many.tar"}) {
    BOOST_TEST_REQUIRE(
      millrace::testing::run_program({"/usr/bin/gzip", "-k", files / name}).code == 0);
    auto path = files / (name + ".gz");
    check_refused({path}, errc::corrupt_data, {path, "256 times", "unpack it before"});
    std::vector<damaged_file> left_out;
    BOOST_TEST(opened({path, good}, {.skips_damaged = true}, &left_out)->samples() == 1u);
    BOOST_TEST(left_out.size() == 1u);
  }
  BOOST_TEST(opened({files / "many.tar"})->samples() == 100u); // as it is
}

BOOST_AUTO_TEST_CASE(a_compressed_archive_that_is_cut_short_is_refused) {
  scratch files;
  std::string noise(100000, '\0');
  for (std::size_t i = 0; i < noise.size(); ++i)
    noise[i] = static_cast<char>(i * i * 2654435761u >> 7);
  files.write("x.tar", crafted_tar({{"a.bin", noise}, {"b.bin", noise}}));
  BOOST_TEST_REQUIRE(
    millrace::testing::run_program({"/usr/bin/gzip", "-k", files / "x.tar"}).code == 0);
  auto whole = millrace::testing::contents_of(files / "x.tar.gz");
  BOOST_TEST(opened({files / "x.tar.gz"})->samples() == 2u);
  for (auto size : {std::size_t{5}, whole.size() / 3, whole.size() - 300}) {
    auto path = files.write("cut.tar.gz", whole.substr(0, size));
    check_refused({path}, errc::corrupt_data, {path});
  }
}

// Bytes that gzip has stored unpack whatever they are; only the checksum tells.
BOOST_AUTO_TEST_CASE(a_compressed_archive_whose_checksum_is_wrong_is_refused) {
  scratch files;
  files.write("x.tar", crafted_tar(three));
  files.write("good.tar", crafted_tar({{"d.bin", "4"}}));
  for (auto* name : {"x.tar", "good.tar"})
    BOOST_TEST_REQUIRE(
      millrace::testing::run_program({"/usr/bin/gzip", "-k", files / name}).code == 0);
  auto whole = millrace::testing::contents_of(files / "x.tar.gz");
  auto good = files / "good.tar.gz";
  for (std::size_t from_end : {8u, 5u, 4u, 1u}) { // of the checksum, and of the length
    auto changed = whole;
    changed[changed.size() - from_end] ^= 1;
    auto path = files.write("changed.tar.gz", changed);
    check_refused({path}, errc::corrupt_data, {path});
    std::vector<damaged_file> left_out;
    BOOST_TEST(opened({path, good}, {.skips_damaged = true}, &left_out)->samples() == 1u);
    BOOST_TEST(left_out.size() == 1u);
  }
}

BOOST_AUTO_TEST_CASE(files_of_gzip_that_follow_each_other_are_one) {
  scratch files;
  auto tar = crafted_tar(three);
  auto half = tar.size() / 2;
  std::string packed;
  for (auto& part : {tar.substr(0, half), tar.substr(half)}) {
    auto path = files.write("part", part);
    BOOST_TEST_REQUIRE(
      millrace::testing::run_program({"/usr/bin/gzip", "-f", "-k", path}).code == 0);
    packed += millrace::testing::contents_of(path + ".gz");
  }
  auto one = keys_of(*opened({files.write("x.tar", tar)}));
  BOOST_TEST((keys_of(*opened({files.write("x.tar.gz", packed)})) == one));
  BOOST_TEST((keys_of(*opened({files.write("y.tar.gz", packed + std::string(600, 0))})) == one));
}

BOOST_AUTO_TEST_CASE(an_archive_that_changes_is_blamed) {
  scratch files;
  files.write("x.tar", crafted_tar(three));
  BOOST_TEST_REQUIRE(
    millrace::testing::run_program({"/usr/bin/gzip", "-k", files / "x.tar"}).code == 0);
  for (auto* name : {"x.tar", "x.tar.gz"}) {
    auto subject = opened({files / name});
    auto jpg = field_of(*subject, "jpg");
    BOOST_TEST(text(*subject, "jpg", 0) == "image a");
    // In its place, while it is open, and what is left of it.
    std::filesystem::resize_file(files / name, 100);
    std::string into(10, '\0');
    auto bad = subject->read(jpg, 1, 1, std::as_writable_bytes(std::span{into}));
    BOOST_TEST((bad.code() == errc::corrupt_data), bad.to_string());
    BOOST_TEST(bad.detail().find(files / name) != std::string::npos, bad.to_string());
    BOOST_TEST_REQUIRE(subject->damaged().size() == 1u);
    BOOST_TEST(subject->damaged()[0].path == files / name);
    // Names and numbers need no file.
    BOOST_TEST(text(*subject, "key", 1) == "b");
  }
}

BOOST_AUTO_TEST_CASE(threads_read_at_once) {
  scratch files;
  entries all;
  for (auto i = 0; i < 200; ++i)
    all.push_back(
      {std::to_string(i) + ".txt", std::string(static_cast<std::size_t>(i), 'a' + i % 26)});
  auto path = files.write("x.tar", crafted_tar(all));
  BOOST_TEST_REQUIRE(millrace::testing::run_program({"/usr/bin/gzip", "-k", path}).code == 0);
  for (auto& archives : {names{path, path}, names{path + ".gz"}}) {
    auto subject = opened(archives, {.fields = {"txt"}});
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (auto i = t; i < subject->samples(); i += 4) {
          std::string got(subject->lengths(0)[i], '\0');
          auto bad = subject->read(0, i, 1, std::as_writable_bytes(std::span{got}));
          wrong += !bad.ok() || got != all[i % 200].bytes;
        }
      });
    for (auto& one : threads)
      one.join();
    BOOST_TEST(wrong == 0);
  }
}

BOOST_AUTO_TEST_CASE(opening_ends_when_it_is_cancelled) {
  scratch files;
  auto path = files.write("x.tar", crafted_tar({{"a.bin", std::string(1u << 20, 'x')}}));
  BOOST_TEST_REQUIRE(millrace::testing::run_program({"/usr/bin/gzip", "-k", path}).code == 0);
  auto asked = 0;
  // The second question is that of the archive's own bytes.
  check_refused({path + ".gz"}, errc::cancelled, {}, {.is_stopped = [&] { return ++asked == 3; }});
}

BOOST_AUTO_TEST_SUITE_END()

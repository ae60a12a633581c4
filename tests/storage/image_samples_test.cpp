// Tests that images are decoded to the pixels that Pillow sees, get the size that is asked for, and
// that damaged ones are refused or left out.
#include "opened_samples.hpp"

#include <millrace/storage/samples/decode_budget.hpp>
#include <millrace/storage/samples/decoded_reader.hpp>
#include <millrace/storage/samples/resample.hpp>
#include <millrace/tests/support/crafted_tar.hpp>
#include <millrace/tests/support/file_contents.hpp>
#include <millrace/tests/support/made_images.hpp>
#include <millrace/tests/support/process.hpp>

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <thread>
#include <vector>

using namespace millrace;
using namespace millrace::storage::samples;
using millrace::testing::check_refused;
using millrace::testing::jpeg_of;
using millrace::testing::made_pixels;
using millrace::testing::opened;
using millrace::testing::png_of;
using millrace::testing::scratch;
using names = std::vector<std::string>;

namespace {

std::unique_ptr<sample_reader> decoded(const names& paths, const std::string& how) {
  return opened(paths, {.decode = {how}});
}

std::uint64_t bytes_of(const sample_reader& of, std::size_t field = 0) {
  return *size_bytes(of.fields()[field].sample);
}

std::string read(sample_reader& from, std::uint64_t first, std::uint64_t count = 1) {
  std::string out(count * bytes_of(from), '\0');
  auto bad = from.read(0, first, count, std::as_writable_bytes(std::span{out}));
  BOOST_TEST_REQUIRE(bad.ok(), bad.to_string());
  return out;
}

status error_of(sample_reader& from, std::uint64_t sample) {
  std::string into(bytes_of(from), '\0');
  return from.read(0, sample, 1, std::as_writable_bytes(std::span{into}));
}

int largest_difference(const std::string& a, const std::string& b) {
  BOOST_TEST_REQUIRE(a.size() == b.size());
  auto most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    most =
      std::max(most, std::abs(static_cast<unsigned char>(a[i]) - static_cast<unsigned char>(b[i])));
  return most;
}

// Three images of 40 x 50 pixels, in a folder.
struct pictures : scratch {
  pictures() {
    for (std::uint32_t i = 0; i < 3; ++i)
      write(std::to_string(i) + ".png", png_of(made_pixels(40, 50, i), 40, 50));
  }
  std::string root() const { return path.string(); }
};

} // namespace

BOOST_AUTO_TEST_SUITE(image_samples)

BOOST_AUTO_TEST_CASE(images_have_the_pixels_that_pillow_sees) {
  scratch files;
  auto ran =
    millrace::testing::run_python({IMAGE_PEER, files.path.string()}, "images that Pillow reads");
  if (!ran)
    return;
  std::istringstream lines{ran->out};
  auto seen = 0;
  for (std::string image, form, raw, within; lines >> image >> form >> raw >> within; ++seen) {
    auto subject = decoded({files / image}, "x=" + form);
    auto wanted = millrace::testing::contents_of(files / raw);
    BOOST_TEST(
      largest_difference(read(*subject, 0), wanted) <= std::stoi(within), image + " " + form);
  }
  BOOST_TEST(seen == 51);
}

BOOST_AUTO_TEST_CASE(images_become_fields_of_one_shape) {
  pictures at;
  auto subject = opened(
    {at.root()}, {.fields = {"x", "path"}, .decode = {"x=rgb:20x30"}, .is_stopped = nullptr});
  auto& field = subject->fields()[0];
  BOOST_TEST((field.sample == tensor_desc{"x", dtype::u8, {20, 30, 3}}));
  BOOST_TEST(!field.varies);
  BOOST_TEST(subject->lengths(0).empty());
  BOOST_TEST(subject->computes());
  BOOST_TEST(subject->path_of(1) == at / "1.png");
  // The others are as they were.
  BOOST_TEST(subject->lengths(1).size() == 3u);
  std::string name(5, '\0');
  BOOST_TEST(subject->read(1, 2, 1, std::as_writable_bytes(std::span{name})).ok());
  BOOST_TEST(name == "2.png");
  // Several at once are those one by one.
  BOOST_TEST((read(*subject, 0, 3) == read(*subject, 0) + read(*subject, 1) + read(*subject, 2)));
  BOOST_TEST((read(*subject, 0) != read(*subject, 1)));
  BOOST_TEST(
    (decoded({at.root()}, "x=gray")->fields()[0].sample ==
     tensor_desc{"x", dtype::u8, {40, 50, 1}}));
  auto whole = decoded({at.root()}, "x=rgb");
  BOOST_TEST((read(*whole, 1) == made_pixels(40, 50, 1)));
  // Another decoding is another set.
  BOOST_TEST(whole->source() != subject->source());
  BOOST_TEST(whole->source() != opened({at.root()}, {})->source());
}

BOOST_AUTO_TEST_CASE(a_decoding_is_read_from_its_text) {
  auto one = parse_decoding("a=b=gray:7x9");
  BOOST_TEST_REQUIRE(one.has_value());
  BOOST_TEST(one->field == "a=b");
  BOOST_TEST(one->channels == 1u);
  BOOST_TEST((one->size == image_size{7, 9}));
  BOOST_TEST(!one->is_whole);
  BOOST_TEST(parse_decoding("x=rgb")->is_whole);
  BOOST_TEST((parse_decoding("x=rgb:65535")->size == image_size{65535, 65535}));
  for (auto* odd :
       {"", "x", "=rgb", "x=", "x=RGB", "x=rgb:", "x=rgb:0", "x=rgb:-1", "x=rgb:1x", "x=rgb:x1",
        "x=rgb:1x2x3", "x=rgb:65536", "x=rgb: 5", "x=rgba:5", "x=rgb:99999999999"}) {
    auto bad = parse_decoding(odd);
    BOOST_TEST_REQUIRE(!bad.has_value(), odd);
    BOOST_TEST((bad.error().code() == errc::invalid_argument));
    BOOST_TEST(bad.error().detail().find("x=rgb:224") != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(what_is_no_field_of_images_is_refused) {
  pictures at;
  auto refused = [&](const names& decode, const std::string& word) {
    check_refused({at.root()}, errc::invalid_argument, {word}, {.decode = decode});
  };
  refused({"y=rgb"}, "no such field");
  refused({"x=bgr"}, "x=bgr");
  refused({"x=rgb", "x=gray"}, "twice");
  refused({"x=rgb:60000x60000"}, "image_pixels_max");
  check_refused(
    {at.root()}, errc::invalid_argument, {"label", "bytes that vary"},
    {.labels = at.write("../labels.csv", "0.png,1\n1.png,2\n2.png,3\n"), .decode = {"label=rgb"}});
  std::filesystem::remove(at.path / "../labels.csv");
}

BOOST_AUTO_TEST_CASE(damaged_images_are_named_and_left_out) {
  auto jpeg = jpeg_of(made_pixels(40, 50), 40, 50), png = png_of(made_pixels(40, 50), 40, 50);
  auto flipped = png;
  flipped[png.size() / 2] ^= 1;
  for (auto& [content, word] : std::initializer_list<std::pair<std::string, std::string>>{
         {"", "neither JPEG nor PNG"},
         {"text", "neither JPEG nor PNG"},
         {jpeg.substr(0, 3), "neither JPEG nor PNG"},
         {jpeg.substr(0, 20), "JPEG"},
         {jpeg.substr(0, jpeg.size() / 2), "JPEG"},
         {png.substr(0, 20), "cut short"},
         {png.substr(0, png.size() / 2), "cut short"},
         {png.substr(0, png.size() - 12), "cut short"},
         {flipped, "PNG"}}) {
    pictures at;
    auto odd = at.write("1.png", content);
    for (auto* how : {"x=rgb:20", "x=rgb"}) {
      auto subject = decoded({at.root()}, how);
      auto bad = error_of(*subject, 1);
      BOOST_TEST((bad.code() == errc::corrupt_data), bad.to_string());
      BOOST_TEST(bad.detail().find(odd) != std::string::npos, bad.to_string());
      BOOST_TEST(bad.detail().find(word) != std::string::npos, bad.to_string());
      BOOST_TEST_REQUIRE(subject->damaged().size() == 1u);
      BOOST_TEST(subject->damaged()[0].path == odd);
      // Then the samples are opened again.
      auto left_out = subject->damaged();
      auto rest = opened({at.root()}, {.decode = {how}, .skips_damaged = true}, &left_out);
      BOOST_TEST(rest->samples() == 2u);
      BOOST_TEST(read(*rest, 0, 2).size() == 2 * bytes_of(*rest));
    }
  }
}

// As files of cameras and of old programs have them.
BOOST_AUTO_TEST_CASE(bytes_between_the_segments_of_a_jpeg_are_no_damage) {
  auto jpeg = jpeg_of(made_pixels(40, 50), 40, 50);
  auto with = [&](std::size_t at, const std::string& odd) {
    return std::string{jpeg}.insert(at, odd);
  };
  auto tables = jpeg.find("\xff\xdb"), scan = jpeg.find("\xff\xda");
  std::string odd("\0\x12\xff\0\xff", 5);
  scratch at;
  at.write("0.jpg", jpeg);
  at.write("1.jpg", with(tables, odd));
  at.write("2.jpg", with(scan, odd));
  at.write("3.jpg", with(jpeg.size() - 2, std::string(7, '\0')));
  auto damaged = at.write("4.jpg", with(tables, odd).substr(0, jpeg.size() * 3 / 4));
  auto subject = decoded({at.path.string()}, "x=rgb");
  for (std::uint64_t i : {1, 2, 3})
    BOOST_TEST((read(*subject, i) == read(*subject, 0)));
  auto bad = error_of(*subject, 4);
  BOOST_TEST((bad.code() == errc::corrupt_data), bad.to_string());
  BOOST_TEST(bad.detail().find(damaged) != std::string::npos, bad.to_string());
}

BOOST_AUTO_TEST_CASE(a_first_image_that_is_damaged_is_left_out) {
  pictures at;
  auto odd = at.write("0.png", "text");
  check_refused({at.root()}, errc::corrupt_data, {odd}, {.decode = {"x=rgb"}});
  std::vector<damaged_file> left_out;
  auto rest = opened({at.root()}, {.decode = {"x=rgb"}, .skips_damaged = true}, &left_out);
  BOOST_TEST(rest->samples() == 2u);
  BOOST_TEST_REQUIRE(left_out.size() == 1u);
  BOOST_TEST(left_out[0].path == odd);
  BOOST_TEST((read(*rest, 0) == made_pixels(40, 50, 1)));
  for (auto* name : {"1.png", "2.png"})
    at.write(name, "text");
  check_refused(
    {at.root()}, errc::corrupt_data, {"no file can be read"},
    {.decode = {"x=rgb"}, .skips_damaged = true});
}

BOOST_AUTO_TEST_CASE(images_of_another_size_are_damaged_where_none_is_given) {
  pictures at;
  auto odd = at.write("1.png", png_of(made_pixels(41, 50), 41, 50));
  auto subject = decoded({at.root()}, "x=rgb");
  auto bad = error_of(*subject, 1);
  BOOST_TEST((bad.code() == errc::corrupt_data), bad.to_string());
  BOOST_TEST(bad.detail().find("41 x 50") != std::string::npos, bad.to_string());
  BOOST_TEST(bad.detail().find("40 x 50") != std::string::npos, bad.to_string());
  BOOST_TEST(error_of(*decoded({at.root()}, "x=rgb:32"), 1).ok());
}

BOOST_AUTO_TEST_CASE(more_pixels_than_the_bound_are_refused) {
  pictures at;
  sample_options bounded{.decode = {"x=rgb:8"}, .image_pixels_max = 2000};
  BOOST_TEST(error_of(*opened({at.root()}, bounded), 0).ok());
  bounded.image_pixels_max = 1999;
  auto bad = error_of(*opened({at.root()}, bounded), 0);
  BOOST_TEST((bad.code() == errc::corrupt_data), bad.to_string());
  BOOST_TEST(bad.detail().find("image_pixels_max") != std::string::npos, bad.to_string());
  // Headers that promise more than there can be, of 65,000 x 65,000 pixels.
  auto jpeg = jpeg_of(made_pixels(40, 50), 40, 50);
  auto frame = jpeg.find("\xff\xc0");
  jpeg.replace(frame + 5, 4, "\xfd\xe8\xfd\xe8");
  at.write("0.png", jpeg);
  bad = error_of(*decoded({at.root()}, "x=rgb:8"), 0);
  BOOST_TEST(bad.detail().find("65000 x 65000") != std::string::npos, bad.to_string());
  // A file that no image of so few pixels can have.
  at.write("0.png", std::string((1u << 20) + 8 * 2000 + 8, 'x'));
  bad = error_of(*opened({at.root()}, bounded), 0);
  BOOST_TEST(bad.detail().find("bytes") != std::string::npos, bad.to_string());
}

BOOST_AUTO_TEST_CASE(parts_of_a_large_image_are_read) {
  scratch files;
  auto pixels = made_pixels(1000, 700);
  auto path = files.write("x.png", png_of(pixels, 1000, 700));
  auto subject = decoded({path}, "x=rgb");
  std::string whole;
  for (std::uint64_t at = 0; at < pixels.size(); at += 1u << 20) {
    std::string part(std::min<std::size_t>(1u << 20, pixels.size() - at), '\0');
    auto bad = subject->read_part(0, 0, at, std::as_writable_bytes(std::span{part}));
    BOOST_TEST_REQUIRE(bad.ok(), bad.to_string());
    whole += part;
  }
  BOOST_TEST((whole == pixels));
}

BOOST_AUTO_TEST_CASE(images_in_tar_archives_are_decoded) {
  scratch files;
  auto image = [](std::uint32_t i) { return png_of(made_pixels(40, 50, i), 40, 50); };
  auto path = files.write(
    "x.tar",
    millrace::testing::crafted_tar(
      {{"a.png", image(0)},
       {"a.cls", "5"},
       {"b.png", "text"},
       {"b.cls", "6"},
       {"c.png", image(2)},
       {"c.cls", "7"}}));
  BOOST_TEST_REQUIRE(millrace::testing::run_program({"/usr/bin/gzip", "-k", path}).code == 0);
  for (auto& archive : {path, path + ".gz"}) {
    sample_options options{.fields = {"png", "cls"}, .decode = {"png=rgb"}, .skips_damaged = true};
    auto subject = opened({archive}, options);
    BOOST_TEST((read(*subject, 2) == made_pixels(40, 50, 2)));
    BOOST_TEST((read(*subject, 0) == made_pixels(40, 50, 0)));
    auto bad = error_of(*subject, 1);
    BOOST_TEST(bad.detail().find(archive + ":b") != std::string::npos, bad.to_string());
    auto left_out = subject->damaged();
    auto rest = opened({archive}, options, &left_out);
    BOOST_TEST(rest->samples() == 2u);
    std::vector<std::int64_t> classes(2);
    BOOST_TEST(rest->read(1, 0, 2, std::as_writable_bytes(std::span{classes})).ok());
    BOOST_TEST((classes == std::vector<std::int64_t>{5, 7}));
  }
}

BOOST_AUTO_TEST_CASE(a_file_that_changes_is_blamed_and_not_its_image) {
  pictures at;
  auto subject = decoded({at.root()}, "x=rgb:8");
  at.write("1.png", "another file");
  auto bad = error_of(*subject, 1);
  BOOST_TEST((bad.code() == errc::corrupt_data), bad.to_string());
  BOOST_TEST_REQUIRE(subject->damaged().size() == 1u);
  BOOST_TEST(subject->damaged()[0].path == at / "1.png");
  BOOST_TEST(error_of(*subject, 2).ok());
}

BOOST_AUTO_TEST_CASE(threads_decode_at_once) {
  scratch files;
  for (std::uint32_t i = 0; i < 24; ++i)
    files.write(std::to_string(i + 100) + ".jpg", jpeg_of(made_pixels(60, 80, i), 60, 80));
  auto subject = decoded({files.path.string()}, "x=rgb:24");
  auto wanted = read(*subject, 0, 24);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      auto each = bytes_of(*subject);
      for (auto i = t; i < 24; i += 4) {
        std::string got(each, '\0');
        auto bad = subject->read(0, i, 1, std::as_writable_bytes(std::span{got}));
        wrong += !bad.ok() || got != wanted.substr(i * each, each);
      }
    });
  for (auto& one : threads)
    one.join();
  BOOST_TEST(wrong == 0);
}

BOOST_AUTO_TEST_CASE(threads_have_no_more_at_once_than_their_budget) {
  decode_budget budget{10};
  std::atomic<std::uint64_t> now = 0, most = 0, done = 0;
  std::vector<std::thread> threads;
  threads.reserve(8);
  for (std::uint64_t i = 0; i < 8; ++i)
    threads.emplace_back([&, i] {
      for (std::uint64_t round = 0; round < 200; ++round) {
        auto wanted = i == 0 ? 25 : 1 + (i * round) % 7; // the first one is alone
        auto share = budget.take(wanted);
        auto counted = std::min<std::uint64_t>(wanted, 10);
        auto sum = now += counted;
        for (auto seen = most.load(); seen < sum && !most.compare_exchange_weak(seen, sum);) {
        }
        std::this_thread::yield();
        now -= counted;
        ++done;
      }
    });
  for (auto& one : threads)
    one.join();
  BOOST_TEST(done == 1600u);
  BOOST_TEST(most <= 10u);
  auto all = budget.take(100); // what was given back is free
}

BOOST_AUTO_TEST_SUITE_END()

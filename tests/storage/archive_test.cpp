// Tests archives of every format: what is written is read again, and what is damaged is refused.
#include <millrace/storage/archive/archive.hpp>
#include <millrace/storage/archive/npy.hpp>
#include <millrace/storage/archive/output_file.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/scratch_directory.hpp>
#include <millrace/tests/support/skipped.hpp>
#include <millrace/tests/support/tensors_in_memory.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <thread>

namespace millrace::storage::archive {
static std::ostream& operator<<(std::ostream& out, archive_format format) {
  return out << to_string(format);
}
} // namespace millrace::storage::archive

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::storage;
using namespace millrace::storage::archive;
namespace data = boost::unit_test::data;

namespace {

const std::vector<archive_format> all_formats = {
  archive_format::safetensors, archive_format::npz, archive_format::hdf5, archive_format::torch};

bool can_hold(archive_format format, dtype type) {
  return format != archive_format::torch || bits_per_element(type) >= 8;
}

// Every dtype, strange names and shapes, and one tensor larger than any buffer.
tensors_in_memory sample(archive_format format) {
  tensors_in_memory all;
  for (std::uint8_t i = 0; i < dtype_count; ++i) {
    auto type = static_cast<dtype>(i);
    if (can_hold(format, type))
      all.add({"layer." + std::string{to_string(type)} + ".weight", type, {3, 4, 2}});
  }
  all.add({"scalar", dtype::f32, {}});
  all.add({"nothing", dtype::bf16, {3, 0, 2}});
  all.add({"größe/层\"'\\ %2F.npy", dtype::f64, {2}});
  all.add({".", dtype::i16, {1}});
  all.add({"a/b", dtype::i16, {5}});
  all.add({"a", dtype::i16, {5}});
  all.add({"large", dtype::f32, {1031, 1027, 3}});
  all.add({"deep", dtype::u8, std::vector<std::uint64_t>(32, 1)});
  all.say("epoch", "3");
  all.say("a word", "größe \"quoted\"\n");
  all.say("empty", "");
  return all;
}

tensors_in_memory small() {
  tensors_in_memory all;
  all.add({"w", dtype::bf16, {3, 2}});
  all.add({"b", dtype::f32, {2}});
  all.say("epoch", "3");
  return all;
}

std::string contents(const std::string& path) {
  std::ifstream in{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{in}, {}};
}

void put(const std::string& path, const std::string& text) {
  std::ofstream{path, std::ios::binary} << text;
}

std::size_t files_in(const std::string& directory) {
  return static_cast<std::size_t>(std::distance(
    std::filesystem::directory_iterator{directory}, std::filesystem::directory_iterator{}));
}

// Opens and reads everything, as hostile tests want it: any outcome but a crash.
bool reads_whole(const std::string& path, archive_format format) {
  auto source = open_archive(path, format);
  if (!source)
    return false;
  bool whole = true;
  for (std::uint32_t i = 0; i < (*source)->tensors().tensors.size(); ++i)
    // A shape may claim much where no bytes stand behind it.
    if (size_bytes((*source)->tensors().tensors[i]).value() < (64u << 20))
      whole &= read_tensor(**source, i).has_value();
  return whole;
}

} // namespace

BOOST_AUTO_TEST_SUITE(archives)

BOOST_DATA_TEST_CASE(what_is_written_is_read_again, data::make(all_formats), format) {
  scratch_directory dir;
  auto path = dir.path() + "/file";
  auto written = sample(format);
  auto outcome = write_archive(format, path, written);
  BOOST_TEST_REQUIRE(outcome.ok(), outcome.to_string());
  auto read = open_archive(path);
  BOOST_TEST_REQUIRE(read.has_value(), why(read));
  BOOST_TEST(difference(**read, written) == "");
  BOOST_TEST(difference(**read, written, 192) == "");
  BOOST_TEST((format_of_content(path) == format));
  BOOST_TEST(files_in(dir.path()) == 1u);
}

BOOST_DATA_TEST_CASE(the_same_tensors_make_the_same_file, data::make(all_formats), format) {
  scratch_directory dir;
  auto source = small();
  BOOST_TEST_REQUIRE(write_archive(format, dir.path() + "/a", source).ok());
  // The second file is written in another second, because formats store times.
  for (auto begun = std::time(nullptr); std::time(nullptr) == begun;)
    std::this_thread::sleep_for(std::chrono::milliseconds{10});
  BOOST_TEST_REQUIRE(write_archive(format, dir.path() + "/b", source).ok());
  BOOST_TEST((contents(dir.path() + "/a") == contents(dir.path() + "/b")));
}

BOOST_DATA_TEST_CASE(no_tensors_are_an_archive_too, data::make(all_formats), format) {
  scratch_directory dir;
  tensors_in_memory none;
  auto path = dir.path() + "/none";
  auto outcome = write_archive(format, path, none);
  BOOST_TEST_REQUIRE(outcome.ok(), outcome.to_string());
  auto read = open_archive(path, format);
  BOOST_TEST_REQUIRE(read.has_value(), why(read));
  BOOST_TEST(difference(**read, none) == "");
}

BOOST_DATA_TEST_CASE(
  an_existing_file_is_replaced_only_when_asked, data::make(all_formats), format) {
  scratch_directory dir;
  auto path = dir.path() + "/file";
  put(path, "precious");
  auto source = small();
  BOOST_TEST((write_archive(format, path, source).code() == errc::already_exists));
  BOOST_TEST(contents(path) == "precious");
  BOOST_TEST(write_archive(format, path, source, {.replace = true, .progress = {}}).ok());
  BOOST_TEST(reads_whole(path, format));
  BOOST_TEST(files_in(dir.path()) == 1u);
}

BOOST_DATA_TEST_CASE(a_source_that_fails_leaves_nothing_behind, data::make(all_formats), format) {
  scratch_directory dir;
  auto path = dir.path() + "/file";
  for (std::uint64_t reads : {0, 1, 5}) {
    auto source = sample(format);
    source.reads_left = reads;
    auto outcome = write_archive(format, path, source);
    BOOST_TEST((outcome.code() == errc::peer_lost), outcome.to_string());
    BOOST_TEST(files_in(dir.path()) == 0u);
  }
}

BOOST_DATA_TEST_CASE(
  what_a_killed_writer_left_is_removed_and_what_a_living_one_writes_stays, data::make(all_formats),
  format) {
  scratch_directory dir;
  auto living = output_file::create(dir.path() + "/living", false);
  BOOST_TEST_REQUIRE(living.has_value(), why(living));
  put(living->path(), "being written");
  auto source = small();
  auto killer = ::fork();
  if (killer == 0) {
    auto kill = [](std::uint64_t, std::uint64_t) { return ::kill(::getpid(), SIGKILL) != 0; };
    static_cast<void>(
      write_archive(format, dir.path() + "/killed", source, {.replace = false, .progress = kill}));
    ::_exit(0);
  }
  int ended = 0;
  BOOST_TEST_REQUIRE(::waitpid(killer, &ended, 0) == killer);
  BOOST_TEST(WIFSIGNALED(ended));
  BOOST_TEST(files_in(dir.path()) == 2u);
  BOOST_TEST_REQUIRE(write_archive(format, dir.path() + "/next", source).ok());
  BOOST_TEST(files_in(dir.path()) == 2u); // the living one's, and this one
  BOOST_TEST_REQUIRE(living->publish().ok());
  BOOST_TEST(contents(dir.path() + "/living") == "being written");
  BOOST_TEST(files_in(dir.path()) == 2u);
}

BOOST_DATA_TEST_CASE(
  a_full_device_is_said_and_leaves_nothing_behind, data::make(all_formats), format) {
  scratch_directory dir;
  if (std::system(("mount -t tmpfs -o size=1m none " + dir.path() + " 2>/dev/null").c_str()) != 0) {
    millrace::testing::skipped("a full device: needs root and mount");
    return;
  }
  auto source = sample(format);
  auto outcome = write_archive(format, dir.path() + "/file", source);
  auto left = files_in(dir.path());
  BOOST_TEST(std::system(("umount -l " + dir.path()).c_str()) == 0);
  BOOST_TEST((outcome.code() == errc::no_space), outcome.to_string());
  BOOST_TEST(left == 0u);
}

BOOST_DATA_TEST_CASE(progress_reaches_the_end_and_may_stop_it, data::make(all_formats), format) {
  scratch_directory dir;
  auto source = sample(format);
  std::uint64_t last = 0, total = 0;
  bool grew = true;
  auto watch = [&](std::uint64_t done, std::uint64_t all) {
    grew = grew && done > last;
    last = done, total = all;
    return true;
  };
  auto path = dir.path() + "/file";
  BOOST_TEST(write_archive(format, path, source, {.replace = false, .progress = watch}).ok());
  BOOST_TEST(grew);
  BOOST_TEST(last == size_bytes(source.tensors()));
  BOOST_TEST(total == last);
  auto stop = [](std::uint64_t done, std::uint64_t) { return done < 1000; };
  auto outcome = write_archive(format, path, source, {.replace = true, .progress = stop});
  BOOST_TEST((outcome.code() == errc::cancelled), outcome.to_string());
  BOOST_TEST(reads_whole(path, format)); // the old one
  BOOST_TEST(files_in(dir.path()) == 1u);
}

BOOST_DATA_TEST_CASE(a_cut_file_is_refused_wherever_it_is_cut, data::make(all_formats), format) {
  scratch_directory dir;
  auto source = small();
  auto path = dir.path() + "/file";
  BOOST_TEST_REQUIRE(write_archive(format, path, source).ok());
  auto whole = contents(path);
  std::size_t step = format == archive_format::hdf5 ? 7 : 1;
  for (std::size_t length = 0; length < whole.size(); length += step) {
    put(path, whole.substr(0, length));
    BOOST_TEST(!reads_whole(path, format), "cut to " << length);
  }
}

// Longer than any part that is read with the header.
BOOST_DATA_TEST_CASE(
  a_flipped_bit_of_a_tensor_is_noticed,
  data::make(std::vector{archive_format::npz, archive_format::torch}), format) {
  scratch_directory dir;
  auto path = dir.path() + "/file";
  tensors_in_memory source;
  source.add({"w", dtype::f32, {50'000}});
  BOOST_TEST_REQUIRE(write_archive(format, path, source).ok());
  auto damaged = contents(path);
  damaged[100'000] ^= 1;
  put(path, damaged);
  auto opened = open_archive(path);
  BOOST_TEST_REQUIRE(opened.has_value(), why(opened));
  auto read = read_tensor(**opened, 0);
  BOOST_TEST((!read && read.error().code() == errc::corrupt_data));
}

// HDF5 is libhdf5's to parse: it is documented as not for hostile files.
BOOST_DATA_TEST_CASE(
  damaged_files_do_no_harm,
  data::make(std::vector{archive_format::safetensors, archive_format::npz, archive_format::torch}),
  format) {
  scratch_directory dir;
  auto source = small();
  auto path = dir.path() + "/file";
  BOOST_TEST_REQUIRE(write_archive(format, path, source).ok());
  auto whole = contents(path);
  std::mt19937_64 random{7};
  std::size_t refused = 0;
  for (int round = 0; round < 2000; ++round) {
    auto damaged = whole;
    for (auto flips = random() % 4 + 1; flips > 0; --flips)
      damaged[random() % damaged.size()] = static_cast<char>(random());
    put(path, damaged);
    refused += reads_whole(path, format) ? 0 : 1;
  }
  BOOST_TEST(refused > 500u);
}

BOOST_AUTO_TEST_CASE(what_a_format_cannot_hold_is_refused_by_name) {
  scratch_directory dir;
  auto path = dir.path() + "/file";
  tensors_in_memory source;
  source.add({"tiny", dtype::f4, {4}});
  auto torch = write_archive(archive_format::torch, path, source);
  BOOST_TEST((torch.code() == errc::unsupported));
  BOOST_TEST(torch.detail().find("tiny: PyTorch has no F4") != std::string::npos, torch.detail());
  tensors_in_memory named;
  named.add({"__metadata__", dtype::f32, {1}});
  BOOST_TEST((write_archive(archive_format::safetensors, path, named).code() == errc::unsupported));
  BOOST_TEST(write_archive(archive_format::npz, path, named).ok());
  BOOST_TEST(reads_whole(path, archive_format::npz));
}

BOOST_AUTO_TEST_CASE(metadata_twice_is_refused) {
  scratch_directory dir;
  auto source = small();
  source.say("epoch", "4");
  auto outcome = write_archive(archive_format::npz, dir.path() + "/file", source);
  BOOST_TEST((outcome.code() == errc::invalid_argument));
}

BOOST_AUTO_TEST_CASE(places_in_torch_and_npz_files_are_aligned) {
  scratch_directory dir;
  for (auto format : {archive_format::torch, archive_format::npz}) {
    auto path = dir.path() + "/" + std::string{to_string(format)};
    tensors_in_memory source;
    for (int i = 0; i < 40; ++i)
      source.add({"tensor" + std::string(static_cast<std::size_t>(i), 'x'), dtype::u8, {100}});
    BOOST_TEST_REQUIRE(write_archive(format, path, source).ok());
    auto bytes = contents(path);
    for (std::size_t i = 0; i < 40; ++i) {
      std::string content(
        reinterpret_cast<const char*>(source.bytes(i).data()), source.bytes(i).size());
      BOOST_TEST(bytes.find(content) % 64 == 0u);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_name_and_the_first_bytes_tell_the_format) {
  BOOST_TEST((format_of_name("a.b/x.safetensors") == archive_format::safetensors));
  BOOST_TEST((format_of_name("x.h5") == archive_format::hdf5));
  BOOST_TEST((format_of_name("x.pt") == archive_format::torch));
  BOOST_TEST(!format_of_name("x.txt").has_value());
  BOOST_TEST((parse_format("npz") == archive_format::npz));
  BOOST_TEST((parse_format("zip").error().code() == errc::invalid_argument));
  scratch_directory dir;
  put(dir.path() + "/words", "these are words and no tensors");
  BOOST_TEST((open_archive(dir.path() + "/words").error().code() == errc::invalid_argument));
  BOOST_TEST((open_archive(dir.path() + "/none").error().code() == errc::not_found));
  BOOST_TEST((open_archive(dir.path()).error().code() == errc::invalid_argument));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(safetensors_files)

namespace {

std::string safetensors(const std::string& header, std::size_t data_bytes) {
  std::uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, 'x');
}

errc outcome_of(const std::string& file) {
  scratch_directory dir;
  put(dir.path() + "/x.safetensors", file);
  auto opened = open_archive(dir.path() + "/x.safetensors");
  return opened ? errc::ok : opened.error().code();
}

} // namespace

BOOST_AUTO_TEST_CASE(contradictions_are_refused) {
  auto one = [](const std::string& offsets, const std::string& more = "") {
    return R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)" + offsets + "}" + more + "}";
  };
  BOOST_TEST((outcome_of(safetensors(one("[0,8]"), 8)) == errc::ok));
  for (auto& [header, bytes] : std::vector<std::pair<std::string, std::size_t>>{
         {one("[0,8]"), 7},
         {one("[0,8]"), 9},
         {one("[0,4]"), 4},
         {one("[1,9]"), 9},
         {one("[8,0]"), 8},
         {one("[0]"), 8},
         {one("[0,8,8]"), 8},
         {one("[0,-8]"), 8},
         {one("[0,8.0]"), 8},
         {one("[0,18446744073709551615]"), 8},
         {one("[0,8]", R"(,"a":{"dtype":"F32","shape":[0],"data_offsets":[8,8]})"), 8},
         {one("[0,8]", R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]})"), 8},
         {one("[0,8]", R"(,"b":{"dtype":"float32","shape":[1],"data_offsets":[8,12]})"), 12},
         {one("[0,8]", R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12],"x":1})"), 12},
         {one("[0,8]", R"(,"b":{"shape":[1],"data_offsets":[8,12]})"), 12},
         {one("[0,8]", R"(,"__metadata__":{"a":1})"), 8},
         {one("[0,8]", R"(,"__metadata__":{"a":"1","a":"2"})"), 8},
         {one("[0,8]", R"(,"b":[[[[)"), 8},
         {one("[0,8]", R"(,"b":{"dtype":"F32","shape":[0]})"), 8},
         {one(
            "[0,8]",
            R"(,"b":{"dtype":"F32","shape":[9223372036854775808,9223372036854775808,0],)"
            R"("data_offsets":[8,8]})"),
          8},
         {one("[0,8]") + std::string(6, '\0'), 8},
         {"[]", 0},
         {"", 0},
         {"{} {}", 0},
         {"{}", 1}})
    BOOST_TEST((outcome_of(safetensors(header, bytes)) == errc::corrupt_data), header);
}

BOOST_AUTO_TEST_CASE(complex128_rests_as_pairs_of_f64_that_every_reader_knows) {
  scratch_directory dir;
  auto path = dir.path() + "/a";
  tensors_in_memory source;
  source.add({"z", dtype::c128, {3}});
  BOOST_TEST_REQUIRE(write_archive(archive_format::safetensors, path, source).ok());
  auto file = contents(path);
  BOOST_TEST(
    file.find(R"({"__metadata__":{"millrace.dtype.z":"C128"},"z":{"dtype":"F64","shape":[3,2],)") ==
    8u);
  auto read = open_archive(path);
  BOOST_TEST_REQUIRE(read.has_value(), why(read));
  BOOST_TEST(difference(**read, source) == "");
  auto table = [](const std::string& name, const std::string& type, const std::string& shape) {
    return R"({"__metadata__":{"millrace.dtype.)" + name + R"(":")" + type +
      R"("},"z":{"dtype":"F64","shape":)" + shape + R"(,"data_offsets":[0,16]}})";
  };
  BOOST_TEST((outcome_of(safetensors(table("z", "C128", "[1,2]"), 16)) == errc::ok));
  for (auto& bad :
       {table("z", "C128", "[2,1]"), table("z", "I64", "[1,2]"), table("y", "C128", "[1,2]")})
    BOOST_TEST((outcome_of(safetensors(bad, 16)) == errc::corrupt_data), bad);
  source.say("millrace.dtype.z", "F64");
  auto named = write_archive(archive_format::safetensors, dir.path() + "/b", source);
  BOOST_TEST((named.code() == errc::unsupported));
  tensors_in_memory deep;
  deep.add({"deep", dtype::c128, std::vector<std::uint64_t>(tensor_rank_max, 1)});
  auto rank = write_archive(archive_format::safetensors, dir.path() + "/c", deep);
  BOOST_TEST((rank.code() == errc::unsupported));
  BOOST_TEST(rank.detail().find("deep") != std::string::npos, rank.detail());
}

BOOST_AUTO_TEST_CASE(a_length_beyond_the_file_is_refused) {
  std::string file(8, '\xff');
  BOOST_TEST((outcome_of(file + "{}") == errc::corrupt_data));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(npy_headers)

namespace {

std::string npy(const std::string& literal) {
  std::string text = "\x93NUMPY";
  text +=
    {'\x01', '\x00', static_cast<char>(literal.size() & 255),
     static_cast<char>(literal.size() >> 8)};
  return text + literal;
}

} // namespace

BOOST_AUTO_TEST_CASE(what_numpy_writes_is_understood) {
  auto h = archive::parse_npy_header(
    npy("{'descr': '>f8', 'fortran_order': True, 'shape': (3, 4), }   \n"));
  BOOST_TEST_REQUIRE(h.has_value(), why(h));
  BOOST_TEST(h->big_endian);
  BOOST_TEST(h->fortran_order);
  BOOST_TEST((h->tensor.shape == std::vector<std::uint64_t>{3, 4}));
  BOOST_TEST((h->tensor.type == dtype::f64));
  auto old =
    archive::parse_npy_header(npy("{'shape': (3L,), \"descr\": '|b1', 'fortran_order': False}"));
  BOOST_TEST_REQUIRE(old.has_value(), why(old));
  BOOST_TEST((old->tensor.shape == std::vector<std::uint64_t>{3}));
}

BOOST_AUTO_TEST_CASE(everything_else_is_refused) {
  for (auto text :
       {"{'descr': '<f4', 'fortran_order': False}", "{'descr': '<f4', 'descr': '<f4'}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': ()}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': [1]}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': ()} + 1",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (__import__('os'),)}", "", "{", "{'"})
    BOOST_TEST((archive::parse_npy_header(npy(text)).error().code() == errc::corrupt_data), text);
  for (auto type : {"'|O'", "'<U3'", "'<f16'", "'<c32'", "'<M8[ns]'", "[('a', '<f4')]"})
    BOOST_TEST(
      (archive::parse_npy_header(
         npy("{'descr': " + std::string{type} + ", 'fortran_order': False, 'shape': ()}"))
         .error()
         .code() == errc::unsupported),
      type);
}

BOOST_AUTO_TEST_SUITE_END()

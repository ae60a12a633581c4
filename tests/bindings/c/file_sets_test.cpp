// Tests working sets of files, and their options, in the C ABI: samples of varying size, labels,
// files that are left out.
#include "c_node.hpp"

#include <millrace/tests/support/npy_file.hpp>

#include <millrace.hpp>

#include <cstddef>
#include <ctime>
#include <filesystem>
#include <span>

using namespace millrace::testing;
namespace wrapped = millrace::abi;

namespace {

// A directory with a file of each size, whose folders are their labels.
struct of_files : c_node {
  std::string photos;

  of_files() : c_node("data: { capacity: 8MiB, region_size: 1MiB }\n") {
    photos = dir / "photos";
    std::filesystem::create_directories(photos + "/cats");
    std::filesystem::create_directories(photos + "/dogs");
    dir.write("photos/cats/a.jpg", "abc");
    dir.write("photos/cats/b.jpg", "d");
    dir.write("photos/dogs/c.jpg", "efghi");
  }

  millrace_code preload(
    const char* set, const std::vector<const char*>& files, const millrace_preload_options& o,
    millrace_request** request = nullptr) const {
    return millrace_preload(client, set, files.data(), files.size(), &o, request);
  }

  millrace_set_reader* open(const char* set) const {
    millrace_set_reader* out = nullptr;
    MUST(millrace_open_set(client, set, &out));
    return out;
  }

  millrace_set_reader* open_photos() const {
    auto o = sized<millrace_preload_options>();
    o.labels = "folders";
    MUST(preload("photos", {photos.c_str()}, o));
    return open("photos");
  }
};

millrace_tensor field_of(const millrace_set_reader* reader, std::size_t field) {
  millrace_tensor out{};
  MUST(millrace_set_reader_field(reader, field, &out));
  return out;
}

std::vector<std::uint64_t> sizes_of(
  millrace_set_reader* reader, std::size_t field, const std::vector<std::uint64_t>& ids) {
  millrace_request* r = nullptr;
  MUST(millrace_set_reader_sizes(reader, field, ids.data(), ids.size(), &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  const std::uint64_t* sizes = nullptr;
  std::size_t count = 0;
  MUST(millrace_request_sizes(r, &sizes, &count));
  std::vector<std::uint64_t> out(sizes, sizes + count);
  MUST(millrace_wait(&r, 0));
  return out;
}

} // namespace

BOOST_FIXTURE_TEST_SUITE(file_sets, of_files)

BOOST_AUTO_TEST_CASE(a_field_that_varies_says_so_in_its_shape) {
  auto* reader = open_photos();
  auto x = field_of(reader, 0), path = field_of(reader, 1), label = field_of(reader, 2);
  BOOST_TEST((x.dtype == MILLRACE_U8 && x.rank == 1 && x.shape[0] == 0u));
  BOOST_TEST((std::string{path.name} == "path" && path.shape[0] == 0u));
  BOOST_TEST((std::string{label.name} == "label" && label.dtype == MILLRACE_I64));
  auto set = sized<millrace_set>();
  MUST(millrace_set_reader_describe(reader, &set));
  BOOST_TEST(set.size_bytes == 9u + 3 * 10 + 3 * 8);
  millrace_set_reader_release(reader);
}

BOOST_AUTO_TEST_CASE(samples_of_varying_size_are_read_without_gaps) {
  auto* reader = open_photos();
  const std::vector<std::uint64_t> wanted{2, 0, 1};
  BOOST_TEST((sizes_of(reader, 0, wanted) == std::vector<std::uint64_t>{5, 3, 1}));
  BOOST_TEST((sizes_of(reader, 2, {1}) == std::vector<std::uint64_t>{8}));
  BOOST_TEST(sizes_of(reader, 0, {}).empty());
  std::string into(9, ' ');
  MUST(millrace_read_batch(reader, 0, wanted.data(), 3, into.data(), into.size(), nullptr));
  BOOST_TEST(into == "efghiabcd");
  auto code = millrace_read_batch(reader, 0, wanted.data(), 3, into.data(), 8, nullptr);
  BOOST_TEST(code == MILLRACE_INVALID_ARGUMENT);
  std::int64_t labels[3] = {};
  MUST(millrace_read_batch(reader, 2, wanted.data(), 3, labels, sizeof(labels), nullptr));
  BOOST_TEST((labels[0] == 1 && labels[1] == 0 && labels[2] == 0));
  millrace_set_reader_release(reader);
}

BOOST_AUTO_TEST_CASE(files_are_given_as_fields) {
  const std::vector<std::uint8_t> rows{1, 2, 3, 4, 5, 6};
  const std::vector<std::int64_t> labels{7, 8, 9};
  auto image = "image=" +
    write_npy(dir / "images.npy", {"", millrace::dtype::u8, {3, 2}},
              std::as_bytes(std::span{rows}));
  auto label = "label=" +
    write_npy(dir / "labels.npy", {"", millrace::dtype::i64, {3}},
              std::as_bytes(std::span{labels}));
  MUST(preload("scans", {image.c_str(), label.c_str()}, sized<millrace_preload_options>()));
  auto* reader = open("scans");
  BOOST_TEST(std::string{field_of(reader, 0).name} == "image");
  BOOST_TEST(std::string{field_of(reader, 1).name} == "label");
  const std::uint64_t last = 2;
  std::int64_t seen = 0;
  MUST(millrace_read_batch(reader, 1, &last, 1, &seen, sizeof(seen), nullptr));
  BOOST_TEST(seen == 9);
  millrace_set_reader_release(reader);
}

BOOST_AUTO_TEST_CASE(samples_are_found_by_their_paths) {
  auto* reader = open_photos();
  std::size_t count = 0;
  std::vector<std::uint64_t> ids{2, 0};
  std::vector<std::string> paths;
  for (auto id : ids) {
    std::string path(sizes_of(reader, 1, {id}).front(), ' ');
    MUST(millrace_read_batch(reader, 1, &id, 1, path.data(), path.size(), nullptr));
    paths.push_back(path);
  }
  const char* wanted[] = {paths[0].c_str(), paths[1].c_str(), "nowhere"};
  millrace_request* r = nullptr;
  MUST(millrace_find_samples(reader, 1, wanted, 2, &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  const std::uint64_t* found = nullptr;
  MUST(millrace_request_samples(r, &found, &count));
  BOOST_TEST((std::vector<std::uint64_t>(found, found + count) == ids));
  MUST(millrace_wait(&r, 0));
  BOOST_TEST(millrace_find_samples(reader, 1, wanted, 3, nullptr) == MILLRACE_NOT_FOUND);
  BOOST_TEST(std::string{millrace_error()}.find("nowhere") != std::string::npos);
  BOOST_TEST(millrace_find_samples(reader, 0, wanted, 1, nullptr) == MILLRACE_NOT_FOUND);
  BOOST_TEST(millrace_find_samples(reader, 2, wanted, 1, nullptr) == MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_find_samples(reader, 1, nullptr, 1, &r), "millrace_find_samples", "texts");
  millrace_set_reader_release(reader);
}

BOOST_AUTO_TEST_CASE(a_batch_says_where_each_sample_begins) {
  auto* reader = open_photos();
  auto o = sized<millrace_loader_options>();
  o.batch_size = 2;
  o.shuffle = "none";
  millrace_loader* loader = nullptr;
  MUST(millrace_loader_create(reader, &o, &loader));
  millrace_batch* batch = nullptr;
  MUST(millrace_next(loader, &batch));
  millrace_tensor x{};
  MUST(millrace_batch_field(batch, 0, &x));
  BOOST_TEST((x.rank == 1 && x.shape[0] == 4u));
  BOOST_TEST((std::string{static_cast<const char*>(x.data), 4} == "abcd"));
  const std::uint64_t* offsets = nullptr;
  std::size_t count = 0;
  MUST(millrace_batch_offsets(batch, 0, &offsets, &count));
  BOOST_TEST((std::vector(offsets, offsets + count) == std::vector<std::uint64_t>{0, 3, 4}));
  MUST(millrace_batch_offsets(batch, 2, &offsets, &count));
  BOOST_TEST((!offsets && count == 0u)); // labels are all of one size
  millrace_batch_release(batch);
  millrace_loader_release(loader);
  millrace_set_reader_release(reader);
}

BOOST_AUTO_TEST_CASE(files_that_are_left_out_are_named) {
  auto bad = dir.write("bad.npy", "no array");
  auto o = sized<millrace_preload_options>();
  BOOST_TEST(preload("rows", {bad.c_str()}, o) == MILLRACE_CORRUPT_DATA);
  o.on_error = "skip";
  auto fields = std::vector{"x"};
  o.fields = fields.data();
  o.fields_count = 1;
  millrace_request* r = nullptr;
  auto missing = dir / "missing.jpg";
  o.kind = "files";
  MUST(preload("rows", {bad.c_str(), missing.c_str()}, o, &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  BOOST_TEST(millrace_request_count(r) == 1u); // the field that was asked for
  auto file = sized<millrace_skipped_file>();
  MUST(millrace_request_skipped(r, 0, &file));
  BOOST_TEST(std::string{file.path} == missing);
  BOOST_TEST((file.code == MILLRACE_NOT_FOUND && std::string{file.why} != ""));
  BOOST_TEST(millrace_request_skipped(r, 1, &file) == MILLRACE_NOT_FOUND);
  MUST(millrace_wait(&r, 0));
  auto* reader = open("rows");
  BOOST_TEST(sizes_of(reader, 0, {0}).front() == 8u); // its bytes
  millrace_set_reader_release(reader);
}

BOOST_AUTO_TEST_CASE(options_of_preloads_are_checked) {
  auto refuse = [&](const char* named, auto change) {
    auto o = sized<millrace_preload_options>();
    change(o);
    BOOST_TEST(preload("s", {photos.c_str()}, o) == MILLRACE_INVALID_ARGUMENT, named);
    BOOST_TEST(std::string{millrace_error()}.find(named) != std::string::npos, millrace_error());
  };
  refuse("kind", [](auto& o) { o.kind = "pictures"; });
  refuse("on_error", [](auto& o) { o.on_error = "ignore"; });
  refuse("fields", [](auto& o) { o.fields_count = 1; });
  refuse("decode", [](auto& o) { o.decode_count = 1; });
  auto odd = std::vector{"x=bgr"};
  refuse("x=bgr", [&](auto& o) { o.decode = odd.data(), o.decode_count = 1; });
  refuse("servers", [](auto& o) { o.servers = -2; });
  refuse(
    "struct_size", [](auto& o) { o.struct_size = offsetof(millrace_preload_options, kind) - 1; });
  for (std::int32_t all : {0, -1, 1}) {
    auto how = sized<millrace_preload_options>();
    how.servers = all;
    millrace_request* r = nullptr;
    MUST(preload("servers", {photos.c_str()}, how, &r));
    MUST(millrace_request_wait(r, MILLRACE_FOREVER));
    auto set = sized<millrace_set>();
    MUST(millrace_request_set(r, 0, &set));
    BOOST_TEST((set.servers == 1 && set.existed == (all != 0)));
    MUST(millrace_wait(&r, 0));
  }
  // A program that was built before these options gives none of them.
  auto o = sized<millrace_preload_options>();
  o.struct_size = offsetof(millrace_preload_options, kind);
  o.kind = "pictures";
  MUST(preload("old", {photos.c_str()}, o));
}

// A client that maps nothing loses the data server with its node.
BOOST_AUTO_TEST_CASE(files_stand_for_a_data_server_that_is_lost) {
  auto config = dir.write(
    "lost.yaml",
    "staging: { size: 8MiB }\ndata: { capacity: 4MiB, region_size: 1MiB }\n"
    "tcp: { listen: ['127.0.0.1:0'] }\ntransport: { prefer: [tcp] }\n"
    "cluster: { nodes: [{ name: lost, listen: 'unix:" +
      dir / "lost.sock" + "', providers: [{ name: q, capacity: 1MiB }] }] }\n");
  millrace_node* lost = nullptr;
  MUST(millrace_embed(config.c_str(), "lost", &lost));
  millrace_client* by = nullptr;
  MUST(millrace_open(config.c_str(), &by));
  auto how = sized<millrace_preload_options>();
  how.labels = "folders";
  const char* files[] = {photos.c_str()};
  MUST(millrace_preload(by, "photos", files, 1, &how, nullptr));
  auto options = sized<millrace_open_set_options>();
  options.files = files;
  options.files_count = 1;
  options.preloaded = &how;
  millrace_set_reader *with = nullptr, *without = nullptr;
  MUST(millrace_open_set_with(by, "photos", &options, &with));
  millrace_request* opening = nullptr;
  MUST(millrace_open_set_with_begin(by, "photos", nullptr, &opening));
  MUST(millrace_request_wait(opening, MILLRACE_FOREVER));
  MUST(millrace_request_set_reader(opening, &without));
  MUST(millrace_wait(&opening, 0));
  MUST(millrace_node_stop(lost, nullptr));
  BOOST_TEST((sizes_of(with, 0, {2, 0}) == std::vector<std::uint64_t>{5, 3}));
  BOOST_TEST(millrace_set_reader_samples_from_files(with) == 0u); // sizes are no samples
  std::string into(8, ' ');
  const std::uint64_t ids[] = {2, 0};
  MUST(millrace_read_batch(with, 0, ids, 2, into.data(), into.size(), nullptr));
  BOOST_TEST(into == "efghiabc");
  BOOST_TEST(millrace_set_reader_samples_from_files(with) == 2u);
  BOOST_TEST(
    millrace_read_batch(without, 0, ids, 2, into.data(), into.size(), nullptr) != MILLRACE_OK);
  BOOST_TEST(millrace_set_reader_samples_from_files(without) == 0u);
  millrace_set_reader_release(with);
  millrace_set_reader_release(without);
  millrace_release(by);
  millrace_node_release(lost);
}

BOOST_AUTO_TEST_CASE(options_of_opening_are_checked) {
  auto refuse = [&](const char* named, auto change) {
    auto how = sized<millrace_preload_options>();
    auto o = sized<millrace_open_set_options>();
    o.preloaded = &how;
    change(o, how);
    millrace_set_reader* out = nullptr;
    REFUSED(millrace_open_set_with(client, "s", &o, &out), "millrace_open_set_with", named);
    BOOST_TEST(!out);
  };
  refuse("files", [](auto& o, auto&) { o.files_count = 1; });
  refuse("struct_size", [](auto& o, auto&) { o.struct_size = 8; });
  refuse("struct_size", [](auto&, auto& how) { how.struct_size = 8; });
  refuse("kind", [](auto&, auto& how) { how.kind = "pictures"; });
  millrace_set_reader* out = nullptr;
  REFUSED(millrace_open_set_with(client, nullptr, nullptr, &out), "millrace_open_set_with", "set");
  BOOST_TEST(millrace_open_set_with(client, "s", nullptr, &out) == MILLRACE_NOT_FOUND);
  BOOST_TEST(millrace_set_reader_samples_from_files(nullptr) == 0u);
}

BOOST_AUTO_TEST_CASE(a_window_and_its_readers_have_counts) {
  auto how = sized<millrace_preload_options>();
  how.window_bytes = 1;
  MUST(preload("w", {photos.c_str()}, how));
  auto* reader = open("w");
  auto set = sized<millrace_set>();
  MUST(millrace_set_reader_describe(reader, &set));
  BOOST_TEST(set.window_bytes == 1u); // the memory has whole regions
  BOOST_TEST((!set.left_out && set.left_out_count == 0u));
  const std::uint64_t ids[] = {0, 1, 2};
  std::string into(9, ' ');
  auto seconds = std::time(nullptr);
  while (millrace_set_reader_samples_from_window(reader) == 0 && std::time(nullptr) < seconds + 20)
    MUST(millrace_read_batch(reader, 0, ids, 3, into.data(), into.size(), nullptr));
  BOOST_TEST(into == "abcdefghi");
  auto window = sized<millrace_window_info>();
  MUST(millrace_describe_window(client, "w", &window));
  BOOST_TEST(window.size_bytes == 1u << 20);
  BOOST_TEST(window.given >= millrace_set_reader_samples_from_window(reader));
  BOOST_TEST((window.written > 0u && window.kept_bytes > 0u && window.damaged == 0u));
  BOOST_TEST(millrace_set_reader_samples_from_window(nullptr) == 0u);
  REFUSED(millrace_describe_window(client, "w", nullptr), "millrace_describe_window", "info");
  BOOST_TEST(millrace_describe_window(client, "none", &window) == MILLRACE_NOT_FOUND);
  millrace_set_reader_release(reader);
}

BOOST_AUTO_TEST_CASE(wrong_arguments_are_named) {
  auto* reader = open_photos();
  millrace_request* r = nullptr;
  const std::uint64_t behind = 3;
  REFUSED(
    millrace_set_reader_sizes(nullptr, 0, nullptr, 0, &r), "millrace_set_reader_sizes", "reader");
  REFUSED(millrace_set_reader_sizes(reader, 0, nullptr, 1, &r), "millrace_set_reader_sizes", "ids");
  BOOST_TEST(
    millrace_set_reader_sizes(reader, 0, &behind, 1, nullptr) == MILLRACE_INVALID_ARGUMENT);
  BOOST_TEST(
    millrace_set_reader_sizes(reader, 9, nullptr, 0, nullptr) == MILLRACE_INVALID_ARGUMENT);
  MUST(millrace_describe_set(client, "photos", &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  const std::uint64_t* sizes = &behind;
  std::size_t count = 1;
  MUST(millrace_request_sizes(r, &sizes, &count)); // it has none
  BOOST_TEST((!sizes && count == 0u));
  REFUSED(millrace_request_sizes(r, nullptr, &count), "millrace_request_sizes", "sizes");
  REFUSED(millrace_request_skipped(r, 0, nullptr), "millrace_request_skipped", "file");
  millrace_skipped_file file{};
  BOOST_TEST(millrace_request_skipped(r, 0, &file) == MILLRACE_NOT_FOUND);
  MUST(millrace_wait(&r, 0));
  millrace_set_reader_release(reader);
}

BOOST_AUTO_TEST_CASE(files_are_appended) {
  auto* before = open_photos();
  std::filesystem::create_directories(photos + "2/birds");
  dir.write("photos2/birds/d.jpg", "jk");
  auto more = photos + "2";
  const char* files[] = {more.c_str()};
  auto o = sized<millrace_preload_options>();
  o.labels = "folders"; // their numbers would not be those of the set
  BOOST_TEST(
    millrace_append_to_set(client, "photos", files, 1, &o, nullptr) == MILLRACE_INVALID_ARGUMENT);
  auto labels = dir.write("more.csv", "birds/d.jpg,2\n");
  o.labels = labels.c_str();
  for (auto existed : {0, 1}) {
    millrace_request* r = nullptr;
    MUST(millrace_append_to_set(client, "photos", files, 1, &o, &r));
    MUST(millrace_request_wait(r, MILLRACE_FOREVER));
    auto set = sized<millrace_set>();
    MUST(millrace_request_set(r, 0, &set));
    BOOST_TEST(set.samples == 4u);
    BOOST_TEST(set.appends == 1);
    BOOST_TEST(set.existed == existed);
    MUST(millrace_wait(&r, 0));
  }
  const std::uint64_t last = 3;
  char into[2] = {};
  BOOST_TEST(
    millrace_read_batch(before, 0, &last, 1, into, 2, nullptr) == MILLRACE_INVALID_ARGUMENT);
  millrace_set_reader_release(before);
  // The files of each append are given when the set is opened.
  auto appended = sized<millrace_open_set_options>(), with = appended;
  appended.files = files;
  appended.files_count = 1;
  appended.preloaded = &o;
  const millrace_open_set_options* all[] = {&appended};
  with.appended = all;
  with.appended_count = 1;
  millrace_set_reader* reader = nullptr;
  MUST(millrace_open_set_with(client, "photos", &with, &reader));
  MUST(millrace_read_batch(reader, 0, &last, 1, into, 2, nullptr));
  BOOST_TEST((into[0] == 'j' && into[1] == 'k'));
  millrace_set_reader_release(reader);
  with.appended = nullptr;
  REFUSED(
    millrace_open_set_with(client, "photos", &with, &reader), "millrace_open_set_with",
    "options->appended");
  BOOST_TEST(millrace_append_to_set(client, "none", files, 1, &o, nullptr) == MILLRACE_NOT_FOUND);
  REFUSED(
    millrace_append_to_set(client, "photos", nullptr, 1, &o, nullptr), "millrace_append_to_set",
    "files");
  o.servers = -1;
  REFUSED(
    millrace_append_to_set(client, "photos", files, 1, &o, nullptr), "millrace_append_to_set",
    "servers");
}

BOOST_AUTO_TEST_CASE(the_wrapper_in_cpp_does_the_same) {
  auto by = wrapped::client::connect(millrace_node_address(node));
  wrapped::working_set set{by, "wrapped"};
  auto o = sized<millrace_preload_options>();
  o.on_error = "skip";
  auto missing = dir / "missing.jpg";
  auto preload = set.preload({photos + "/{cats,dogs}/*.jpg", missing}, &o);
  preload.wait();
  auto skipped = wrapped::skipped_files(preload);
  BOOST_REQUIRE(skipped.size() == 1u);
  BOOST_TEST(std::string{skipped.front().path} == missing);
  auto reader = set.open();
  BOOST_TEST((reader.sizes(0, {1, 2}) == std::vector<std::uint64_t>{1, 5}));
  BOOST_TEST(reader.samples_from_window() == 0u);
  BOOST_CHECK_THROW(set.window(), wrapped::error); // it has all samples in memory
  std::string into(6, ' ');
  reader.read_batch(0, {1, 2}, into.data(), into.size()).wait();
  BOOST_TEST(into == "defghi");
  dir.write("more.jpg", "more");
  set.append({dir / "more.jpg"}).wait();
  BOOST_TEST(set.open().info().samples == reader.info().samples + 1);
}

BOOST_AUTO_TEST_SUITE_END()

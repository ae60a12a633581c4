// Tests working sets whose fields come from files of their own: divided, appended to, restored,
// read from the files, and through a window.
#include <millrace/tests/runtime/data_cluster.hpp>

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <thread>
#include <vector>

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

using ids_type = std::vector<std::uint64_t>;
using names = std::vector<std::string>;
constexpr auto sample_bytes = data_cluster::sample_bytes;

std::int64_t label_of(std::uint64_t id) { return static_cast<std::int64_t>(id * 7 + 3); }

// The samples from `first` on, as a file for each field.
names pair_of(
  const data_cluster& at, const std::string& name, std::uint64_t first, std::uint64_t count) {
  auto bytes = pattern((first + count) * sample_bytes, 1);
  auto image = write_npy(
    fmt::format("{}/image-{}.npy", at.dir.path(), name), {"", dtype::u8, {count, 10, 100}},
    std::span{bytes}.subspan(first * sample_bytes));
  std::vector<std::int64_t> labels;
  for (std::uint64_t i = 0; i < count; ++i)
    labels.push_back(label_of(first + i));
  auto label = write_npy(
    fmt::format("{}/label-{}.npy", at.dir.path(), name), {"", dtype::i64, {count}},
    std::as_bytes(std::span{labels}));
  return {"image=" + image, "label=" + label};
}

// Reads both fields of all samples, the last one first. `ids`: the numbers that they were written
// with.
status read_both(const set_reader& reader, const ids_type& ids) {
  auto wanted = all_ids(ids.size());
  std::ranges::reverse(wanted);
  std::vector<std::byte> images(ids.size() * sample_bytes);
  std::vector<std::int64_t> labels(ids.size());
  auto first = reader.read_batch(0, wanted, images);
  auto second = reader.read_batch(1, wanted, std::as_writable_bytes(std::span{labels}));
  if (!first.result())
    return first.result().error();
  if (!second.result())
    return second.result().error();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    auto id = ids[wanted[i]];
    if (!is_sample(std::span{images}.subspan(i * sample_bytes, sample_bytes), id))
      return {errc::corrupt_data, "image {}", id};
    if (labels[i] != label_of(id))
      return {errc::corrupt_data, "label {}", id};
  }
  return {};
}

template <class Holds>
bool soon(Holds holds) {
  auto until = std::chrono::steady_clock::now() + 20s;
  while (!holds() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(5ms);
  return holds();
}

} // namespace

BOOST_AUTO_TEST_SUITE(field_files)

BOOST_AUTO_TEST_CASE(a_set_of_fields_is_restored_and_read_from_its_files) {
  data_cluster at{3};
  auto first = pair_of(at, "a", 0, 200), more = pair_of(at, "b", 200, 100);
  auto c = at.connect(false);
  auto set = c.working_set("s");
  auto info = set.preload(first, among(3)).get().set;
  auto nodes = info.division.nodes;
  BOOST_TEST(info.fields[0].sample.name == "image");
  BOOST_TEST(info.fields[1].sample.name == "label");
  BOOST_TEST(set.preload(first, among(3)).get().existed);
  BOOST_TEST(!set.append(more).get().existed);
  BOOST_TEST(set.append(more).get().existed);
  BOOST_TEST((code_of(set.append({more[0]})) == errc::invalid_argument));
  open_options files;
  files.files = first;
  files.appended = {{{}, more}};
  auto reader = set.open(files).get();
  BOOST_TEST(reader.info().samples == 300u);
  BOOST_TEST(read_both(reader, all_ids(300)).ok());
  BOOST_TEST(reader.samples_from_files() == 0u);
  at.stop(nodes[1]);
  BOOST_TEST(read_both(reader, all_ids(300)).ok());
  BOOST_TEST(reader.samples_from_files() > 0u);
  at.start(nodes[1]);
  BOOST_TEST(
    soon([&] { return set.preload(first, among(3)).result() && set.append(more).result(); }));
  BOOST_TEST(set.open().get().verify().get().samples == 300u); // of both fields
  BOOST_TEST(soon([&] {
    auto before = reader.samples_from_files();
    return read_both(reader, all_ids(300)).ok() && reader.samples_from_files() == before;
  }));
  // The order is that of one preload of all files.
  auto together = c.working_set("t");
  auto both = first;
  both.insert(both.end(), more.begin(), more.end());
  BOOST_TEST(together.preload(both, among(2)).get().set.identity == set.describe().get().identity);
  BOOST_TEST(read_both(together.open().get(), all_ids(300)).ok());
}

BOOST_AUTO_TEST_CASE(a_window_is_filled_from_the_files_of_each_field) {
  data_cluster at{1, 2};
  auto path = pair_of(at, "a", 0, 3000);
  preload_options how;
  how.window_bytes = mib;
  auto set = at.connect().working_set("w");
  set.preload(path, how).get();
  auto reader = set.open().get();
  for (int i = 0; i < 3; ++i)
    BOOST_TEST(read_both(reader, all_ids(3000)).ok());
  BOOST_TEST(reader.samples_from_files() > 0u);
  BOOST_TEST(soon([&] {
    auto read = read_both(reader, all_ids(3000));
    return read.ok() && reader.samples_from_window() > 0;
  }));
}

BOOST_AUTO_TEST_CASE(damaged_files_are_left_out_with_their_counterparts) {
  data_cluster at{3};
  names all;
  for (auto i : {0, 1, 2})
    for (auto& name : pair_of(at, std::to_string(i), static_cast<std::uint64_t>(i) * 90, 90))
      all.push_back(name);
  auto damaged = all[3].substr(std::string{"label="}.size()); // of the second pair
  std::filesystem::resize_file(damaged, std::filesystem::file_size(damaged) - 8);
  auto c = at.connect(false);
  auto set = c.working_set("s");
  auto refused = set.preload(all, among(3));
  BOOST_TEST((code_of(refused) == errc::corrupt_data));
  BOOST_TEST(words_of(refused).find(damaged) != std::string::npos, words_of(refused));
  auto how = among(3);
  how.on_error = damage_policy::skip;
  auto made = set.preload(all, how).get();
  BOOST_TEST_REQUIRE(made.skipped.size() == 1u);
  BOOST_TEST(made.skipped[0].path == damaged);
  ids_type ids = all_ids(90);
  for (std::uint64_t i = 180; i < 270; ++i)
    ids.push_back(i);
  open_options files;
  static_cast<set_file_options&>(files) = how;
  files.files = all;
  auto reader = set.open(files).get();
  BOOST_TEST(read_both(reader, ids).ok());
  at.stop(made.set.division.nodes[2]);
  BOOST_TEST(read_both(reader, ids).ok());
  BOOST_TEST(reader.samples_from_files() > 0u);
}

BOOST_AUTO_TEST_SUITE_END()

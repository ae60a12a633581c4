// Tests what readers of the C ABI do with whole sets: loads, comparisons, orders, and how a set is
// reached.
#include "c_node.hpp"

#include <millrace/tests/support/data_memory.hpp>
#include <millrace/tests/support/forked_child.hpp>
#include <millrace/tests/support/npy_file.hpp>

#include <millrace.hpp>
#include <request.hpp>

#include <algorithm>
#include <filesystem>
#include <future>
#include <numeric>
#include <span>

using namespace millrace::testing;
namespace wrapped = millrace::abi;

namespace {

constexpr std::size_t width = 4;
constexpr std::size_t samples = 21;

using numbers = std::vector<std::uint64_t>;
using elements = std::vector<std::uint32_t>;

struct rows : c_node {
  std::string path;
  millrace_set_reader* reader = nullptr;

  rows() : c_node("data: { capacity: 8MiB, region_size: 1MiB }\n") {
    auto contents = all();
    path = millrace::testing::write_npy(
      dir / "rows.npy", {"x", millrace::dtype::u32, {samples, width}},
      std::as_bytes(std::span{contents}));
    preload("rows", path);
    MUST(millrace_open_set(client, "rows", &reader));
  }
  ~rows() { millrace_set_reader_release(reader); }

  // Sample i has the elements i * width and those behind it.
  static elements all() {
    elements out(samples * width);
    std::iota(out.begin(), out.end(), 0u);
    return out;
  }

  void preload(
    const char* set, const std::string& file, const millrace_preload_options* o = nullptr) const {
    const char* files[] = {file.c_str()};
    MUST(millrace_preload(client, set, files, 1, o, nullptr));
  }

  // Changes a byte of a sample in the memory of the data server.
  static void damage(std::size_t sample) {
    auto wanted = all();
    auto* found =
      find_in_data_memory(std::as_bytes(std::span{wanted}.subspan(sample * width, width)));
    BOOST_REQUIRE(found);
    *found = static_cast<char>(*found ^ 0x55);
  }
};

struct compared {
  std::uint64_t samples = 0, damaged = 0;
  numbers first;

  explicit compared(millrace_set_reader* reader) {
    millrace_request* r = nullptr;
    MUST(millrace_verify_samples(reader, nullptr, nullptr, &r));
    MUST(millrace_request_wait(r, MILLRACE_FOREVER));
    auto found = sized<millrace_set_damage>();
    MUST(millrace_request_damage(r, &found));
    samples = found.samples;
    damaged = found.damaged;
    BOOST_TEST((found.first == nullptr) == (found.first_count == 0u));
    first.assign(found.first, found.first + found.first_count);
    MUST(millrace_wait(&r, 0));
  }
};

struct told {
  std::uint64_t calls = 0, done = 0, total = 0;
  std::int32_t answer = 1;
  std::promise<millrace_request*> to_cancel;
  bool cancels = false;

  static std::int32_t tell(void* context, std::uint64_t done, std::uint64_t total) {
    auto& self = *static_cast<told*>(context);
    ++self.calls;
    self.done = done;
    self.total = total;
    if (self.cancels)
      millrace_cancel(self.to_cancel.get_future().get());
    return self.answer;
  }
};

// The samples that a loader gives in an epoch.
numbers epoch_of(millrace_set_reader* reader, const millrace_order_options& of) {
  auto o = sized<millrace_loader_options>();
  o.batch_size = 4;
  o.seed = of.seed;
  o.epoch = of.epoch;
  o.shuffle = of.shuffle;
  millrace_loader* loader = nullptr;
  MUST(millrace_loader_create(reader, &o, &loader));
  numbers seen;
  for (;;) {
    millrace_batch* batch = nullptr;
    MUST(millrace_next(loader, &batch));
    if (!batch)
      break;
    auto info = sized<millrace_batch_info>();
    MUST(millrace_batch_describe(batch, &info));
    seen.insert(seen.end(), info.ids, info.ids + info.ids_count);
    millrace_batch_release(batch);
  }
  millrace_loader_release(loader);
  return seen;
}

} // namespace

BOOST_FIXTURE_TEST_SUITE(set_readers, rows)

BOOST_AUTO_TEST_CASE(a_whole_field_is_loaded) {
  elements into(samples * width);
  auto bytes = into.size() * sizeof(into[0]);
  MUST(millrace_load_field(reader, 0, into.data(), bytes, nullptr));
  BOOST_TEST((into == all()));
  into.assign(into.size(), 0);
  millrace_request* r = nullptr;
  MUST(millrace_load_field(reader, 0, into.data(), bytes, &r));
  MUST(millrace_wait(&r, MILLRACE_FOREVER));
  BOOST_TEST((into == all()));
  for (auto wrong : {bytes - 4, std::size_t{0}})
    BOOST_TEST(
      millrace_load_field(reader, 0, into.data(), wrong, nullptr) == MILLRACE_INVALID_ARGUMENT);
  BOOST_TEST(
    millrace_load_field(reader, 1, into.data(), bytes, nullptr) == MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_load_field(nullptr, 0, into.data(), bytes, &r), "millrace_load_field", "reader");
  REFUSED(millrace_load_field(reader, 0, nullptr, bytes, &r), "millrace_load_field", "into");
  BOOST_TEST(!r);
}

BOOST_AUTO_TEST_CASE(a_field_that_varies_is_loaded_without_gaps) {
  std::filesystem::create_directories(dir / "texts");
  dir.write("texts/a", "abc");
  dir.write("texts/b", "d");
  dir.write("texts/c", "efghi");
  preload("texts", dir / "texts");
  millrace_set_reader* texts = nullptr;
  MUST(millrace_open_set(client, "texts", &texts));
  std::string into(9, ' ');
  MUST(millrace_load_field(texts, 0, into.data(), into.size(), nullptr));
  BOOST_TEST(into == "abcdefghi");
  BOOST_TEST(
    millrace_load_field(texts, 0, into.data(), into.size() - 1, nullptr) ==
    MILLRACE_INVALID_ARGUMENT);
  BOOST_TEST(compared{texts}.samples == 3u); // in both fields, bytes and paths
  millrace_set_reader_release(texts);
}

BOOST_AUTO_TEST_CASE(a_comparison_finds_damaged_samples) {
  compared before{reader};
  BOOST_TEST((before.samples == samples && before.damaged == 0u));
  damage(7);
  compared one{reader};
  BOOST_TEST((one.samples == samples && one.damaged == 1u));
  BOOST_TEST((one.first == numbers{7}));
  for (std::size_t sample = 9; sample < samples; ++sample)
    damage(sample);
  compared many{reader};
  BOOST_TEST(many.damaged == 13u);
  BOOST_TEST((many.first == numbers{7, 9, 10, 11, 12, 13, 14, 15, 16, 17})); // ten at most
}

BOOST_AUTO_TEST_CASE(a_comparison_tells_its_progress_and_is_ended_by_it) {
  told all;
  MUST(millrace_verify_samples(reader, &told::tell, &all, nullptr));
  BOOST_TEST(all.calls >= 1u);
  BOOST_TEST(all.done == samples * width * sizeof(std::uint32_t));
  BOOST_TEST(all.total == all.done);
  told ends;
  ends.answer = 0;
  BOOST_TEST(millrace_verify_samples(reader, &told::tell, &ends, nullptr) == MILLRACE_CANCELLED);
  BOOST_TEST(ends.calls == 1u);
}

BOOST_AUTO_TEST_CASE(a_comparison_that_is_cancelled_tells_nothing_any_more) {
  told all;
  all.cancels = true;
  millrace_request* r = nullptr;
  MUST(millrace_verify_samples(reader, &told::tell, &all, &r));
  auto* cancelled = r;
  all.to_cancel.set_value(cancelled);
  BOOST_TEST(millrace_request_wait(r, MILLRACE_FOREVER) == MILLRACE_CANCELLED);
  auto found = sized<millrace_set_damage>();
  BOOST_TEST(millrace_request_damage(r, &found) == MILLRACE_CANCELLED);
  BOOST_TEST(millrace_wait(&r, 0) == MILLRACE_CANCELLED);
  BOOST_TEST(all.calls == 1u);
}

BOOST_AUTO_TEST_CASE(a_window_has_nothing_to_compare) {
  auto how = sized<millrace_preload_options>();
  how.window_bytes = 1;
  preload("window", path, &how);
  millrace_set_reader* window = nullptr;
  MUST(millrace_open_set(client, "window", &window));
  auto code = millrace_verify_samples(window, nullptr, nullptr, nullptr);
  BOOST_TEST(code == MILLRACE_UNSUPPORTED);
  elements into(samples * width);
  MUST(millrace_load_field(window, 0, into.data(), into.size() * sizeof(into[0]), nullptr));
  BOOST_TEST((into == all()));
  millrace_set_reader_release(window);
}

BOOST_AUTO_TEST_CASE(an_order_is_that_of_loaders) {
  auto o = sized<millrace_order_options>();
  o.seed = 7;
  for (auto* shuffle : {static_cast<const char*>(nullptr), "full", "none", "block:5"})
    for (o.epoch = 0; o.epoch < 3; ++o.epoch) {
      o.shuffle = shuffle;
      numbers ids(samples), some(5), places(samples);
      MUST(millrace_set_reader_order(reader, &o, 0, samples, ids.data()));
      BOOST_TEST((ids == epoch_of(reader, o)));
      MUST(millrace_set_reader_order(reader, &o, 11, some.size(), some.data()));
      BOOST_TEST(std::equal(some.begin(), some.end(), ids.begin() + 11));
      MUST(millrace_set_reader_positions(reader, &o, ids.data(), samples, places.data()));
      numbers rising(samples);
      std::iota(rising.begin(), rising.end(), 0u);
      BOOST_TEST((places == rising));
      // Into the same memory.
      MUST(millrace_set_reader_positions(reader, &o, ids.data(), samples, ids.data()));
      BOOST_TEST((ids == rising));
    }
  o.epoch = 0;
  o.shuffle = "none";
  std::uint64_t id = 99;
  MUST(millrace_set_reader_order(reader, &o, 13, 1, &id));
  BOOST_TEST(id == 13u);
  numbers first(samples), of_zeros(samples);
  o = sized<millrace_order_options>();
  MUST(millrace_set_reader_order(reader, &o, 0, samples, of_zeros.data()));
  MUST(millrace_set_reader_order(reader, nullptr, 0, samples, first.data()));
  BOOST_TEST((first == of_zeros));
}

BOOST_AUTO_TEST_CASE(positions_and_samples_that_a_set_lacks_are_refused) {
  auto o = sized<millrace_order_options>();
  numbers ids(samples + 1, 99);
  MUST(millrace_set_reader_order(reader, &o, samples, 0, nullptr));
  REFUSED(
    millrace_set_reader_order(reader, &o, 0, samples + 1, ids.data()), "millrace_set_reader_order",
    "21 positions");
  REFUSED(
    millrace_set_reader_order(reader, &o, samples, 1, ids.data()), "millrace_set_reader_order",
    "first");
  REFUSED(
    millrace_set_reader_order(reader, &o, UINT64_MAX, 2, ids.data()), "millrace_set_reader_order",
    "first");
  REFUSED(
    millrace_set_reader_order(reader, &o, 1, SIZE_MAX, ids.data()), "millrace_set_reader_order",
    "count");
  REFUSED(millrace_set_reader_order(reader, &o, 0, 1, nullptr), "millrace_set_reader_order", "ids");
  REFUSED(
    millrace_set_reader_order(nullptr, &o, 0, 1, ids.data()), "millrace_set_reader_order",
    "reader");
  o.shuffle = "sometimes";
  REFUSED(
    millrace_set_reader_order(reader, &o, 0, 1, ids.data()), "millrace_set_reader_order",
    "shuffle: 'sometimes'");
  o = {};
  REFUSED(
    millrace_set_reader_order(reader, &o, 0, 1, ids.data()), "millrace_set_reader_order",
    "struct_size");

  o = sized<millrace_order_options>();
  const std::uint64_t wanted[] = {0, samples};
  REFUSED(
    millrace_set_reader_positions(reader, &o, wanted, 2, ids.data()),
    "millrace_set_reader_positions", "has 21");
  REFUSED(
    millrace_set_reader_positions(reader, &o, nullptr, 1, ids.data()),
    "millrace_set_reader_positions", "ids");
  REFUSED(
    millrace_set_reader_positions(reader, &o, wanted, 1, nullptr), "millrace_set_reader_positions",
    "positions");
  REFUSED(
    millrace_set_reader_positions(nullptr, &o, wanted, 1, ids.data()),
    "millrace_set_reader_positions", "reader");
  BOOST_TEST(std::ranges::count(ids, 99u) == static_cast<std::ptrdiff_t>(ids.size()));
}

BOOST_AUTO_TEST_CASE(how_a_set_is_reached_is_told) {
  millrace_request* r = nullptr;
  MUST(millrace_describe_access(client, "rows", nullptr, &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  BOOST_TEST(millrace_request_count(r) == 1u);
  auto part = sized<millrace_part_access>();
  MUST(millrace_request_part(r, 0, &part));
  BOOST_TEST(std::string{part.node} == "n0");
  BOOST_TEST(std::string{part.by} == "mapped");
  BOOST_TEST((!part.why && part.code == MILLRACE_OK));
  auto* processors = millrace_request_processors(r);
  BOOST_REQUIRE(processors);
  BOOST_TEST(std::string{processors} == ""); // there is nothing to be near to
  REFUSED(millrace_request_part(r, 1, &part), "millrace_request_part", "index");
  REFUSED(millrace_request_part(r, 0, nullptr), "millrace_request_part", "part");
  MUST(millrace_wait(&r, 0));

  BOOST_TEST(millrace_describe_access(client, "none", nullptr, nullptr) == MILLRACE_NOT_FOUND);
  BOOST_TEST(
    millrace_describe_access(client, "rows", "nonsense", nullptr) == MILLRACE_INVALID_ARGUMENT);
  BOOST_TEST(std::string{millrace_error()}.find("nonsense") != std::string::npos);
  REFUSED(
    millrace_describe_access(nullptr, "rows", nullptr, &r), "millrace_describe_access", "client");
  REFUSED(
    millrace_describe_access(client, nullptr, nullptr, &r), "millrace_describe_access", "set");
  REFUSED(
    millrace_verify_samples(nullptr, nullptr, nullptr, &r), "millrace_verify_samples", "reader");
  BOOST_TEST(!r);

  // Other requests have nothing of this.
  MUST(millrace_describe_set(client, "rows", &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  auto damage = sized<millrace_set_damage>();
  REFUSED(millrace_request_damage(r, &damage), "millrace_request_damage", "request");
  REFUSED(millrace_request_damage(r, nullptr), "millrace_request_damage", "damage");
  REFUSED(millrace_request_part(r, 0, &part), "millrace_request_part", "0 parts");
  BOOST_TEST(!millrace_request_processors(r));
  BOOST_TEST(!millrace_request_processors(nullptr));
  MUST(millrace_wait(&r, 0));
}

BOOST_AUTO_TEST_CASE(a_part_that_cannot_be_read_says_why) {
  const millrace::set_access found{
    {{"n0", "tcp", {}}, {"n1", "", {millrace::errc::peer_lost, "n1 is gone"}}}, "processors 0-3"};
  auto f = millrace::bindings::read(found, millrace::bindings::counted::versions);
  BOOST_REQUIRE(f.parts.size() == 2u);
  BOOST_TEST(std::string{f.parts[0].by} == "tcp");
  BOOST_TEST((std::string{f.parts[1].node} == "n1" && !f.parts[1].by));
  BOOST_TEST(std::string{f.parts[1].why} == "n1 is gone");
  BOOST_TEST(f.parts[1].code == MILLRACE_PEER_LOST);
  BOOST_TEST(std::string{f.processors} == "processors 0-3");
}

BOOST_AUTO_TEST_CASE(a_reader_goes_on_after_its_client) {
  auto* other = connect();
  millrace_set_reader* left = nullptr;
  MUST(millrace_open_set(other, "rows", &left));
  millrace_release(other);
  MUST(millrace_unload(client, "rows", nullptr));
  BOOST_TEST(compared{left}.samples == samples);
  elements into(samples * width);
  MUST(millrace_load_field(left, 0, into.data(), into.size() * sizeof(into[0]), nullptr));
  BOOST_TEST((into == all()));
  BOOST_TEST(millrace_describe_access(client, "rows", nullptr, nullptr) == MILLRACE_NOT_FOUND);
  millrace_set_reader_release(left);
}

BOOST_AUTO_TEST_CASE(a_forked_child_has_orders_alone) {
  auto place = in_forked_child([&] {
    elements into(samples * width);
    auto bytes = into.size() * sizeof(into[0]);
    if (millrace_load_field(reader, 0, into.data(), bytes, nullptr) != MILLRACE_UNAVAILABLE)
      return 1;
    if (millrace_verify_samples(reader, nullptr, nullptr, nullptr) != MILLRACE_UNAVAILABLE)
      return 2;
    if (millrace_describe_access(client, "rows", nullptr, nullptr) != MILLRACE_UNAVAILABLE)
      return 3;
    std::uint64_t id = 0, position = 0;
    if (millrace_set_reader_order(reader, nullptr, 3, 1, &id) != MILLRACE_OK)
      return 4;
    if (
      millrace_set_reader_positions(reader, nullptr, &id, 1, &position) != MILLRACE_OK ||
      position != 3)
      return 5;
    return 0;
  });
  BOOST_TEST(place == 0);
}

BOOST_AUTO_TEST_CASE(comparisons_leave_nothing_behind) {
  expect_nothing_left(2, 30, [&] {
    millrace_request *verify = nullptr, *access = nullptr;
    MUST(millrace_verify_samples(reader, nullptr, nullptr, &verify));
    MUST(millrace_describe_access(client, "rows", nullptr, &access));
    millrace_detach(&verify);
    millrace_detach(&access);
  });
}

BOOST_AUTO_TEST_CASE(the_wrapper_in_cpp_does_the_same) {
  auto by = wrapped::client::connect(millrace_node_address(node));
  wrapped::working_set set{by, "rows"};
  auto opened = set.open();
  elements into(samples * width);
  opened.load(0, into.data(), into.size() * sizeof(into[0])).wait();
  BOOST_TEST((into == all()));
  damage(3);
  told told_all;
  auto verify = opened.verify(&told::tell, &told_all);
  verify.wait();
  auto found = wrapped::damage_of(verify);
  BOOST_TEST((found.samples == samples && found.damaged == 1u && found.first_count == 1u));
  BOOST_TEST(found.first[0] == 3u);
  BOOST_TEST(told_all.calls >= 1u);
  auto o = sized<millrace_order_options>();
  o.seed = 5;
  auto ids = opened.order(o, 2, 6);
  BOOST_TEST((opened.positions(o, ids) == numbers{2, 3, 4, 5, 6, 7}));
  BOOST_CHECK_THROW(opened.order(o, 20, 2), wrapped::error);
  auto access = set.access();
  access.wait();
  auto parts = wrapped::parts_of(access);
  BOOST_REQUIRE(parts.size() == 1u);
  BOOST_TEST(std::string{parts[0].by} == "mapped");
  BOOST_TEST(wrapped::processors_of(access).empty());
  BOOST_CHECK_THROW(wrapped::damage_of(access), wrapped::error);
  BOOST_CHECK_THROW(set.access("nonsense").wait(), wrapped::error);
}

BOOST_AUTO_TEST_SUITE_END()

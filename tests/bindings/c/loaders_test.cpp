// Tests working sets and loaders of the C ABI, and their C++17 wrapper.
#include "c_node.hpp"

#include <millrace/tests/support/forked_child.hpp>
#include <millrace/tests/support/npy_file.hpp>

#include <millrace.hpp>

#include <algorithm>
#include <cstring>
#include <set>
#include <span>

using namespace millrace::testing;
namespace wrapped = millrace::abi;

namespace {

constexpr std::size_t width = 4;
constexpr std::size_t samples = 21;

using ids = std::vector<std::uint64_t>;

struct loading : c_node {
  std::string path;
  millrace_set_reader* reader = nullptr;

  loading() : c_node("data: { capacity: 8MiB, region_size: 1MiB }\n") {
    path = file("rows.npy", samples);
    const char* files[] = {path.c_str()};
    MUST(millrace_preload(client, "rows", files, 1, nullptr, nullptr));
    MUST(millrace_open_set(client, "rows", &reader));
  }
  ~loading() { millrace_set_reader_release(reader); }

  // Sample i has the elements i * width and those behind it.
  std::string file(const char* name, std::size_t count) const {
    std::vector<std::uint32_t> elements(count * width);
    for (std::uint32_t i = 0; i < elements.size(); ++i)
      elements[i] = i;
    return millrace::testing::write_npy(
      dir / name, {"x", millrace::dtype::u32, {count, width}}, std::as_bytes(std::span{elements}));
  }

  millrace_loader* load(millrace_loader_options o = sized<millrace_loader_options>()) const {
    if (o.batch_size == 0)
      o.batch_size = 4;
    millrace_loader* out = nullptr;
    MUST(millrace_loader_create(reader, &o, &out));
    return out;
  }
};

millrace_batch_info info_of(const millrace_batch* batch) {
  auto info = sized<millrace_batch_info>();
  MUST(millrace_batch_describe(batch, &info));
  return info;
}

ids ids_of(const millrace_batch* batch) {
  auto info = info_of(batch);
  return {info.ids, info.ids + info.ids_count};
}

bool has_its_samples(const millrace_batch* batch) {
  millrace_tensor t{};
  MUST(millrace_batch_field(batch, 0, &t));
  auto info = info_of(batch);
  BOOST_TEST(std::string{t.name} == "x");
  BOOST_TEST((t.rank == 2 && t.shape[0] == info.rows && t.shape[1] == width));
  auto* elements = static_cast<const std::uint32_t*>(t.data);
  for (std::size_t row = 0; row < info.ids_count; ++row)
    for (std::size_t i = 0; i < width; ++i)
      if (elements[row * width + i] != info.ids[row] * width + i)
        return false;
  return true;
}

// Reads an epoch to its end.
ids epoch_of(millrace_loader* loader) {
  ids seen;
  for (;;) {
    millrace_batch* batch = nullptr;
    MUST(millrace_next(loader, &batch));
    if (!batch)
      return seen;
    BOOST_TEST(has_its_samples(batch));
    auto more = ids_of(batch);
    seen.insert(seen.end(), more.begin(), more.end());
    millrace_batch_release(batch);
  }
}

std::string state_of(const millrace_loader* loader) {
  char text[MILLRACE_LOADER_STATE_BYTES];
  MUST(millrace_loader_state(loader, text, sizeof(text)));
  return text;
}

struct told {
  std::uint64_t calls = 0, done = 0, total = 0;
  std::int32_t answer = 1;

  static std::int32_t tell(void* context, std::uint64_t done, std::uint64_t total) {
    auto& self = *static_cast<told*>(context);
    ++self.calls;
    self.done = done;
    self.total = total;
    return self.answer;
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(loaders, loading)

BOOST_AUTO_TEST_CASE(a_set_may_go_with_its_last_user) {
  const char* files[] = {path.c_str()};
  auto options = sized<millrace_preload_options>();
  options.while_used = 1;
  millrace_request* r = nullptr;
  MUST(millrace_preload(client, "passing", files, 1, &options, &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  auto set = sized<millrace_set>();
  MUST(millrace_request_set(r, 0, &set));
  BOOST_TEST((set.existed == 0 && set.while_used == 1));
  MUST(millrace_wait(&r, 0));
  MUST(millrace_preload(client, "passing", files, 1, nullptr, &r)); // to stay
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  MUST(millrace_request_set(r, 0, &set));
  BOOST_TEST((set.existed == 1 && set.while_used == 0));
  MUST(millrace_wait(&r, 0));
}

BOOST_AUTO_TEST_CASE(a_set_is_preloaded_described_listed_and_unloaded) {
  const char* files[] = {path.c_str()};
  millrace_request* r = nullptr;
  MUST(millrace_preload(client, "rows", files, 1, nullptr, &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  auto set = sized<millrace_set>();
  MUST(millrace_request_set(r, 0, &set));
  BOOST_TEST(std::string{set.name} == "rows");
  BOOST_TEST(set.samples == samples);
  BOOST_TEST(set.size_bytes == samples * width * sizeof(std::uint32_t));
  BOOST_TEST((set.existed == 1 && set.fields == 1u && set.preloaded_at_ns > 0u));
  MUST(millrace_wait(&r, 0));

  MUST(millrace_describe_set(client, "rows", &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  BOOST_TEST(millrace_request_count(r) == 1u);
  millrace_tensor field{};
  MUST(millrace_request_tensor(r, 0, &field));
  BOOST_TEST((field.dtype == MILLRACE_U32 && field.rank == 1 && field.shape[0] == width));
  MUST(millrace_wait(&r, 0));

  MUST(millrace_list_sets(client, "ro", &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  MUST(millrace_request_set(r, 0, &set));
  BOOST_TEST(std::string{set.provider} == "n0");
  BOOST_TEST(millrace_request_set(r, 1, &set) == MILLRACE_INVALID_ARGUMENT);
  MUST(millrace_wait(&r, 0));

  MUST(millrace_unload(client, "rows", nullptr));
  BOOST_TEST(millrace_describe_set(client, "rows", nullptr) == MILLRACE_NOT_FOUND);
  auto* loader = load();
  BOOST_TEST(epoch_of(loader).size() == samples); // the reader has it open
  millrace_loader_release(loader);
}

BOOST_AUTO_TEST_CASE(a_preload_tells_its_progress_and_is_ended_by_it) {
  auto large = file("large.npy", 40'000);
  const char* files[] = {large.c_str()};
  told all;
  auto o = sized<millrace_preload_options>();
  o.progress = &told::tell;
  o.context = &all;
  all.answer = 0;
  BOOST_TEST(millrace_preload(client, "large", files, 1, &o, nullptr) == MILLRACE_CANCELLED);
  BOOST_TEST(millrace_describe_set(client, "large", nullptr) == MILLRACE_NOT_FOUND);
  all.answer = 1;
  MUST(millrace_preload(client, "large", files, 1, &o, nullptr));
  BOOST_TEST(all.calls >= 2u);
  BOOST_TEST(all.done == 40'000 * width * sizeof(std::uint32_t));
  BOOST_TEST(all.total == all.done);
}

BOOST_AUTO_TEST_CASE(a_reader_copies_the_samples_that_are_asked_for) {
  auto set = sized<millrace_set>();
  MUST(millrace_set_reader_describe(reader, &set));
  BOOST_TEST(set.samples == samples);
  millrace_tensor field{};
  MUST(millrace_set_reader_field(reader, 0, &field));
  BOOST_TEST(std::string{field.name} == "x");
  const std::uint64_t wanted[] = {20, 3};
  std::uint32_t into[2 * width] = {};
  MUST(millrace_read_batch(reader, 0, wanted, 2, into, sizeof(into), nullptr));
  for (std::uint32_t i = 0; i < width; ++i)
    BOOST_TEST((into[i] == 20 * width + i && into[width + i] == 3 * width + i));
  const std::uint64_t behind[] = {20, samples};
  auto code = millrace_read_batch(reader, 0, behind, 2, into, sizeof(into), nullptr);
  BOOST_TEST(code == MILLRACE_INVALID_ARGUMENT);
}

BOOST_AUTO_TEST_CASE(an_epoch_has_every_sample_once_and_ends_with_null) {
  auto* loader = load();
  auto first = epoch_of(loader), second = epoch_of(loader);
  BOOST_TEST(first.size() == samples);
  BOOST_TEST(std::set(first.begin(), first.end()).size() == samples);
  BOOST_TEST(first != second);
  MUST(millrace_loader_set_epoch(loader, 0));
  BOOST_TEST(epoch_of(loader) == first);
  auto info = sized<millrace_loader_info>();
  MUST(millrace_loader_describe(loader, &info));
  BOOST_TEST((info.batches_per_epoch == 6u && info.batches_left == 6u && info.epoch == 1u));
  BOOST_TEST((info.samples == 3 * samples && info.position == 0u && info.held == 0u));
  BOOST_TEST((info.remote_limit_bytes > 0u && info.remote_stages == 0u)); // on the same host
  millrace_loader_release(loader);
}

BOOST_AUTO_TEST_CASE(ranks_share_the_batches_and_padding_is_marked) {
  auto o = sized<millrace_loader_options>();
  o.remainder = "pad";
  o.shuffle = "none";
  o.world_size = 2;
  ids seen;
  for (o.rank = 0; o.rank < 2; ++o.rank) {
    auto* loader = load(o);
    for (millrace_batch* b = nullptr;;) {
      MUST(millrace_next(loader, &b));
      if (!b)
        break;
      auto info = info_of(b);
      BOOST_TEST(info.rows == 4u);
      BOOST_TEST(
        std::count(info.mask, info.mask + info.rows, 1) ==
        static_cast<std::ptrdiff_t>(info.ids_count));
      auto more = ids_of(b);
      seen.insert(seen.end(), more.begin(), more.end());
      millrace_batch_release(b);
    }
    millrace_loader_release(loader);
  }
  std::sort(seen.begin(), seen.end());
  BOOST_TEST((seen.size() == samples && seen.front() == 0u && seen.back() == samples - 1));
}

BOOST_AUTO_TEST_CASE(a_training_goes_on_at_its_state) {
  auto* loader = load();
  auto whole = epoch_of(loader);
  MUST(millrace_loader_set_epoch(loader, 0));
  millrace_batch* b = nullptr;
  MUST(millrace_next(loader, &b));
  auto seen = ids_of(b);
  millrace_batch_release(b);
  auto state = state_of(loader);
  char small[4];
  REFUSED(millrace_loader_state(loader, small, 4), "millrace_loader_state", "text_bytes");
  millrace_loader_release(loader);
  auto o = sized<millrace_loader_options>();
  o.batch_size = 3;
  o.seed = 99; // that of the state counts
  loader = load(o);
  MUST(millrace_loader_seek(loader, state.c_str()));
  BOOST_TEST(state_of(loader) == state);
  auto rest = epoch_of(loader);
  seen.insert(seen.end(), rest.begin(), rest.end());
  BOOST_TEST(seen == whole);
  BOOST_TEST(millrace_loader_seek(loader, "{}") == MILLRACE_INVALID_ARGUMENT);
  millrace_loader_release(loader);
}

BOOST_AUTO_TEST_CASE(a_held_batch_stays_and_the_ring_can_be_full) {
  auto o = sized<millrace_loader_options>();
  o.prefetch = 1;
  auto* loader = load(o);
  std::vector<millrace_batch*> held(3);
  for (auto& b : held)
    MUST(millrace_next(loader, &b));
  millrace_batch* more = nullptr;
  BOOST_TEST(millrace_next(loader, &more) == MILLRACE_NO_SPACE);
  BOOST_TEST(!more);
  millrace_batch_release(held.back());
  held.pop_back();
  MUST(millrace_next(loader, &more));
  millrace_loader_release(loader);
  held.push_back(more);
  for (auto* b : held) {
    BOOST_TEST(has_its_samples(b));
    const std::uint64_t* offsets = nullptr;
    std::size_t count = 9;
    MUST(millrace_batch_offsets(b, 0, &offsets, &count));
    BOOST_TEST((!offsets && count == 0u));
    millrace_batch_release(b);
  }
}

BOOST_AUTO_TEST_CASE(a_batch_is_taken_of_its_request_once) {
  auto* loader = load();
  auto whole = epoch_of(loader);
  MUST(millrace_loader_set_epoch(loader, 0));
  ids seen;
  for (;;) {
    millrace_request* r = nullptr;
    millrace_batch *b = nullptr, *again = nullptr;
    MUST(millrace_next_begin(loader, &r));
    MUST(millrace_request_wait(r, MILLRACE_FOREVER));
    MUST(millrace_request_batch(r, &b));
    BOOST_TEST(millrace_request_batch(r, &again) == MILLRACE_NOT_FOUND);
    millrace_client* c = nullptr;
    BOOST_TEST(millrace_request_client(r, &c) == MILLRACE_INVALID_ARGUMENT);
    MUST(millrace_wait(&r, 0));
    if (!b)
      break;
    auto more = ids_of(b);
    seen.insert(seen.end(), more.begin(), more.end());
    millrace_batch_release(b);
  }
  BOOST_TEST(seen == whole);
  millrace_loader_release(loader);
}

BOOST_AUTO_TEST_CASE(what_is_not_taken_leaves_nothing_behind) {
  expect_nothing_left(2, 30, [&] {
    auto* loader = load();
    for (int i = 0; i < 3; ++i) {
      millrace_request* r = nullptr;
      MUST(millrace_next_begin(loader, &r));
      if (i == 1)
        MUST(millrace_cancel(r));
      millrace_detach(&r);
    }
    millrace_loader_release(loader);
  });
}

BOOST_AUTO_TEST_CASE(wrong_arguments_are_named) {
  millrace_request* r = nullptr;
  const char* files[] = {path.c_str(), nullptr};
  REFUSED(millrace_preload(nullptr, "s", files, 1, nullptr, &r), "millrace_preload", "client");
  REFUSED(millrace_preload(client, nullptr, files, 1, nullptr, &r), "millrace_preload", "set");
  REFUSED(millrace_preload(client, "s", nullptr, 1, nullptr, &r), "millrace_preload", "files");
  REFUSED(millrace_preload(client, "s", files, 2, nullptr, &r), "millrace_preload", "files[1]");
  REFUSED(
    millrace_preload(client, "s", files, SIZE_MAX, nullptr, &r), "millrace_preload",
    "files has 18446744073709551615 texts; at most 1048576");
  REFUSED(millrace_describe_set(client, nullptr, &r), "millrace_describe_set", "set");
  REFUSED(millrace_list_sets(nullptr, nullptr, &r), "millrace_list_sets", "client");
  REFUSED(millrace_unload(nullptr, "s", &r), "millrace_unload", "client");
  millrace_set_reader* opened = nullptr;
  REFUSED(millrace_open_set(client, nullptr, &opened), "millrace_open_set", "set");
  REFUSED(millrace_open_set(client, "s", nullptr), "millrace_open_set", "reader");
  REFUSED(millrace_open_set_begin(client, "s", nullptr), "millrace_open_set_begin", "request");
  millrace_tensor t{};
  REFUSED(millrace_set_reader_field(reader, 1, &t), "millrace_set_reader_field", "field");
  REFUSED(
    millrace_read_batch(nullptr, 0, nullptr, 0, nullptr, 0, &r), "millrace_read_batch", "reader");
  REFUSED(millrace_read_batch(reader, 0, nullptr, 1, nullptr, 4, &r), "millrace_read_batch", "ids");
  BOOST_TEST(!r);
}

BOOST_AUTO_TEST_CASE(options_of_loaders_are_checked) {
  millrace_loader* loader = nullptr;
  auto refuse = [&](const char* named, auto change) {
    auto o = sized<millrace_loader_options>();
    change(o);
    BOOST_TEST(millrace_loader_create(reader, &o, &loader) == MILLRACE_INVALID_ARGUMENT, named);
    BOOST_TEST(std::string{millrace_error()}.find(named) != std::string::npos, millrace_error());
    BOOST_TEST(!loader);
  };
  static const char* const none[] = {"y"};
  refuse("struct_size", [](auto& o) { o.struct_size = 1; });
  refuse("shuffle", [](auto& o) { o.shuffle = "sometimes"; });
  refuse("remainder", [](auto& o) { o.remainder = "some"; });
  refuse("rank", [](auto& o) { o.rank = 1; });
  refuse("prefetch", [](auto& o) { o.prefetch = 65; });
  refuse("reserved", [](auto& o) { o.reserved = 1; });
  refuse("fields", [](auto& o) { o.fields_count = 1; });
  refuse("field y", [](auto& o) {
    o.fields = none;
    o.fields_count = 1;
  });
  REFUSED(millrace_loader_create(nullptr, nullptr, &loader), "millrace_loader_create", "reader");
  MUST(millrace_loader_create(reader, nullptr, &loader));
  BOOST_TEST(epoch_of(loader).size() == samples);
  millrace_batch* b = nullptr;
  REFUSED(millrace_next(nullptr, &b), "millrace_next", "loader");
  REFUSED(millrace_next(loader, nullptr), "millrace_next", "batch");
  REFUSED(millrace_loader_seek(loader, nullptr), "millrace_loader_seek", "state");
  millrace_loader_release(loader);
}

BOOST_AUTO_TEST_CASE(a_forked_child_is_refused) {
  auto* loader = load();
  millrace_batch* b = nullptr;
  MUST(millrace_next(loader, &b));
  auto place = in_forked_child([&] {
    int step = 0;
    auto refused = [&](millrace_code code) {
      ++step;
      return code == MILLRACE_UNAVAILABLE;
    };
    millrace_batch* more = nullptr;
    millrace_request* r = nullptr;
    millrace_loader* another = nullptr;
    std::uint64_t id = 0;
    std::uint32_t into[width];
    auto info = sized<millrace_loader_info>();
    if (
      !refused(millrace_next(loader, &more)) || !refused(millrace_next_begin(loader, &r)) ||
      !refused(millrace_loader_set_epoch(loader, 0)) ||
      !refused(millrace_loader_describe(loader, &info)) ||
      !refused(millrace_loader_create(reader, nullptr, &another)) ||
      !refused(millrace_read_batch(reader, 0, &id, 1, into, sizeof(into), nullptr)) ||
      !refused(millrace_unload(client, "rows", nullptr)))
      return step;
    millrace_batch_release(b);
    millrace_loader_release(loader);
    millrace_set_reader_release(reader);
    return 0;
  });
  BOOST_TEST(place == 0);
  BOOST_TEST(has_its_samples(b));
  millrace_batch_release(b);
  BOOST_TEST(epoch_of(loader).size() == samples - 4);
  millrace_loader_release(loader);
}

BOOST_AUTO_TEST_CASE(the_wrapper_in_cpp_does_the_same) {
  auto by = wrapped::client::connect(millrace_node_address(node));
  wrapped::working_set set{by, "wrapped"};
  set.preload({path}).wait();
  auto described = set.describe();
  described.wait();
  BOOST_TEST(described.sets().front().samples == samples);
  auto listed = wrapped::list_sets(by);
  listed.wait();
  BOOST_TEST(listed.sets().size() == 2u);
  auto reader = set.begin_open().object();
  BOOST_TEST(reader.info().samples == samples);
  BOOST_TEST(reader.field(0).shape[0] == width);
  std::vector<std::uint32_t> into(width);
  reader.read_batch(0, {5}, into.data(), width * sizeof(std::uint32_t)).wait();
  BOOST_TEST(into.front() == 5 * width);
  auto o = sized<millrace_loader_options>();
  o.batch_size = 8;
  auto loader = reader.load_batches(o);
  auto start = loader.state();
  ids seen;
  for (auto b = loader.next(); b; b = loader.begin_next().object()) {
    BOOST_TEST(b.field(0).shape[0] == b.ids().size());
    BOOST_TEST(b.offsets(0).empty());
    for (auto id : b.ids())
      seen.push_back(id);
  }
  BOOST_TEST(std::set(seen.begin(), seen.end()).size() == samples);
  loader.seek(start);
  BOOST_TEST(loader.next().ids().front() == seen.front());
  loader.set_epoch(7);
  BOOST_TEST(loader.info().epoch == 7u);
  set.unload().wait();
  BOOST_CHECK_THROW(set.open(), wrapped::error);
}

BOOST_AUTO_TEST_CASE(a_device_that_is_not_there_is_told) {
  auto o = sized<millrace_loader_options>();
  o.device = "nonsense";
  millrace_loader* made = nullptr;
  BOOST_TEST(millrace_loader_create(reader, &o, &made) == MILLRACE_INVALID_ARGUMENT);
  BOOST_TEST(std::string{millrace_error()}.find("cuda:0") != std::string::npos);
  o.device = "abacus:0";
  BOOST_TEST(millrace_loader_create(reader, &o, &made) == MILLRACE_UNSUPPORTED);
  BOOST_TEST(made == nullptr);

  // Programs of the version before the option have no room for it.
  o = sized<millrace_loader_options>();
  o.struct_size = offsetof(millrace_loader_options, device);
  o.batch_size = 4;
  o.device = "nonsense";
  auto* loader = load(o);
  millrace_batch* batch = nullptr;
  MUST(millrace_next(loader, &batch));
  BOOST_TEST(millrace_batch_follow(batch, nullptr) == MILLRACE_INVALID_ARGUMENT);
  millrace_batch_release(batch);
  char text[8] = "before";
  BOOST_TEST(millrace_loader_processors(loader, text, 0) == MILLRACE_INVALID_ARGUMENT);
  MUST(millrace_loader_processors(loader, text, sizeof(text)));
  BOOST_TEST(std::string{text} == ""); // a set on this host, and no device
  millrace_loader_release(loader);
}

BOOST_AUTO_TEST_SUITE_END()

// Tests which pools are refused (foreign, newer, truncated, damaged, open elsewhere), and that a
// refusal changes nothing.
#include <millrace/storage/pmem/medium/format.hpp>
#include <millrace/storage/pmem/medium/heap_check.hpp>
#include <millrace/storage/pmem/pool.hpp>
#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/checkpoint_driving.hpp>
#include <millrace/tests/support/file_contents.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/kept_log.hpp>
#include <millrace/tests/support/pool_place.hpp>

#include <boost/test/unit_test.hpp>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

using namespace millrace;
using namespace millrace::storage;
using namespace millrace::testing;
using namespace millrace::storage::pmem;

namespace {

constexpr std::uint64_t mib = 1u << 20;
constexpr std::uint64_t pool_bytes = 24 * mib;

/// A closed pool with one shard that has two versions.
struct fixture {
  fixture() {
    auto subject = open_or_fail();
    auto store = subject->checkpoints();
    BOOST_REQUIRE(enroll(*store, shard));
    BOOST_REQUIRE(save(*store, shard, 1));
    BOOST_REQUIRE(save(*store, shard, 2));
    BOOST_REQUIRE(store->close(10'000).ok());
  }

  pool_options options() const {
    auto chosen = place.options(pool_bytes);
    chosen.populate = false;
    return chosen;
  }
  std::shared_ptr<pool> open_or_fail() const {
    auto subject = open_pool(options());
    BOOST_REQUIRE_MESSAGE(subject, why(subject));
    return *subject;
  }
  status refusal() const {
    auto subject = open_pool(options());
    return subject ? status{} : subject.error();
  }
  bool is_whole() const {
    auto subject = open_pool(options());
    if (!subject)
      return false;
    auto store = (*subject)->checkpoints();
    return check_version(*store, shard, 1).ok() && check_version(*store, shard, 2).ok();
  }

  void overwrite(std::uint64_t offset, const void* data, std::size_t size_bytes) const {
    std::fstream file{place.path(), std::ios::binary | std::ios::in | std::ios::out};
    file.seekp(static_cast<std::streamoff>(offset));
    file.write(static_cast<const char*>(data), static_cast<std::streamsize>(size_bytes));
  }
  void flip(std::uint64_t offset, unsigned bit) const {
    std::fstream file{place.path(), std::ios::binary | std::ios::in | std::ios::out};
    file.seekg(static_cast<std::streamoff>(offset));
    auto byte = static_cast<char>(file.get() ^ static_cast<char>(1u << bit));
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(byte);
  }
  /// Where structures with this magic lie.
  std::vector<std::uint64_t> find(std::uint64_t magic) const {
    auto bytes = contents_of(place.path());
    std::vector<std::uint64_t> found;
    for (std::size_t at = 0; at + 8 <= bytes.size(); at += 8)
      if (std::memcmp(bytes.data() + at, &magic, 8) == 0)
        found.push_back(at);
    return found;
  }
  /// Flips one bit of every word of a structure: each time the pool must be refused, or it must
  /// show in the report.
  void check_every_word(std::uint64_t at, std::uint64_t size_bytes) const {
    for (std::uint64_t offset = 0; offset + 8 <= size_bytes; offset += 8) {
      auto byte = at + offset + offset / 8 % 8;
      auto bit = static_cast<unsigned>(offset / 8 % 7);
      flip(byte, bit);
      auto refused = refusal();
      BOOST_TEST(!refused.ok(), "a flipped bit at " << offset << " of " << size_bytes);
      auto known =
        refused.code() == errc::corrupt_data || refused.code() == errc::unsupported_version;
      BOOST_TEST(known, refused.to_string());
      flip(byte, bit);
    }
    BOOST_TEST(is_whole());
  }

  pool_place place{in_place_way()};
  shard_spec shard = shard_of("a model", {mib, 300});
};

bool mentions(const status& why, const std::string& words) {
  return why.detail().find(words) != std::string::npos;
}

} // namespace

BOOST_AUTO_TEST_SUITE(pmem_pools)

BOOST_AUTO_TEST_CASE(a_pool_that_is_not_there_is_named_with_the_command_that_makes_it) {
  pool_place place{in_place_way()};
  auto options = place.options();
  options.create_if_missing = false;
  auto refused = open_pool(options);
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::not_found));
  BOOST_TEST(mentions(refused.error(), "millrace pool create"));
  BOOST_TEST((inspect_pool(place.path()).error().code() == errc::not_found));
}

BOOST_AUTO_TEST_CASE(a_copy_of_an_open_pool_is_refused) {
  pool_place place{in_place_way()};
  if (place.is_device())
    return;
  auto options = place.options();
  auto copy = options;
  copy.path += "-copy";
  {
    auto made = open_pool(options);
    BOOST_REQUIRE_MESSAGE(made, why(made));
  }
  std::filesystem::copy_file(options.path, copy.path);
  auto original = open_pool(options);
  BOOST_REQUIRE_MESSAGE(original, why(original));
  auto refused = open_pool(copy);
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::already_exists));
  BOOST_TEST(mentions(refused.error(), "it is a copy of a pool"));
  original->reset();
  BOOST_TEST(open_pool(copy).has_value());
  std::filesystem::remove(copy.path);
}

BOOST_AUTO_TEST_CASE(making_a_pool_never_touches_what_is_there) {
  fixture f;
  auto before = contents_of(f.place.path());
  auto refused = create_pool(f.options());
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::already_exists));
  BOOST_TEST((contents_of(f.place.path()) == before));
}

BOOST_AUTO_TEST_CASE(a_pool_is_made_only_on_the_medium_that_is_named) {
  pool_place place{pool_way::mapped_file};
  auto options = place.options();
  for (auto wrong : {pool_medium::memory, pool_medium::dax}) {
    options.medium = wrong;
    auto refused = create_pool(options);
    BOOST_REQUIRE(!refused);
    BOOST_TEST((refused.error().code() == errc::invalid_argument));
    BOOST_TEST(mentions(refused.error(), std::string{to_string(wrong)}));
    BOOST_TEST(std::filesystem::is_empty(std::filesystem::path{place.path()}.parent_path()));
  }
  options.medium = pool_medium::file;
  auto made = create_pool(options);
  BOOST_REQUIRE_MESSAGE(made, why(made));
  BOOST_TEST((made->medium == pool_medium::file));
}

BOOST_AUTO_TEST_CASE(what_a_killed_creation_left_goes_with_the_next_one) {
  pool_place place{pool_way::mapped_file};
  auto child = ::fork();
  if (child == 0)
    ::_exit(0);
  BOOST_REQUIRE(child > 0);
  BOOST_REQUIRE(::waitpid(child, nullptr, 0) == child);
  auto dead = place.path() + ".creating-" + std::to_string(child);
  auto alive = place.path() + ".creating-" + std::to_string(::getppid());
  auto other = place.path() + ".creating-by-hand";
  for (auto& path : {dead, alive, other})
    std::ofstream{path} << "half a pool";
  auto made = create_pool(place.options());
  BOOST_REQUIRE_MESSAGE(made, why(made));
  BOOST_TEST(!std::filesystem::exists(dead));
  BOOST_TEST(std::filesystem::exists(alive));
  BOOST_TEST(std::filesystem::exists(other));
}

BOOST_AUTO_TEST_CASE(a_pool_keeps_its_size_and_says_when_another_is_configured) {
  fixture f;
  for (auto size : {pool_bytes, 2 * pool_bytes}) {
    kept_log log;
    auto options = f.options();
    options.capacity_bytes = size;
    auto opened = open_pool(options);
    BOOST_REQUIRE_MESSAGE(opened, why(opened));
    BOOST_TEST((*opened)->info().size_bytes == pool_bytes);
    BOOST_TEST(log.count("configured_bytes") == (size == pool_bytes ? 0u : 1u));
  }
}

BOOST_AUTO_TEST_CASE(a_pool_tells_what_it_is) {
  fixture f;
  auto info = inspect_pool(f.place.path());
  BOOST_REQUIRE_MESSAGE(info, why(info));
  if (!persistent_memory().empty())
    BOOST_TEST((info->medium == pool_medium::dax));
  else
    BOOST_TEST((info->medium == pool_medium::memory || info->medium == pool_medium::file));
  BOOST_TEST(info->size_bytes == pool_bytes);
  BOOST_TEST(info->models == 1u);
  BOOST_TEST(info->shards == 1u);
  BOOST_TEST(info->versions == 2u);
  BOOST_TEST(info->uuid.size() == 36u);
  auto opened = f.open_or_fail();
  BOOST_TEST(opened->info().uuid == info->uuid);
  auto mapped = opened->mappings();
  BOOST_REQUIRE(mapped.size() == 1u);
  BOOST_TEST(mapped[0].size_bytes == pool_bytes);
  BOOST_TEST(mapped[0].file_offset == 0u);
}

BOOST_AUTO_TEST_CASE(windows_lie_in_the_mapping_that_is_offered) {
  fixture f;
  auto opened = f.open_or_fail();
  auto store = opened->checkpoints();
  auto version = open_version(*store, "a model", 0);
  BOOST_REQUIRE(version);
  auto lent = fetch(**version, {{0, 0, mib}});
  BOOST_REQUIRE(lent);
  auto mapped = opened->mappings()[0];
  BOOST_REQUIRE(lent->pieces.size() == 1u);
  auto& p = lent->pieces[0];
  BOOST_REQUIRE((p.data >= mapped.data && p.data + p.length <= mapped.data + mapped.size_bytes));
  std::vector<char> read(p.length);
  BOOST_REQUIRE(::pread(mapped.fd, read.data(), read.size(), p.data - mapped.data) == mib);
  BOOST_TEST(std::memcmp(read.data(), p.data, read.size()) == 0);
}

BOOST_AUTO_TEST_CASE(what_is_no_pool_is_refused_and_left_alone) {
  pool_place place{in_place_way()};
  for (auto& text : {std::string{}, std::string{"hello"}, std::string(20 * mib, 'x')}) {
    std::ofstream{place.path(), std::ios::binary | std::ios::trunc} << text;
    auto refused = open_pool(place.options());
    BOOST_REQUIRE(!refused);
    BOOST_TEST((refused.error().code() == errc::invalid_argument));
    auto left = contents_of(place.path());
    BOOST_TEST((std::string{left.begin(), left.end()} == text));
    // It may be any file of the system, so the error does not say to remove it.
    for (auto& why : {refused.error(), inspect_pool(place.path()).error()})
      for (auto* word : {"remove", "delete", "rm "})
        BOOST_TEST(!mentions(why, word), why.to_string());
  }
  auto options = place.options();
  options.path = ".";
  BOOST_TEST((!open_pool(options)));
}

BOOST_AUTO_TEST_CASE(a_pool_of_another_program_is_refused) {
  fixture f;
  f.overwrite(4096, "another-layout", 15);
  auto before = contents_of(f.place.path());
  BOOST_TEST((f.refusal().code() == errc::invalid_argument));
  BOOST_TEST((contents_of(f.place.path()) == before));
}

BOOST_AUTO_TEST_CASE(a_newer_format_is_refused_as_such) {
  fixture f;
  auto at = f.find(pool_root::magic_value);
  BOOST_REQUIRE(at.size() == 1u);
  pool_root root;
  auto bytes = contents_of(f.place.path());
  std::memcpy(static_cast<void*>(&root), bytes.data() + at[0], sizeof root);
  ++root.format_version;
  root.checksum = checksum_of(root);
  f.overwrite(at[0], &root, sizeof root);
  auto refused = f.refusal();
  BOOST_TEST((refused.code() == errc::unsupported_version));
  BOOST_TEST(mentions(refused, "version " + std::to_string(root.format_version)));
  root.format_version = pool_format_version;
  root.features = 4;
  root.checksum = checksum_of(root);
  f.overwrite(at[0], &root, sizeof root);
  BOOST_TEST((f.refusal().code() == errc::unsupported_version));
}

BOOST_AUTO_TEST_CASE(a_truncated_pool_is_refused) {
  for (auto left : {pool_bytes - 4096, pool_bytes / 2}) {
    fixture f;
    std::filesystem::resize_file(f.place.path(), left);
    auto before = contents_of(f.place.path());
    auto refused = f.refusal();
    BOOST_TEST((refused.code() == errc::corrupt_data));
    BOOST_TEST(mentions(refused, "truncated"));
    BOOST_TEST(mentions(refused, "millrace pool salvage"));
    BOOST_TEST((contents_of(f.place.path()) == before));
  }
}

BOOST_AUTO_TEST_CASE(a_flipped_bit_in_any_word_of_the_root_is_refused) {
  fixture f;
  auto at = f.find(pool_root::magic_value);
  BOOST_REQUIRE(at.size() == 1u);
  f.check_every_word(at[0], sizeof(pool_root));
}

BOOST_AUTO_TEST_CASE(a_flipped_bit_in_any_word_of_the_table_is_refused) {
  fixture f;
  auto at = f.find(table_header::magic_value);
  BOOST_REQUIRE(at.size() == 1u);
  f.check_every_word(at[0], sizeof(table_header) + 16);
}

BOOST_AUTO_TEST_CASE(a_flipped_bit_in_any_word_of_an_index_is_refused) {
  fixture f;
  auto at = f.find(index_header::magic_value);
  BOOST_REQUIRE(at.size() == 1u);
  f.check_every_word(at[0], sizeof(index_header) + 32);
}

BOOST_AUTO_TEST_CASE(a_flipped_bit_in_any_word_of_a_slot_or_a_version_is_refused) {
  fixture f;
  auto slots = f.find(slot_header::magic_value);
  BOOST_REQUIRE(slots.size() == 2u);
  for (auto at : slots)
    f.check_every_word(at, sizeof(slot_header) + sizeof(data_extent));
  auto versions = f.find(version_header::magic_value);
  BOOST_REQUIRE(versions.size() == 2u);
  for (auto at : versions)
    f.check_every_word(at, sizeof(version_header) + 5 * sizeof(std::uint64_t));
}

BOOST_AUTO_TEST_CASE(a_flipped_bit_in_any_word_of_a_models_index_or_slot_is_refused) {
  fixture f;
  {
    auto subject = f.open_or_fail();
    BOOST_REQUIRE(store(*subject->models(), spec_of("net", {mib, 300}), 1));
  }
  for (auto at : f.find(index_header::magic_value))
    f.check_every_word(at, sizeof(index_header) + 32);
  for (auto at : f.find(slot_header::magic_value))
    f.check_every_word(at, sizeof(slot_header) + sizeof(data_extent));
  for (auto at : f.find(version_header::magic_value))
    f.check_every_word(at, sizeof(version_header) + 5 * sizeof(std::uint64_t));
}

// libpmemobj writes the last header of a free piece after the change that frees it, and joins
// neighbours by it. A kill may come in between.
BOOST_AUTO_TEST_CASE(an_old_end_of_a_free_piece_is_set_when_the_pool_opens) {
  fixture f;
  struct chunk {
    std::uint16_t type, flags;
    std::uint32_t chunks;
  };
  constexpr std::uint64_t zone = heap_at + 1024, free = 2;
  auto free_ends = [&] {
    auto bytes = contents_of(f.place.path());
    auto header = [&](std::uint64_t i) {
      chunk c;
      std::memcpy(&c, bytes.data() + zone + 64 + i * sizeof c, sizeof c);
      return c;
    };
    std::uint32_t chunks = 0;
    std::memcpy(&chunks, bytes.data() + zone + 4, sizeof chunks);
    // The length of each, and what its end says, by the place of the end.
    std::map<std::uint64_t, std::pair<std::uint32_t, std::uint32_t>> ends;
    for (std::uint64_t i = 0; i < chunks; i += header(i).chunks)
      if (auto c = header(i); c.type == free && c.chunks > 1) {
        auto last = i + c.chunks - 1;
        ends[zone + 64 + last * sizeof c] = {c.chunks, header(last).chunks};
      }
    return ends;
  };
  auto before = free_ends();
  BOOST_TEST_REQUIRE(!before.empty());
  for (auto& [at, lengths] : before) {
    BOOST_TEST(lengths.first == lengths.second);
    std::uint32_t old = lengths.first + 1;
    f.overwrite(at + 4, &old, sizeof old);
  }
  // Commands that only look leave them as they are.
  auto old = contents_of(f.place.path());
  BOOST_TEST(inspect_pool(f.place.path()).has_value());
  BOOST_TEST(check_pool(f.place.path(), true).has_value());
  BOOST_TEST((contents_of(f.place.path()) == old));
  BOOST_TEST(f.is_whole());
  auto after = free_ends();
  BOOST_TEST(!after.empty());
  for (auto& [at, lengths] : after)
    BOOST_TEST(lengths.first == lengths.second);
}

BOOST_AUTO_TEST_CASE(checking_finds_changed_bytes_and_changes_nothing) {
  fixture f;
  auto before = contents_of(f.place.path());
  auto good = check_pool(f.place.path(), true);
  BOOST_REQUIRE_MESSAGE(good, why(good));
  BOOST_TEST(good->problems.empty());
  BOOST_TEST(good->versions == 2u);
  BOOST_TEST(good->unreachable_bytes == 0u);
  BOOST_TEST(good->verified_bytes == 2 * size_bytes(f.shard.tensors));
  BOOST_REQUIRE(inspect_pool(f.place.path()));
  BOOST_TEST((contents_of(f.place.path()) == before));

  std::uint64_t data = 0;
  {
    auto opened = f.open_or_fail();
    auto version = open_version(*opened->checkpoints(), "a model", 0);
    BOOST_REQUIRE(version);
    auto lent = fetch(**version, {{1, 0, 300}});
    BOOST_REQUIRE(lent);
    data = static_cast<std::uint64_t>(lent->pieces[0].data - opened->mappings()[0].data);
  }
  f.flip(data + 299, 3);
  auto shallow = check_pool(f.place.path(), false);
  BOOST_TEST((shallow && shallow->problems.empty()));
  auto deep = check_pool(f.place.path(), true);
  BOOST_REQUIRE(deep);
  BOOST_REQUIRE(deep->problems.size() == 1u);
  BOOST_TEST(deep->problems[0].find("step 2: tensor t1") != std::string::npos);

  auto indices = f.find(index_header::magic_value);
  f.flip(indices[0] + 80, 1);
  auto damaged = check_pool(f.place.path(), false);
  BOOST_REQUIRE(damaged);
  BOOST_TEST(damaged->problems.size() == 1u);
}

BOOST_AUTO_TEST_CASE(salvage_needs_neither_the_heap_nor_the_table_of_models) {
  struct counter final : salvager {
    status take(
      const archive::version_origin& origin,
      std::unique_ptr<archive::tensor_source> source) override {
      auto seed = content_seed(*origin.model, *origin.rank, *origin.step);
      auto& tensors = source->tensors().tensors;
      for (std::uint32_t i = 0; i < tensors.size(); ++i) {
        std::vector<std::byte> bytes(size_bytes(tensors[i]).value());
        BOOST_TEST(source->read(i, 0, bytes).ok());
        BOOST_TEST(is_filled(bytes.data(), bytes.size(), seed, i, 0));
      }
      steps.push_back(*origin.step);
      return {};
    }
    void lose(const std::string& what) override { lost.push_back(what); }
    std::vector<std::uint64_t> steps;
    std::vector<std::string> lost;
  };
  fixture f;
  f.flip(8192 + (3u << 20) + 1024 + 64, 3); // the header of the heap's first chunk
  auto refused = f.refusal();
  BOOST_TEST((refused.code() == errc::corrupt_data));
  BOOST_TEST(mentions(refused, "millrace pool salvage"), refused.to_string());
  counter first;
  BOOST_TEST(salvage_pool(f.place.path(), first).ok());
  BOOST_TEST(first.steps.size() == 2u);
  BOOST_TEST(first.lost.empty());
  auto before = contents_of(f.place.path());
  f.flip(f.find(table_header::magic_value).at(0) + sizeof(table_header) + 3, 5);
  counter second;
  BOOST_TEST(salvage_pool(f.place.path(), second).ok());
  BOOST_TEST(second.steps.size() == 2u);
  BOOST_REQUIRE(second.lost.size() == 1u);
  BOOST_TEST(second.lost[0].find("table of models") != std::string::npos);
  f.flip(f.find(table_header::magic_value).at(0) + sizeof(table_header) + 3, 5);
  BOOST_TEST((contents_of(f.place.path()) == before));
}

BOOST_AUTO_TEST_CASE(a_pool_open_here_is_busy) {
  fixture f;
  auto first = f.open_or_fail();
  BOOST_TEST((f.refusal().code() == errc::busy));
  BOOST_TEST((check_pool(f.place.path(), false).error().code() == errc::busy));
  first.reset();
  BOOST_TEST(f.is_whole());
}

BOOST_AUTO_TEST_CASE(a_pool_open_in_another_process_is_busy_and_the_process_is_named) {
  fixture f;
  int ready[2];
  BOOST_REQUIRE(::pipe(ready) == 0);
  auto child = ::fork();
  if (child == 0) {
    auto subject = open_pool(f.options());
    char byte = subject ? 'y' : 'n';
    if (::write(ready[1], &byte, 1) == 1)
      ::pause();
    ::_exit(1);
  }
  char byte = 0;
  BOOST_REQUIRE(::read(ready[0], &byte, 1) == 1);
  BOOST_REQUIRE(byte == 'y');
  auto refused = f.refusal();
  BOOST_TEST((refused.code() == errc::busy));
  BOOST_TEST(mentions(refused, "process " + std::to_string(child)), refused.to_string());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  BOOST_TEST(f.is_whole());
}

BOOST_AUTO_TEST_CASE(a_process_that_was_handed_the_file_does_not_keep_the_pool_busy) {
  fixture f;
  auto opened = f.open_or_fail();
  auto of_a_peer = ::dup(opened->mappings()[0].fd);
  BOOST_TEST((f.refusal().code() == errc::busy));
  opened.reset();
  BOOST_TEST(f.is_whole());
  ::close(of_a_peer);
}

BOOST_AUTO_TEST_CASE(options_that_make_no_sense_are_refused) {
  pool_place place{in_place_way()};
  auto refused = [&](auto change) {
    auto options = place.options();
    change(options);
    auto opened = open_pool(options);
    return !opened && opened.error().code() == errc::invalid_argument;
  };
  BOOST_TEST(refused([](auto& o) { o.path.clear(); }));
  BOOST_TEST(refused([](auto& o) { o.capacity_bytes = mib; }));
  BOOST_TEST(refused([](auto& o) { o.io_threads = 0; }));
  BOOST_TEST(refused([](auto& o) { o.window_bytes = 1000; }));
  BOOST_TEST(refused([](auto& o) { o.data_path = file_path::direct; }));
  if (persistent_memory().empty())
    BOOST_TEST(refused([](auto& o) { o.medium = pool_medium::dax; }));
}

BOOST_AUTO_TEST_SUITE_END()

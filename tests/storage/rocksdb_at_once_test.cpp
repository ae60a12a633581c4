// Tests which models a RocksDB bucket opens and reads on the caller's thread.
#include "rocksdb_world.hpp"

#include <millrace/core/digest.hpp>
#include <millrace/storage/io/file_io.hpp>
#include <millrace/storage/io/staged_reader.hpp>
#include <millrace/storage/rocksdb/stored_record.hpp>
#include <millrace/tests/support/held_pool.hpp>

#include <boost/test/unit_test.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

using namespace millrace;
using namespace millrace::storage;
using namespace millrace::testing;
using namespace millrace::testing::of_rocksdb;

namespace {

constexpr std::uint64_t few_bytes = 3000;

/// A bucket with one I/O thread, so that a test can hold it.
struct at_once_world : world {
  void restart() {
    subject.reset();
    auto chosen = options();
    chosen.io_threads = 1;
    chosen.inline_max_bytes = 512 * kib;
    auto opened = open_rocksdb_bucket(chosen);
    BOOST_REQUIRE_MESSAGE(opened, why(opened));
    subject = *opened;
  }
  at_once_world() { restart(); }

  held_completion<std::shared_ptr<opened_model>> begin_open(const std::string& name) const {
    held_completion<std::shared_ptr<opened_model>> held;
    subject->open(name, 0, held.callback());
    return held;
  }

  std::shared_ptr<bucket> subject;
};

held_completion<window> begin_fetch(opened_model& model, const wanted& range) {
  held_completion<window> held;
  model.fetch({range}, io::heap_block(model.window_bytes()), held.callback());
  return held;
}

bool has_bytes(held_completion<window> held, std::uint64_t size_bytes, std::uint64_t seed) {
  auto w = held.take();
  return w && w->pieces.size() == 1 && w->pieces[0].length == size_bytes &&
    is_filled(w->pieces[0].data, size_bytes, seed, 0, 0);
}

} // namespace

BOOST_FIXTURE_TEST_SUITE(rocksdb_at_once, at_once_world)

BOOST_AUTO_TEST_CASE(an_index_tells_without_the_disk_what_it_has_in_memory) {
  using rocksdb::read_from;
  scratch_directory place;
  auto open_index = [&] {
    auto reserve = rocksdb::index_reserve::open(place.path(), 0);
    auto db = rocksdb::index::open(place.path() + "/index", true, *reserve);
    BOOST_REQUIRE_MESSAGE(db, why(db));
    return std::move(*db);
  };
  const std::string value(few_bytes, 'v');
  auto db = open_index();
  BOOST_REQUIRE(db->write({{"key", value}}).ok());
  BOOST_TEST((**db->get("key", read_from::memory_only) == value));
  BOOST_TEST((!*db->get("other", read_from::memory_only)));
  BOOST_REQUIRE(db->settle().ok());
  db.reset();
  db = open_index();
  auto cold = db->get("key", read_from::memory_only);
  BOOST_REQUIRE_MESSAGE(cold, why(cold));
  BOOST_TEST(!*cold);
  BOOST_TEST((**db->get("key") == value));
  auto warm = db->get("key", read_from::memory_only);
  BOOST_REQUIRE_MESSAGE(warm, why(warm));
  BOOST_TEST((*warm && **warm == value));
}

BOOST_AUTO_TEST_CASE(a_small_model_in_memory_is_read_while_the_io_thread_is_busy) {
  BOOST_REQUIRE(store(*subject, spec_of("m", {few_bytes}), 1));
  held_pool held{*subject};
  BOOST_REQUIRE(held.holds());
  auto opened = begin_open("m");
  BOOST_REQUIRE(opened.ready());
  auto model = opened.take();
  BOOST_REQUIRE_MESSAGE(model, why(model));
  auto read = begin_fetch(**model, {0, 0, few_bytes});
  BOOST_REQUIRE(read.ready());
  BOOST_TEST(has_bytes(read, few_bytes, 1));
  auto refused = begin_fetch(**model, {0, 0, few_bytes + 1});
  BOOST_REQUIRE(refused.ready());
  BOOST_TEST((refused.take().error().code() == errc::invalid_argument));
}

BOOST_AUTO_TEST_CASE(a_model_that_is_not_in_memory_is_read_by_the_io_thread) {
  BOOST_REQUIRE(store(*subject, spec_of("m", {few_bytes}), 1));
  restart();
  held_completion<std::shared_ptr<opened_model>> opened;
  {
    held_pool held{*subject};
    BOOST_REQUIRE(held.holds());
    opened = begin_open("m");
    BOOST_TEST(!opened.ready());
  }
  auto model = opened.take();
  BOOST_REQUIRE_MESSAGE(model, why(model));
  BOOST_TEST(has_bytes(begin_fetch(**model, {0, 0, few_bytes}), few_bytes, 1));
  held_pool held{*subject};
  BOOST_REQUIRE(held.holds());
  BOOST_TEST(begin_open("m").ready()); // now it is
}

BOOST_AUTO_TEST_CASE(bytes_that_are_not_in_memory_are_read_by_the_io_thread) {
  constexpr auto count = 40; // records and bytes fill several blocks of a table
  auto name_of = [](int i) { return "m" + std::to_string(10 + i); };
  for (auto i = 0; i < count; ++i)
    BOOST_REQUIRE(store(*subject, spec_of(name_of(i), {few_bytes}), 1));
  restart();
  // Pinning brings the record into memory.
  auto last = name_of(count - 1);
  BOOST_REQUIRE(await<void>([&](auto done) { subject->pin(last, true, std::move(done)); }));
  held_completion<std::shared_ptr<opened_model>> opened;
  {
    held_pool held{*subject};
    BOOST_REQUIRE(held.holds());
    opened = begin_open(last);
    BOOST_TEST(!opened.ready());
  }
  auto model = opened.take();
  BOOST_REQUIRE_MESSAGE(model, why(model));
  BOOST_TEST(has_bytes(begin_fetch(**model, {0, 0, few_bytes}), few_bytes, 1));
}

BOOST_AUTO_TEST_CASE(many_bytes_are_copied_by_the_io_thread) {
  constexpr auto most = io::at_once_bytes_max;
  BOOST_TEST(subject->capabilities().at_once_bytes_max == most);
  BOOST_REQUIRE(store(*subject, spec_of("least", {most}), 1));
  BOOST_REQUIRE(store(*subject, spec_of("more", {most + digest_block_bytes}), 2));
  auto more = open(*subject, "more");
  BOOST_REQUIRE_MESSAGE(more, why(more));
  held_completion<window> all;
  held_completion<std::shared_ptr<opened_model>> opened;
  {
    held_pool held{*subject};
    BOOST_REQUIRE(held.holds());
    BOOST_TEST(begin_open("least").ready());
    opened = begin_open("more");
    BOOST_TEST(!opened.ready());
    all = begin_fetch(**more, {0, 0, most + digest_block_bytes});
    BOOST_TEST(!all.ready());
  }
  BOOST_TEST(has_bytes(all, most + digest_block_bytes, 2));
  BOOST_TEST(opened.take().has_value());
}

BOOST_AUTO_TEST_CASE(an_erased_model_in_memory_is_gone_but_for_its_readers) {
  BOOST_REQUIRE(store(*subject, spec_of("m", {few_bytes}), 1));
  held_pool held{*subject};
  BOOST_REQUIRE(held.holds());
  auto model = begin_open("m").take();
  BOOST_REQUIRE_MESSAGE(model, why(model));
  BOOST_REQUIRE(erase(*subject, "m").ok());
  auto gone = begin_open("m");
  BOOST_REQUIRE(gone.ready());
  BOOST_TEST((gone.take().error().code() == errc::not_found));
  BOOST_TEST(has_bytes(begin_fetch(**model, {0, 0, few_bytes}), few_bytes, 1));
}

BOOST_AUTO_TEST_CASE(a_closed_bucket_reads_nothing_from_memory) {
  BOOST_REQUIRE(store(*subject, spec_of("m", {few_bytes}), 1));
  auto model = open(*subject, "m");
  BOOST_REQUIRE_MESSAGE(model, why(model));
  BOOST_REQUIRE(subject->close(10'000).ok());
  auto opened = open(*subject, "m");
  auto read = begin_fetch(**model, {0, 0, few_bytes}).take();
  BOOST_REQUIRE((!opened && !read));
  BOOST_TEST((opened.error().code() == errc::unavailable), why(opened));
  BOOST_TEST((read.error().code() == errc::unavailable), why(read));
}

BOOST_AUTO_TEST_CASE(bytes_that_are_gone_are_reported_alike_when_the_record_is_in_memory) {
  BOOST_REQUIRE(store(*subject, spec_of("m", {few_bytes}), 1));
  subject.reset();
  write_key(options().path, rocksdb::keys::stream("m"), std::nullopt);
  restart();
  auto cold = open(*subject, "m");
  auto warm = open(*subject, "m");
  BOOST_REQUIRE((!cold && !warm));
  BOOST_TEST((cold.error().code() == errc::corrupt_data), why(cold));
  BOOST_TEST(why(warm) == why(cold));
}

BOOST_AUTO_TEST_SUITE_END()

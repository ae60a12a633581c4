// The promise of buckets that read small models on the caller's thread.
// Called by the suite in bucket_contract.cpp.
#include "bucket_contract.hpp"

#include <millrace/storage/io/file_io.hpp>
#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/heap_memory_source.hpp>
#include <millrace/tests/support/held_completion.hpp>

#include <boost/test/unit_test.hpp>

namespace millrace::testing {

using namespace storage;

namespace {

constexpr std::uint64_t small_bytes = 4096;

held_completion<std::shared_ptr<opened_model>> begin_open(bucket& subject) {
  held_completion<std::shared_ptr<opened_model>> opened;
  subject.open("small", 0, opened.callback());
  return opened;
}

held_completion<window> begin_fetch(opened_model& model, const wanted& range) {
  held_completion<window> read;
  auto needs = model.window_bytes();
  model.fetch({range}, needs == 0 ? memory_block{} : io::heap_block(needs), read.callback());
  return read;
}

} // namespace

void small_models_are_read_before_the_calls_return(const bucket_factory& factory) {
  contract_settings settings;
  settings.memory = std::make_shared<heap_memory_source>(settings.capacity_bytes);
  auto subject = factory(settings);
  if (subject->capabilities().at_once_bytes_max < small_bytes)
    return;
  for (std::uint64_t seed : {1u, 2u}) {
    BOOST_REQUIRE(store(*subject, spec_of("small", {small_bytes}), seed));
    auto opened = begin_open(*subject);
    BOOST_REQUIRE(opened.ready());
    auto model = opened.take();
    BOOST_REQUIRE_MESSAGE(model, why(model));
    auto read = begin_fetch(**model, {0, 0, small_bytes});
    BOOST_REQUIRE(read.ready());
    auto w = read.take();
    BOOST_REQUIRE_MESSAGE(w, why(w));
    BOOST_TEST_REQUIRE(w->pieces.size() == 1u);
    BOOST_TEST(is_filled(w->pieces[0].data, small_bytes, seed, 0, 0));
    BOOST_TEST(!begin_fetch(**model, {0, 1, small_bytes}).take());
  }
  BOOST_TEST(erase(*subject, "small").ok());
  auto gone = begin_open(*subject).take();
  BOOST_REQUIRE(!gone);
  BOOST_TEST((gone.error().code() == errc::not_found), why(gone));
}

} // namespace millrace::testing

// Runs the contract with every kind of bucket, in the settings in which it may behave differently.
#include "bucket_contract.hpp"

#include <millrace/storage/memory/memory_bucket.hpp>
#include <millrace/storage/rocksdb/rocksdb_bucket.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/pool_place.hpp>
#include <millrace/tests/support/scratch_directory.hpp>

#include <boost/test/unit_test.hpp>

using namespace millrace;
using namespace millrace::storage;
using namespace millrace::testing;

namespace {

std::shared_ptr<bucket> opened(result<std::shared_ptr<bucket>> outcome) {
  BOOST_REQUIRE_MESSAGE(outcome, why(outcome));
  return *outcome;
}

std::shared_ptr<bucket> open_memory(const contract_settings& s) {
  return opened(open_memory_bucket({s.capacity_bytes, s.full, s.descriptions_max_bytes}, s.memory));
}

// Windows and segments are small, so that models of a test's size meet many of their borders.
std::shared_ptr<bucket> open_rocksdb(
  const contract_settings& s, const std::function<void(rocksdb_bucket_options&)>& change) {
  auto directory = std::make_shared<scratch_directory>();
  rocksdb_bucket_options options;
  options.path = directory->path();
  options.capacity_bytes = s.capacity_bytes;
  options.full = s.full;
  options.descriptions_max_bytes = s.descriptions_max_bytes;
  options.io_threads = 2;
  options.window_bytes = 1u << 20;
  options.segment_bytes = 4u << 20;
  change(options);
  auto subject = opened(open_rocksdb_bucket(std::move(options)));
  return {subject.get(), [subject, directory](bucket*) mutable {
            subject.reset();
            directory.reset();
          }};
}

// The pool is larger than the models' capacity, since its index and its rounding need space, too.
bucket_factory pool_of(pool_way way) {
  return [way](const contract_settings& s) -> std::shared_ptr<bucket> {
    auto place = std::make_shared<pool_place>(way);
    auto options = place->options(s.capacity_bytes + (32u << 20));
    options.models_capacity_bytes = s.capacity_bytes;
    options.models_full = s.full;
    options.descriptions_max_bytes = s.descriptions_max_bytes;
    options.populate = false;
    if (way == pool_way::direct_file)
      options.staging = lent_memory::pages;
    auto owner = open_pool(std::move(options));
    BOOST_REQUIRE_MESSAGE(owner, why(owner));
    auto subject = (*owner)->models();
    return {subject.get(), [subject, owner = *owner, place](bucket*) mutable {
              subject.reset();
              owner.reset();
              place.reset();
            }};
  };
}

bucket_factory rocksdb_with(std::function<void(rocksdb_bucket_options&)> change) {
  return [change](const contract_settings& s) { return open_rocksdb(s, change); };
}

const bool registered[] = {
  add_bucket_contract("memory", open_memory),
  add_bucket_contract("rocksdb", rocksdb_with([](auto&) {})),
  add_bucket_contract("rocksdb_one_thread", rocksdb_with([](auto& o) {
                        o.io_threads = 1;
                        o.inline_max_bytes = 0;
                        o.window_bytes = 512u << 10;
                      })),
  add_bucket_contract("rocksdb_buffered", rocksdb_with([](auto& o) { o.direct_io = false; })),
  add_bucket_contract("pmem", pool_of(pool_way::memory)),
  add_bucket_contract("pmem_on_a_file", pool_of(pool_way::direct_file)),
  add_bucket_contract("pmem_on_a_mapped_file", pool_of(pool_way::mapped_file)),
};

} // namespace

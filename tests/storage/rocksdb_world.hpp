// A RocksDB bucket of one test, and what its tests do to its files.
// Used by tests of storage/rocksdb.
#pragma once

#include <millrace/storage/at_rest.hpp>
#include <millrace/storage/rocksdb/index.hpp>
#include <millrace/storage/rocksdb/rocksdb_bucket.hpp>
#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/file_contents.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/scratch_directory.hpp>

#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace millrace::testing::of_rocksdb {

using storage::bucket;
using storage::open_rocksdb_bucket;
using storage::rocksdb_bucket_options;
using storage::salvager;
namespace archive = storage::archive;
namespace rocksdb = storage::rocksdb;

constexpr std::uint64_t kib = 1024, mib = 1024 * kib;

struct world {
  rocksdb_bucket_options options() const {
    rocksdb_bucket_options chosen;
    chosen.path = directory.path() + "/bucket";
    chosen.capacity_bytes = 64 * mib;
    chosen.io_threads = 2;
    chosen.window_bytes = mib;
    chosen.segment_bytes = 4 * mib;
    chosen.descriptions_max_bytes = descriptions_max_bytes;
    return chosen;
  }

  std::shared_ptr<bucket> open_or_fail() const {
    auto subject = open_rocksdb_bucket(options());
    BOOST_REQUIRE_MESSAGE(subject, why(subject));
    return *subject;
  }

  errc refusal() const {
    auto subject = open_rocksdb_bucket(options());
    return subject ? errc::ok : subject.error().code();
  }

  std::uint64_t segments_bytes() const {
    std::uint64_t sum = 0;
    for (auto& entry : std::filesystem::directory_iterator{options().path + "/segments"})
      sum += entry.file_size();
    return sum;
  }

  scratch_directory directory;
  std::uint64_t descriptions_max_bytes = 64 * mib;
};

inline void write_key(const std::string& path, std::string key, std::optional<std::string> value) {
  auto db = rocksdb::index::open(path + "/index", false, *rocksdb::index_reserve::open(path, 0));
  BOOST_REQUIRE(db);
  auto written = (*db)->write({{std::move(key), std::move(value)}});
  BOOST_REQUIRE(written.ok());
}

/// Compares what a salvage finds with what was stored: the models of these tests by their seeds.
struct kept_models final : salvager {
  status take(const archive::version_origin& origin, std::unique_ptr<archive::tensor_source> source)
    override {
    auto seed = *origin.model == "large" ? 1u : 3u;
    auto& tensors = source->tensors().tensors;
    for (std::uint32_t i = 0; i < tensors.size(); ++i) {
      std::vector<std::byte> bytes(size_bytes(tensors[i]).value());
      if (auto bad = source->read(i, 0, bytes); !bad.ok())
        return bad;
      wrong += !is_filled(bytes.data(), bytes.size(), seed, i, 0);
    }
    names.push_back(*origin.model);
    return {};
  }
  void lose(const std::string& what) override { lost.push_back(what); }

  std::vector<std::string> names, lost;
  std::size_t wrong = 0;
};

/// Changes a byte of the model that was stored with this seed.
inline void flip_in_segments(const world& w, std::uint64_t seed) {
  std::string wanted(4096, '\0');
  fill(reinterpret_cast<std::byte*>(wanted.data()), wanted.size(), seed, 0, 0);
  for (auto& entry : std::filesystem::directory_iterator{w.options().path + "/segments"}) {
    auto at = contents_of(entry.path()).find(wanted);
    if (at == std::string::npos)
      continue;
    std::fstream file{entry.path(), std::ios::in | std::ios::out | std::ios::binary};
    file.seekp(static_cast<std::streamoff>(at + 5));
    file.put(static_cast<char>(~wanted[5]));
    return;
  }
  BOOST_FAIL("the model is not in the segments");
}

} // namespace millrace::testing::of_rocksdb

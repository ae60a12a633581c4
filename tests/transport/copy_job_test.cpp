// Tests copy jobs that are divided while they run, whatever their size.
#include <millrace/core/digest.hpp>
#include <millrace/tests/support/exposed_matrix.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/transport/copy/copy_job.hpp>
#include <millrace/transport/fabric.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <mutex>
#include <vector>

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::net;
using namespace millrace::transport;

namespace {

constexpr copy_limits small_chunks{.chunk_bytes = digest_block_bytes, .inline_bytes_max = 0};

struct fixture {
  mover_pool movers{2};

  result<copied> run(copy_job job) {
    held_completion<copied> done;
    run_copy_job(movers, small_chunks, std::move(job), done.callback());
    return done.take();
  }
  static copy_job read_of(const bulk_handle& h) {
    return {
      .dir = direction::read,
      .memory = find_region(h.region, h.key, h.allows).value(),
      .ops = {},
      .digests = false,
      .write_back = false,
      .hold = nullptr,
      .abandoned = nullptr,
      .prepare = {}};
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(copy_jobs, fixture)

// Every piece comes from one place and has a digest of its own, whichever mover takes it.
BOOST_AUTO_TEST_CASE(pieces_of_all_sizes_arrive_with_their_digests) {
  const std::vector<std::uint64_t> lengths = {
    1, 0, 3 * digest_block_bytes + 5, 100, digest_block_bytes, 2 * digest_block_bytes, 7, 0};
  std::uint64_t size = 0;
  for (auto n : lengths)
    size += n;
  exposed_matrix source{{1, size, 0}, access_mode::read, 3};
  std::vector<std::byte> target(size);
  auto job = read_of(source.handle());
  job.digests = true;
  std::uint64_t at = 0;
  for (auto n : lengths) {
    job.ops.push_back({.remote_offset = at, .local = target.data() + at, .length = n});
    at += n;
  }
  auto outcome = run(std::move(job));
  BOOST_TEST_REQUIRE(outcome.has_value());
  BOOST_TEST((target == pattern(size, 3)));
  std::vector<std::uint64_t> expected;
  at = 0;
  for (auto n : lengths) {
    for (std::uint64_t i = 0; i < n; i += digest_block_bytes)
      expected.push_back(digest(target.data() + at + i, std::min(digest_block_bytes, n - i)));
    at += n;
  }
  BOOST_TEST((outcome->digests == expected));
}

// Bytes that only a digest reads may be as far from memory as those that are copied.
BOOST_AUTO_TEST_CASE(everything_that_is_read_is_prepared) {
  constexpr std::uint64_t lead = 1000, length = 3 * digest_block_bytes, tail = 500;
  exposed_matrix target{{1, length, 0}, access_mode::write, 0};
  std::vector<std::byte> local(lead + length + tail);
  auto job = read_of(target.handle());
  job.dir = direction::write;
  job.digests = true;
  job.ops.push_back({.local = local.data() + lead, .length = length, .lead = lead, .tail = tail});
  std::mutex mutex;
  std::vector<bool> prepared(local.size());
  job.prepare = [&](std::byte* at, std::uint64_t n) {
    std::lock_guard guard{mutex};
    std::fill_n(prepared.begin() + (at - local.data()), n, true);
    return status{};
  };
  auto copied_all = run(std::move(job));
  BOOST_TEST(copied_all.has_value());
  BOOST_TEST(std::count(prepared.begin(), prepared.end(), false) == 0);
}

// Rows that are all the same one: far more bytes than there is memory for a list of their chunks.
BOOST_AUTO_TEST_CASE(a_job_of_any_size_is_cut_as_it_runs) {
  constexpr std::uint64_t rows = 1ull << 35, row_bytes = 1u << 20;
  std::vector<std::byte> row(row_bytes);
  auto exposed =
    expose({{{"m", dtype::u8, {rows, row_bytes}}, row.data(), {0, 1}}}, access_mode::read).value();
  auto job = read_of(exposed.handle());
  job.ops.push_back({.length = rows * row_bytes});
  job.abandoned = std::make_shared<std::atomic<bool>>(true);
  auto outcome = run(std::move(job));
  BOOST_TEST_REQUIRE(!outcome.has_value());
  BOOST_TEST((outcome.error().code() == errc::cancelled));
}

BOOST_AUTO_TEST_SUITE_END()

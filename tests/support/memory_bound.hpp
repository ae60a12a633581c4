// Bounds the memory that the process may still allocate, so that unbounded allocation fails instead
// of slowing the machine.
// Used by contract and storage tests.
#pragma once

#include <boost/test/unit_test.hpp>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace millrace::testing {

class memory_bound {
public:
  explicit memory_bound(std::uint64_t more_bytes) {
    std::uint64_t pages = 0;
    std::ifstream{"/proc/self/statm"} >> pages;
    BOOST_REQUIRE(pages > 0u);
    BOOST_REQUIRE(::getrlimit(RLIMIT_AS, &before_) == 0);
    auto limit = before_;
    limit.rlim_cur = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) + more_bytes;
    BOOST_REQUIRE(::setrlimit(RLIMIT_AS, &limit) == 0);
  }
  ~memory_bound() { ::setrlimit(RLIMIT_AS, &before_); }
  memory_bound(const memory_bound&) = delete;
  memory_bound& operator=(const memory_bound&) = delete;

private:
  rlimit before_{};
};

} // namespace millrace::testing

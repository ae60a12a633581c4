// Opening files as samples, for tests of their formats.
#pragma once

#include <millrace/storage/samples/sample_reader.hpp>

#include <boost/test/unit_test.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace millrace::testing {

inline std::unique_ptr<storage::samples::sample_reader> opened(
  const std::vector<std::string>& paths, const storage::samples::sample_options& options = {},
  std::vector<storage::samples::damaged_file>* left_out = nullptr) {
  auto reader = storage::samples::open_samples(paths, options, left_out);
  BOOST_TEST_REQUIRE(reader.has_value(), (reader ? "" : reader.error().to_string()));
  return std::move(*reader);
}

/// `words`: what the error says.
inline void check_refused(
  const std::vector<std::string>& paths, errc code, const std::vector<std::string>& words,
  const storage::samples::sample_options& options = {}) {
  auto reader = storage::samples::open_samples(paths, options);
  BOOST_TEST_REQUIRE(!reader.has_value());
  BOOST_TEST((reader.error().code() == code), reader.error().to_string());
  for (auto& word : words)
    BOOST_TEST(reader.error().detail().find(word) != std::string::npos, reader.error().to_string());
}

} // namespace millrace::testing

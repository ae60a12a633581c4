// Parses configurations, and compares the texts of errors. Used by the tests of this folder.
#pragma once

#include <millrace/runtime/configuration.hpp>

#include <boost/test/unit_test.hpp>

#include <string>

namespace millrace::config {

inline settings good(std::string_view text) {
  auto parsed = parse_configuration(text, "t.yaml");
  BOOST_TEST_REQUIRE(parsed.has_value(), (parsed ? "" : parsed.error().to_string()));
  return *parsed;
}

/// The whole detail of the error that `text` gives.
inline std::string bad(std::string_view text) {
  auto parsed = parse_configuration(text, "t.yaml");
  BOOST_TEST_CONTEXT(std::string{text.substr(0, 200)}) {
    BOOST_TEST_REQUIRE(!parsed.has_value());
    BOOST_TEST((parsed.error().code() == errc::invalid_argument));
  }
  return parsed.error().detail();
}

} // namespace millrace::config

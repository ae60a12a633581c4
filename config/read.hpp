// Settings as a document gives them, with the place of each: the step between parsing and checking.
// Called by `load`.
#pragma once

#include <millrace/config/document.hpp>
#include <millrace/config/schema.hpp>

#include <map>
#include <string>
#include <string_view>

namespace millrace::config {

/// Settings that are checked one by one, but not yet together.
struct draft {
  settings values;
  std::map<std::string, mark, std::less<>> places; // "providers[0].path" → its key

  bool has(std::string_view path) const { return places.find(path) != places.end(); }

  /// Returns the place where `path` was given, or the closest place around it.
  mark place_of(std::string_view path) const;
};

/// Reads every key by the tables of the schema.
/// Errors: `invalid_argument` with the place, for the first key or value that the table refuses.
result<draft> read_settings(const document& doc, const schema& all);

/// Fills in values that follow from others, and refuses values that do not fit together.
/// Errors: `invalid_argument` with the place.
status complete_settings(const document& doc, const schema& all, draft& d);

} // namespace millrace::config

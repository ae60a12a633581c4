// The stored record of one version, and the keys of the index. Used by storing, opening and the
// engine.
#pragma once

#include <millrace/core/codec.hpp>
#include <millrace/core/inspect.hpp>
#include <millrace/core/model.hpp>
#include <millrace/storage/rocksdb/free_map.hpp>
#include <millrace/storage/rocksdb/index.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace millrace::storage::rocksdb {

/// One version as the index stores it. Readers pack the layout again with `window_bytes`, and find
/// the stream in `extents` or, when `inlined`, in a value of the index.
struct stored_record {
  model_record model;
  std::uint64_t window_bytes = 0;
  bool inlined = false;
  std::vector<extent> extents;

  friend bool operator==(const stored_record&, const stored_record&) = default;
};

template <field_inspector Inspector>
typename Inspector::result_type inspect(Inspector& f, stored_record& x) {
  return f(x.model, x.window_bytes, x.inlined, x.extents);
}

namespace keys {

inline const std::string format = "F";       // magic and format version
inline const std::string last_version = "C"; // the largest version number that was used
inline const std::string records = "M";      // + model name: stored_record
inline const std::string streams = "V";      // + model name: version, then an inlined model's bytes
inline const std::string layers = "L";       // + id: description

inline std::string record(const std::string& model) { return records + model; }
inline std::string stream(const std::string& model) { return streams + model; }
std::string layer(const layer_id& id);

} // namespace keys

std::string encode_record(const stored_record& record);
/// Errors: `corrupt_data` naming the model.
result<stored_record> decode_record(std::string_view model, std::string_view value);

/// Encodes the bytes of an inlined model with the version to which they belong.
std::string encode_stream(std::uint64_t version, std::string_view bytes);
/// Returns the bytes; null when the value belongs to another version.
std::optional<std::string> decode_stream(std::uint64_t version, std::string_view value);

std::string encode_number(std::uint64_t value);
/// Errors: `corrupt_data` naming `what`.
result<std::uint64_t> decode_number(std::string_view value, std::string_view what);

/// Checks the format of an index. `make`: writes it into one that is empty.
/// Errors: `unsupported_version` for another format; `invalid_argument` for another program's
///         database.
[[nodiscard]] status check_format(index& db, const std::string& path, bool make);

/// The format that `check_format` writes. The version grows with every incompatible change.
inline constexpr std::string_view format_magic = "millrace-rocksdb-bucket ";
inline constexpr std::uint32_t format_version = 1;

} // namespace millrace::storage::rocksdb

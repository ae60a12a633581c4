// The samples of one tar archive: which files belong together, and where their bytes lie. Made by
// the reader of tar files.
#pragma once

#include <millrace/storage/samples/opening.hpp>
#include <millrace/storage/samples/tar_stream.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace millrace::storage::samples {

/// Bounds of what is kept in memory. What is beyond is refused.
inline constexpr std::size_t tar_name_bytes_max = 4096;
inline constexpr std::size_t tar_samples_max = 1u << 27;                    // of all archives
inline constexpr std::uint64_t tar_keys_bytes_max = std::uint64_t{1} << 32; // of all archives
inline constexpr std::size_t tar_extensions_max = 1024;                     // that differ
/// What a compressed archive may have without its compression: so many times its bytes, and so many
/// bytes more.
inline constexpr std::uint64_t tar_unpacked_ratio_max = 256;
inline constexpr std::uint64_t tar_unpacked_more_bytes = 64u << 20;

/// The extension whose texts become numbers if they are whole numbers.
inline constexpr std::string_view tar_number_extension = "cls";

/// A name in an archive, as WebDataset divides it: the key is what comes before the first dot in
/// the last part of the path, the extension what comes after it, in small letters.
struct tar_name {
  std::string key;
  std::string extension;
};

/// Returns the parts of a name. None: the file belongs to no sample, since it is hidden or has no
/// extension.
std::optional<tar_name> divide_tar_name(std::string_view name);

/// One file of a sample.
struct tar_part {
  std::uint32_t extension = 0; // its number in the list
  std::uint64_t offset = 0;    // in the archive without the compression
  std::uint64_t size_bytes = 0;
  std::optional<std::int64_t> number; // that its text is, of `tar_number_extension`
};

struct tar_sample {
  std::string key;
  std::vector<tar_part> parts;
  status why; // it is damaged
};

/// The extensions of all archives and what they have in memory.
class tar_extensions {
public:
  const std::vector<std::string>& names() const noexcept { return names_; }
  /// Returns the number of an extension, which is appended if it is not there.
  /// Errors:  `invalid_argument`: there are too many.
  result<std::uint32_t> number_of(const std::string& name);

private:
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::uint32_t> numbers_;
};

/// What all archives have in memory.
struct tar_totals {
  tar_extensions extensions;
  std::uint64_t samples = 0;
  std::uint64_t keys_bytes = 0;
};

/// Reads the headers of an archive. The files of a sample lie beside each other; links, devices,
/// sparse files and two files of one extension make a sample damaged. Folders are passed over.
/// `size_bytes`: of the archive. Without compression its entries must lie in it. A compressed one
/// is read until it has more bytes than it may have.
///
/// Cost:    some 100 bytes for each sample and 40 for each of its files.
/// Errors:  those of `tar_stream`; `corrupt_data` naming an entry whose bytes are not there, and
///          for a compressed archive with more than `tar_unpacked_ratio_max` allows;
///          `invalid_argument` naming a key that comes again after others; and for more than the
///          bounds above. `cancelled`.
result<std::vector<tar_sample>> index_tar(
  const byte_source& from, tar_packing packing, std::uint64_t size_bytes, tar_totals& totals,
  const opening& how);

} // namespace millrace::storage::samples

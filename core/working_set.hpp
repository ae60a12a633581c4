// Descriptions of working sets: training data in the memory of data servers. Data servers keep
// them, messages carry them, programs get them from `working_set`.
#pragma once

#include <millrace/core/ids.hpp>
#include <millrace/core/inspect.hpp>
#include <millrace/core/tensor.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

struct set_tag;
/// Identifies one life of a working set, from its preload until it is unloaded.
using set_id = id128<set_tag>;

inline constexpr std::size_t set_fields_max = 64;
inline constexpr std::uint64_t region_bytes_min = 1u << 20;
inline constexpr std::uint64_t region_bytes_max = std::uint64_t{1} << 34;

/// Samples of a field that varies begin at multiples of it.
inline constexpr std::uint64_t sample_alignment = 64;

/// One component of every sample, such as the image or the label. The samples of a field have the
/// same shape, or they vary in their first dimension.
struct sample_field {
  /// The name of the field, and dtype and shape of one sample. The first extent of a field that
  /// varies is 0 here.
  tensor_desc sample;
  bool varies = false;
  std::uint64_t base = 0;        // the address of sample 0; the others follow it
  std::uint64_t bytes = 0;       // of each sample; 0 if they vary
  std::uint64_t table = 0;       // the address of the samples' entries, `entry_bytes` each
  std::uint64_t data_bytes = 0;  // of all samples
  std::uint64_t space_bytes = 0; // from `base` on; with the gaps between samples that vary

  friend bool operator==(const sample_field&, const sample_field&) = default;
};
MILLRACE_INSPECT(
  sample_field, x.sample, x.varies, x.base, x.bytes, x.table, x.data_bytes, x.space_bytes)

/// Where a sample lies, and the digest of its bytes. The table of a field that varies has all three
/// numbers for each sample, little-endian; that of another field has the digests alone.
struct sample_entry {
  std::uint64_t address = 0;
  std::uint64_t length = 0;
  std::uint64_t digest = 0;

  friend bool operator==(const sample_entry&, const sample_entry&) = default;
};

/// Returns the bytes of one sample's entry in the table of a field.
constexpr std::uint64_t entry_bytes(const sample_field& field) noexcept {
  return field.varies ? sizeof(sample_entry) : sizeof(sample_entry::digest);
}

/// Returns the bytes of one element along the first dimension of a field that varies, of which
/// every length is a multiple.
/// Errors:  `invalid_argument` naming a field without dimensions, or with elements of no bytes.
result<std::uint64_t> varying_row_bytes(const tensor_desc& sample);

inline constexpr std::size_t set_parts_max = 1024;

/// Of the names of files that a set says it leaves out; a set that leaves out more names none.
inline constexpr std::size_t left_out_bytes_max = 32u << 10;

/// The bytes of a field in all parts of a set.
struct divided_field {
  std::uint64_t data_bytes = 0;
  std::uint64_t space_bytes = 0;

  friend bool operator==(const divided_field&, const divided_field&) = default;
};
MILLRACE_INSPECT(divided_field, x.data_bytes, x.space_bytes)

/// How a set is divided among data servers. Each part is a set of its own there, has the same name,
/// and says all of this, so that any of them describes the whole. A set that lies on one data
/// server is not divided: it has no nodes here.
struct set_division {
  set_id whole;                      // the id of the whole set: of one preload
  std::uint32_t index = 0;           // of this part in `nodes`
  std::vector<std::string> nodes;    // that have the parts, in the order of the samples
  std::uint64_t samples = 0;         // of the whole set
  std::vector<divided_field> fields; // of the whole set

  friend bool operator==(const set_division&, const set_division&) = default;
};
MILLRACE_INSPECT(set_division, x.whole, x.index, x.nodes, x.samples, x.fields)

/// How often samples can be appended to a set.
inline constexpr std::size_t appends_max = 256;

/// Which set samples were appended to. What was appended at once is an *extension*. It is divided
/// among the nodes of the set, and each part is a set of its own there, under the name of the set.
struct set_extension {
  set_id of;                // the id of the whole set; nil: these samples were not appended
  std::uint32_t number = 0; // later appends have larger ones

  friend bool operator==(const set_extension&, const set_extension&) = default;
};
MILLRACE_INSPECT(set_extension, x.of, x.number)

/// The samples of one extension, all parts of it.
struct appended_samples {
  set_id id; // as that of a whole set
  std::uint32_t number = 0;
  std::uint64_t samples = 0;
  std::uint64_t source = 0;   // a digest of the files
  std::uint64_t left_out = 0; // `names_digest` of what it leaves out
  std::vector<divided_field> fields;

  friend bool operator==(const appended_samples&, const appended_samples&) = default;
};
MILLRACE_INSPECT(appended_samples, x.id, x.number, x.samples, x.source, x.left_out, x.fields)

/// A working set: samples with the same fields, in one continuous space of addresses. Memory
/// regions of equal size hold the space; an address lies in region `address / region_bytes`.
/// Source:  the loading paper, sections 4.2 and 4.3: `mr_gid` is the number of the region.
struct set_info {
  std::string name;
  set_id id;
  std::uint64_t samples = 0;
  std::uint64_t size_bytes = 0; // of the whole space, with tables
  std::uint64_t region_bytes = 0;
  /// A digest of what the set contains by its description: the number of samples, and each field's
  /// name, dtype and shape. Orders depend on it, so that a set that is preloaded again, elsewhere
  /// or under another name, is visited in the same order.
  std::uint64_t identity = 0;
  std::uint64_t source = 0;          // a digest of the files: their paths, sizes and times
  std::uint64_t preloaded_at_ns = 0; // wall clock
  std::vector<sample_field> fields;
  std::string owner; // who has preloaded it: "user 1000"
  /// It goes with the last connection that has preloaded it or has it open.
  bool while_used = false;
  set_division division; // `samples` and `fields` are those of the part; `identity` of the whole
  /// Files, or samples in archives, that the preload found damaged while it read their samples,
  /// sorted. `source` has them, too: whoever opens the files again leaves out the same ones.
  std::vector<std::string> left_out;
  /// The memory keeps so many bytes of samples at a time, see `is_window`. 0: it has all samples.
  std::uint64_t window_bytes = 0;
  set_extension extension; // what this is a part of, unless `of` is nil
  /// The extensions of the set, in their order. The part of the home alone has them; the other
  /// numbers of a part are those of the samples that were preloaded.
  std::vector<appended_samples> appended;

  friend bool operator==(const set_info&, const set_info&) = default;
};
MILLRACE_INSPECT(
  set_info, x.name, x.id, x.samples, x.size_bytes, x.region_bytes, x.identity, x.source,
  x.preloaded_at_ns, x.fields, x.owner, x.while_used, x.division, x.left_out, x.window_bytes,
  x.extension, x.appended)

/// Returns the bytes of some names, with what a message needs for each.
std::size_t names_bytes(const std::vector<std::string>& names) noexcept;

/// Returns a digest of names, in their order; 0 if there are none.
std::uint64_t names_digest(const std::vector<std::string>& names) noexcept;

/// Returns whether a set is a part of a larger one.
inline bool is_divided(const set_info& set) noexcept { return !set.division.nodes.empty(); }

/// Returns whether the memory of a set is a window: it keeps some of the samples, which change, and
/// the files have all of them. Fields and tables have no places in it.
inline bool is_window(const set_info& set) noexcept { return set.window_bytes > 0; }

/// Returns whether samples were appended to a set of the same name.
inline bool is_extension(const set_info& set) noexcept { return !set.extension.of.is_nil(); }

/// Returns whether two sets have the same samples, of the same files: their orders and their bytes
/// are equal.
inline bool have_same_samples(const set_info& a, const set_info& b) noexcept {
  return a.identity == b.identity && a.source == b.source && a.left_out == b.left_out;
}

/// Returns the first sample of part number `index`, of so many parts of nearly equal numbers of
/// samples. That of the part behind the last one is the number of samples.
std::uint64_t first_sample(std::uint64_t samples, std::size_t parts, std::size_t index) noexcept;

/// Returns which part has a sample.
std::size_t part_of(std::uint64_t samples, std::size_t parts, std::uint64_t sample) noexcept;

/// Returns the description of all parts together that were preloaded, or appended, at once, as if
/// they lay in one space; of a set that is not divided, its own. Its id is `division.whole`.
/// Errors:  `invalid_argument` for a division that is none, or does not have this part.
result<set_info> base_of(const set_info& part);

/// Returns the description of the whole set that the home's part belongs to: as `base_of`, and with
/// the samples that were appended. So `identity` is that of a set that was preloaded from all files
/// at once. `source` depends on the files of each append; `division` is that of the base.
/// Errors:  as `base_of`; `invalid_argument` for extensions that cannot be.
result<set_info> whole_of(const set_info& part);

/// Describes all samples of the extension that a part belongs to.
appended_samples appended_of(const set_info& part);

/// Returns whether an extension has the samples of files that are described like a set.
bool have_same_samples(const appended_samples& a, const set_info& files) noexcept;

/// Returns the samples of a whole set that were preloaded, not appended.
std::uint64_t preloaded_samples(const set_info& whole) noexcept;

/// Checks that samples can be appended to a set.
/// Errors:  `invalid_argument` saying how the fields differ, or that the set is a window.
[[nodiscard]] status check_appends(const set_info& set, const set_info& more);

/// Returns the number of regions that hold a set.
std::uint64_t region_count(const set_info& set) noexcept;

/// Gives every field its place, from the number of samples, the size of regions, and each field's
/// dtype and shape, and for a field that varies also `data_bytes` and `space_bytes`; sets
/// `size_bytes` and `identity`, too. `identity` depends on the samples of the whole set. Equal
/// inputs give equal places, so that both sides of a message can check each other's. A window has
/// whole regions.
/// Errors:  `invalid_argument` naming the field: more than `set_fields_max`, two of one name, one
///          whose samples have no bytes, more bytes than 63 bits count, a space that does not
///          suffice for samples that vary, or is larger than they and their gaps; regions of no
///          power of two, or not between `region_bytes_min` and `region_bytes_max` bytes; names in
///          `left_out` of more than `left_out_bytes_max`; a window of more bytes than 63 bits
///          count, or of a set that is divided.
[[nodiscard]] status place_fields(set_info& set);

/// Checks a description that came from a peer: that its places are those that `place_fields` gives,
/// that its division has such a part, and that its extensions can be.
[[nodiscard]] status validate(const set_info& set);

/// Checks an entry that was read from the table of a field: that the sample lies in its space.
/// Errors:  `corrupt_data` naming the set, the field and the sample.
[[nodiscard]] status validate(
  const sample_entry& entry, const set_info& set, std::size_t field, std::uint64_t sample);

/// Some bytes of a set that lie in one region.
struct set_piece {
  std::uint64_t region = 0; // its number
  std::uint64_t offset = 0; // in the region
  std::uint64_t length = 0;

  friend bool operator==(const set_piece&, const set_piece&) = default;
};

/// Calls `use(piece)` for the pieces of a range of addresses, in their order.
template <class Use>
void for_each_piece(
  std::uint64_t region_bytes, std::uint64_t address, std::uint64_t length, Use&& use) {
  while (length > 0) {
    auto offset = address & (region_bytes - 1);
    auto part = length < region_bytes - offset ? length : region_bytes - offset;
    use(set_piece{address / region_bytes, offset, part});
    address += part;
    length -= part;
  }
}

/// What has happened to the samples of a window, each field of one counted, and what it has now.
struct window_counts {
  std::uint64_t size_bytes = 0; // of its memory
  std::uint64_t kept_bytes = 0; // of the samples that it has
  std::uint64_t kept = 0;       // samples that readers can have
  std::uint64_t given = 0;      // that were there when a reader asked
  std::uint64_t missing = 0;    // that were not
  std::uint64_t written = 0;
  std::uint64_t refused = 0; // not kept, since all that were kept are needed earlier
  std::uint64_t evicted = 0; // that made room
  std::uint64_t damaged = 0; // whose bytes were not those that were written

  friend bool operator==(const window_counts&, const window_counts&) = default;
};
MILLRACE_INSPECT(
  window_counts, x.size_bytes, x.kept_bytes, x.kept, x.given, x.missing, x.written, x.refused,
  x.evicted, x.damaged)

/// The working sets of one data server.
struct data_status {
  std::uint64_t capacity_bytes = 0; // 0: the node has no data server
  std::uint64_t used_bytes = 0;     // in regions that sets have
  std::uint64_t region_bytes = 0;
  std::uint64_t sets = 0;
  std::uint64_t filling = 0;  // sets that are being preloaded
  std::uint64_t readers = 0;  // that have opened a set
  std::uint64_t preloads = 0; // since the start, as the next one
  std::uint64_t unloads = 0;
  std::uint64_t evictions = 0; // sets that made room for others
  std::uint64_t streams = 0;
  std::uint64_t samples_appended = 0; // to streams, since the start
  std::uint64_t samples_given = 0;    // to readers of streams, repeated ones, too
  std::uint64_t windows = 0;          // sets of these that are read through a window
  std::uint64_t joins = 0;            // clients that read files for the preload of another one

  friend bool operator==(const data_status&, const data_status&) = default;
};
MILLRACE_INSPECT(
  data_status, x.capacity_bytes, x.used_bytes, x.region_bytes, x.sets, x.filling, x.readers,
  x.preloads, x.unloads, x.evictions, x.streams, x.samples_appended, x.samples_given, x.windows,
  x.joins)

} // namespace millrace

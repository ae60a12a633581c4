// The bytes of a gzip file without the compression. Used by what reads compressed tar archives.
#pragma once

#include <millrace/storage/samples/tar_stream.hpp>

namespace millrace::storage::samples {

/// Returns a source of the unpacked bytes, whose checksums are compared; libarchive does not
/// compare them. It is read from front to back, and the offset does not count. Several files of
/// gzip that follow each other are one; what else follows is left out, as by gzip. A source that
/// does not begin as gzip is given as it is.
/// Errors:  `corrupt_data` saying what is wrong; `no_space`; those of the source.
/// Threads: one at a time.
byte_source gunzipped(byte_source from);

} // namespace millrace::storage::samples

// Windows on their way from a disk: read into staging memory and lent. Used by the opened models of
// kinds that read past the page cache.
#pragma once

#include <millrace/storage/gate.hpp>
#include <millrace/storage/io/io_pool.hpp>
#include <millrace/storage/io/packing.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace millrace::storage::io {

/// The most bytes that are read on the caller's thread. It may be an I/O loop, whose other work
/// waits while they are copied. Their digests are computed there, too, if they go into a message.
inline constexpr std::uint64_t at_once_bytes_max = 64u << 10;

/// One version that is being read. The opened model and every job under way share it, so the
/// version keeps its space until no job reads it any more. Calls as for an `opened_model`.
class staged_reader : public std::enable_shared_from_this<staged_reader> {
public:
  using jobs = std::vector<std::function<status()>>;

  virtual ~staged_reader() = default;

  std::vector<std::vector<wanted>> plan(const std::vector<wanted>& ranges) const {
    return cut_ranges(packed(), ranges, window_bytes());
  }
  virtual std::uint64_t window_bytes() const = 0;
  /// Reads before it returns when the bytes are in memory and few.
  void fetch(std::vector<wanted> ranges, memory_block staging, completion<window> done);

protected:
  /// Returns true if the read jobs neither wait nor use the disk.
  virtual bool is_in_memory() const = 0;
  /// Returns a ticket for one read, or null if reads are not counted. Errors: `unavailable` after
  /// closing.
  virtual result<gate::ticket> enter() const = 0;
  virtual const std::string& model_name() const = 0;
  virtual const std::vector<std::uint64_t>& tensor_bytes() const = 0;
  virtual const packing& packed() const = 0;
  virtual io_pool& pool() const = 0;
  /// Returns the jobs that together read the runs into memory that begins at `data`.
  virtual jobs read_jobs(const std::vector<read_run>& runs, std::byte* data) = 0;

private:
  status within(const status& why) const { return why.within("reading model " + model_name()); }
};

} // namespace millrace::storage::io

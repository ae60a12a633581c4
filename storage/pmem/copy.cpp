// Within the mapping, or through a huge page and direct I/O.
#include <millrace/core/digest.hpp>
#include <millrace/storage/io/io_buffer.hpp>
#include <millrace/storage/pmem/copy.hpp>
#include <millrace/storage/pmem/extents.hpp>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

namespace millrace::storage::pmem {

namespace {

class copier {
public:
  copier(core& c, const slot_owner& s, const std::vector<std::uint64_t>& digests)
    : c_(c), shape_(*s.shape), digests_(digests), first_(shape_.tensor_bytes.size()),
      buffer_(nullptr, &std::free) {
    for (std::size_t i = 1; i < first_.size(); ++i)
      first_[i] = first_[i - 1] + digest_count(shape_.tensor_bytes[i - 1]);
    if (c.direct)
      buffer_.reset(std::aligned_alloc(io::direct_io_bytes, s.window_bytes));
  }

  status copy(
    const io::packed_window& w, const std::vector<data_extent>& from,
    const std::vector<data_extent>& to) {
    auto source = locate(from, w.at, w.size_bytes).front().offset;
    auto target = locate(to, w.at, w.size_bytes).front().offset;
    return c_.direct ? copy_by_io(w, source, target) : copy_in_mapping(w, source, target);
  }

private:
  status copy_in_mapping(
    const io::packed_window& w, std::uint64_t source, std::uint64_t target) const {
    c_.persist.bulk_copy(c_.address(target), c_.address(source), w.size_bytes);
    if (auto bad = compare(w, c_.address(target)); !bad.ok())
      return bad;
    return c_.persist.bulk_flush(c_.address(target), w.size_bytes);
  }

  status copy_by_io(const io::packed_window& w, std::uint64_t source, std::uint64_t target) const {
    auto data = static_cast<std::byte*>(buffer_.get());
    if (!data)
      return {errc::no_space, "no memory for a window"};
    auto& path = c_.file.path;
    if (auto bad = io::read_all(c_.direct_file, data, w.size_bytes, source, path); !bad.ok())
      return bad;
    if (auto bad = compare(w, data); !bad.ok())
      return bad;
    return io::write_all(c_.direct_file, data, w.size_bytes, target, path);
  }

  // A model may have been stored without checksums.
  status compare(const io::packed_window& w, const std::byte* data) const {
    if (digests_.empty())
      return {};
    for (auto i = w.first; i < w.first + w.count; ++i) {
      auto& p = shape_.packed.pieces[i];
      for (std::uint64_t from = 0; from < p.length; from += digest_block_bytes) {
        auto length = std::min(digest_block_bytes, p.length - from);
        auto block = first_[p.tensor] + (p.tensor_offset + from) / digest_block_bytes;
        if (digest(data + (p.at - w.at) + from, length) != digests_[block])
          return {
            errc::corrupt_data,
            "tensor " + std::to_string(p.tensor) + " does not match its checksums"};
      }
    }
    return {};
  }

  core& c_;
  const shard_shape& shape_;
  const std::vector<std::uint64_t>& digests_;
  std::vector<std::uint64_t> first_; // digest of each tensor
  std::unique_ptr<void, decltype(&std::free)> buffer_;
};

} // namespace

status copy_version(
  core& c, const slot_owner& s, const slot& from, const slot& to,
  const std::vector<std::uint64_t>& digests, const std::function<bool()>& goes_on) {
  copier copies{c, s, digests};
  if (!c.direct)
    for (auto& e : to.extents)
      c.persist.bulk_begins(c.address(e.offset), e.length);
  for (auto& w : s.shape->packed.windows) {
    if (!goes_on())
      return {errc::cancelled, "stopped"};
    if (auto bad = copies.copy(w, from.extents, to.extents); !bad.ok())
      return bad.within("copying a version of " + describe(s.key));
  }
  if (c.direct)
    return ::fdatasync(c.direct_file.get()) == 0
      ? status{}
      : status_from_errno(errno, "syncing " + c.file.path);
  c.persist.fence();
  for (auto& e : to.extents)
    c.persist.bulk_persisted(c.address(e.offset), e.length);
  return {};
}

} // namespace millrace::storage::pmem

// zlib unpacks; it compares the checksum and the length at the end of each file of gzip.
#include <millrace/storage/samples/gzip_source.hpp>

#include <zlib.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace millrace::storage::samples {

namespace {

constexpr std::size_t packed_bytes = 256u << 10;
constexpr int gzip_window_bits = 15 + 16;
constexpr std::byte magic[] = {std::byte{0x1f}, std::byte{0x8b}};

class gzip_source {
public:
  explicit gzip_source(byte_source from) : from_(std::move(from)), packed_(packed_bytes) {}
  gzip_source(const gzip_source&) = delete;
  gzip_source& operator=(const gzip_source&) = delete;
  ~gzip_source() {
    if (is_gzip_)
      ::inflateEnd(&zlib_);
  }

  result<std::size_t> read(std::span<std::byte> into) {
    std::size_t done = 0;
    while (done < into.size() && !ended_) {
      if (auto bad = refill(); !bad.ok())
        return fail(bad);
      auto count = ended_ ? 0 : is_gzip_ ? unpack(into.subspan(done)) : pass(into.subspan(done));
      if (!count)
        return count;
      done += *count;
    }
    return done;
  }

private:
  // Reads some if all that was read is used. At the end of the file `ended_` is set.
  status refill() {
    if (!left_.empty())
      return {};
    auto count = from_(offset_, packed_);
    if (!count)
      return count.error();
    left_ = std::span{packed_}.first(*count);
    offset_ += *count;
    if (left_.empty() && is_gzip_ && !between_files_)
      return {errc::corrupt_data, "its compression ends early: it was cut short"};
    ended_ = left_.empty();
    return ended_ || begun_ ? status{} : begin();
  }

  status begin() {
    begun_ = true;
    if (
      left_.size() < std::size(magic) || !std::ranges::equal(left_.first(std::size(magic)), magic))
      return {};
    if (::inflateInit2(&zlib_, gzip_window_bits) != Z_OK)
      return {errc::no_space, "no memory for unpacking the archive"};
    is_gzip_ = true;
    return {};
  }

  result<std::size_t> pass(std::span<std::byte> into) {
    auto some = left_.first(std::min(left_.size(), into.size()));
    std::ranges::copy(some, into.begin());
    left_ = left_.subspan(some.size());
    return some.size();
  }

  result<std::size_t> unpack(std::span<std::byte> into) {
    if (between_files_ && left_.front() != magic[0]) {
      ended_ = true;
      return 0;
    }
    if (std::exchange(between_files_, false))
      ::inflateReset(&zlib_);
    auto room = std::min<std::size_t>(into.size(), UINT32_MAX);
    zlib_.next_in = reinterpret_cast<Bytef*>(left_.data());
    zlib_.avail_in = static_cast<uInt>(left_.size());
    zlib_.next_out = reinterpret_cast<Bytef*>(into.data());
    zlib_.avail_out = static_cast<uInt>(room);
    auto outcome = ::inflate(&zlib_, Z_NO_FLUSH);
    left_ = left_.last(zlib_.avail_in);
    if (outcome == Z_MEM_ERROR)
      return fail(errc::no_space, "no memory for unpacking the archive");
    if (outcome != Z_OK && outcome != Z_STREAM_END && outcome != Z_BUF_ERROR)
      return fail(
        errc::corrupt_data, "its compression is damaged: {}",
        zlib_.msg ? zlib_.msg : "a dictionary");
    between_files_ = outcome == Z_STREAM_END;
    return room - zlib_.avail_out;
  }

  const byte_source from_;
  std::vector<std::byte> packed_;
  std::span<std::byte> left_; // of them
  std::uint64_t offset_ = 0;  // of what is read next
  z_stream zlib_ = {};
  bool begun_ = false;         // something was read
  bool is_gzip_ = false;       // `zlib_` is made
  bool between_files_ = false; // one of gzip has ended
  bool ended_ = false;
};

} // namespace

byte_source gunzipped(byte_source from) {
  return [all = std::make_shared<gzip_source>(std::move(from))](
           std::uint64_t, std::span<std::byte> into) { return all->read(into); };
}

} // namespace millrace::storage::samples

// Checks what is asked for, and notes which files are damaged.
#include <millrace/storage/samples/sample_reader.hpp>

#include <cerrno>
#include <numeric>
#include <system_error>
#include <utility>

namespace millrace::storage::samples {

bool is_damage(const status& why) {
  switch (why.code()) {
  case errc::corrupt_data:
  case errc::unsupported:
  case errc::unsupported_version:
  case errc::invalid_argument:
  case errc::not_found:
  case errc::permission_denied:
    return true;
  case errc::io_error: // many errors of the system have this code
    return why.detail().ends_with(std::generic_category().message(EIO));
  default:
    return false;
  }
}

status sample_reader::read(
  std::size_t field, std::uint64_t first, std::uint64_t count, std::span<std::byte> into) {
  if (auto bad = check(field, first, count); !bad.ok())
    return bad;
  if (auto bytes = bytes_of(field, first, count); bytes != into.size())
    return {
      errc::invalid_argument, "{} samples of {} bytes do not have {} bytes", count, bytes,
      into.size()};
  return into.empty() ? status{} : read_range(field, first, 0, into);
}

status sample_reader::read_part(
  std::size_t field, std::uint64_t sample, std::uint64_t offset, std::span<std::byte> into) {
  if (auto bad = check(field, sample, 1); !bad.ok())
    return bad;
  auto bytes = bytes_of(field, sample, 1);
  if (offset % 64 != 0 || offset > bytes || into.size() > bytes - offset)
    return {
      errc::invalid_argument, "{} bytes from {} on are not in a sample of {}", into.size(), offset,
      bytes};
  return into.empty() ? status{} : read_range(field, sample, offset, into);
}

std::vector<damaged_file> sample_reader::damaged() const {
  std::lock_guard guard{damage_mutex_};
  return damaged_;
}

status sample_reader::blame(const std::string& path, status why) {
  std::lock_guard guard{damage_mutex_};
  if (is_damage(why) && damaged_at_.emplace(path, damaged_.size()).second)
    damaged_.push_back({path, why});
  return why;
}

status sample_reader::blame_as(const sample_reader& other, status outcome) {
  if (!outcome.ok())
    for (auto& file : other.damaged())
      static_cast<void>(blame(file.path, file.why));
  return outcome;
}

status sample_reader::blamed(const std::string& path) const {
  std::lock_guard guard{damage_mutex_};
  auto found = damaged_at_.find(path);
  return found == damaged_at_.end() ? status{} : damaged_[found->second].why;
}

std::uint64_t sample_reader::bytes_of(
  std::size_t field, std::uint64_t first, std::uint64_t count) const {
  auto& about = fields()[field];
  if (!about.varies)
    return count * size_bytes(about.sample).value_or(0);
  auto some = lengths(field).subspan(first, count);
  return std::accumulate(some.begin(), some.end(), std::uint64_t{0});
}

status sample_reader::check(std::size_t field, std::uint64_t first, std::uint64_t count) const {
  if (field < fields().size() && first <= samples() && count <= samples() - first)
    return {};
  return {
    errc::invalid_argument,
    "{} samples from {} on, of field {}: there are {}, of {} fields",
    count,
    first,
    field,
    samples(),
    fields().size()};
}

} // namespace millrace::storage::samples

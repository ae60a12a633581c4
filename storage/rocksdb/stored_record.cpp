// Encoding of records and keys. Called by storing, opening and the engine.
#include <millrace/storage/io/file_io.hpp>
#include <millrace/storage/io/packing.hpp>
#include <millrace/storage/rocksdb/stored_record.hpp>

#include <fmt/format.h>

#include <span>

namespace millrace::storage::rocksdb {

namespace {

// Our own data, which RocksDB's checksums protect. The largest layout must fit.
constexpr decode_limits record_limits{.depth_max = 16, .decoded_bytes_max = 4ull << 30};

std::string to_text(const byte_buffer& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::span<const std::byte> to_bytes(std::string_view text) {
  return std::as_bytes(std::span{text.data(), text.size()});
}

} // namespace

std::string keys::layer(const layer_id& id) {
  return layers + std::string{reinterpret_cast<const char*>(id.bytes.data()), id.bytes.size()};
}

std::string encode_record(const stored_record& record) { return to_text(encode(record)); }

result<stored_record> decode_record(std::string_view model, std::string_view value) {
  auto record = decode<stored_record>(
    to_bytes(value), "the record of model " + std::string{model}, record_limits);
  if (!record)
    return fail(errc::corrupt_data, record.error().detail());
  auto window = record->window_bytes;
  if (window < io::window_bytes_min || window % io::direct_io_bytes != 0)
    return fail(
      errc::corrupt_data, "the record of model {} has windows of {} bytes", model, window);
  return record;
}

std::string encode_stream(std::uint64_t version, std::string_view bytes) {
  std::string value;
  for (auto i = 0; i < 8; ++i)
    value.push_back(static_cast<char>(version >> (8 * i)));
  return value.append(bytes);
}

std::optional<std::string> decode_stream(std::uint64_t version, std::string_view value) {
  if (!value.starts_with(encode_stream(version, {})))
    return std::nullopt;
  return std::string{value.substr(8)};
}

std::string encode_number(std::uint64_t value) { return to_text(encode(value)); }

result<std::uint64_t> decode_number(std::string_view value, std::string_view what) {
  auto number = decode<std::uint64_t>(to_bytes(value), what);
  if (!number)
    return fail(errc::corrupt_data, number.error().detail());
  return number;
}

status check_format(index& db, const std::string& path, bool make) {
  auto ours = fmt::format("{}{}", format_magic, format_version);
  auto found = db.get(keys::format);
  if (!found)
    return found.error();
  if (!*found) {
    auto anything = db.scan("", [](auto, auto) {
      return status{errc::invalid_argument, "not empty"};
    });
    if (anything.ok())
      return make ? db.write({{keys::format, ours}}) : status{};
    return {
      errc::invalid_argument,
      "{} holds a database that is not a Millrace bucket; choose another directory", path};
  }
  if (**found == ours)
    return {};
  if (!(*found)->starts_with(format_magic))
    return {
      errc::invalid_argument,
      "{} holds a database that is not a Millrace bucket; choose another directory", path};
  return {
    errc::unsupported_version,
    "{} has format {}, this build reads format {}; open it with the build that wrote it", path,
    (*found)->substr(format_magic.size()), format_version};
}

} // namespace millrace::storage::rocksdb

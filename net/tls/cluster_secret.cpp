// Making, writing and reading the cluster's secret.
// Called by `millrace cluster secret` and when a TLS context opens.
#include <millrace/core/ids.hpp>
#include <millrace/net/socket/unique_fd.hpp>
#include <millrace/net/tls/cluster_secret.hpp>
#include <millrace/net/tls/private_file.hpp>

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace millrace::net::tls {

namespace {

constexpr std::string_view mark = "millrace-secret-1:";
constexpr std::size_t checksum_bytes = 4;
constexpr std::size_t file_bytes_max = 4096;

std::string checksum_of(const cluster_secret& secret) {
  constexpr std::string_view purpose = "millrace secret checksum 1";
  std::array<std::uint8_t, crypto_generichash_BYTES_MIN> hash{};
  crypto_generichash(
    hash.data(), hash.size(), reinterpret_cast<const unsigned char*>(purpose.data()),
    purpose.size(), secret.data(), secret.size());
  return to_hex(hash.data(), checksum_bytes);
}

status write_new(const std::string& path, std::string_view text) {
  unique_fd fd{::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)};
  if (!fd && errno == EEXIST)
    return {
      errc::already_exists,
      path + " exists and is not overwritten: the members of a running cluster may use it"};
  if (!fd)
    return status_from_errno(errno, "making " + path);
  // The mode of the file must not depend on the umask.
  auto written = ::fchmod(fd.get(), 0600) == 0 &&
    ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
    ::fsync(fd.get()) == 0;
  if (written)
    return {};
  auto why = status_from_errno(errno, "writing " + path);
  ::unlink(path.c_str());
  return why;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' '))
    text.remove_suffix(1);
  return text;
}

} // namespace

std::string encode_cluster_secret(const cluster_secret& secret) {
  return std::string{mark} + to_hex(secret.data(), secret.size()) + ":" + checksum_of(secret) +
    "\n";
}

result<cluster_secret> decode_cluster_secret(std::string_view text) {
  text = trimmed(text);
  if (!text.starts_with(mark))
    return fail(errc::corrupt_data, "it does not begin as a secret of this version does");
  text.remove_prefix(mark.size());
  constexpr auto expected = 2 * std::tuple_size_v<cluster_secret> + 1 + 2 * checksum_bytes;
  if (text.size() != expected)
    return fail(
      errc::corrupt_data, "it has {} characters after its mark, not {}", text.size(), expected);
  cluster_secret secret{};
  std::size_t size = 0;
  auto* bytes = text.data();
  auto digits = 2 * secret.size();
  if (
    sodium_hex2bin(secret.data(), secret.size(), bytes, digits, nullptr, &size, nullptr) != 0 ||
    size != secret.size() || text[digits] != ':')
    return fail(errc::corrupt_data, "it is not made of hexadecimal digits");
  if (text.substr(digits + 1) != checksum_of(secret))
    return fail(errc::corrupt_data, "its checksum does not fit");
  return secret;
}

status create_cluster_secret(const std::string& path) {
  cluster_secret secret{};
  random_bytes(secret.data(), secret.size());
  auto text = encode_cluster_secret(secret);
  auto written = write_new(path, text);
  sodium_memzero(secret.data(), secret.size());
  sodium_memzero(text.data(), text.size());
  return written;
}

result<cluster_secret> load_cluster_secret(const std::string& path) {
  auto text = read_private_file(path, "the cluster's secret", file_bytes_max);
  if (!text && text.error().code() == errc::not_found)
    return fail(text.error().code(), text.error().detail() + "; make one: millrace cluster secret");
  if (!text)
    return fail(text.error());
  auto secret = decode_cluster_secret(*text);
  sodium_memzero(text->data(), text->size());
  if (!secret)
    return fail(
      secret.error().code(),
      "the cluster's secret in {} is damaged: {}; copy it again from another node", path,
      secret.error().detail());
  return secret;
}

} // namespace millrace::net::tls

// Finds the samples in untrusted tar archives, compressed and not. Run by libFuzzer.
#include <millrace/core/assert.hpp>
#include <millrace/storage/samples/tar_index.hpp>
#include <millrace/tests/support/crafted_tar.hpp>

#include <algorithm>
#include <cstring>
#include <unordered_set>

using namespace millrace;
using namespace millrace::storage::samples;

namespace {

// Entries of an input: the lengths of name and contents, the type, and by how much the header lies.
std::string archive_of(std::string_view in) {
  std::vector<testing::crafted_tar_entry> entries;
  while (in.size() >= 4) {
    auto byte = [&](std::size_t at) { return static_cast<unsigned char>(in[at]); };
    std::size_t name_bytes = byte(0), bytes = byte(1), lie = byte(3);
    testing::crafted_tar_entry entry;
    entry.type = in[2];
    in.remove_prefix(4);
    entry.name = in.substr(0, name_bytes);
    in.remove_prefix(entry.name.size());
    entry.bytes = in.substr(0, bytes);
    in.remove_prefix(entry.bytes.size());
    entry.claimed_bytes = lie == 0 ? 0 : entry.bytes.size() + lie * lie * lie;
    entries.push_back(std::move(entry));
  }
  return testing::crafted_tar(entries);
}

byte_source source_of(std::string_view bytes) {
  return [bytes](std::uint64_t offset, std::span<std::byte> into) -> result<std::size_t> {
    auto some = bytes.substr(std::min<std::uint64_t>(offset, bytes.size()), into.size());
    std::memcpy(into.data(), some.data(), some.size());
    return some.size();
  };
}

void check(const std::vector<tar_sample>& samples, const tar_totals& totals) {
  std::unordered_set<std::string> keys;
  for (auto& sample : samples) {
    MILLRACE_ASSERT(keys.insert(sample.key).second && sample.key.size() <= tar_name_bytes_max);
    for (auto& part : sample.parts)
      MILLRACE_ASSERT(part.extension < totals.extensions.names().size());
  }
  MILLRACE_ASSERT(totals.samples >= samples.size());
}

// What the index says is there can be read, and has the same bytes by both ways.
void check_plain(const std::vector<tar_sample>& samples, std::string_view archive) {
  auto unpacked = unpacked_stream::open(source_of(archive), tar_packing::none);
  for (auto& sample : samples)
    for (auto& part : sample.parts) {
      MILLRACE_ASSERT(part.offset <= archive.size());
      MILLRACE_ASSERT(part.size_bytes <= archive.size() - part.offset);
      std::string bytes(part.size_bytes, '\0');
      MILLRACE_ASSERT(unpacked.has_value());
      MILLRACE_ASSERT(unpacked->read(part.offset, std::as_writable_bytes(std::span{bytes})).ok());
      MILLRACE_ASSERT(archive.substr(part.offset, part.size_bytes) == bytes);
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0)
    return 0;
  std::string_view in{reinterpret_cast<const char*>(data) + 1, size - 1};
  constexpr tar_packing packings[] = {tar_packing::none, tar_packing::gzip, tar_packing::zstd};
  auto packing = packings[data[0] / 2 % 3];
  auto archive = data[0] % 2 == 0 ? std::string{in} : archive_of(in);
  tar_totals totals;
  auto samples = index_tar(source_of(archive), packing, archive.size(), totals, opening{});
  if (!samples) {
    MILLRACE_ASSERT(!samples.error().detail().empty());
    return 0;
  }
  check(*samples, totals);
  if (packing == tar_packing::none)
    check_plain(*samples, archive);
  return 0;
}

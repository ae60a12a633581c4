// Lets libarchive parse what a source gives. Of its filters only those that work in this process
// are taken, so no program is ever started.
#include <millrace/core/rounding.hpp>
#include <millrace/storage/samples/gzip_source.hpp>
#include <millrace/storage/samples/tar_stream.hpp>

#include <archive.h>
#include <archive_entry.h>
#include <locale.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <vector>

namespace millrace::storage::samples {

namespace {

constexpr std::uint64_t tar_block_bytes = 512;
// Small where most bytes are passed over.
constexpr std::size_t plain_buffer_bytes = 16u << 10;
constexpr std::size_t packed_buffer_bytes = 256u << 10;
constexpr std::uint64_t after_end_bytes_max = 64u << 20;

struct free_archive {
  void operator()(::archive* one) const noexcept { ::archive_read_free(one); }
};

// What the callbacks of libarchive share with those who open it.
struct opened_archive {
  opened_archive(byte_source from, tar_packing how)
    : source(how == tar_packing::gzip ? gunzipped(std::move(from)) : std::move(from)),
      buffer(how == tar_packing::none ? plain_buffer_bytes : packed_buffer_bytes), packing(how) {}

  byte_source source; // unpacked, if the packing is gzip
  std::vector<std::byte> buffer;
  tar_packing packing;
  std::uint64_t offset = 0; // of the source's next bytes
  status why;               // the error of the source
  std::unique_ptr<::archive, free_archive> parser{::archive_read_new()};
};

la_ssize_t read_some(::archive* parser, void* from, const void** bytes) {
  auto& of = *static_cast<opened_archive*>(from);
  auto count = of.source(of.offset, of.buffer);
  if (!count) {
    of.why = count.error();
    ::archive_set_error(parser, EIO, "the source fails");
    return -1;
  }
  of.offset += *count;
  *bytes = of.buffer.data();
  return static_cast<la_ssize_t>(*count);
}

la_int64_t skip_some(::archive*, void* from, la_int64_t count) {
  static_cast<opened_archive*>(from)->offset += static_cast<std::uint64_t>(count);
  return count;
}

status error_of(const opened_archive& of) {
  if (!of.why.ok())
    return of.why;
  if (::archive_errno(of.parser.get()) == ENOMEM)
    return {errc::no_space, "no memory for parsing the archive"};
  auto* text = ::archive_error_string(of.parser.get());
  return {errc::corrupt_data, "{}", text ? text : "the archive cannot be parsed"};
}

int add_filter(::archive* parser, tar_packing packing) {
  switch (packing) {
  case tar_packing::none:
  case tar_packing::gzip:
    return ARCHIVE_OK;
  case tar_packing::zstd:
    return ::archive_read_support_filter_zstd(parser);
  }
  return ARCHIVE_FATAL;
}

status open_with(opened_archive& of, int (*add_format)(::archive*)) {
  auto* parser = of.parser.get();
  if (!parser)
    return {errc::no_space, "no memory for parsing the archive"};
  // A filter that would start a program gives a warning.
  if (add_filter(parser, of.packing) != ARCHIVE_OK)
    return {errc::unsupported, "this build of libarchive cannot read the compression itself"};
  auto* skip = of.packing == tar_packing::none ? &skip_some : nullptr;
  if (
    add_format(parser) != ARCHIVE_OK ||
    ::archive_read_open2(parser, &of, nullptr, &read_some, skip, nullptr) != ARCHIVE_OK)
    return error_of(of);
  return {};
}

std::uint64_t position_of(const opened_archive& of) {
  return static_cast<std::uint64_t>(
    std::max<la_int64_t>(::archive_filter_bytes(of.parser.get(), 0), 0));
}

// While it exists, names in UTF-8 stay as they are in this thread, whatever the program's locale.
class utf8_names {
public:
  utf8_names() : before_(::uselocale(utf8())) {}
  utf8_names(const utf8_names&) = delete;
  utf8_names& operator=(const utf8_names&) = delete;
  ~utf8_names() { ::uselocale(before_); }

private:
  static locale_t utf8() {
    static const auto made = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
    return made;
  }
  const locale_t before_;
};

tar_entry_kind kind_of(archive_entry* entry) {
  if (::archive_entry_hardlink(entry) || ::archive_entry_symlink(entry))
    return tar_entry_kind::link;
  if (::archive_entry_filetype(entry) == AE_IFDIR)
    return tar_entry_kind::folder;
  if (::archive_entry_filetype(entry) != AE_IFREG)
    return tar_entry_kind::device;
  return ::archive_entry_sparse_count(entry) > 0 ? tar_entry_kind::sparse_file
                                                 : tar_entry_kind::file;
}

// Reads until `into` is full or the entry ends; returns how many bytes.
result<std::size_t> read_entry(opened_archive& of, std::span<std::byte> into) {
  std::size_t done = 0;
  while (done < into.size()) {
    auto count = ::archive_read_data(of.parser.get(), into.data() + done, into.size() - done);
    if (count < 0)
      return fail(error_of(of));
    if (count == 0)
      break;
    done += static_cast<std::size_t>(count);
  }
  return done;
}

} // namespace

std::optional<tar_packing> tar_packing_of(std::string_view name) noexcept {
  if (name.ends_with(".tar"))
    return tar_packing::none;
  if (name.ends_with(".tar.gz") || name.ends_with(".tgz"))
    return tar_packing::gzip;
  return name.ends_with(".tar.zst") ? std::optional{tar_packing::zstd} : std::nullopt;
}

struct tar_stream::state : opened_archive {
  using opened_archive::opened_archive;
  std::uint64_t end = 0; // of the last entry
};

tar_stream::tar_stream(std::unique_ptr<state> of) noexcept : state_(std::move(of)) {}
tar_stream::tar_stream(tar_stream&&) noexcept = default;
tar_stream::~tar_stream() = default;

result<tar_stream> tar_stream::open(byte_source from, tar_packing packing) {
  auto made = std::make_unique<state>(std::move(from), packing);
  if (auto bad = open_with(*made, &::archive_read_support_format_tar); !bad.ok())
    return fail(bad);
  return tar_stream{std::move(made)};
}

result<std::optional<tar_entry>> tar_stream::next() {
  utf8_names names;
  archive_entry* entry = nullptr;
  auto outcome = ::archive_read_next_header(state_->parser.get(), &entry);
  auto position = position_of(*state_);
  if (outcome == ARCHIVE_EOF && position < state_->end + tar_block_bytes)
    return fail(errc::corrupt_data, "it has no end mark: it was cut short");
  if (outcome == ARCHIVE_EOF)
    return end();
  // A warning is about a name that cannot be told, or a header that is not as it should be.
  if (outcome != ARCHIVE_OK)
    return fail(error_of(*state_));
  auto* name = ::archive_entry_pathname(entry);
  auto size = ::archive_entry_size(entry);
  if (!name || size < 0 || size > INT64_MAX / 2 || position > INT64_MAX / 2)
    return fail(errc::corrupt_data, "an entry at {} has no name, or no possible size", position);
  tar_entry out{name, kind_of(entry), position, static_cast<std::uint64_t>(size)};
  auto is_plain = out.kind == tar_entry_kind::file;
  state_->end = position + (is_plain ? round_up(out.size_bytes, tar_block_bytes) : 0);
  return out;
}

// The checksum of gzip comes after what follows the end mark, zeros as a rule.
result<std::optional<tar_entry>> tar_stream::end() {
  auto& of = *state_;
  for (std::uint64_t passed = 0; of.packing == tar_packing::gzip;) {
    auto count = of.source(0, of.buffer);
    if (!count)
      return fail(count.error());
    if (*count == 0)
      break;
    passed += *count;
    if (passed > after_end_bytes_max)
      return fail(
        errc::corrupt_data, "more than {} bytes follow its end mark", after_end_bytes_max);
  }
  return std::nullopt;
}

result<std::string> tar_stream::bytes(std::uint64_t size_bytes) {
  std::string out(size_bytes, '\0');
  auto count = read_entry(*state_, std::as_writable_bytes(std::span{out}));
  if (!count)
    return fail(count.error());
  if (*count != size_bytes)
    return fail(errc::corrupt_data, "it ends early");
  return out;
}

std::uint64_t tar_stream::position() const noexcept { return position_of(*state_); }

struct unpacked_stream::state : opened_archive {
  using opened_archive::opened_archive;
  std::uint64_t position = 0;
};

unpacked_stream::unpacked_stream(std::unique_ptr<state> of) noexcept : state_(std::move(of)) {}
unpacked_stream::unpacked_stream(unpacked_stream&&) noexcept = default;
unpacked_stream::~unpacked_stream() = default;

result<unpacked_stream> unpacked_stream::open(byte_source from, tar_packing packing) {
  auto made = std::make_unique<state>(std::move(from), packing);
  if (auto bad = open_with(*made, &::archive_read_support_format_raw); !bad.ok())
    return fail(bad);
  archive_entry* whole = nullptr;
  if (::archive_read_next_header(made->parser.get(), &whole) != ARCHIVE_OK)
    return fail(error_of(*made));
  return unpacked_stream{std::move(made)};
}

std::uint64_t unpacked_stream::position() const noexcept { return state_->position; }

status unpacked_stream::read(std::uint64_t offset, std::span<std::byte> into) {
  std::vector<std::byte> passed(
    std::min<std::uint64_t>(offset - state_->position, packed_buffer_bytes));
  while (state_->position < offset + into.size()) {
    auto skips = state_->position < offset;
    auto piece = skips
      ? std::span{passed}.first(std::min<std::uint64_t>(offset - state_->position, passed.size()))
      : into;
    auto count = read_entry(*state_, piece);
    if (!count)
      return count.error();
    state_->position += *count;
    if (*count != piece.size())
      return {errc::corrupt_data, "it ends early, after {} bytes", state_->position};
  }
  return {};
}

} // namespace millrace::storage::samples

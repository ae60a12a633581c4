// Writes through libzip. Its sources are callbacks, which pass on what is read in large steps.
#include <millrace/storage/archive/zip_error.hpp>
#include <millrace/storage/archive/zip_output.hpp>

#include <array>
#include <cstring>

namespace millrace::storage::archive {

struct zip_output::feed {
  zip_output* owner = nullptr;
  std::string head; // before the tensor; or the whole entry
  std::uint32_t tensor = 0;
  std::uint64_t tensor_bytes = 0;
  std::uint64_t position = 0; // in the entry
  zip_error_t error{};

  std::uint64_t size_bytes() const { return head.size() + tensor_bytes; }

  // Copies from the head or from the step in the buffer, up to the end of either.
  zip_int64_t hand_out(std::span<std::byte> into) {
    if (position < head.size()) {
      auto count = std::min<std::uint64_t>(into.size(), head.size() - position);
      std::memcpy(into.data(), head.data() + position, count);
      position += count;
      return static_cast<zip_int64_t>(count);
    }
    auto offset = position - head.size();
    if (offset == tensor_bytes)
      return 0;
    auto in_step = offset % archive_step_bytes;
    auto step = std::min(archive_step_bytes, tensor_bytes - (offset - in_step));
    if (in_step == 0 && !refill(offset, step))
      return -1;
    auto count = std::min<std::uint64_t>(into.size(), step - in_step);
    std::memcpy(into.data(), owner->buffer_.data() + in_step, count);
    position += count;
    return static_cast<zip_int64_t>(count);
  }

  bool refill(std::uint64_t offset, std::uint64_t step) {
    if (owner->buffer_.size() < step)
      owner->buffer_.resize(step);
    auto& failed = owner->failed_;
    failed = owner->source_.read(tensor, offset, {owner->buffer_.data(), step});
    if (failed.ok())
      failed = owner->done_.add(step);
    if (!failed.ok())
      zip_error_set(&error, ZIP_ER_READ, 0);
    return failed.ok();
  }

  zip_int64_t about(void* data, zip_uint64_t length) {
    if (length < sizeof(zip_stat_t))
      return -1;
    auto* answer = static_cast<zip_stat_t*>(data);
    zip_stat_init(answer);
    answer->size = size_bytes();
    answer->valid = ZIP_STAT_SIZE;
    return sizeof(zip_stat_t);
  }

  static zip_int64_t ask(void* self, void* data, zip_uint64_t length, zip_source_cmd_t what) {
    auto& from = *static_cast<feed*>(self);
    switch (what) {
    case ZIP_SOURCE_OPEN:
      from.position = 0;
      return 0;
    case ZIP_SOURCE_READ:
      return from.hand_out({static_cast<std::byte*>(data), length});
    case ZIP_SOURCE_STAT:
      return from.about(data, length);
    case ZIP_SOURCE_ERROR:
      return zip_error_to_data(&from.error, data, length);
    case ZIP_SOURCE_CLOSE:
    case ZIP_SOURCE_FREE: // the feed belongs to the output
      return 0;
    case ZIP_SOURCE_SUPPORTS:
      return zip_source_make_command_bitmap(
        ZIP_SOURCE_OPEN, ZIP_SOURCE_READ, ZIP_SOURCE_CLOSE, ZIP_SOURCE_STAT, ZIP_SOURCE_ERROR,
        ZIP_SOURCE_FREE, -1);
    default:
      zip_error_set(&from.error, ZIP_ER_OPNOTSUPP, 0);
      return -1;
    }
  }
};

namespace {

constexpr std::uint64_t local_header_bytes = 30;
constexpr std::uint64_t extra_header_bytes = 4;
constexpr std::uint64_t zip64_extra_bytes = 20;
constexpr std::uint64_t size_32_max = 0xffffffff;
// The id of PyTorch's own padding.
constexpr zip_uint16_t padding_id = 0x4246;

} // namespace

zip_output::zip_output(zip* file, tensor_source& source, meter& done)
  : file_(file), source_(source), done_(done) {}

zip_output::~zip_output() {
  if (file_)
    zip_discard(file_);
}

result<std::unique_ptr<zip_output>> zip_output::create(
  const std::string& path, tensor_source& source, meter& done) {
  int code = 0;
  auto* file = zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, &code);
  if (!file) {
    zip_error_t error;
    zip_error_init_with_code(&error, code);
    auto why = status_of(error, "creating a zip file");
    zip_error_fini(&error);
    return fail(why);
  }
  return std::unique_ptr<zip_output>{new zip_output{file, source, done}};
}

status zip_output::add_text(const std::string& name, std::string text, std::uint64_t alignment) {
  auto from = std::make_unique<feed>();
  from->head = std::move(text);
  return add(name, std::move(from), alignment);
}

status zip_output::add_tensor(
  const std::string& name, std::string head, std::uint32_t tensor, std::uint64_t alignment) {
  auto from = std::make_unique<feed>();
  from->head = std::move(head);
  from->tensor = tensor;
  from->tensor_bytes = millrace::size_bytes(source_.tensors().tensors[tensor]).value_or(0);
  return add(name, std::move(from), alignment);
}

status zip_output::add(
  const std::string& name, std::unique_ptr<feed> from, std::uint64_t alignment) {
  auto wrong = [&] {
    return status_of(*zip_get_error(file_), "adding " + name + " to a zip file");
  };
  if (name.size() > 0xffff)
    return {errc::unsupported, "zip files have no names of more than 65535 bytes"};
  from->owner = this;
  zip_error_init(&from->error);
  auto size = from->size_bytes();
  auto* source = zip_source_function(file_, &feed::ask, from.get());
  if (!source)
    return wrong();
  feeds_.push_back(std::move(from));
  auto index = zip_file_add(file_, name.c_str(), source, ZIP_FL_ENC_UTF_8);
  if (index < 0) {
    zip_source_free(source);
    return wrong();
  }
  auto at = static_cast<zip_uint64_t>(index);
  // The same tensors make the same bytes, so there is no time of day.
  if (
    zip_set_file_compression(file_, at, ZIP_CM_STORE, 0) != 0 ||
    zip_file_set_dostime(file_, at, 0, 0x21, 0) != 0)
    return wrong();
  end_ += local_header_bytes + name.size() + (size > size_32_max ? zip64_extra_bytes : 0);
  if (auto bad = align(at, end_, alignment); !bad.ok())
    return bad;
  end_ += size;
  return {};
}

// Adds padding to the header before the bytes. Its place depends on what libzip writes there, which
// a test compares.
status zip_output::align(std::uint64_t index, std::uint64_t data_at, std::uint64_t alignment) {
  if (data_at % alignment == 0)
    return {};
  auto padded = (data_at + extra_header_bytes + alignment - 1) / alignment * alignment;
  std::array<zip_uint8_t, 4096> zeros{};
  auto length = static_cast<zip_uint16_t>(padded - data_at - extra_header_bytes);
  if (
    zip_file_extra_field_set(
      file_, index, padding_id, ZIP_EXTRA_FIELD_NEW, zeros.data(), length, ZIP_FL_LOCAL) != 0)
    return status_of(*zip_get_error(file_), "aligning an entry of a zip file");
  end_ = padded;
  return {};
}

status zip_output::close() {
  if (zip_close(file_) == 0) {
    file_ = nullptr;
    return {};
  }
  return failed_.ok() ? status_of(*zip_get_error(file_), "writing a zip file") : failed_;
}

} // namespace millrace::storage::archive

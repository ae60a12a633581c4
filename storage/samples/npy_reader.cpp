// Reads samples with `pread`, never through a mapping: a file that another process cuts short is an
// error then, not a signal.
#include <millrace/core/rounding.hpp>
#include <millrace/storage/archive/npy.hpp>
#include <millrace/storage/archive/strided.hpp>
#include <millrace/storage/samples/joined_reader.hpp>
#include <millrace/storage/samples/npy_reader.hpp>
#include <millrace/storage/samples/sample_file.hpp>

#include <algorithm>
#include <mutex>
#include <utility>

namespace millrace::storage::samples {

namespace {

struct npy_file : sample_file {
  archive::npy_header header;
  std::uint64_t first = 0; // the number of its first sample, among those of all files
  bool scattered = false;  // the elements of a sample do not lie beside each other
  status misfit;           // why it has no samples; never left out

  std::uint64_t samples() const { return header.tensor.shape.front(); }
};

// Samples of a file in Fortran order: for each element of a sample a row, with that element of all
// samples of the block.
struct fortran_block {
  const npy_file* file = nullptr;
  std::uint64_t first = 0; // in the file
  std::uint64_t count = 0;
  std::vector<std::byte> bytes;

  bool has(const npy_file& of, std::uint64_t sample) const {
    return file == &of && sample >= first && sample - first < count;
  }
};

tensor_desc sample_of(const npy_file& file) {
  auto sample = file.header.tensor;
  sample.shape.erase(sample.shape.begin());
  return sample;
}

status check_header(npy_file& file) {
  auto& array = file.header.tensor;
  if (array.shape.empty()) {
    file.misfit = {errc::invalid_argument, "{} has one scalar, no samples", file.path};
    return {};
  }
  auto bytes = size_bytes(array);
  auto sample = row_bytes(array);
  if (!bytes || !sample)
    return {
      errc::corrupt_data, "{}: {}", file.path, (bytes ? sample.error() : bytes.error()).detail()};
  if (*sample == 0)
    file.misfit = {
      errc::invalid_argument, "{} is {}: its samples have no bytes", file.path, describe(array)};
  auto held = file.state.size_bytes - std::min(file.state.size_bytes, file.header.data_offset);
  if (*bytes > held)
    return {
      errc::corrupt_data,
      "{} is shorter than its header says: {} has {} bytes, the file {}",
      file.path,
      describe(array),
      *bytes,
      held};
  return {};
}

result<npy_file> open_npy_file(const std::string& path) {
  auto found = find_file(path);
  if (!found)
    return fail(found.error());
  npy_file out;
  static_cast<sample_file&>(out) = std::move(*found);
  auto file = open_to_read(out.path);
  if (!file)
    return fail(file.error());
  std::string text(std::min(out.state.size_bytes, archive::npy_header_bytes_max), '\0');
  if (auto bad = io::read_all(file->handle, text.data(), text.size(), 0, out.path); !bad.ok())
    return fail(bad);
  auto header = archive::parse_npy_header(text);
  if (!header)
    return fail(header.error().within(out.path));
  out.header = std::move(*header);
  out.header.tensor.name = "x";
  auto& shape = out.header.tensor.shape;
  out.scattered =
    out.header.fortran_order && !archive::is_dense(shape, archive::fortran_order(shape));
  if (auto bad = check_header(out); !bad.ok())
    return fail(bad);
  return out;
}

class npy_reader final : public sample_reader {
public:
  npy_reader(std::vector<npy_file> files, std::uint64_t block_bytes)
    : files_(std::move(files)), block_bytes_(block_bytes), fields_{{sample_of(files_.front())}},
      sample_bytes_(*size_bytes(fields_.front().sample)),
      scattered_(std::ranges::any_of(files_, &npy_file::scattered)) {}

  std::uint64_t samples() const noexcept override {
    return files_.back().first + files_.back().samples();
  }
  const std::vector<read_field>& fields() const noexcept override { return fields_; }
  bool prefers_order() const noexcept override { return scattered_; }

protected:
  status read_range(
    std::size_t, std::uint64_t first, std::uint64_t offset, std::span<std::byte> into) override {
    while (!into.empty()) {
      auto& file = file_with(files_, first);
      auto left = (file.first + file.samples() - first) * sample_bytes_ - offset;
      auto bytes = into.first(std::min<std::uint64_t>(into.size(), left));
      if (auto bad = read_from(file, first - file.first, offset, bytes); !bad.ok())
        return blame(file.path, std::move(bad));
      first = file.first + file.samples(), offset = 0;
      into = into.subspan(bytes.size());
    }
    return {};
  }

private:
  const tensor_desc& sample() const { return fields_.front().sample; }

  status read_from(
    const npy_file& file, std::uint64_t first, std::uint64_t offset, std::span<std::byte> into) {
    auto opened = open_to_read(file.path);
    if (!opened)
      return opened.error();
    auto& handle = opened->handle;
    auto bad = file.scattered
      ? read_scattered(file, handle, first, offset, into)
      : io::read_all(
          handle, into.data(), into.size(),
          file.header.data_offset + first * sample_bytes_ + offset, file.path);
    if (bad.ok())
      bad = check_unchanged(file, handle);
    if (bad.ok() && file.header.big_endian)
      archive::swap_bytes(into, archive::number_bytes(sample()));
    return bad;
  }

  status read_scattered(
    const npy_file& file, const io::file_handle& opened, std::uint64_t first, std::uint64_t offset,
    std::span<std::byte> into) {
    auto element = archive::element_bytes(sample());
    while (!into.empty()) {
      auto block = block_with(file, opened, first);
      if (!block)
        return block.error();
      auto& from = **block;
      auto left = (from.first + from.count - first) * sample_bytes_ - offset;
      auto bytes = into.first(std::min<std::uint64_t>(into.size(), left));
      auto shape = file.header.tensor.shape;
      shape.front() = from.count;
      archive::gather(
        from.bytes, shape, archive::fortran_order(shape), element,
        ((first - from.first) * sample_bytes_ + offset) / element, bytes);
      first = from.first + from.count, offset = 0;
      into = into.subspan(bytes.size());
    }
    return {};
  }

  // Threads that want the same block wait for the one that reads it.
  result<std::shared_ptr<const fortran_block>> block_with(
    const npy_file& file, const io::file_handle& opened, std::uint64_t sample) {
    std::lock_guard guard{block_mutex_};
    if (block_ && block_->has(file, sample))
      return block_;
    block_.reset();
    auto count = std::max<std::uint64_t>(block_bytes_ / sample_bytes_, 1);
    auto first = round_down(sample, count);
    fortran_block next{&file, first, std::min(count, file.samples() - first), {}};
    next.bytes.resize(next.count * sample_bytes_);
    if (auto bad = fill(next, opened); !bad.ok())
      return fail(bad);
    block_ = std::make_shared<const fortran_block>(std::move(next));
    return block_;
  }

  status fill(fortran_block& block, const io::file_handle& opened) const {
    auto& file = *block.file;
    auto element = archive::element_bytes(sample());
    // The rows of a block that has all samples follow each other.
    auto whole = block.count == file.samples();
    auto row = whole ? block.bytes.size() : block.count * element;
    auto offset = file.header.data_offset + block.first * element;
    for (std::uint64_t at = 0; at < block.bytes.size(); at += row) {
      if (auto bad = io::read_all(opened, block.bytes.data() + at, row, offset, file.path);
          !bad.ok())
        return bad;
      offset += file.samples() * element;
    }
    return {};
  }

  const std::vector<npy_file> files_;
  const std::uint64_t block_bytes_;
  const std::vector<read_field> fields_;
  const std::uint64_t sample_bytes_;
  const bool scattered_; // any of the files
  std::mutex block_mutex_;
  std::shared_ptr<const fortran_block> block_; // the last one
};

// Checks that files belong together, and numbers their samples.
status arrange(std::vector<npy_file>& files) {
  std::uint64_t next = 0;
  for (auto& file : files) {
    if (!file.misfit.ok())
      return file.misfit;
    auto sample = sample_of(file), others = sample_of(files.front());
    if (sample != others)
      return {
        errc::invalid_argument,
        "the samples of {} are {}, those of {} are {}",
        files.front().path,
        describe(others),
        file.path,
        describe(sample)};
    file.first = next;
    auto after = sample_after(file, next, file.samples());
    if (!after)
      return after.error();
    next = *after;
  }
  return {};
}

result<std::unique_ptr<sample_reader>> make_reader(
  std::vector<npy_file> files, std::uint64_t block_bytes) {
  if (auto bad = arrange(files); !bad.ok())
    return fail(bad);
  return std::make_unique<npy_reader>(std::move(files), block_bytes);
}

// Checks files that have the fields of the same samples.
status check_equal(const std::vector<npy_file>& files) {
  for (auto& file : files) {
    if (!file.misfit.ok())
      return file.misfit;
    auto& first = files.front();
    if (file.samples() != first.samples())
      return {
        errc::invalid_argument,
        "{} has {} samples of the field {}, and {} has {} of the field {}; the files at the same "
        "place of each field have the same samples",
        first.path,
        first.samples(),
        first.header.tensor.name,
        file.path,
        file.samples(),
        file.header.tensor.name};
  }
  return {};
}

// Opens the file at one place of each field. Returns none where one of them is left out.
result<std::vector<npy_file>> open_place(
  const std::vector<npy_field>& fields, std::size_t place, opening& how) {
  if (auto bad = how.go_on(); !bad.ok())
    return fail(bad);
  std::vector<npy_file> out;
  for (auto& field : fields) {
    auto& path = field.paths[place];
    auto file = open_npy_file(path);
    if (file) {
      file->header.tensor.name = field.name;
      out.push_back(std::move(*file));
    } else if (auto bad = how.give_up(path, file.error()); !bad.ok()) {
      return fail(bad);
    }
  }
  if (out.size() < fields.size())
    return std::vector<npy_file>{};
  auto bad = check_equal(out);
  return bad.ok() ? result<std::vector<npy_file>>{std::move(out)} : fail(bad);
}

} // namespace

result<std::unique_ptr<sample_reader>> open_npy(
  const std::vector<std::string>& paths, std::uint64_t block_bytes, opening* how) {
  opening strict;
  auto files = open_each<npy_file>(paths, how ? *how : strict, open_npy_file);
  if (!files)
    return fail(files.error());
  return make_reader(std::move(*files), block_bytes);
}

result<std::unique_ptr<sample_reader>> open_npy_fields(
  const std::vector<npy_field>& fields, opening& how) {
  std::vector<std::vector<npy_file>> files(fields.size());
  for (std::size_t place = 0; place < fields.front().paths.size(); ++place) {
    auto some = open_place(fields, place, how);
    if (!some)
      return fail(some.error());
    for (std::size_t f = 0; f < some->size(); ++f)
      files[f].push_back(std::move((*some)[f]));
  }
  if (files.front().empty())
    return fail(how.nothing_left({errc::invalid_argument, "no files with samples are given"}));
  std::vector<std::unique_ptr<sample_reader>> readers;
  for (auto& some : files) {
    auto reader = make_reader(std::move(some), npy_block_bytes);
    if (!reader)
      return reader;
    readers.push_back(std::move(*reader));
  }
  return join_fields(std::move(readers));
}

} // namespace millrace::storage::samples

// Keeps names, places and numbers in memory. The bytes are read by position, with `pread`; those of
// compressed archives pass by in their order.
#include <millrace/core/working_set.hpp>
#include <millrace/storage/samples/tar_index.hpp>
#include <millrace/storage/samples/tar_reader.hpp>

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>
#include <utility>

namespace millrace::storage::samples {

namespace {

struct tar_file : sample_file {
  tar_packing packing = tar_packing::none;
  std::uint64_t first = 0; // the number of its first sample, among those of all archives
  std::vector<tar_sample> samples;
};

// As a damaged sample is named.
std::string sample_path(const tar_file& file, const std::string& key) {
  return file.path + ":" + key;
}

enum class column_kind : std::uint8_t { bytes, key, number };

// What is known of one field of all samples.
struct column {
  column_kind kind = column_kind::bytes;
  std::string name;
  std::uint32_t extension = 0;
  std::vector<std::uint64_t> lengths;
  std::vector<std::uint64_t> offsets; // of bytes, in the archive
  std::vector<std::int64_t> numbers;
};

read_field field_of(const column& from) {
  if (from.kind == column_kind::number)
    return {{from.name, dtype::i64, {}}, false};
  return {{from.name, dtype::u8, {0}}, true};
}

byte_source source_of_file(const opened_file& file, const std::string& path) {
  return [&file, &path](std::uint64_t offset, std::span<std::byte> into) -> result<std::size_t> {
    auto size = file.state.size_bytes;
    auto count = std::min<std::uint64_t>(into.size(), size - std::min(size, offset));
    if (auto bad = io::read_all(file.handle, into.data(), count, offset, path); !bad.ok())
      return fail(bad);
    return count;
  };
}

// An archive that is open for reading.
class open_archive {
public:
  open_archive(const tar_file& file, opened_file opened)
    : file_(file), opened_(std::move(opened)) {}

  const tar_file& file() const noexcept { return file_; }

  status read(std::uint64_t offset, std::span<std::byte> into) {
    auto bad = file_.packing == tar_packing::none
      ? io::read_all(opened_.handle, into.data(), into.size(), offset, file_.path)
      : read_packed(offset, into);
    if (!bad.ok())
      return bad;
    return check_unchanged(file_, opened_.handle);
  }

private:
  status read_packed(std::uint64_t offset, std::span<std::byte> into) {
    std::lock_guard guard{mutex_};
    if (!stream_ || stream_->position() > offset) {
      stream_.reset();
      auto opened = unpacked_stream::open(source_of_file(opened_, file_.path), file_.packing);
      if (!opened)
        return opened.error().within(file_.path);
      stream_.emplace(std::move(*opened));
    }
    auto bad = stream_->read(offset, into);
    if (bad.ok())
      return bad;
    stream_.reset();
    return bad.within(file_.path);
  }

  const tar_file& file_;
  const opened_file opened_;
  std::mutex mutex_; // for what follows
  std::optional<unpacked_stream> stream_;
};

class tar_reader final : public sample_reader {
public:
  tar_reader(
    std::vector<tar_file> files, std::vector<std::string> keys, std::vector<column> columns)
    : files_(std::move(files)), keys_(std::move(keys)), columns_(std::move(columns)),
      packed_(
        std::ranges::any_of(files_, [](auto& file) { return file.packing != tar_packing::none; })) {
    for (auto& one : columns_)
      fields_.push_back(field_of(one));
  }

  std::uint64_t samples() const noexcept override { return keys_.size(); }
  const std::vector<read_field>& fields() const noexcept override { return fields_; }
  std::span<const std::uint64_t> lengths(std::size_t field) const noexcept override {
    return columns_[field].lengths;
  }
  std::string path_of(std::uint64_t sample) const override {
    return sample_path(file_with(files_, sample), keys_[sample]);
  }
  bool prefers_order() const noexcept override { return packed_; }

protected:
  status read_range(
    std::size_t field, std::uint64_t first, std::uint64_t offset,
    std::span<std::byte> into) override {
    auto& from = columns_[field];
    for (; !into.empty(); ++first, offset = 0) {
      auto whole = from.kind == column_kind::number ? sizeof(std::int64_t) : from.lengths[first];
      auto bytes = into.first(std::min<std::uint64_t>(into.size(), whole - offset));
      if (auto bad = read_one(from, first, offset, bytes); !bad.ok())
        return bad;
      into = into.subspan(bytes.size());
    }
    return {};
  }

private:
  status read_one(
    const column& from, std::uint64_t sample, std::uint64_t offset, std::span<std::byte> into) {
    if (into.empty())
      return {};
    if (from.kind == column_kind::bytes)
      return read_bytes(file_with(files_, sample), from.offsets[sample] + offset, into);
    auto* held = from.kind == column_kind::key ? static_cast<const void*>(keys_[sample].data())
                                               : static_cast<const void*>(&from.numbers[sample]);
    std::memcpy(into.data(), static_cast<const std::byte*>(held) + offset, into.size());
    return {};
  }

  status read_bytes(const tar_file& file, std::uint64_t offset, std::span<std::byte> into) {
    if (auto known = blamed(file.path); !known.ok())
      return known;
    auto archive = open(file);
    auto bad = archive ? (*archive)->read(offset, into) : archive.error();
    return bad.ok() ? bad : blame(file.path, std::move(bad));
  }

  // The last one stays open.
  result<std::shared_ptr<open_archive>> open(const tar_file& file) {
    std::lock_guard guard{mutex_};
    if (last_ && &last_->file() == &file)
      return last_;
    auto opened = open_to_read(file.path);
    if (!opened)
      return fail(opened.error());
    if (auto bad = check_unchanged(file, opened->handle); !bad.ok())
      return fail(bad);
    last_ = std::make_shared<open_archive>(file, std::move(*opened));
    return last_;
  }

  const std::vector<tar_file> files_; // those with samples
  const std::vector<std::string> keys_;
  const std::vector<column> columns_; // of the fields
  const bool packed_;                 // any of the archives
  std::vector<read_field> fields_;
  std::mutex mutex_; // for what follows
  std::shared_ptr<open_archive> last_;
};

result<tar_file> open_tar(const named_file& from, tar_totals& totals, const opening& how) {
  tar_file out;
  static_cast<sample_file&>(out) = from;
  out.packing = tar_packing_of(from.name).value_or(tar_packing::none);
  auto opened = open_to_read(out.path);
  if (!opened)
    return fail(opened.error());
  auto samples =
    index_tar(source_of_file(*opened, out.path), out.packing, out.state.size_bytes, totals, how);
  // A change explains what else is wrong.
  if (auto bad = check_unchanged(out, opened->handle); !bad.ok())
    return fail(bad);
  if (!samples)
    return fail(samples.error().within(out.path));
  out.samples = std::move(*samples);
  return out;
}

// How many samples have an extension, and for how many it is a number.
struct extension_counts {
  std::uint64_t samples = 0;
  std::uint64_t numbers = 0;
};

// Finds out which fields the samples of all archives have, and gives them to those samples that
// have them all.
class arrangement {
public:
  arrangement(std::vector<tar_file> files, const tar_totals& totals, opening& how)
    : files_(std::move(files)), extensions_(totals.extensions), how_(how) {
    counts_.resize(extensions_.names().size());
    for (auto& file : files_)
      for (auto& sample : file.samples)
        count(sample);
  }

  result<std::unique_ptr<sample_reader>> run(const std::vector<std::string>& fields) {
    if (auto bad = fields.empty() ? choose_common() : choose(fields); !bad.ok())
      return fail(bad);
    takes_all_ = fields.empty();
    for (auto& file : files_)
      if (auto bad = add_file(file); !bad.ok())
        return fail(bad);
    if (keys_.empty())
      return fail(how_.nothing_left({errc::invalid_argument, "the archives have no samples"}));
    std::erase_if(files_, [](auto& file) { return file.samples.empty(); });
    for (auto& file : files_) {
      file.samples.clear();
      file.samples.shrink_to_fit();
    }
    return std::make_unique<tar_reader>(std::move(files_), std::move(keys_), std::move(columns_));
  }

private:
  void count(const tar_sample& sample) {
    ++samples_;
    for (auto& part : sample.parts) {
      ++counts_[part.extension].samples;
      counts_[part.extension].numbers += part.number ? 1 : 0;
    }
  }

  void take(std::uint32_t extension) {
    auto& counts = counts_[extension];
    auto is_number = counts.numbers * 2 > counts.samples;
    columns_.push_back(
      {is_number ? column_kind::number : column_kind::bytes,
       extensions_.names()[extension],
       extension,
       {},
       {},
       {}});
  }
  void take_key() { columns_.push_back({column_kind::key, tar_key_field, 0, {}, {}, {}}); }

  status choose_common() {
    for (std::uint32_t i = 0; i < counts_.size(); ++i)
      if (counts_[i].samples * 2 > samples_)
        take(i);
    std::ranges::sort(columns_, {}, &column::name);
    if (std::ranges::find(columns_, tar_key_field, &column::name) != columns_.end())
      return {
        errc::invalid_argument,
        "the files have the extension {0}, and {0} is the field with the names of samples; choose "
        "the fields",
        tar_key_field};
    if (columns_.empty() && samples_ > 0)
      return {
        errc::invalid_argument,
        "no extension is that of more than half of the {} samples; choose the fields", samples_};
    take_key();
    return {};
  }

  status choose(const std::vector<std::string>& fields) {
    auto& names = extensions_.names();
    for (auto& field : fields) {
      auto found = std::ranges::find(names, field);
      if (field == tar_key_field)
        take_key();
      else if (found != names.end())
        take(static_cast<std::uint32_t>(found - names.begin()));
      else
        return {
          errc::invalid_argument, "there is no field {}; there are: {}", field, known_fields()};
    }
    return {};
  }

  std::string known_fields() const {
    auto names = extensions_.names();
    std::ranges::sort(names);
    if (names.size() > set_fields_max)
      names.resize(set_fields_max);
    names.emplace_back(tar_key_field);
    return fmt::format("{}", fmt::join(names, ", "));
  }

  // Those that are damaged are left out, where that is wanted.
  status add_file(tar_file& file) {
    file.first = keys_.size();
    for (auto& sample : file.samples) {
      auto path = sample_path(file, sample.key);
      if (how_.leaves_out(path))
        continue;
      auto bad = check(sample);
      if (bad.ok())
        bad = add(sample, path);
      else
        bad = how_.give_up(path, bad.within(path));
      if (!bad.ok())
        return bad;
    }
    if (file.first == keys_.size())
      file.samples.clear();
    return {};
  }

  status check(const tar_sample& sample) const {
    if (!sample.why.ok())
      return sample.why;
    for (auto& one : columns_) {
      auto* part = part_of(sample, one);
      if (!part && one.kind != column_kind::key)
        return {errc::corrupt_data, "it has no {}, as other samples have", one.name};
      if (one.kind == column_kind::number && !part->number)
        return {errc::corrupt_data, "its {} is no whole number, as those of others are", one.name};
    }
    for (auto& part : sample.parts)
      if (takes_all_ && std::ranges::find_if(columns_, [&](auto& one) {
                          return one.kind != column_kind::key && one.extension == part.extension;
                        }) == columns_.end())
        return {
          errc::corrupt_data, "it has {}, and most samples have none; choose the fields",
          extensions_.names()[part.extension]};
    return {};
  }

  static const tar_part* part_of(const tar_sample& sample, const column& of) {
    auto found = std::ranges::find(sample.parts, of.extension, &tar_part::extension);
    return of.kind == column_kind::key || found == sample.parts.end() ? nullptr : &*found;
  }

  status add(tar_sample& sample, const std::string& path) {
    for (auto& to : columns_) {
      auto* part = part_of(sample, to);
      auto length = part ? part->size_bytes : sample.key.size();
      if (to.kind == column_kind::number) {
        to.numbers.push_back(*part->number);
        continue;
      }
      if (auto bad = add_bytes(all_bytes_, length, path); !bad.ok())
        return bad;
      to.lengths.push_back(length);
      if (part)
        to.offsets.push_back(part->offset);
    }
    keys_.push_back(std::move(sample.key));
    return {};
  }

  std::vector<tar_file> files_;
  const tar_extensions& extensions_;
  opening& how_;
  std::vector<extension_counts> counts_;
  std::uint64_t samples_ = 0; // with those that are left out
  bool takes_all_ = false;
  std::uint64_t all_bytes_ = 0;
  std::vector<std::string> keys_;
  std::vector<column> columns_;
};

} // namespace

// The source has the files that are left out, too.
result<std::unique_ptr<sample_reader>> open_tars(
  const std::vector<std::string>& names, const sample_options& options, opening& how) {
  auto files = find_files(names, how);
  if (!files)
    return fail(files.error());
  auto source = source_of(*files, options);
  std::erase_if(*files, [&](auto& file) { return how.leaves_out(file.path); });
  tar_totals totals;
  auto opened =
    open_each<tar_file>(*files, how, [&](auto& file) { return open_tar(file, totals, how); });
  if (!opened)
    return fail(opened.error());
  auto reader = arrangement{std::move(*opened), totals, how}.run(options.fields);
  if (reader)
    (*reader)->set_source(source);
  return reader;
}

} // namespace millrace::storage::samples

// Writes what a salvage finds to files, and says what is lost.
#include <millrace/storage/flush/model_directory.hpp>
#include <millrace/storage/io/file_io.hpp>
#include <millrace/tools/output.hpp>
#include <millrace/tools/progress_line.hpp>
#include <millrace/tools/salvage.hpp>
#include <millrace/tools/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <ostream>

namespace millrace::tools {

namespace {

using storage::archive::archive_format;

struct salvage_arguments {
  std::string path;
  std::string directory;
  std::string format = "safetensors";
};

std::string extension_of(archive_format format) {
  switch (format) {
  case archive_format::hdf5:
    return "h5";
  case archive_format::torch:
    return "pt";
  default:
    return std::string{to_string(format)};
  }
}

class file_salvager final : public storage::salvager {
public:
  file_salvager(invocation& call, std::string directory, archive_format format)
    : call_(call), directory_(std::move(directory)), format_(format) {}

  status take(
    const storage::archive::version_origin& origin,
    std::unique_ptr<storage::archive::tensor_source> source) override {
    auto file = fmt::format("{}/{}.{}", directory_, stem_of(origin), extension_of(format_));
    auto metadata = storage::archive::with_origin(source->metadata(), origin);
    storage::archive::labelled_source from{std::move(source), std::move(metadata)};
    progress_line line{call_, file};
    auto bad = write_archive(format_, file, from, {false, line.callback()});
    // A file that is there may be of an earlier attempt. It stays, and the others are written.
    auto one_only = {errc::unsupported, errc::corrupt_data, errc::already_exists};
    if (std::ranges::find(one_only, bad.code()) != one_only.end()) {
      auto exists = bad.code() == errc::already_exists;
      auto why = exists ? fmt::format("{} exists; name another directory", file) : bad.detail();
      lose(fmt::format("{}: {}", origin.model.value_or(""), why));
      return {};
    }
    if (!bad.ok())
      return bad;
    saved_.push_back(file);
    if (!call_.json)
      call_.out << printable(file) << '\n';
    return {};
  }

  void lose(const std::string& what) override {
    lost_.push_back(what);
    if (!call_.json)
      call_.out << "lost: " << printable(what) << '\n';
  }

  int finish() {
    if (call_.json)
      print_json(call_, {{"saved", saved_}, {"lost", lost_}});
    else
      call_.out << counted(saved_.size(), "file") << " written, "
                << counted(lost_.size(), "problem") << '\n';
    return lost_.empty() ? exit_ok : exit_failed;
  }

private:
  static std::string stem_of(const storage::archive::version_origin& origin) {
    auto model = storage::flush::directory_name_of(origin.model.value_or(""));
    return origin.step
      ? fmt::format(
          "{}@{}.{}", model, *origin.step,
          storage::flush::shard_file_stem(origin.rank.value_or(0), origin.world_size.value_or(1)))
      : model;
  }

  invocation& call_;
  std::string directory_;
  archive_format format_;
  std::vector<std::string> saved_;
  std::vector<std::string> lost_;
};

int run_salvage(
  invocation& call, const salvage_arguments& arguments, const salvage_function& salvage) {
  auto format = storage::archive::parse_format(arguments.format);
  if (!format)
    return report(call, {format.error().within("--format"), exit_usage});
  if (auto bad = storage::io::make_directories(arguments.directory); !bad.ok())
    return report(call, bad);
  file_salvager to{call, arguments.directory, *format};
  auto bad = salvage(arguments.path, to);
  return bad.ok() ? to.finish() : report(call, bad);
}

} // namespace

void add_salvage_command(
  CLI::App& parent, invocation& call, const std::string& what, const std::string& path_help,
  salvage_function salvage) {
  auto arguments = std::make_shared<salvage_arguments>();
  auto* command =
    add_command(parent, call, "salvage", what, [&call, arguments, salvage = std::move(salvage)] {
      return run_salvage(call, *arguments, salvage);
    });
  command->add_option("PATH", arguments->path, path_help)->type_name("")->required();
  command
    ->add_option("DIRECTORY", arguments->directory, "where the files go; made if it is missing")
    ->type_name("")
    ->required();
  command->add_option("--format", arguments->format, "safetensors, npz, hdf5 or torch")
    ->type_name("FORMAT")
    ->capture_default_str();
}

} // namespace millrace::tools

// Reads directories one after another, and opens every file once to see what it is.
#include <millrace/storage/samples/folder_walk.hpp>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace millrace::storage::samples {

namespace {

namespace fs = std::filesystem;

class walking {
public:
  walking(std::string root, opening& how) : root_(std::move(root)), how_(how) {}

  status run() {
    if (auto bad = list({}, 0); !bad.ok())
      return bad;
    std::ranges::sort(out_.files, {}, &named_file::name);
    std::ranges::sort(out_.folders);
    return {};
  }
  walked_folder take() { return std::move(out_); }

private:
  // Lists a directory by its path in the root: empty, or with '/' at its end.
  status list(const std::string& in, std::size_t depth) {
    if (depth > walk_depth_max)
      return {errc::invalid_argument, "{}{}: directories too deep", root_, in};
    std::error_code why;
    std::vector<std::string> inner;
    fs::directory_iterator at{root_ + in, why};
    for (; !why && at != fs::directory_iterator{}; at.increment(why)) {
      auto name = at->path().filename().string();
      if (name.starts_with('.'))
        continue;
      auto type = at->symlink_status(why).type();
      if (type == fs::file_type::directory)
        inner.push_back(in + name + "/");
      else if (auto bad = add(in + name, type); !bad.ok())
        return bad;
    }
    if (why)
      return how_.give_up(root_ + in, status_from_errno(why.value(), "listing " + root_ + in));
    for (auto& one : inner) {
      if (depth == 0)
        out_.folders.push_back(one.substr(0, one.size() - 1));
      if (auto bad = list(one, depth + 1); !bad.ok())
        return bad;
    }
    return {};
  }

  status add(std::string name, fs::file_type type) {
    if (auto bad = how_.go_on(); !bad.ok())
      return bad;
    auto file = find(name, type);
    if (!file)
      return how_.give_up(root_ + name, file.error());
    if (out_.files.size() == walk_files_max)
      return {errc::invalid_argument, "{} has more than {} files", root_, walk_files_max};
    out_.files.push_back({std::move(*file), std::move(name)});
    return {};
  }

  result<sample_file> find(const std::string& name, fs::file_type type) const {
    if (type == fs::file_type::symlink)
      return find_link(root_ + name);
    if (type != fs::file_type::regular && type != fs::file_type::not_found)
      return fail(errc::invalid_argument, "{} is no regular file", root_ + name);
    auto opened = open_to_read(root_ + name);
    if (!opened)
      return fail(opened.error());
    return sample_file{root_ + name, opened->state};
  }

  result<sample_file> find_link(const std::string& path) const {
    std::error_code why;
    auto target = fs::canonical(path, why).string();
    if (why == std::errc::too_many_symbolic_link_levels || why == std::errc::not_a_directory)
      return fail(errc::invalid_argument, "{} is a link that leads to no file", path);
    if (why)
      return fail(status_from_errno(why.value(), "looking for what the link leads to: " + path));
    // It may lead to the directory itself, which is no file.
    if (!(target + "/").starts_with(root_))
      return fail(errc::invalid_argument, "{} is a link that leaves the directory", path);
    auto file = find_file(target);
    if (!file)
      return fail(file.error().within(path));
    if (file->path != target)
      return fail(errc::corrupt_data, "{} has changed while it was looked at", path);
    return file;
  }

  const std::string root_; // with '/' at its end
  opening& how_;
  walked_folder out_;
};

} // namespace

result<walked_folder> walk(const std::string& directory, opening& how) {
  std::error_code why;
  auto root = fs::canonical(directory, why).string();
  if (why)
    return fail(status_from_errno(why.value(), "looking for " + directory));
  walking all{root.ends_with('/') ? root : root + "/", how};
  if (auto bad = all.run(); !bad.ok())
    return fail(bad);
  return all.take();
}

} // namespace millrace::storage::samples

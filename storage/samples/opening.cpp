// Leaves out what is damaged, and ends at every other error.
#include <millrace/storage/samples/opening.hpp>

#include <filesystem>

namespace millrace::storage::samples {

opening::opening(const sample_options& options, std::vector<damaged_file> left_out)
  : skips_(options.skips_damaged), is_stopped_(options.is_stopped), left_out_(std::move(left_out)) {
  for (auto& file : left_out_)
    paths_.insert(file.path);
}

status opening::go_on() const {
  return is_stopped_ && is_stopped_() ? status{errc::cancelled, "cancelled by the caller"}
                                      : status{};
}

status opening::give_up(const std::string& path, const status& why) {
  if (!skips_ || !is_damage(why))
    return why;
  if (paths_.insert(path).second)
    left_out_.push_back({path, why});
  return {};
}

status opening::nothing_left(status otherwise) const {
  return left_out_.empty() ? otherwise
                           : left_out_.front().why.within("no file can be read; the first one");
}

result<std::vector<named_file>> find_files(const std::vector<std::string>& names, opening& how) {
  std::vector<named_file> out;
  for (auto& name : names) {
    if (auto bad = how.go_on(); !bad.ok())
      return fail(bad);
    auto file = find_file(name);
    if (file)
      out.push_back({std::move(*file), name});
    else if (auto bad = how.give_up(std::filesystem::absolute(name).string(), file.error());
             !bad.ok())
      return fail(bad);
  }
  return out;
}

} // namespace millrace::storage::samples

// Reads a file within its size limit, and has it parsed, read and checked.
#include <millrace/config/document.hpp>
#include <millrace/config/load.hpp>
#include <millrace/config/place.hpp>
#include <millrace/config/read.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace millrace::config {

namespace {

// Reads one byte more than a document may have, so that a file that is too large is noticed.
result<std::string> read_bounded(int file, const std::string& path) {
  std::string text(document_bytes_max + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    auto count = ::read(file, text.data() + size, text.size() - size);
    if (count < 0 && errno == EINTR)
      continue;
    if (count < 0)
      return fail(status_from_errno(errno, "reading the configuration " + path));
    if (count == 0)
      break;
    size += static_cast<std::size_t>(count);
  }
  text.resize(size);
  return text;
}

} // namespace

result<std::string> read_file(const std::string& path) {
  auto file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return fail(status_from_errno(errno, "opening the configuration " + path));
  auto text = read_bounded(file, path);
  ::close(file);
  return text;
}

result<settings> load_file(const std::string& path, const schema& all) {
  auto text = read_file(path);
  if (!text)
    return fail(std::move(text.error()));
  auto parsed = parse(*text, path, all);
  return parsed ? place_in_job(std::move(*parsed), surroundings::of_this_process())
                : std::move(parsed);
}

result<settings> parse(std::string_view text, const std::string& file_name, const schema& all) {
  auto doc = document::parse(text, file_name);
  if (!doc)
    return fail(std::move(doc.error()));
  auto d = read_settings(*doc, all);
  if (!d)
    return fail(std::move(d.error()));
  if (auto bad = complete_settings(*doc, all, *d); !bad.ok())
    return fail(std::move(bad));
  return std::move(d->values);
}

} // namespace millrace::config

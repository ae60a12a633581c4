// Formats RocksDB's messages. Called by the index.
#include <millrace/core/log.hpp>
#include <millrace/storage/rocksdb/index_log.hpp>

#include <array>
#include <cstdarg>
#include <cstdio>

namespace millrace::storage::rocksdb {

namespace {

namespace db = ::rocksdb;

class index_log final : public db::Logger {
public:
  explicit index_log(std::string path)
    : db::Logger(db::InfoLogLevel::WARN_LEVEL), path_(std::move(path)) {}

  // Messages without a level are those of the level INFO.
  void Logv(const char*, std::va_list) override {}

  void Logv(const db::InfoLogLevel level, const char* format, std::va_list values) override {
    if (level < GetInfoLogLevel() || level == db::InfoLogLevel::HEADER_LEVEL)
      return;
    std::array<char, 1024> text;
    auto length = std::vsnprintf(text.data(), text.size(), format, values);
    if (length < 0)
      return;
    std::string_view message{text.data()};
    while (message.ends_with('\n'))
      message.remove_suffix(1);
    log().at(severity_of(level), "RocksDB: {} path={}", message, path_);
  }

private:
  static log_level severity_of(db::InfoLogLevel level) noexcept {
    return level == db::InfoLogLevel::WARN_LEVEL ? log_level::warn : log_level::error;
  }

  std::string path_;
};

} // namespace

std::shared_ptr<db::Logger> make_index_log(std::string path) {
  return std::make_shared<index_log>(std::move(path));
}

} // namespace millrace::storage::rocksdb

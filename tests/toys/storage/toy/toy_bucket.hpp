// A memory bucket that counts its models.
#pragma once

#include <millrace/core/memory.hpp>
#include <millrace/storage/at_rest.hpp>
#include <millrace/storage/bucket.hpp>
#include <millrace/storage/toy/toy_options.hpp>

#include <functional>
#include <memory>
#include <string>

namespace millrace::storage {

result<std::shared_ptr<bucket>> open_toy_bucket(
  toy_bucket_options options, std::shared_ptr<memory_source> memory);

/// Returns true for a directory with a file `toy`. The test writes it: it has the names of models,
/// one in a line, whose bytes were in memory.
bool is_toy_bucket(const std::string& path);
[[nodiscard]] status salvage_toy_bucket(const std::string& path, salvager& to);
[[nodiscard]] status verify_toy_bucket(
  const std::string& path, const std::function<void(const model_at_rest&)>& seen);

inline constexpr storage_at_rest toy_at_rest{is_toy_bucket, salvage_toy_bucket, verify_toy_bucket};

} // namespace millrace::storage

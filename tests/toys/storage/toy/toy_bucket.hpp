// A memory bucket that counts its models.
#pragma once

#include <millrace/core/memory.hpp>
#include <millrace/storage/bucket.hpp>
#include <millrace/storage/toy/toy_options.hpp>

#include <memory>

namespace millrace::storage {

result<std::shared_ptr<bucket>> open_toy_bucket(
  toy_bucket_options options, std::shared_ptr<memory_source> memory);

} // namespace millrace::storage

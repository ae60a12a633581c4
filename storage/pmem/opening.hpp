// Opening versions for reading. Called by the checkpoint store and the bucket.
#pragma once

#include <millrace/storage/pmem/pool_state.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace millrace::storage::pmem {

/// See `bucket::open`.
result<std::shared_ptr<opened_model>> open_stored(
  const std::shared_ptr<pool_state>& state, const std::string& name, std::uint64_t version);

/// See `checkpoint_store::open`.
result<std::shared_ptr<opened_model>> open_version(
  const std::shared_ptr<pool_state>& state, const std::string& name, std::uint32_t rank,
  const version_choice& which);

} // namespace millrace::storage::pmem

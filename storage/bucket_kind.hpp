// The kinds of buckets: their options, and the functions that open them. builtin.cpp lists the
// kinds.
#pragma once

#include <millrace/config/schema.hpp>
#include <millrace/core/memory.hpp>
#include <millrace/storage/at_rest.hpp>
#include <millrace/storage/bucket.hpp>
#include <millrace/storage/checkpoint_store.hpp>
#include <millrace/storage/flush/step_flusher.hpp>

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace millrace::storage {

/// The checkpoints that some kinds keep beside the models of a bucket.
struct opened_checkpoints {
  std::shared_ptr<checkpoint_store> store;
  /// Mapped files to which other processes may copy directly; see `fabric::adopt`.
  std::vector<file_mapping> mappings;
  flush::step_flusher_options flush; // `flush.directory` empty: steps are not flushed
  bool repack_when_low = false;
};

/// The opened storage of one provider.
struct opened_bucket {
  std::shared_ptr<bucket> models;
  std::optional<opened_checkpoints> checkpoints = {};
  std::shared_ptr<void> keeps = nullptr; // outlives the mappings' adoption
};

struct bucket_kind {
  config::bucket_section section; // its name is the kind's
  bool keeps_checkpoints = false;
  /// Opens the storage; blocks while it reads its disk. `memory`: an arena of
  /// `section.needs(options).own_bytes`, or the node's staging memory.
  std::function<result<opened_bucket>(
    const config::option_set& options, std::shared_ptr<memory_source> memory)>
    open;
  storage_at_rest at_rest;
};

/// Converts what the factories of kinds return.
inline result<opened_bucket> as_opened(result<std::shared_ptr<bucket>> models) {
  return models.map([](std::shared_ptr<bucket>& b) { return opened_bucket{std::move(b)}; });
}
inline result<opened_bucket> as_opened(result<opened_bucket> both) { return both; }

/// Makes a kind with options. `keys_of<Options>()` are its keys; `needs_of(options)` returns how
/// much memory of its node it takes.
template <class Options, class Opened>
bucket_kind bucket_of(
  std::string_view name, result<Opened> (*open)(Options, std::shared_ptr<memory_source>),
  const storage_at_rest& at_rest = {}) {
  auto section = config::section_of<Options>(name);
  auto needs = [](const config::option_set& all) { return needs_of(all.of<Options>()); };
  return {
    {section, needs},
    std::is_same_v<Opened, opened_bucket>,
    [name, open](const config::option_set& all, std::shared_ptr<memory_source> memory)
      -> result<opened_bucket> {
      auto& options = all.of<Options>();
      if (auto bad = config::check_options(name, options); !bad.ok())
        return fail(bad);
      return as_opened(open(options, std::move(memory)));
    },
    at_rest};
}

} // namespace millrace::storage

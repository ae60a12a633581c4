// Keys that several kinds of buckets have, so that they mean the same in all of them. Used by the
// kinds' tables of keys.
#pragma once

#include <millrace/config/keys.hpp>
#include <millrace/storage/when_full.hpp>

namespace millrace::storage {

inline constexpr config::key_text when_full_choices[] = {"refuse", "evict"};

inline constexpr auto capacity_key = config::used_as(
  config::key_use::capacity,
  config::size("capacity", config::mib, 1024 * config::tib, "most bytes of models that it holds"));
inline constexpr auto when_full_key = config::choice(
  "when_full", when_full_choices,
  "when a model does not fit: refuse it, or evict the least recently used models that are not "
  "pinned");
inline constexpr auto descriptions_key = config::expert(config::size(
  "descriptions_max", config::mib, 1024 * config::tib,
  "most memory of the process for the descriptions of models (names, layers, places in files; in a "
  "pool also shapes, texts, graphs, and the shards of checkpoints). What was there at the start is "
  "counted, and stays"));
inline constexpr auto create_key = config::expert(config::boolean(
  "create", "make the pool or the directory if there is none; `false`: its absence is an error"));
inline constexpr auto io_threads_key =
  config::expert(config::count("io_threads", 1, 64, "threads that read and write files"));
inline constexpr auto window_key = config::expert(config::used_as(
  config::key_use::window,
  config::size(
    "window", 512 * config::kib, config::gib,
    "staging memory of one read or write of a large model")));

} // namespace millrace::storage

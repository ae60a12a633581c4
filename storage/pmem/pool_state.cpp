// Loading the index, touching the mapping, ending the threads. Called by the pool and its parts.
#include <millrace/core/huge_pages.hpp>
#include <millrace/core/log.hpp>
#include <millrace/core/rounding.hpp>
#include <millrace/core/simulated_machine.hpp>
#include <millrace/storage/bucket.hpp>
#include <millrace/storage/pmem/pool_state.hpp>

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>

namespace millrace::storage::pmem {

namespace {

#ifndef MADV_POPULATE_WRITE
constexpr int MADV_POPULATE_WRITE = 23;
#endif

write_back write_back_of(pool_medium medium) {
  return medium == pool_medium::file ? write_back::msync : write_back::cache_lines;
}

bool wants_direct_io(const pool_options& options, const pool_file& file) {
  return file.medium == pool_medium::file && options.staging != lent_memory::none &&
    options.data_path != file_path::mapped && knows_direct_io(file);
}

std::shared_ptr<persist_observer> observer_of(
  const pool_options& options, [[maybe_unused]] const pool_file& file,
  [[maybe_unused]] const heap& objects) {
#if defined(MILLRACE_KILL_POINTS)
  if (!options.observer && simulated_medium)
    return simulated_medium->opened(file.path, {objects.base(), file.size_bytes});
#endif
  return options.observer;
}

} // namespace

pool_state::pool_state(pool_options settings, pool_file opened, std::unique_ptr<heap> objects_in)
  : options(std::move(settings)), file(std::move(opened)), objects(std::move(objects_in)),
    persist(write_back_of(file.medium), observer_of(options, file, *objects)),
    direct(wants_direct_io(options, file)),
    descriptions(
      std::make_shared<space_account>(options.descriptions_max_bytes, nullptr, "descriptions_max")),
    pool(options.io_threads, "pool " + file.path), preparer(1, "pool " + file.path) {
  if (!direct)
    return;
  if (auto handle = io::open_file(file.path, O_RDWR | O_DIRECT))
    direct_file = std::move(*handle);
}

pool_state::~pool_state() { stop(); }

status pool_state::load() {
  status first;
  auto stop = [&](const std::string& problem) {
    first = {
      errc::corrupt_data,
      "pool {}: {}; see `millrace pool check`, and restore a copy, or save what is whole with "
      "`millrace pool salvage`",
      file.path, problem};
    return false;
  };
  auto index = read_pool_index(view_of(*objects, file.size_bytes), stop, descriptions);
  if (!first.ok())
    return first;
  if (index.unreachable_bytes > 0)
    log().warn(
      "a pool holds objects that nothing refers to path={} bytes={}", file.path,
      index.unreachable_bytes);
  table = std::move(index.table);
  table_object = index.table_object;
  models = std::move(index.models);
  last_version = index.last_version;
  layers = std::move(index.layers);
  stored = std::move(index.stored);
  // Oldest first, since the order of use is not stored.
  std::map<std::uint64_t, std::shared_ptr<stored_version>> by_age;
  for (auto& [name, m] : models)
    if (auto v = find_stored(*m))
      by_age.emplace(v->number(), v);
  for (auto& [number, v] : by_age)
    stored_models.put(v->spec.name, v->spec.erased);
  return {};
}

// Populating pages that are mapped already costs little, so no check is needed.
void pool_state::populate() {
  if (!options.populate || direct)
    return;
  constexpr std::uint64_t threads = 2;
  auto part = round_up(file.size_bytes / threads, 2u << 20);
  for (std::uint64_t i = 0; i < threads; ++i) {
    auto from = std::min(i * part, file.size_bytes);
    auto to = std::min(from + part, file.size_bytes);
    populating_.push_back(io::start_thread([this, from, to] { populate_part(from, to); }));
  }
}

void pool_state::populate_part(std::uint64_t from, std::uint64_t to) const {
  if (simulated()) // whose page faults take no time
    return;
  constexpr std::uint64_t step = 16u << 20;
  for (; from < to && !stopping; from += step)
    if (::madvise(address(from), std::min(step, to - from), MADV_POPULATE_WRITE) != 0) {
      if (errno != EINTR)
        log().debug(
          "the pages of a pool's mapping were not touched path={} error={}", file.path, errno);
      return;
    }
}

void pool_state::make_ready(const std::vector<data_extent>& extents) {
  // Only file systems in memory have small pages to gather.
  if (!options.populate || direct || file.medium != pool_medium::memory)
    return;
  constexpr std::uint64_t step = 64u << 20;
  for (auto& e : extents)
    for (std::uint64_t at = 0; at < e.length; at += step)
      // The job does not keep the state, since `stop` waits for it.
      preparer.post([this, from = e.offset + at, length = std::min(step, e.length - at)](auto&) {
        if (stopping)
          return;
        populate_part(from, from + length);
        gather_huge_pages(address(from), length);
      });
}

void pool_state::stop() {
  stopping = true;
  for (auto& thread : populating_)
    io::join_or_detach(thread);
  {
    std::unique_lock guard{repack_mutex};
    auto thread = std::move(repacker);
    guard.unlock();
    io::join_or_detach(thread);
  }
  pool.stop();
  preparer.stop();
}

std::shared_ptr<model> pool_state::find(const std::string& name) const {
  std::lock_guard guard{models_mutex};
  auto at = models.find(name);
  return at == models.end() ? nullptr : at->second;
}

std::shared_ptr<model> pool_state::find_or_make(const std::string& name) {
  std::lock_guard guard{models_mutex};
  auto& known = models[name];
  if (!known)
    known = std::make_shared<model>(name);
  return known;
}

std::vector<std::shared_ptr<model>> pool_state::all() const {
  std::lock_guard guard{models_mutex};
  std::vector<std::shared_ptr<model>> out;
  out.reserve(models.size());
  for (auto& [name, one] : models)
    out.push_back(one);
  return out;
}

status closed_status(const pool_state& state) {
  return {errc::unavailable, "pool {} is closed", state.file.path};
}

} // namespace millrace::storage::pmem

// Calls of libpmemobj: opening, reserving, publishing. Called by all of storage/pmem.
#include <millrace/core/assert.hpp>
#include <millrace/storage/pmem/medium/data_classes.hpp>
#include <millrace/storage/pmem/medium/heap.hpp>
#include <millrace/storage/pmem/medium/heap_layout.hpp>

#include <fmt/format.h>
#include <libpmemobj.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string_view>

namespace millrace::storage::pmem {

namespace {

constexpr std::uint64_t header_bytes = 64; // the most that the library uses of an object's chunks

// The smallest object that the library itself never puts into a run.
constexpr std::uint64_t chunks_min = 10;

// An object of data may take a place that is this much larger while no better one is free.
constexpr std::uint64_t larger_places_max = 2;

bool is_of_tables(std::uint64_t unit_bytes) {
  auto& classes = table_classes();
  return std::any_of(
    classes.begin(), classes.end(), [=](auto& one) { return one.unit_bytes == unit_bytes; });
}

// Returns the number of the class in the library; 0 when it does not take it.
std::uint32_t add_class(PMEMobjpool* pool, const data_class& one) {
  pobj_alloc_class_desc wanted{
    one.unit_bytes, 0, static_cast<unsigned>(one.units), POBJ_HEADER_COMPACT, 0};
  return ::pmemobj_ctl_set(pool, "heap.alloc_class.new.desc", &wanted) == 0 ? wanted.class_id : 0;
}

// Settings of the library apply to every pool that is opened afterwards.
std::mutex& library_mutex() {
  static std::mutex mutex;
  return mutex;
}

// One arena for all threads: an arena per thread would reserve chunks for few small objects.
void configure_library(heap_access access) {
  auto global = POBJ_ARENAS_ASSIGNMENT_GLOBAL;
  ::pmemobj_ctl_set(nullptr, "heap.arenas_assignment_type", &global);
  int copy_on_write = access == heap_access::copy_on_write ? 1 : 0;
  ::pmemobj_ctl_set(nullptr, "copy_on_write.at_open", &copy_on_write);
}

status refusal(int error, const std::string& doing) {
  auto detail = fmt::format("{}: {}", doing, pmemobj_reason());
  switch (error) {
  case EAGAIN:
    return {errc::busy, "{}; it is open elsewhere: close it there first", detail};
  case EINVAL:
    return {errc::corrupt_data, "{}; {}", detail, how_to_restore};
  case EEXIST:
    return {errc::already_exists, detail};
  case ENOSPC:
  case ENOMEM:
  case EFBIG:
    return {errc::no_space, detail};
  default:
    return {status_from_errno(error, doing).code(), detail};
  }
}

} // namespace

std::string pmemobj_reason() {
  auto words = ::pmemobj_errormsg();
  return words && *words ? words : "libpmemobj gives no reason";
}

result<std::unique_ptr<heap>> heap::open(
  const std::string& path, heap_access access, const heap_words& words) {
  std::lock_guard guard{library_mutex()};
  configure_library(access);
  auto pool = ::pmemobj_open(path.c_str(), pool_layout);
  if (!pool && errno == EEXIST)
    return fail(
      errc::already_exists,
      "opening pool {}: it is a copy of a pool that this process has open; serve it by another "
      "node",
      path);
  if (!pool)
    return fail(refusal(errno, "opening pool " + path));
  for (auto& [at, value] : words)
    std::memcpy(reinterpret_cast<std::byte*>(pool) + at, &value, sizeof value);
  return std::unique_ptr<heap>{new heap{pool}};
}

result<std::unique_ptr<heap>> heap::create(const std::string& path, std::uint64_t size_bytes) {
  std::lock_guard guard{library_mutex()};
  configure_library(heap_access::read_write);
  auto pool = ::pmemobj_create(path.c_str(), pool_layout, size_bytes, 0600);
  if (!pool)
    return fail(refusal(errno, "making pool " + path));
  return std::unique_ptr<heap>{new heap{pool}};
}

heap::heap(PMEMobjpool* pool) : pool_(pool) {
  // Without a class, objects take the places of the next one.
  for (auto classes : {&data_classes(), &table_classes()})
    for (auto& one : *classes)
      if (auto id = add_class(pool_, one); id != 0)
        classes_.push_back({one.unit_bytes, id});
  std::sort(
    classes_.begin(), classes_.end(), [](auto& a, auto& b) { return a.unit_bytes < b.unit_bytes; });
  spare_class_ = add_class(pool_, spare_class());
  take_spare_run();
}

// The library keeps a run of every class that was ever used; a run without objects does not outlive
// the process.
void heap::take_spare_run() const {
  pobj_action action;
  auto got = ::pmemobj_xreserve(pool_, &action, 1, 0, POBJ_CLASS_ID(spare_class_));
  if (!OID_IS_NULL(got))
    ::pmemobj_cancel(pool_, &action, 1);
}

bool heap::reserve(
  std::uint64_t size_bytes, object_type type, places where, pobj_action& action,
  std::uint64_t& offset) const {
  auto take = [&](std::uint64_t size, std::uint64_t flags) {
    auto kind = static_cast<std::uint64_t>(type);
    auto got = ::pmemobj_xreserve(pool_, &action, size, kind, flags);
    offset = got.off;
    return !OID_IS_NULL(got);
  };
  auto with_header = size_bytes + sizeof(object_header);
  auto table = type == object_type::table;
  auto anywhere = where == places::any;
  if (with_header < data_class_min_bytes && !table) {
    if (take(size_bytes, 0) || (anywhere && take(size_bytes, POBJ_CLASS_ID(spare_class_))))
      return true;
    if (!anywhere)
      return false;
  }
  if (classes_.empty() || with_header > classes_.back().unit_bytes)
    return size_bytes <= PMEMOBJ_MAX_ALLOC_SIZE &&
      take(std::max(size_bytes, chunks_min * chunk_bytes - header_bytes), 0);
  auto fits =
    std::lower_bound(classes_.begin(), classes_.end(), with_header, [](auto& one, auto size) {
      return one.unit_bytes < size;
    });
  for (; fits != classes_.end(); ++fits) {
    if (!table && !anywhere && fits->unit_bytes > larger_places_max * with_header)
      break;
    if (is_of_tables(fits->unit_bytes) == table && take(size_bytes, POBJ_CLASS_ID(fits->id)))
      return true;
  }
  return table && take(size_bytes, 0);
}

heap::~heap() { ::pmemobj_close(pool_); }

pool_root* heap::root(bool make) const {
  auto size = ::pmemobj_root_size(pool_);
  if (make ? size != 0 && size != sizeof(pool_root) : size < sizeof(pool_root))
    return nullptr;
  return static_cast<pool_root*>(pmemobj_direct(::pmemobj_root(pool_, sizeof(pool_root))));
}

std::unordered_map<std::uint64_t, object_info> heap::objects() const {
  std::unordered_map<std::uint64_t, object_info> found;
  for (auto at = ::pmemobj_first(pool_); !OID_IS_NULL(at); at = ::pmemobj_next(at))
    found.emplace(
      at.off,
      object_info{
        static_cast<object_type>(::pmemobj_type_num(at)), ::pmemobj_alloc_usable_size(at)});
  return found;
}

// Reserves the largest piece of at most `size_bytes` and returns its size; 0 when there is none.
std::uint64_t heap::take_largest(std::uint64_t size_bytes, std::vector<pobj_action>& taken) const {
  auto attempt = [&](std::uint64_t chunks) {
    std::uint64_t offset = 0;
    taken.emplace_back();
    auto got = reserve(
      chunks * chunk_bytes - header_bytes, object_type::data, places::usual, taken.back(), offset);
    if (!got)
      taken.pop_back();
    return got;
  };
  if (!attempt(chunks_min))
    return 0;
  ::pmemobj_cancel(pool_, &taken.back(), 1);
  taken.pop_back();
  std::uint64_t fits = chunks_min, most = std::max(chunks_min, size_bytes / chunk_bytes);
  while (fits < most) {
    auto middle = fits + (most - fits + 1) / 2;
    if (!attempt(middle)) {
      most = middle - 1;
      continue;
    }
    ::pmemobj_cancel(pool_, &taken.back(), 1);
    taken.pop_back();
    fits = middle;
  }
  return attempt(fits) ? fits * chunk_bytes : 0;
}

heap::free_space heap::probe_free() const {
  constexpr std::size_t pieces_max = 4096;
  free_space found;
  std::vector<pobj_action> taken;
  auto bound = std::uint64_t{PMEMOBJ_MAX_ALLOC_SIZE};
  while (taken.size() < pieces_max) {
    bound = take_largest(bound, taken);
    if (bound == 0)
      break;
    found.total_bytes += bound;
    found.largest_bytes = std::max(found.largest_bytes, bound);
  }
  if (!taken.empty())
    ::pmemobj_cancel(pool_, taken.data(), taken.size());
  return found;
}

result<std::uint64_t> change::reserve(std::uint64_t size_bytes, object_type type) {
  pobj_action action;
  std::uint64_t offset = 0;
  if (!home_->reserve(size_bytes, type, where_, action, offset))
    return fail(errc::no_space, "the pool has no free piece of {} bytes", size_bytes);
  actions_.push_back(action);
  return offset;
}

void change::cancel_after(std::size_t count) {
  MILLRACE_ASSERT(count <= actions_.size());
  if (count == actions_.size())
    return;
  ::pmemobj_cancel(home_->pool(), actions_.data() + count, actions_.size() - count);
  actions_.resize(count);
}

void change::set(
  checked_word& word, std::uint64_t owner, word_kind kind, std::uint64_t slot,
  std::uint64_t value) {
  set(word.value, value);
  set(word.check, word_check(owner, kind, slot, value));
}

void change::set(std::uint64_t& word, std::uint64_t value) {
  actions_.emplace_back();
  ::pmemobj_set_value(home_->pool(), &actions_.back(), &word, value);
}

void change::free(std::uint64_t object) {
  auto oid = ::pmemobj_oid(home_->at<void>(object));
  actions_.emplace_back();
  ::pmemobj_defer_free(home_->pool(), oid, &actions_.back());
}

status change::publish(const persistence& persist) {
  persist.publishes();
  auto failed = ::pmemobj_publish(home_->pool(), actions_.data(), actions_.size()) != 0;
  auto outcome = failed
    ? status{errc::no_space, "changing the index of the pool: {}", pmemobj_reason()}
    : status{};
  persist.published();
  if (outcome.ok())
    actions_.clear();
  return outcome;
}

void change::cancel() {
  if (!actions_.empty())
    ::pmemobj_cancel(home_->pool(), actions_.data(), actions_.size());
}

} // namespace millrace::storage::pmem

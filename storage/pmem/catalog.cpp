// Objects are filled before they are published; words change by publish only. Called by
// registration, saves, erasing, reclaiming and repack.
#include <millrace/core/ids.hpp>
#include <millrace/core/kill_point.hpp>
#include <millrace/storage/pmem/catalog.hpp>

#include <algorithm>
#include <cstring>

namespace millrace::storage::pmem {

namespace {

template <class Header>
byte_buffer with_header(const Header& header, std::span<const std::byte> body) {
  byte_buffer bytes(sizeof header + body.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  if (!body.empty())
    std::memcpy(bytes.data() + sizeof header, body.data(), body.size());
  return bytes;
}

result<std::uint64_t> reserve_filled(
  pool_state& state, change& into, object_type type, std::span<const std::byte> bytes) {
  auto object = into.reserve(bytes.size(), type);
  if (!object)
    return object;
  if (auto bad = fill_object(state, *object, bytes); !bad.ok())
    return fail(std::move(bad));
  return object;
}

checked_word word(const slot_owner& s, word_kind kind, std::uint64_t number, std::uint64_t value) {
  return {value, word_check(s.id, kind, number, value)};
}

slot_word state_of(const slot& one) {
  if (one.done())
    return {one.state, one.sequence};
  if (one.state == slot_state::active)
    return {one.state, std::min(one.step, slot_word::payload_max)};
  return {};
}

} // namespace

std::uint64_t random_id() {
  std::uint64_t id = 0;
  while (id == 0)
    random_bytes(&id, sizeof id);
  return id;
}

status fill_object(
  const pool_state& state, std::uint64_t offset, std::span<const std::byte> bytes) {
  state.persist.store(state.address(offset), bytes.data(), bytes.size());
  return state.persist.flush(state.address(offset), bytes.size());
}

namespace {

// Reserves and fills the object of a slot whose extents and room are known.
status reserve_slot_object(
  pool_state& state, change& into, const slot_owner& s, std::uint64_t number, slot& made) {
  auto total = slot_object_bytes(made.extents.size(), s.shape->digests) + made.extra_room;
  auto object = into.reserve(total, object_type::slot);
  if (!object)
    return object.error();
  made.object = *object;
  made.object_bytes = into.reserved_bytes();
  made.reserved_bytes += made.object_bytes;
  auto list = std::as_bytes(std::span{made.extents});
  slot_header header{
    .total_bytes = total, .owner = s.id, .slot = number, .extents = made.extents.size()};
  header.checksum = checksum_of(header, list);
  made.record_at = made.object + sizeof header + list.size();
  return fill_object(state, made.object, with_header(header, list));
}

// Says that the pool has what older builds do not know.
void add_feature(pool_state& state, change& into, std::uint64_t feature) {
  auto root = state.objects->root();
  auto next = *root;
  next.features |= feature;
  if (next.features == root->features)
    return;
  into.set(root->features, next.features);
  into.set(root->checksum, checksum_of(next));
}

} // namespace

result<slot> reserve_slot(
  pool_state& state, change& into, const slot_owner& s, std::uint64_t number,
  std::uint64_t extra_bytes) {
  auto before = into.size();
  auto data = reserve_extents(into, s.shape->packed);
  if (!data)
    return fail(data.error());
  slot made;
  made.extents = std::move(data->extents);
  made.reserved_bytes = data->taken_bytes;
  made.extra_bytes = extra_bytes;
  made.extra_room = extra_room_of(extra_bytes);
  if (auto bad = reserve_slot_object(state, into, s, number, made); !bad.ok()) {
    into.cancel_after(before);
    return fail(std::move(bad));
  }
  return made;
}

result<slot> enlarge_slot(
  pool_state& state, change& into, const slot_owner& s, std::uint64_t number,
  std::uint64_t extra_room) {
  auto larger = s.slots[number];
  larger.reserved_bytes -= larger.object_bytes;
  larger.extra_room = extra_room;
  if (auto bad = reserve_slot_object(state, into, s, number, larger); !bad.ok())
    return fail(std::move(bad));
  set_object(state, into, s, number, larger.object);
  into.free(s.slots[number].object);
  add_feature(state, into, feature_extra);
  return larger;
}

void free_slot(change& into, const slot& one) {
  into.free(one.object);
  for (auto& e : one.extents)
    into.free(e.object);
}

void free_owner(change& into, const slot_owner& s) {
  into.free(s.index);
  for (auto& one : s.slots)
    if (one.reserved())
      free_slot(into, one);
}

slot_words& words_of(const pool_state& state, const slot_owner& s, std::uint64_t number) {
  return state.objects->at<index_header>(s.index)->slots[number];
}

void set_object(
  pool_state& state, change& into, const slot_owner& s, std::uint64_t number, std::uint64_t value) {
  into.set(words_of(state, s, number).object, s.id, word_kind::object, number, value);
}

void set_state(
  pool_state& state, change& into, const slot_owner& s, std::uint64_t number,
  const slot_word& value) {
  into.set(words_of(state, s, number).state, pack(value, s.id, number));
}

void set_flags(pool_state& state, change& into, const slot_owner& s, std::uint64_t flags) {
  into.set(state.objects->at<index_header>(s.index)->flags, s.id, word_kind::flags, 0, flags);
}

std::uint64_t flags_of(const shard& s) {
  return (s.finished ? flag_finished : 0) | (s.erased ? flag_erased : 0);
}

byte_buffer index_bytes(
  const slot_owner& s, std::uint64_t run, std::uint64_t flags, std::span<const std::byte> body) {
  index_header header;
  header.total_bytes = sizeof header + body.size();
  header.body_bytes = body.size();
  header.id = s.id;
  header.window_bytes = s.window_bytes;
  header.stream_bytes = s.shape->packed.stream_bytes;
  header.run = run;
  header.flags = word(s, word_kind::flags, 0, flags);
  header.checksum = checksum_of(header, body);
  for (std::size_t i = 0; i < keep_max; ++i) {
    auto& one = s.slots[i];
    header.slots[i] = {word(s, word_kind::object, i, one.object), pack(state_of(one), s.id, i)};
  }
  return with_header(header, body);
}

result<std::uint64_t> write_index(pool_state& state, change& into, const shard& s) {
  return reserve_filled(
    state, into, object_type::index, index_bytes(s, s.run, flags_of(s), encode(s.spec)));
}

result<std::uint64_t> write_table(pool_state& state, change& into, const table_map& next) {
  std::uint64_t object = 0;
  if (!next.empty()) {
    table_body body;
    body.entries.reserve(next.size());
    for (auto& [key, index] : next)
      body.entries.push_back({key, index});
    auto bytes = encode(body);
    table_header header{.total_bytes = sizeof header + bytes.size()};
    header.checksum = checksum_of(header, bytes);
    auto made = reserve_filled(state, into, object_type::table, with_header(header, bytes));
    if (!made)
      return made;
    object = *made;
  }
  auto root = state.objects->root();
  into.set(root->table, root->id, word_kind::table, 0, object);
  if (state.table_object != 0)
    into.free(state.table_object);
  return object;
}

std::span<const std::byte> store_record(
  pool_state& state, const slot_owner& s, std::uint64_t number, const slot& one,
  const std::vector<std::uint64_t>& digests) {
  auto body = std::as_bytes(std::span{digests});
  version_header header{
    .owner = s.id,
    .slot = number,
    .run = one.run,
    .step = one.step,
    .saved_at_ns = one.saved_at_ns,
    .sequence = one.sequence,
    .size_bytes = s.shape->size_bytes + one.extra_bytes,
    .digests = digests.size()};
  header.checksum = checksum_of(header, body);
  auto bytes = with_header(header, body);
  state.persist.store(state.address(one.record_at), bytes.data(), bytes.size());
  return {state.address(one.record_at), bytes.size()};
}

status write_record(
  pool_state& state, const slot_owner& s, std::uint64_t number, const slot& one,
  const std::vector<std::uint64_t>& digests) {
  auto range = store_record(state, s, number, one, digests);
  return state.persist.flush(range.data(), range.size());
}

status release_slot(pool_state& state, slot_owner& s, std::uint64_t number) {
  auto& one = s.slots[number];
  std::lock_guard guard{state.layout_mutex};
  change free{*state.objects};
  set_object(state, free, s, number, 0);
  set_state(state, free, s, number, {});
  free_slot(free, one);
  MILLRACE_KILL_POINT("pmem.free.before_publish");
  if (auto bad = state.publish(free); !bad.ok())
    return bad;
  MILLRACE_KILL_POINT("pmem.free.after_publish");
  auto changes = one.changes + 1;
  one = {};
  one.changes = changes;
  return {};
}

} // namespace millrace::storage::pmem

// Reads from the root down, and checks every object before it follows it. Called when a pool opens,
// and by check and info.
#include <millrace/storage/model_check.hpp>
#include <millrace/storage/pmem/index_reader.hpp>
#include <millrace/storage/pmem/medium/extents.hpp>
#include <millrace/storage/pmem/medium/heap_check.hpp>
#include <millrace/storage/pmem/medium/heap_layout.hpp>
#include <millrace/storage/pmem/medium/pool_file.hpp>

#include <algorithm>
#include <cstring>
#include <unordered_set>

namespace millrace::storage::pmem {

namespace {

status damaged(const std::string& what) { return {errc::corrupt_data, what}; }

constexpr decode_limits body_bounds{.depth_max = 16, .decoded_bytes_max = 4ull << 30};

template <class T>
T copy_from(const std::byte* from) {
  T value;
  std::memcpy(static_cast<void*>(&value), from, sizeof value);
  return value;
}

class index_reader {
public:
  index_reader(
    const pool_view& view, const problem_callback& problem,
    std::shared_ptr<space_account> descriptions)
    : view_(view), problem_(problem), descriptions_(std::move(descriptions)) {
    out_.layers = std::make_shared<layer_table>(descriptions_);
  }

  pool_index run() {
    auto entries = read_root();
    if (!entries && (!problem_(entries.error().detail()) || view_.objects))
      return std::move(out_);
    for (auto& entry : entries ? *entries : search()) {
      auto outcome = entry.key.kind == entry_kind::shard ? take_shard(entry) : take_stored(entry);
      if (!outcome.ok() && !problem_(fmt::format("{}: {}", describe(entry.key), outcome.detail())))
        return std::move(out_);
    }
    if (view_.objects)
      for (auto& [offset, object] : *view_.objects)
        if (!claimed_.contains(offset))
          out_.unreachable_bytes += object.size_bytes;
    return std::move(out_);
  }

private:
  result<std::vector<table_entry>> read_root() {
    if (!view_.root)
      return fail(damaged("the root is damaged"));
    auto& last = view_.root->last_version;
    out_.last_version = last.value;
    if (last.check != word_check(view_.root->id, word_kind::version, 0, last.value))
      return fail(damaged("the number of the last version does not match its check"));
    auto entries = read_table(*view_.root);
    return entries ? std::move(entries) : fail(entries.error().within("the table of models"));
  }

  // Finds indices by their magic numbers and checksums.
  std::vector<table_entry> search() {
    constexpr std::uint64_t step = sizeof(object_header); // objects begin on multiples of it
    searching_ = true;
    out_.last_version = ~std::uint64_t{0};
    std::vector<table_entry> found;
    for (auto at = heap_at; at + sizeof(index_header) <= view_.size_bytes; at += step)
      if (copy_from<std::uint64_t>(view_.at(at)) == index_header::magic_value)
        if (auto key = key_of(at))
          found.push_back({std::move(*key), at});
    return found;
  }

  std::optional<table_key> key_of(std::uint64_t at) {
    auto index = read_index({{}, at}, object_type::index);
    if (!index)
      return std::nullopt;
    auto type = copy_from<object_header>(view_.at(at - sizeof(object_header))).type;
    if (type == static_cast<std::uint64_t>(object_type::index))
      if (auto shard = decode<shard_spec>(index->body, "shard", body_bounds))
        return table_key{entry_kind::shard, shard->model, shard->rank};
    auto word = unpack(index->header.slots[0].state, index->header.id, 0);
    if (type == static_cast<std::uint64_t>(object_type::stored_index) && word)
      if (auto stored = decode<stored_body>(index->body, "model", body_bounds))
        return table_key{entry_kind::stored, stored->spec.name, word->payload};
    return std::nullopt;
  }

  result<std::span<const std::byte>> claim(
    std::uint64_t offset, object_type type, std::uint64_t least_bytes, const char* what) {
    if (!view_.objects) {
      if (
        offset % sizeof(object_header) != 0 || offset < heap_at || offset > view_.size_bytes ||
        view_.size_bytes - offset < least_bytes)
        return fail(damaged(std::string{what} + " is not where it should be"));
      return std::span{view_.at(offset), view_.size_bytes - offset};
    }
    auto object = view_.objects->find(offset);
    if (
      object == view_.objects->end() || object->second.type != type ||
      object->second.size_bytes < least_bytes)
      return fail(damaged(std::string{what} + " is not where it should be"));
    if (!claimed_.insert(offset).second)
      return fail(damaged(std::string{what} + " belongs to two owners"));
    return std::span{view_.at(offset), object->second.size_bytes};
  }

  result<std::vector<table_entry>> read_table(const pool_root& root) {
    auto offset = root.table.value;
    if (root.table.check != word_check(root.id, word_kind::table, 0, offset))
      return fail(damaged("its place does not match its check"));
    if (offset == 0)
      return std::vector<table_entry>{};
    auto bytes = claim(offset, object_type::table, sizeof(table_header), "the table");
    if (!bytes)
      return fail(bytes.error());
    auto header = copy_from<table_header>(bytes->data());
    if (
      header.magic != table_header::magic_value || header.total_bytes < sizeof header ||
      header.total_bytes > bytes->size())
      return fail(damaged("its header is damaged"));
    auto body = bytes->subspan(sizeof header, header.total_bytes - sizeof header);
    if (header.checksum != checksum_of(header, body))
      return fail(damaged("its checksum does not match"));
    auto table = decode<table_body>(body, "table", {.decoded_bytes_max = 1u << 30});
    if (!table)
      return fail(damaged(table.error().detail()));
    out_.table_object = offset;
    return std::move(table->entries);
  }

  // The header and the body that belongs to it.
  struct opened_index {
    index_header header;
    std::span<const std::byte> body;
    std::uint64_t object_bytes = 0;
  };

  result<opened_index> read_index(const table_entry& entry, object_type type) {
    auto bytes = claim(entry.index, type, sizeof(index_header), "the index");
    if (!bytes)
      return fail(bytes.error());
    auto header = copy_from<index_header>(bytes->data());
    if (
      header.magic != index_header::magic_value || header.body_bytes > bytes->size() ||
      header.total_bytes != sizeof header + header.body_bytes || header.total_bytes > bytes->size())
      return fail(damaged("the header of its index is damaged"));
    auto body = bytes->subspan(sizeof header, header.body_bytes);
    if (header.checksum != checksum_of(header, body))
      return fail(damaged("the checksum of its index does not match"));
    return opened_index{header, body, bytes->size()};
  }

  status take_shard(const table_entry& entry) {
    auto index = read_index(entry, object_type::index);
    if (!index)
      return index.error();
    auto found = std::make_shared<shard>();
    auto spec = decode<shard_spec>(index->body, "shard", body_bounds);
    if (!spec)
      return damaged(spec.error().detail());
    found->spec = std::move(*spec);
    if (auto bad = validate(found->spec); !bad.ok())
      return damaged(bad.detail());
    if (found->spec.model != entry.key.model || found->spec.rank != entry.key.number)
      return damaged("its index is another shard's");
    if (auto bad = read_owner(entry, index->header, found->spec.tensors, *found); !bad.ok())
      return bad;
    auto flags = index->header.flags.value;
    if ((flags & flag_pinned) != 0)
      return damaged("a shard is not pinned");
    found->finished = (flags & flag_finished) != 0;
    found->run = index->header.run;
    found->described =
      std::make_shared<account_lease>(descriptions_, described_bytes(found->spec, *found->shape));
    return adopt(std::move(found));
  }

  status take_stored(const table_entry& entry) {
    auto index = read_index(entry, object_type::stored_index);
    if (!index)
      return index.error();
    auto body = decode<stored_body>(index->body, "a model of the repository", body_bounds);
    if (!body)
      return damaged(body.error().detail());
    auto found = std::make_shared<stored_version>();
    found->spec = std::move(body->spec);
    auto checked = check_spec(found->spec);
    if (!checked)
      return damaged(checked.error().detail());
    if (found->spec.name != entry.key.model)
      return damaged("its index is another model's");
    if (auto bad = read_owner(entry, index->header, found->spec.tensors, *found); !bad.ok())
      return bad;
    if (auto bad = check_stored(*found); !bad.ok())
      return bad;
    auto layers = out_.layers->retain_stored(checked->layers, body->layers);
    if (!layers)
      return damaged(layers.error().detail());
    found->layers = std::move(*layers);
    found->spec.pinned = (index->header.flags.value & flag_pinned) != 0;
    found->size_bytes = checked->size_bytes;
    found->index_bytes = index->object_bytes;
    found->taken = {out_.stored, found->heap_bytes()};
    found->described = {descriptions_, described_bytes(*checked, *found->shape)};
    return adopt(std::move(found));
  }

  status check_stored(const stored_version& v) const {
    auto& one = v.slots[0];
    if (v.reserved_slots() != 1 || !one.done())
      return damaged("its one slot does not hold it");
    if (one.sequence != v.number() || one.step != v.number() || v.number() > out_.last_version)
      return damaged("its slot holds another version");
    return {};
  }

  // Reads the parts that shards and stored versions have in common.
  status read_owner(
    const table_entry& entry, const index_header& header, const layout& tensors,
    slot_owner& found) {
    if (
      header.window_bytes < io::window_bytes_min || header.window_bytes % io::direct_io_bytes != 0)
      return damaged(fmt::format("its windows are of {} bytes", header.window_bytes));
    found.key = entry.key;
    found.id = header.id;
    found.index = entry.index;
    found.window_bytes = header.window_bytes;
    found.shape = std::make_shared<const shard_shape>(shape_of(tensors, header.window_bytes));
    if (header.stream_bytes != found.shape->packed.stream_bytes)
      return damaged("its slots are not as large as its tensors ask for");
    auto flags = header.flags.value;
    if (
      header.flags.check != word_check(header.id, word_kind::flags, 0, flags) ||
      (flags & ~flags_known) != 0)
      return damaged("its flags do not match their check");
    found.erased = (flags & flag_erased) != 0;
    for (std::size_t i = 0; i < keep_max; ++i)
      if (auto bad = read_slot(found, i, header.slots[i]); !bad.ok())
        return damaged(fmt::format("slot {}: {}", i, bad.detail()));
    return {};
  }

  status read_slot(slot_owner& s, std::uint64_t number, const slot_words& words) {
    auto object = words.object.value;
    auto word = unpack(words.state, s.id, number);
    if (!word || words.object.check != word_check(s.id, word_kind::object, number, object))
      return damaged("a word of it does not match its check");
    if (object == 0)
      return word->state == slot_state::empty ? status{}
                                              : damaged("it has a version, but no space");
    if (auto bad = read_slot_object(s, number, object); !bad.ok())
      return bad;
    auto& one = s.slots[number];
    one.state = word->state;
    if (word->state == slot_state::active)
      one.step = word->payload;
    if (word->state != slot_state::done)
      return {};
    one.sequence = word->payload;
    auto digests = read_digests(view_.base, s, number);
    if (!digests)
      return digests.error();
    auto header = copy_from<version_header>(view_.at(one.record_at));
    one.step = header.step;
    one.run = header.run;
    one.extra_bytes = header.size_bytes - s.shape->size_bytes;
    one.saved_at_ns = header.saved_at_ns;
    return {};
  }

  status read_slot_object(slot_owner& s, std::uint64_t number, std::uint64_t offset) {
    auto bytes = claim(offset, object_type::slot, sizeof(slot_header), "its space");
    if (!bytes)
      return bytes.error();
    auto header = copy_from<slot_header>(bytes->data());
    auto least_bytes = slot_object_bytes(header.extents, s.shape->digests);
    auto has_room = s.key.kind == entry_kind::shard;
    if (
      header.magic != slot_header::magic_value || header.extents > extents_max ||
      header.total_bytes < least_bytes || header.total_bytes > bytes->size() ||
      (!has_room && header.total_bytes != least_bytes))
      return damaged("its header is damaged");
    auto list = bytes->subspan(sizeof header, header.extents * sizeof(data_extent));
    if (
      header.checksum != checksum_of(header, list) || header.owner != s.id || header.slot != number)
      return damaged("the checksum of its header does not match");
    auto& one = s.slots[number];
    one.object = offset;
    one.record_at = offset + sizeof header + list.size();
    one.object_bytes = one.reserved_bytes = bytes->size();
    one.extra_room = header.total_bytes - least_bytes;
    one.extents.resize(header.extents);
    if (!list.empty())
      std::memcpy(one.extents.data(), list.data(), list.size());
    return check_extents(s, one);
  }

  // Checks that each extent lies inside an object of its own, and that they hold the stream, window
  // by window.
  status check_extents(const slot_owner& s, slot& one) {
    auto& windows = s.shape->packed.windows;
    std::uint64_t at = 0;
    std::size_t next = 0;
    for (auto& e : one.extents) {
      auto bytes = claim(e.object, object_type::data, 0, "its data");
      if (!bytes)
        return bytes.error();
      auto skip = e.offset - e.object;
      if (
        e.offset % io::direct_io_bytes != 0 || e.offset < e.object || skip > bytes->size() ||
        e.length > bytes->size() - skip)
        return damaged("its data lies outside its space");
      one.reserved_bytes += bytes->size();
      at += e.length;
      while (next < windows.size() && windows[next].at + windows[next].size_bytes <= at)
        ++next;
      auto begins = next < windows.size() ? windows[next].at : s.shape->packed.stream_bytes;
      if (begins != at)
        return damaged("its data does not hold whole windows");
    }
    return at == s.shape->packed.stream_bytes ? status{} : damaged("its data is not all there");
  }

  static std::uint64_t newest_sequence(const slot_owner& s) {
    std::uint64_t newest = 0;
    for (auto& one : s.slots)
      newest = std::max(newest, one.sequence);
    return newest;
  }

  std::shared_ptr<model> model_of(const slot_owner& s) {
    auto& known = out_.models[s.key.model];
    if (!known)
      known = std::make_shared<model>(s.key.model);
    return known;
  }

  status adopt(std::shared_ptr<shard> s) {
    auto known = model_of(*s);
    if (!known->shards.empty() && known->world_size != s->spec.world_size)
      return damaged("its world size is not that of the model's other shards");
    known->world_size = s->spec.world_size;
    auto& place = known->shards[s->spec.rank];
    if (place && !searching_)
      return damaged("it is in the table twice");
    // A search finds former indices of a shard, too.
    if (place && newest_sequence(*place) > newest_sequence(*s))
      return {};
    place = s;
    for (auto& one : s->slots) {
      known->last_sequence = std::max(known->last_sequence, one.sequence);
      known->last_saved_at_ns = std::max(known->last_saved_at_ns, one.saved_at_ns);
      s->run = std::max(s->run, one.run);
    }
    known->run = std::max(known->run, s->run);
    out_.table.emplace(s->key, s->index);
    return {};
  }

  status adopt(std::shared_ptr<stored_version> v) {
    auto known = model_of(*v);
    if (auto other = find_stored(*known); other && !v->erased) {
      if (!searching_)
        return damaged("another version stands under the same name");
      if (other->number() >= v->number())
        return {};
      known->versions.clear();
    }
    if (!known->versions.emplace(v->number(), v).second)
      return damaged("it is in the table twice");
    out_.table.emplace(v->key, v->index);
    return {};
  }

  const pool_view& view_;
  const problem_callback& problem_;
  const std::shared_ptr<space_account> descriptions_;
  bool searching_ = false;
  std::unordered_set<std::uint64_t> claimed_;
  pool_index out_;
};

} // namespace

namespace {

// Checks the size and the number of digests, and that the slot has room for the user's bytes.
bool right_size(const slot_owner& s, const slot& one, const version_header& header) {
  if (header.size_bytes < s.shape->size_bytes)
    return false;
  auto extra = header.size_bytes - s.shape->size_bytes;
  if (extra > one.extra_room || extra_room_of(extra) > one.extra_room)
    return false;
  return header.digests == s.shape->digests + digest_count(extra) ||
    (header.digests == 0 && s.key.kind == entry_kind::stored);
}

} // namespace

pool_view view_of(const heap& objects, std::uint64_t size_bytes) {
  return {objects.base(), size_bytes, objects.root(), objects.objects()};
}

pool_index read_pool_index(
  const pool_view& view, const problem_callback& problem,
  std::shared_ptr<space_account> descriptions) {
  return index_reader{view, problem, std::move(descriptions)}.run();
}

result<std::vector<std::uint64_t>> read_digests(
  const std::byte* pool, const slot_owner& s, std::uint64_t number) {
  auto& one = s.slots[number];
  auto from = pool + one.record_at;
  auto header = copy_from<version_header>(from);
  if (
    header.magic != version_header::magic_value || header.owner != s.id || header.slot != number ||
    header.sequence != one.sequence || !right_size(s, one, header))
    return fail(damaged("the record of its version is damaged"));
  std::vector<std::uint64_t> digests(header.digests);
  auto body = std::span<const std::byte>{from + sizeof header, header.digests * 8};
  if (header.checksum != checksum_of(header, body))
    return fail(damaged("the checksum of its version's record does not match"));
  if (!body.empty())
    std::memcpy(digests.data(), body.data(), body.size());
  return digests;
}

} // namespace millrace::storage::pmem

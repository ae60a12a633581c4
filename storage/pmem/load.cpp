// From the root down: nothing is followed before it is checked.
#include <millrace/storage/pmem/extents.hpp>
#include <millrace/storage/pmem/load.hpp>
#include <millrace/storage/pmem/pool_file.hpp>

#include <algorithm>
#include <cstring>
#include <unordered_set>

namespace millrace::storage::pmem {

namespace {

status damaged(const std::string& what) { return {errc::corrupt_data, what}; }

template <class T>
T copy_from(const std::byte* from) {
  T value;
  std::memcpy(static_cast<void*>(&value), from, sizeof value);
  return value;
}

class loader {
public:
  loader(const heap& objects, const problem_callback& problem)
    : heap_(objects), problem_(problem), objects_(objects.objects()) {}

  loaded_index run() {
    auto root = heap_.root();
    auto entries = read_table(*root);
    if (!entries) {
      problem_("the table of models: " + entries.error().detail());
      return std::move(out_);
    }
    for (auto& entry : *entries) {
      auto what = "model " + entry.model + ", rank " + std::to_string(entry.rank) + ": ";
      auto found = read_shard(entry);
      if (found)
        found = adopt(std::move(*found), entry.index);
      if (!found && !problem_(what + found.error().detail()))
        return std::move(out_);
    }
    for (auto& [offset, object] : objects_)
      if (!claimed_.contains(offset))
        out_.unreachable_bytes += object.size_bytes;
    return std::move(out_);
  }

private:
  result<std::span<const std::byte>> claim(
    std::uint64_t offset, object_type type, std::uint64_t least_bytes, const char* what) {
    auto object = objects_.find(offset);
    if (
      object == objects_.end() || object->second.type != type ||
      object->second.size_bytes < least_bytes)
      return fail(damaged(std::string{what} + " is not where it should be"));
    if (!claimed_.insert(offset).second)
      return fail(damaged(std::string{what} + " belongs to two owners"));
    return std::span<const std::byte>{heap_.at<std::byte>(offset), object->second.size_bytes};
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

  result<std::shared_ptr<shard>> read_shard(const table_entry& entry) {
    auto bytes = claim(entry.index, object_type::index, sizeof(index_header), "the index");
    if (!bytes)
      return fail(bytes.error());
    auto header = copy_from<index_header>(bytes->data());
    if (
      header.magic != index_header::magic_value || header.spec_bytes > bytes->size() ||
      header.total_bytes != sizeof header + header.spec_bytes ||
      header.total_bytes > bytes->size())
      return fail(damaged("the header of its index is damaged"));
    auto spec_bytes = bytes->subspan(sizeof header, header.spec_bytes);
    if (header.checksum != checksum_of(header, spec_bytes))
      return fail(damaged("the checksum of its index does not match"));
    auto found = std::make_shared<shard>();
    auto spec = decode<shard_spec>(spec_bytes, "shard", {.decoded_bytes_max = 1u << 30});
    if (!spec)
      return fail(damaged(spec.error().detail()));
    found->spec = std::move(*spec);
    if (auto bad = check_spec(entry, header, *found); !bad.ok())
      return fail(std::move(bad));
    found->id = header.id;
    found->index = entry.index;
    for (std::size_t i = 0; i < keep_max; ++i)
      if (auto bad = read_slot(*found, i, header.slots[i]); !bad.ok())
        return fail(damaged("slot " + std::to_string(i) + ": " + bad.detail()));
    return found;
  }

  static status check_spec(const table_entry& entry, const index_header& header, shard& found) {
    auto& spec = found.spec;
    if (auto bad = validate(spec); !bad.ok())
      return damaged(bad.detail());
    if (spec.model != entry.model || spec.rank != entry.rank)
      return damaged("its index is another shard's");
    if (
      header.window_bytes < io::window_bytes_min || header.window_bytes % io::direct_io_bytes != 0)
      return damaged("its windows are of " + std::to_string(header.window_bytes) + " bytes");
    found.window_bytes = header.window_bytes;
    found.shape =
      std::make_shared<const shard_shape>(shape_of(spec.tensors, header.window_bytes));
    if (header.stream_bytes != found.shape->packed.stream_bytes)
      return damaged("its slots are not as large as its tensors ask for");
    auto flags = header.flags.value;
    if (
      header.flags.check != word_check(header.id, word_kind::flags, 0, flags) ||
      (flags & ~flags_known) != 0)
      return damaged("its flags do not match their check");
    found.finished = (flags & flag_finished) != 0;
    found.erased = (flags & flag_erased) != 0;
    return {};
  }

  status read_slot(shard& s, std::uint64_t number, const slot_words& words) {
    auto good = [&](word_kind kind, const checked_word& word) {
      return word.check == word_check(s.id, kind, number, word.value);
    };
    if (
      !good(word_kind::object, words.object) || !good(word_kind::done, words.done) ||
      !good(word_kind::active, words.active))
      return damaged("a word of it does not match its check");
    auto& one = s.slots[number];
    if (words.object.value == 0)
      return words.done.value == 0 && words.active.value == 0
        ? status{}
        : damaged("it has a version, but no space");
    if (auto bad = read_slot_object(s, number, words.object.value); !bad.ok())
      return bad;
    if (words.active.value != 0) {
      one.state = slot_state::active;
      one.step = words.active.value - 1;
    }
    if (words.done.value == 0)
      return {};
    if (words.active.value != 0)
      return damaged("it is both whole and being filled");
    one.sequence = words.done.value;
    one.state = slot_state::done;
    auto digests = read_digests(heap_, s, number);
    if (!digests)
      return digests.error();
    auto header = copy_from<version_header>(heap_.at<std::byte>(one.record_at));
    one.step = header.step;
    one.saved_at_ns = header.saved_at_ns;
    return {};
  }

  status read_slot_object(shard& s, std::uint64_t number, std::uint64_t offset) {
    auto bytes = claim(offset, object_type::slot, sizeof(slot_header), "its space");
    if (!bytes)
      return bytes.error();
    auto header = copy_from<slot_header>(bytes->data());
    if (
      header.magic != slot_header::magic_value || header.extents > extents_max ||
      header.total_bytes != slot_object_bytes(header.extents, s.shape->digests) ||
      header.total_bytes > bytes->size())
      return damaged("its header is damaged");
    auto list = bytes->subspan(sizeof header, header.extents * sizeof(data_extent));
    if (
      header.checksum != checksum_of(header, list) || header.owner != s.id ||
      header.slot != number)
      return damaged("the checksum of its header does not match");
    auto& one = s.slots[number];
    one.object = offset;
    one.record_at = offset + sizeof header + list.size();
    one.reserved_bytes = bytes->size();
    one.extents.resize(header.extents);
    if (!list.empty())
      std::memcpy(one.extents.data(), list.data(), list.size());
    return check_extents(s, one);
  }

  // Each lies inside an object of its own, and they hold the stream, window by window.
  status check_extents(const shard& s, slot& one) {
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

  result<std::shared_ptr<shard>> adopt(std::shared_ptr<shard> s, std::uint64_t index) {
    auto& name = s->spec.model;
    auto& known = out_.models[name];
    if (!known)
      known = std::make_shared<model>(name);
    if (!known->shards.empty() && known->world_size != s->spec.world_size)
      return fail(damaged("its world size is not that of the model's other shards"));
    known->world_size = s->spec.world_size;
    if (!known->shards.emplace(s->spec.rank, s).second)
      return fail(damaged("it is in the table twice"));
    for (auto& one : s->slots)
      known->last_sequence = std::max(known->last_sequence, one.sequence);
    out_.table.emplace(std::pair{name, s->spec.rank}, index);
    return s;
  }

  const heap& heap_;
  const problem_callback& problem_;
  std::unordered_map<std::uint64_t, object_info> objects_;
  std::unordered_set<std::uint64_t> claimed_;
  loaded_index out_;
};

} // namespace

loaded_index load_index(const heap& objects, const problem_callback& problem) {
  return loader{objects, problem}.run();
}

result<std::vector<std::uint64_t>> read_digests(
  const heap& objects, const shard& s, std::uint64_t number) {
  auto& one = s.slots[number];
  auto from = objects.at<std::byte>(one.record_at);
  auto header = copy_from<version_header>(from);
  if (
    header.magic != version_header::magic_value || header.owner != s.id ||
    header.slot != number || header.sequence != one.sequence ||
    header.digests != s.shape->digests || header.size_bytes != s.shape->size_bytes)
    return fail(damaged("the record of its version is damaged"));
  std::vector<std::uint64_t> digests(header.digests);
  auto body = std::span<const std::byte>{from + sizeof header, header.digests * 8};
  if (header.checksum != checksum_of(header, body))
    return fail(damaged("the checksum of its version's record does not match"));
  if (!body.empty())
    std::memcpy(digests.data(), body.data(), body.size());
  return digests;
}

std::vector<std::string> verify_version(
  const heap& objects, const shard& s, const slot& version,
  const std::vector<std::uint64_t>& digests) {
  std::vector<std::uint64_t> first(s.shape->tensor_bytes.size());
  for (std::size_t i = 1; i < first.size(); ++i)
    first[i] = first[i - 1] + digest_count(s.shape->tensor_bytes[i - 1]);
  std::vector<bool> wrong(first.size());
  for (auto& p : s.shape->packed.pieces)
    for (std::uint64_t from = 0; from < p.length; from += digest_block_bytes) {
      auto length = std::min(digest_block_bytes, p.length - from);
      // A window is in one run, and so is a block.
      auto run = locate(version.extents, p.at + from, length).front();
      auto block = first[p.tensor] + (p.tensor_offset + from) / digest_block_bytes;
      if (digest(objects.at<std::byte>(run.offset), length) != digests[block])
        wrong[p.tensor] = true;
    }
  std::vector<std::string> names;
  for (std::size_t i = 0; i < wrong.size(); ++i)
    if (wrong[i])
      names.push_back(s.spec.tensors.tensors[i].name);
  return names;
}

} // namespace millrace::storage::pmem

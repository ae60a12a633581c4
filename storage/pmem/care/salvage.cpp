// Reads a pool without libpmemobj, whose heap may be damaged: every object has a checksum of ours.
// Called by the command.
#include <millrace/storage/pmem/care/verify.hpp>
#include <millrace/storage/pmem/index_reader.hpp>
#include <millrace/storage/pmem/medium/extents.hpp>
#include <millrace/storage/pmem/medium/heap_check.hpp>
#include <millrace/storage/pmem/medium/pool_file.hpp>

#include <cstring>

namespace millrace::storage {

using namespace pmem;

namespace {

/// A version in the mapping, whose bytes were compared with its digests before.
class version_in_place final : public archive::tensor_source {
public:
  version_in_place(
    const std::byte* pool, const slot_owner& s, const slot& version, const layout& tensors,
    const archive::text_pairs& metadata)
    : pool_(pool), shape_(*s.shape), version_(version), tensors_(tensors), metadata_(metadata) {}

  const layout& tensors() const noexcept override { return tensors_; }
  const archive::text_pairs& metadata() const noexcept override { return metadata_; }

  status read(std::uint32_t tensor, std::uint64_t offset, std::span<std::byte> into) override {
    for (auto& part : io::parts_of(shape_.packed, {tensor, offset, into.size()}))
      for (auto& run : locate(version_.extents, part.at, part.length))
        std::memcpy(
          into.data() + (part.tensor_offset - offset) + run.from, pool_ + run.offset, run.length);
    return {};
  }

  result<std::vector<std::byte>> extra() override {
    auto data = pool_ + extra_at(version_, shape_);
    return std::vector<std::byte>{data, data + version_.extra_bytes};
  }

private:
  const std::byte* pool_;
  const shard_shape& shape_;
  const slot& version_;
  const layout& tensors_;
  const archive::text_pairs& metadata_;
};

class pool_salvage {
public:
  pool_salvage(const std::byte* pool, salvager& to) : pool_(pool), to_(to) {}

  status take_all(const pool_index& index) {
    for (auto& [name, m] : index.models) {
      for (auto& [rank, s] : m->shards)
        for (std::size_t i = 0; i < s->slots.size(); ++i)
          if (s->slots[i].done() && !s->erased)
            if (auto bad = take(*s, i); !bad.ok())
              return bad;
      for (auto& [number, v] : m->versions)
        if (!v->erased && !v->spec.erased && !is_own_name(name))
          if (auto bad = take(*v); !bad.ok())
            return bad;
    }
    return {};
  }

private:
  status take(const shard& s, std::size_t number) {
    auto& one = s.slots[number];
    auto called = fmt::format("{}, step {}", describe(s.key), one.step);
    if (!is_whole(s, number, s.spec.tensors, called))
      return {};
    return to_.take(
      {s.spec.model, one.step, s.spec.rank, s.spec.world_size, s.spec.axes},
      std::make_unique<version_in_place>(pool_, s, one, s.spec.tensors, s.spec.metadata));
  }

  status take(const stored_version& v) {
    if (!is_whole(v, 0, v.spec.tensors, describe(v.key)))
      return {};
    return to_.take(
      {v.spec.name, {}, {}, {}, {}},
      std::make_unique<version_in_place>(pool_, v, v.slots[0], v.spec.tensors, v.spec.metadata));
  }

  bool is_whole(
    const slot_owner& s, std::size_t number, const layout& tensors, const std::string& called) {
    auto digests = read_digests(pool_, s, number);
    if (!digests) {
      to_.lose(fmt::format("{}: {}", called, digests.error().detail()));
      return false;
    }
    auto wrong = differing_tensors(pool_, s, s.slots[number], *digests);
    for (auto tensor : wrong)
      to_.lose(fmt::format(
        "{}: tensor {} does not match its checksums", called, tensors.tensors[tensor].name));
    auto extra = check_extra(pool_, s, s.slots[number], *digests);
    if (!extra.ok())
      to_.lose(fmt::format("{}: {}", called, extra.detail()));
    return wrong.empty() && extra.ok();
  }

  const std::byte* pool_;
  salvager& to_;
};

// Returns null when the root is damaged.
result<const pool_root*> find_root(
  const pool_file& file, std::span<const std::byte> bytes, std::uint64_t root_at) {
  if (root_at < heap_at || root_at % 16 != 0 || root_at > bytes.size() - sizeof(pool_root))
    return nullptr;
  auto root = reinterpret_cast<const pool_root*>(bytes.data() + root_at);
  auto bad = check_root(*root, file.path, root->size_bytes);
  if (bad.code() == errc::unsupported_version)
    return fail(std::move(bad));
  return bad.ok() ? root : nullptr;
}

} // namespace

status salvage_pool(const std::string& path, salvager& to) {
  auto file = open_pool_file(path, pool_medium::automatic);
  if (!file)
    return file.error();
  auto image =
    file_image::map(*file, file->device ? image_access::read_only : image_access::own_copy);
  if (!image)
    return image.error();
  auto bytes = image->bytes();
  auto descriptor = read_descriptor(*file, bytes);
  if (!descriptor)
    return descriptor.error();
  if (!file->device)
    for (auto& [at, value] : read_pending(bytes))
      std::memcpy(bytes.data() + at, &value, sizeof value);
  auto root = find_root(*file, bytes, descriptor->root_offset);
  if (!root)
    return root.error();
  pool_view view{bytes.data(), bytes.size(), *root, std::nullopt};
  auto index = read_pool_index(view, [&](const std::string& problem) {
    to.lose(problem);
    return true;
  });
  return pool_salvage{bytes.data(), to}.take_all(index);
}

} // namespace millrace::storage

// Compares in the mapping, or in a buffer where the pool uses direct I/O. Called by check and
// copies, and before versions are freed.
#include <millrace/core/digest.hpp>
#include <millrace/storage/pmem/care/verify.hpp>
#include <millrace/storage/pmem/lease.hpp>
#include <millrace/storage/pmem/medium/extents.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace millrace::storage::pmem {

window_check::window_check(const shard_shape& shape, const std::vector<std::uint64_t>& digests)
  : shape_(shape), digests_(digests), first_(shape.tensor_bytes.size()) {
  for (std::size_t i = 1; i < first_.size(); ++i)
    first_[i] = first_[i - 1] + digest_count(shape_.tensor_bytes[i - 1]);
}

std::vector<std::uint32_t> window_check::differing(
  const io::packed_window& w, const std::byte* data) const {
  std::set<std::uint32_t> wrong;
  if (digests_.empty())
    return {};
  for (auto i = w.first; i < w.first + w.count; ++i) {
    auto& p = shape_.packed.pieces[i];
    for (std::uint64_t from = 0; from < p.length; from += digest_block_bytes) {
      auto length = std::min(digest_block_bytes, p.length - from);
      auto block = first_[p.tensor] + (p.tensor_offset + from) / digest_block_bytes;
      if (digest(data + (p.at - w.at) + from, length) != digests_[block])
        wrong.insert(p.tensor);
    }
  }
  return {wrong.begin(), wrong.end()};
}

status window_check::compare(const io::packed_window& w, const std::byte* data) const {
  auto wrong = differing(w, data);
  if (wrong.empty())
    return {};
  return {errc::corrupt_data, "tensor {} does not match its checksums", wrong.front()};
}

std::vector<std::uint32_t> differing_tensors(
  const std::byte* pool, const slot_owner& s, const slot& version,
  const std::vector<std::uint64_t>& digests) {
  window_check check{*s.shape, digests};
  std::set<std::uint32_t> wrong;
  for (auto& w : s.shape->packed.windows) {
    auto data = pool + locate(version.extents, w.at, w.size_bytes).front().offset;
    auto of_window = check.differing(w, data);
    wrong.insert(of_window.begin(), of_window.end());
  }
  return {wrong.begin(), wrong.end()};
}

status check_extra(
  const std::byte* pool, const slot_owner& s, const slot& version,
  const std::vector<std::uint64_t>& digests) {
  auto data = pool + extra_at(version, *s.shape);
  auto expected = digests.begin() + static_cast<std::ptrdiff_t>(s.shape->digests);
  for (std::uint64_t from = 0; from < version.extra_bytes; from += digest_block_bytes)
    if (
      digest(data + from, std::min(digest_block_bytes, version.extra_bytes - from)) != *expected++)
      return {
        errc::corrupt_data, "the user's bytes of step {} do not match their checksums",
        version.step};
  return {};
}

window_source::window_source(const pool_state& state, std::uint64_t window_bytes)
  : state_(state), buffer_(nullptr, &std::free) {
  if (state_.direct)
    buffer_.reset(std::aligned_alloc(io::direct_io_bytes, window_bytes));
}

result<const std::byte*> window_source::read(
  const io::packed_window& w, const std::vector<data_extent>& extents) {
  // A window is in one run.
  auto at = locate(extents, w.at, w.size_bytes).front().offset;
  if (!state_.direct)
    return state_.address(at);
  auto data = static_cast<std::byte*>(buffer_.get());
  if (!data)
    return fail(errc::no_space, "there is no memory for a window");
  if (auto bad = io::read_all(state_.direct_file, data, w.size_bytes, at, state_.file.path);
      !bad.ok())
    return fail(std::move(bad));
  return data;
}

namespace {

/// A version that stays, with what is needed to read it without the model's lock. Destroy it
/// without the lock.
struct kept_version {
  shard_spec spec;
  leased_slot slot;
  pmem::slot version;
  std::uint64_t window_bytes = 0;
  result<std::vector<std::uint64_t>> digests;
};

template <class F>
void for_each_kept(const model& m, F f) {
  auto newest = newest_complete(m);
  for (auto& [rank, s] : m.shards) {
    auto number = s->erased ? -1 : protected_slot(*s, newest);
    if (number >= 0)
      f(s, static_cast<std::uint64_t>(number));
  }
}

// Needs the model's lock.
std::vector<kept_version> lease_kept(
  const std::shared_ptr<pool_state>& state, const std::shared_ptr<model>& m) {
  std::vector<kept_version> kept;
  for_each_kept(*m, [&](auto& s, auto number) {
    kept.push_back(
      {s->spec, lease_to_read(state, m, s, number), s->slots[number], s->window_bytes,
       read_digests(state->objects->base(), *s, number)});
  });
  return kept;
}

status is_damaged(const kept_version& kept, const std::string& what) {
  auto& name = kept.spec.model;
  return {
    errc::corrupt_data,
    "model {}, rank {}, step {}: {}; older versions stay until this one is removed: `millrace "
    "checkpoints rm {}@{}`",
    name,
    kept.spec.rank,
    kept.version.step,
    what,
    name,
    kept.version.step};
}

status verify(
  const pool_state& state, const kept_version& kept, const std::function<bool()>& goes_on) {
  if (!kept.digests)
    return is_damaged(kept, kept.digests.error().detail());
  auto& shape = *kept.slot.shape;
  window_check check{shape, *kept.digests};
  window_source source{state, kept.window_bytes};
  for (auto& w : shape.packed.windows) {
    if (!goes_on())
      return {errc::cancelled, "stopped"};
    auto data = source.read(w, kept.slot.extents);
    if (!data)
      return data.error().within("verifying " + describe(kept.slot.which->key));
    auto wrong = check.differing(w, *data);
    if (!wrong.empty())
      return is_damaged(
        kept,
        fmt::format(
          "tensor {} does not match its checksums", kept.spec.tensors.tensors[wrong.front()].name));
  }
  auto bad = check_extra(state.objects->base(), *kept.slot.which, kept.version, *kept.digests);
  return bad.ok() ? bad : is_damaged(kept, bad.detail());
}

} // namespace

std::vector<kept_slot> kept_slots(const model& m) {
  std::vector<kept_slot> kept;
  for_each_kept(m, [&](auto& s, auto number) {
    kept.push_back({s->id, number, s->slots[number].changes});
  });
  return kept;
}

result<std::vector<kept_slot>> verify_kept(
  const std::shared_ptr<pool_state>& state, const std::shared_ptr<model>& m,
  const std::function<bool()>& goes_on) {
  std::vector<kept_slot> now;
  std::vector<kept_version> leased;
  {
    std::lock_guard guard{m->mutex};
    now = kept_slots(*m);
    leased = lease_kept(state, m);
  }
  for (auto& one : leased)
    if (auto bad = verify(*state, one, goes_on); !bad.ok())
      return fail(std::move(bad));
  return now;
}

} // namespace millrace::storage::pmem

// Copies within the mapping, or through a buffer and direct I/O. Called by repack.
#include <millrace/storage/pmem/care/copy.hpp>
#include <millrace/storage/pmem/care/verify.hpp>
#include <millrace/storage/pmem/medium/extents.hpp>

#include <unistd.h>

#include <cerrno>

namespace millrace::storage::pmem {

namespace {

class copier {
public:
  copier(pool_state& state, const slot_owner& s, const std::vector<std::uint64_t>& digests)
    : state_(state), check_(*s.shape, digests), source_(state, s.window_bytes) {}

  status copy(
    const io::packed_window& w, const std::vector<data_extent>& from,
    const std::vector<data_extent>& to) {
    auto data = source_.read(w, from);
    if (!data)
      return data.error();
    auto target = locate(to, w.at, w.size_bytes).front().offset;
    return state_.direct ? copy_by_io(w, *data, target) : copy_in_mapping(w, *data, target);
  }

private:
  status copy_in_mapping(
    const io::packed_window& w, const std::byte* data, std::uint64_t target) const {
    state_.persist.bulk_copy(state_.address(target), data, w.size_bytes);
    if (auto bad = check_.compare(w, state_.address(target)); !bad.ok())
      return bad;
    return state_.persist.bulk_flush(state_.address(target), w.size_bytes);
  }

  status copy_by_io(const io::packed_window& w, const std::byte* data, std::uint64_t target) const {
    if (auto bad = check_.compare(w, data); !bad.ok())
      return bad;
    return io::write_all(state_.direct_file, data, w.size_bytes, target, state_.file.path);
  }

  pool_state& state_;
  window_check check_;
  window_source source_;
};

// Both ways of reading the pool see its mapping.
status copy_extra(
  const pool_state& state, const slot_owner& s, const slot& from, const slot& to,
  const std::vector<std::uint64_t>& digests) {
  if (from.extra_bytes == 0)
    return {};
  auto target = state.address(extra_at(to, *s.shape));
  state.persist.store(target, state.address(extra_at(from, *s.shape)), from.extra_bytes);
  if (auto bad = check_extra(state.objects->base(), s, to, digests); !bad.ok())
    return bad;
  return state.direct ? status{} : state.persist.flush(target, from.extra_bytes);
}

} // namespace

status copy_version(
  pool_state& state, const slot_owner& s, const slot& from, const slot& to,
  const std::vector<std::uint64_t>& digests, const std::function<bool()>& goes_on) {
  copier copies{state, s, digests};
  if (!state.direct)
    for (auto& e : to.extents)
      state.persist.bulk_begins(state.address(e.offset), e.length);
  for (auto& w : s.shape->packed.windows) {
    if (!goes_on())
      return {errc::cancelled, "stopped"};
    if (auto bad = copies.copy(w, from.extents, to.extents); !bad.ok())
      return bad.within("copying a version of " + describe(s.key));
  }
  if (auto bad = copy_extra(state, s, from, to, digests); !bad.ok())
    return bad.within("copying a version of " + describe(s.key));
  if (state.direct)
    return ::fdatasync(state.direct_file.get()) == 0
      ? status{}
      : status_from_errno(errno, "syncing " + state.file.path);
  state.persist.fence();
  for (auto& e : to.extents)
    state.persist.bulk_persisted(state.address(e.offset), e.length);
  return {};
}

} // namespace millrace::storage::pmem

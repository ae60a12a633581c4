// Threads read the files block by block, take the samples' digests, and write each block to where
// it belongs. The entries of the tables follow when all blocks of a claim are there.
#include <millrace/core/digest.hpp>
#include <millrace/core/kill_point.hpp>
#include <millrace/core/simulated_machine.hpp>
#include <millrace/runtime/client/calls/block_claims.hpp>
#include <millrace/runtime/client/calls/sample_moving.hpp>
#include <millrace/transport/submit_all.hpp>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <utility>

namespace millrace::runtime {

namespace {

using storage::samples::sample_reader;

constexpr std::uint64_t all_blocks_bytes_max = 128u << 20;
constexpr std::size_t threads_max = 4; // each has one block; where reading computes, there are more

std::vector<std::unique_ptr<part_blocks>> cut_all(
  const sample_reader& reader, const std::vector<const reserved_part*>& parts,
  std::uint64_t block_bytes) {
  std::vector<std::unique_ptr<part_blocks>> out;
  out.reserve(parts.size());
  for (auto* part : parts)
    out.push_back(std::make_unique<part_blocks>(*part, reader, block_bytes));
  return out;
}

// Helpers begin at different servers.
std::optional<std::size_t> part_to_begin(
  const std::vector<const reserved_part*>& parts, moving_role role) {
  if (role == moving_role::leader || parts.empty())
    return std::nullopt;
  return parts.front()->reserved.number % parts.size();
}

} // namespace

class sample_moving::work {
public:
  work(
    const preload_call& call, sample_reader& reader, const std::vector<const reserved_part*>& parts,
    moving_role role)
    : call_(call), reader_(reader), role_(role),
      block_bytes_(parts.empty() ? 1 : block_bytes_for(reader, parts.front()->reserved.set)),
      parts_(cut_all(reader, parts, block_bytes_)),
      claims_(call, parts_, reader.prefers_order(), part_to_begin(parts, role)) {
    for (auto& part : parts_)
      for (auto& field : part->set().fields)
        all_bytes_ += field.data_bytes;
  }

  result<bool> run() {
    auto bad = move_all();
    blocks_.clear();
    if (!bad.ok())
      return fail(bad);
    auto others = claims_.others_have_some();
    if (!others && !damage_.ok())
      return fail(why_ = damage_);
    bad = report(0);
    return bad.ok() ? result<bool>{!others} : fail(why_ = bad);
  }

  bool has_failed() {
    std::lock_guard guard{mutex_};
    return !why_.ok();
  }
  bool is_own_failure() const noexcept { return own_failure_; }
  bool program_has_failed() const noexcept { return program_has_failed_; }
  std::uint64_t moved_bytes() const noexcept { return done_bytes_; }
  std::uint64_t bytes_elsewhere() const noexcept { return claims_.bytes_elsewhere(); }

private:
  // A pass in which nobody has left anything to claim is the last one.
  status move_all() {
    for (;;) {
      claims_.begin_pass(count_threads());
      auto any = claims_.look();
      if (!any)
        return any.error();
      if (!*any)
        return {};
      if (blocks_.empty())
        fail_with(make_blocks());
      if (why_.ok())
        move_on_threads();
      if (!why_.ok())
        return why_;
      if (auto later = std::exchange(later_, {}); !later.ok())
        return later;
    }
  }

  std::size_t count_threads() const {
    auto cores = simulated() ? 1u : std::max(std::thread::hardware_concurrency(), 1u);
    std::size_t blocks = 0;
    for (auto& part : parts_)
      blocks += part->blocks().size();
    auto most = reader_.computes() ? std::size_t{cores} : threads_max;
    return std::min(
      {std::size_t{cores}, most, std::max<std::size_t>(blocks, 1),
       static_cast<std::size_t>(all_blocks_bytes_max / block_bytes_)});
  }

  status make_blocks() {
    auto count = count_threads();
    auto made = call_.core->runs_on()->fabric()->make_memory(
      {.name = "millrace.preload", .size_bytes = count * block_bytes_});
    own_failure_ = !made;
    if (!made)
      return made.error();
    blocks_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      auto block = (*made)->allocate(block_bytes_, 4096);
      own_failure_ = !block;
      if (!block)
        return block.error();
      blocks_.push_back(std::move(*block));
    }
    return {};
  }

  // The calling thread is one of them, and the only one where the system grants no other.
  void move_on_threads() {
    std::vector<std::thread> others;
    others.reserve(blocks_.size());
    try {
      for (std::size_t i = 1; i < blocks_.size(); ++i)
        others.emplace_back([this, i] { move_blocks(i); });
    } catch (const std::exception&) {
    }
    move_blocks(0);
    for (auto& one : others)
      one.join();
  }

  // No exception leaves a thread, neither that of files nor that of the program's callback.
  void move_blocks(std::size_t thread) noexcept {
    try {
      move_some(thread);
    } catch (const std::bad_alloc&) {
      fail_with({errc::no_space, "this process has no memory left"});
    } catch (const std::exception& e) {
      fail_with({errc::internal, "{}", e.what()});
    } catch (...) {
      fail_with({errc::internal, "an exception of the program"});
    }
  }

  void move_some(std::size_t thread) {
    std::unique_lock in_order{order_mutex_, std::defer_lock};
    while (auto next = take(in_order)) {
      auto& part = *parts_[next->claim->part];
      auto& block = part.blocks()[next->number];
      auto large = block.bytes > block_bytes_;
      auto moved = large ? move_large(part, block, blocks_[thread])
                         : move(part, block, blocks_[thread], in_order);
      if (in_order.owns_lock())
        in_order.unlock();
      if (moved.ok() && !large) // each piece of a large one was reported
        moved = report(block.data_bytes);
      if (moved.ok() && claims_.moved(*next))
        moved = finish(*next->claim, blocks_[thread]);
      fail_with(moved);
      MILLRACE_KILL_POINT("set.block_moved");
    }
  }

  // Takes the next block. Files that are best read in order are read under the lock.
  std::optional<claimed_block> take(std::unique_lock<std::mutex>& in_order) {
    in_order.lock();
    result<std::optional<claimed_block>> next = std::optional<claimed_block>{};
    if (!has_failed())
      next = claims_.take();
    auto any = next && *next;
    if (!any || !reader_.prefers_order())
      in_order.unlock();
    if (!next)
      take_failed(next.error());
    return any ? std::move(*next) : std::nullopt;
  }

  // A data server that is busy may be asked again.
  void take_failed(const status& why) {
    std::lock_guard guard{mutex_};
    auto& into = why.code() == errc::busy ? later_ : why_;
    if (into.ok())
      into = why;
  }

  status move(
    part_blocks& part, const sample_block& b, const memory_block& memory,
    std::unique_lock<std::mutex>& in_order) {
    if (auto bad = read(part, b, memory); !bad.ok())
      return unreadable(bad);
    if (in_order.owns_lock())
      in_order.unlock();
    auto* at = memory.data;
    for (std::uint64_t i = b.first; i < b.first + b.count; ++i) {
      auto length = part.length_of(b.field, i);
      part.digest_of(b.field, i) = digest(at, length);
      at += part.step(b.field, length);
    }
    return write(part.of(), b.address, {memory.data, b.bytes}, memory);
  }

  status read(const part_blocks& part, const sample_block& b, const memory_block& memory) {
    auto first = part.of().first + b.first;
    if (!part.set().fields[b.field].varies)
      return reader_.read(b.field, first, b.count, {memory.data, b.bytes});
    auto* at = memory.data;
    for (std::uint64_t i = 0; i < b.count; ++i) {
      auto length = part.length_of(b.field, b.first + i);
      if (auto bad = reader_.read(b.field, first + i, 1, {at, length}); !bad.ok())
        return bad;
      at += part.step(b.field, length);
    }
    return {};
  }

  // A sample that is larger than a block goes piece by piece, as long as nothing else has failed.
  status move_large(part_blocks& part, const sample_block& b, const memory_block& memory) {
    running_digest all;
    auto length = part.length_of(b.field, b.first);
    auto sample = part.of().first + b.first;
    for (std::uint64_t at = 0; at < length && !has_failed(); at += block_bytes_) {
      std::span piece{memory.data, std::min(block_bytes_, length - at)};
      if (auto bad = reader_.read_part(b.field, sample, at, piece); !bad.ok())
        return unreadable(bad);
      if (auto bad = write(part.of(), b.address + at, piece, memory); !bad.ok())
        return bad;
      all.add(piece.data(), piece.size());
      if (auto stop = report(piece.size()); !stop.ok())
        return stop;
    }
    part.digest_of(b.field, b.first) = all.value();
    return {};
  }

  // Where damaged files are left out, the leader reads the others on, so that all damage is known.
  status unreadable(const status& why) {
    std::lock_guard guard{mutex_};
    auto goes_on = role_ == moving_role::leader && storage::samples::is_damage(why) &&
      call_.options.on_error == damage_policy::skip;
    own_failure_ = own_failure_ || !goes_on;
    if (!goes_on)
      return why;
    if (damage_.ok())
      damage_ = why;
    return {};
  }

  // Writes the entries of a claim's samples, field by field.
  status finish(const block_claim& claim, const memory_block& memory) {
    auto& part = *parts_[claim.part];
    auto& blocks = part.blocks();
    for (auto i = claim.first; i < claim.end;) {
      auto& first = blocks[i];
      std::uint64_t count = 0;
      for (; i < claim.end && blocks[i].field == first.field; ++i)
        count += blocks[i].count;
      if (auto bad = write_entries(part, first, count, memory); !bad.ok())
        return bad;
    }
    claims_.written(claim);
    return {};
  }

  status write_entries(
    const part_blocks& part, const sample_block& from, std::uint64_t count,
    const memory_block& memory) {
    auto& field = part.set().fields[from.field];
    auto words = part.entries(from.field, from.first, count);
    auto address = field.table + from.first * entry_bytes(field);
    for (std::uint64_t at = 0; at < words.size();) {
      auto some = words.subspan(at, std::min<std::uint64_t>(memory.size_bytes, words.size() - at));
      std::ranges::copy(some, memory.data);
      if (auto bad = write(part.of(), address + at, {memory.data, some.size()}, memory); !bad.ok())
        return bad;
      at += some.size();
    }
    return {};
  }

  // Writes registered memory to an address of the set.
  status write(
    const reserved_part& to, std::uint64_t address, std::span<std::byte> bytes,
    const memory_block& block) {
    if (bytes.empty())
      return {};
    auto& set = to.reserved.set;
    if (address > set.size_bytes || bytes.size() > set.size_bytes - address)
      return {errc::internal, "working set {}: {} bytes at {} are not in its {}",
              set.name,       bytes.size(),
              address,        set.size_bytes};
    std::vector<transport::transfer> transfers;
    auto* local = bytes.data();
    for_each_piece(set.region_bytes, address, bytes.size(), [&](const set_piece& piece) {
      transport::transfer t;
      t.dir = transport::direction::write;
      t.remote = to.reserved.regions[piece.region];
      t.ops.push_back({.remote_offset = piece.offset, .local = local, .length = piece.length});
      t.hold = block.owner;
      transfers.push_back(std::move(t));
      local += piece.length;
    });
    auto done = call_.core->make_promise<void>();
    transport::submit_all(
      *call_.core->runs_on()->fabric(), std::move(transfers),
      [done](result<void> r) { done.set(std::move(r)); });
    auto outcome = done.get_future().result();
    return outcome ? status{} : outcome.error();
  }

  // What others have written counts, and is known a little later.
  status report(std::uint64_t bytes) {
    auto done = done_bytes_.fetch_add(bytes) + bytes + claims_.bytes_elsewhere();
    done = std::min(done, all_bytes_);
    auto before = reported_bytes_.load();
    while (before < done && !reported_bytes_.compare_exchange_weak(before, done)) {
    }
    // Threads tell what they have done; without any, only what is new is told.
    auto tells = bytes > 0 || before < done;
    return tells ? tell(std::max(before, done)) : call_.mark->report({}, 0, 0);
  }

  status tell(std::uint64_t done) {
    try {
      return call_.mark->report(call_.options.progress, done, all_bytes_);
    } catch (...) {
      program_has_failed_ = true;
      throw;
    }
  }

  // The first failure counts.
  void fail_with(const status& why) {
    std::lock_guard guard{mutex_};
    if (why_.ok())
      why_ = why;
  }

  const preload_call& call_;
  sample_reader& reader_;
  const moving_role role_;
  const std::uint64_t block_bytes_;
  const std::vector<std::unique_ptr<part_blocks>> parts_;
  block_claims claims_;
  std::uint64_t all_bytes_ = 0;
  std::vector<memory_block> blocks_;
  std::mutex order_mutex_; // for taking blocks
  std::atomic<std::uint64_t> done_bytes_ = 0, reported_bytes_ = 0;
  std::mutex mutex_; // for what follows
  status why_;
  status later_;  // a data server was busy
  status damage_; // the first file that could not be read, where such files are left out
  bool own_failure_ = false;
  std::atomic<bool> program_has_failed_ = false;
};

sample_moving::sample_moving(
  const preload_call& call, sample_reader& reader, const std::vector<const reserved_part*>& parts,
  moving_role role)
  : work_(std::make_unique<work>(call, reader, parts, role)) {}

sample_moving::~sample_moving() = default;

result<bool> sample_moving::run() { return work_->run(); }

bool sample_moving::has_failed() const { return work_->has_failed(); }

bool sample_moving::is_own_failure() const noexcept { return work_->is_own_failure(); }

bool sample_moving::program_has_failed() const noexcept { return work_->program_has_failed(); }

std::uint64_t sample_moving::moved_bytes() const noexcept { return work_->moved_bytes(); }

std::uint64_t sample_moving::bytes_elsewhere() const noexcept { return work_->bytes_elsewhere(); }

} // namespace millrace::runtime

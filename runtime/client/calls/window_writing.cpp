// How `window_reading` writes what it has read from files to the window.
#include <millrace/core/digest.hpp>
#include <millrace/core/rounding.hpp>
#include <millrace/runtime/client/calls/window_reading.hpp>
#include <millrace/transport/submit_all.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

namespace millrace::runtime {

namespace {

constexpr std::uint64_t memory_bytes_min = 1u << 20;
constexpr std::uint64_t memory_bytes_max = 64u << 20;
constexpr std::uint64_t pieces_of_memory = 8; // one of them is for values that come in pieces

} // namespace

// The samples are copied before the program gets them: it may write to them. Returns those for
// which there was no memory.
window_reading::places window_reading::keep(
  const reading_ptr& r, const places& which, bool is_read) {
  auto all = std::make_shared<kept_samples>();
  places large;
  auto can_write = is_read && memory();
  for (auto place : which) {
    if (!r->to_write.contains(place))
      continue;
    if (!can_write || !has_place(r, place))
      all->told.unused.push_back(r->wanted[place].first);
    else if (!keep_one(r, place, *all))
      large.push_back(place);
  }
  if (all->writes.empty()) {
    if (!all->told.unused.empty() || !all->told.written.empty())
      give_back(r, std::move(all->told));
    return large;
  }
  submit_writes(all->writes, [self = shared_from_this(), r, all](const result<void>& written) {
    self->attempt(r->from, [&] {
      if (!written)
        for (auto& one : std::exchange(all->told.written, {}))
          all->told.unused.push_back(one.sample);
      self->give_back(r, std::move(all->told));
    });
  });
  return large;
}

void window_reading::submit_writes(region_writes& by_region, completion<void> done) const {
  std::vector<transport::transfer> writes;
  writes.reserve(by_region.size());
  for (auto& [region, write] : by_region)
    writes.push_back(std::move(write));
  transport::submit_all(*core_->runs_on()->fabric(), std::move(writes), std::move(done));
}

// A window that was opened again may have another size.
bool window_reading::has_place(const reading_ptr& r, std::uint32_t place) {
  auto& set = r->from->view->info();
  auto address = r->to_write.at(place);
  return address <= set.size_bytes && r->wanted[place].bytes <= set.size_bytes - address;
}

// Returns false without memory for a copy.
bool window_reading::keep_one(const reading_ptr& r, std::uint32_t place, kept_samples& into) {
  auto& sample = r->wanted[place];
  if (sample.bytes == 0) {
    into.told.written.push_back({sample.first, digest(sample.to, 0)});
    return true;
  }
  auto block = memory_->allocate(sample.bytes, sample_alignment);
  if (!block)
    return false;
  std::memcpy(block->data, sample.to, sample.bytes);
  into.told.written.push_back({sample.first, digest(block->data, sample.bytes)});
  add_write(r, r->to_write.at(place), *block, sample.bytes, into.writes);
  return true;
}

void window_reading::add_write(
  const reading_ptr& r, std::uint64_t address, const memory_block& from, std::uint64_t length,
  region_writes& into) {
  auto& regions = r->from->writable;
  auto* local = from.data;
  for_each_piece(r->from->view->info().region_bytes, address, length, [&](const set_piece& piece) {
    auto& t = into[piece.region];
    t.dir = transport::direction::write;
    t.remote = regions[piece.region];
    t.ops.push_back({.remote_offset = piece.offset, .local = local, .length = piece.length});
    t.hold =
      std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(from.owner, t.hold);
    local += piece.length;
  });
}

// These are written one after the other, in pieces, from where the program gets them. So their
// reads wait for that.
void window_reading::keep_large(const reading_ptr& r, places which, completion<void> done) {
  auto all = std::make_shared<large_samples>();
  all->of = r;
  all->which = std::move(which);
  all->done = std::move(done);
  {
    std::lock_guard guard{mutex_};
    large_.push_back(std::move(all));
    if (std::exchange(writes_large_, true))
      return;
  }
  begin_large();
}

// The turn also ends with movers that stop, and drop what they were to do, and without memory.
void window_reading::begin_large() noexcept {
  large_ptr next;
  {
    std::lock_guard guard{mutex_};
    writes_large_ = !large_.empty();
    if (!writes_large_)
      return;
    next = std::move(large_.front());
    large_.pop_front();
  }
  next->turn_of = shared_from_this();
  attempt(next->of->from, [&] { write_piece(next); });
}

void window_reading::write_piece(const large_ptr& all) {
  auto& r = all->of;
  auto place = all->which[all->at];
  auto& sample = r->wanted[place];
  auto length = std::min(piece_bytes_, sample.bytes - all->offset);
  core_->runs_on()->fabric()->movers()->submit(
    1,
    [self = shared_from_this(), all, &sample, length](std::uint32_t) {
      if (all->offset == 0)
        all->digest = digest(sample.to, sample.bytes);
      std::memcpy(self->piece_.data, sample.to + all->offset, length);
    },
    [self = shared_from_this(), all, place, length] {
      self->attempt(all->of->from, [&] {
        region_writes writes;
        add_write(all->of, all->of->to_write.at(place) + all->offset, self->piece_, length, writes);
        self->submit_writes(writes, [self, all, length](const result<void>& written) {
          self->attempt(
            all->of->from, [&] { self->wrote_piece(all, length, written.has_value()); });
        });
      });
    });
}

void window_reading::wrote_piece(const large_ptr& all, std::uint64_t length, bool is_written) {
  auto& r = all->of;
  auto& sample = r->wanted[all->which[all->at]];
  auto is_stopped = r->stop && *r->stop;
  all->offset += length;
  if (is_written && !is_stopped && all->offset < sample.bytes)
    return write_piece(all);
  if (is_written && all->offset == sample.bytes)
    all->told.written.push_back({sample.first, all->digest});
  else
    all->told.unused.push_back(sample.first);
  all->offset = 0;
  if (++all->at < all->which.size() && is_written && !is_stopped)
    return write_piece(all);
  for (; all->at < all->which.size(); ++all->at)
    all->told.unused.push_back(r->wanted[all->which[all->at]].first);
  give_back(r, std::move(all->told));
  all->done({});
}

// Returns false if there is none; then the window is asked for no place any more.
bool window_reading::memory() {
  std::call_once(makes_memory_, [&] {
    auto bytes = std::clamp(set_.window_bytes / 4, memory_bytes_min, memory_bytes_max);
    auto made = core_->runs_on()->fabric()->make_memory(
      {.name = "millrace.window", .size_bytes = round_up(bytes, memory_bytes_min)});
    piece_bytes_ = bytes / pieces_of_memory;
    auto piece = made ? (*made)->allocate(piece_bytes_, sample_alignment) : fail(made.error());
    if (!piece) {
      lacks_memory_ = true;
      return;
    }
    piece_ = std::move(*piece);
    memory_ = *made;
  });
  return memory_ != nullptr;
}

} // namespace millrace::runtime

// Dividing what is read of a set among its parts: between servers, and between servers and files.
#include <millrace/core/gathering.hpp>
#include <millrace/core/planted_defect.hpp>
#include <millrace/runtime/client/calls/whole_set.hpp>

#include <algorithm>
#include <iterator>
#include <utility>

namespace millrace::runtime {

namespace {

// Samples that one part has, and their places in the list of those that were asked for.
struct asked_of_part {
  std::vector<std::uint64_t> ids; // in the part
  std::vector<std::size_t> places;
};

} // namespace

std::uint64_t whole_set::samples_from_files() const noexcept {
  std::uint64_t out = 0;
  for (auto& one : segments_)
    out += one.files ? one.files->samples_read() : 0;
  return out;
}

// An append of no samples begins where the next one does.
std::size_t whole_set::appended_part_with(std::uint64_t id) const noexcept {
  auto of = std::prev(std::ranges::upper_bound(segments_, id, {}, &segment::first));
  auto number = static_cast<std::size_t>(of - segments_.begin());
  return number * nodes_.size() + millrace::part_of(of->samples, nodes_.size(), id - of->first);
}

void whole_set::entries(
  std::size_t field, const std::vector<std::uint64_t>& ids,
  completion<std::vector<sample_entry>> done, const stop_flag& stop) const {
  if (parts() == 1)
    return entries_of(0, field, ids, std::move(done), stop);
  auto asked = std::make_shared<std::vector<asked_of_part>>(parts());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    auto part = part_with(ids[i]);
    (*asked)[part].ids.push_back(ids[i] - first_of(part));
    (*asked)[part].places.push_back(i);
  }
  auto all = std::make_shared<gathering<std::vector<sample_entry>>>(
    parts(),
    [asked, count = ids.size(),
     done = std::move(done)](const result<std::vector<std::vector<sample_entry>>>& found) {
      if (!found)
        return done(fail(found.error()));
      std::vector<sample_entry> out(count);
      for (std::size_t part = 0; part < asked->size(); ++part)
        for (std::size_t i = 0; i < (*found)[part].size(); ++i)
          out[(*asked)[part].places[i]] = (*found)[part][i];
      done(std::move(out));
    });
  for (std::size_t part = 0; part < parts(); ++part)
    entries_of(
      part, field, (*asked)[part].ids,
      [all, part](result<std::vector<sample_entry>> found) {
        all->arrived(part, std::move(found));
      },
      stop);
}

void whole_set::entries_of(
  std::size_t index, std::size_t field, std::vector<std::uint64_t> ids,
  completion<std::vector<sample_entry>> done, const stop_flag& stop) const {
  if (ids.empty())
    return done(std::vector<sample_entry>{});
  auto view = part(index);
  if (!view)
    return entries_from_files(index, field, std::move(ids), std::move(done));
  entries_by(*view, index, field, std::move(ids), std::move(done), stop, true);
}

void whole_set::entries_by(
  const std::shared_ptr<set_view>& view, std::size_t index, std::size_t field,
  std::vector<std::uint64_t> ids, completion<std::vector<sample_entry>> done, const stop_flag& stop,
  bool may_reopen) const {
  auto asked = ids;
  view->entries(
    field, asked,
    [self = shared_from_this(), view, index, field, ids = std::move(ids), done = std::move(done),
     stop, may_reopen](result<std::vector<sample_entry>> found) {
      if (found)
        return done(std::move(found));
      self->after_loss(
        index, view, found.error(), may_reopen, stop,
        [self, index, field, ids, done, stop](const result<std::shared_ptr<set_view>>& next) {
          if (!next)
            return done(fail(next.error()));
          *next ? self->entries_by(*next, index, field, ids, done, stop, false)
                : self->entries_from_files(index, field, ids, done);
        });
    });
}

void whole_set::entries_from_files(
  std::size_t index, std::size_t field, std::vector<std::uint64_t> ids,
  completion<std::vector<sample_entry>> done) const {
  for (auto& id : ids)
    id += first_of(index) - segment_of(index).first;
  files_of(index)->lengths(
    field, std::move(ids), [done = std::move(done)](const result<std::vector<std::uint64_t>>& all) {
      if (!all)
        return done(fail(all.error()));
      std::vector<sample_entry> out;
      out.reserve(all->size());
      for (auto length : *all)
        out.push_back({in_files, length, 0});
      done(std::move(out));
    });
}

void whole_set::read(
  std::size_t field, const std::vector<std::uint64_t>& ids, const std::vector<sample_entry>& where,
  std::span<std::byte> into, completion<void> done, stop_flag stop,
  const std::shared_ptr<const sample_uses>& uses) const {
  std::vector<part_read> what(parts());
  what.front().uses = uses;
  auto& f = info_.fields[field];
  auto* to = into.data();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    auto part = part_with(ids[i]);
    auto& of = what[part];
    auto length = f.varies ? where[i].length : f.bytes;
    // The address of samples of one size counts from the part's `base`, which its view says.
    auto address = f.varies ? where[i].address : (ids[i] - first_of(part)) * f.bytes;
    of.only_in_files |= f.varies && address == in_files;
    append(of.ranges, {address, length, to});
    if (has_files_ && files_of(part))
      of.wanted.push_back(
        {ids[i] -
           (is_planted(defect::lost_part_misplaced) ? first_of(part) : segment_of(part).first),
         1, length, to});
    to += length;
  }
  read_parts(field, std::move(what), into, std::move(done), stop);
}

void whole_set::read_all(
  std::size_t field, std::span<std::byte> into, completion<void> done, stop_flag stop) const {
  std::vector<part_read> what;
  auto* to = into.data();
  for (std::size_t i = 0; i < parts(); ++i) {
    auto count = first_of(i + 1) - first_of(i);
    auto bytes = count * info_.fields[field].bytes;
    what.emplace_back();
    if (count > 0)
      what.back().ranges.push_back({0, bytes, to});
    if (files_of(i) && count > 0)
      what.back().wanted.push_back({first_of(i) - segment_of(i).first, count, bytes, to});
    to += bytes;
  }
  read_parts(field, std::move(what), into, std::move(done), stop);
}

// All servers are asked at once. Nothing writes to the memory any more when the last one has ended.
void whole_set::read_parts(
  std::size_t field, std::vector<part_read> what, std::span<std::byte> into, completion<void> done,
  const stop_flag& stop) const {
  if (parts() == 1)
    return read_part(0, field, std::move(what.front()), into, std::move(done), stop);
  auto ended = gathered(
    parts(),
    [self = shared_from_this(), done = std::move(done)](const result<void>& read) { done(read); });
  for (std::size_t part = 0; part < parts(); ++part)
    read_part(part, field, std::move(what[part]), into, ended, stop);
}

void whole_set::read_part(
  std::size_t index, std::size_t field, part_read what, std::span<std::byte> into,
  completion<void> done, const stop_flag& stop) const {
  if (what.ranges.empty())
    return done({});
  if (window_) {
    // All samples at once would only drive out others.
    auto one_each = std::ranges::all_of(what.wanted, [](auto& one) { return one.count == 1; });
    return one_each
      ? window_->read(field, std::move(what.wanted), what.uses, into, std::move(done), stop)
      : files_of(index)->read(field, std::move(what.wanted), std::move(done), stop);
  }
  auto view = part(index);
  if (!view || what.only_in_files)
    return files_of(index)->read(field, std::move(what.wanted), std::move(done), stop);
  auto& f = (*view)->info().fields[field];
  for (auto& range : what.ranges)
    range.address += f.varies ? 0 : f.base;
  read_by(
    *view, index, field, std::make_shared<part_read>(std::move(what)), into, std::move(done), stop,
    true);
}

// A part of the same id has its samples at the same addresses.
void whole_set::read_by(
  const std::shared_ptr<set_view>& view, std::size_t index, std::size_t field,
  std::shared_ptr<part_read> what, std::span<std::byte> into, completion<void> done,
  const stop_flag& stop, bool may_reopen) const {
  view->read(
    what->ranges, into,
    [self = shared_from_this(), view, index, field, what, into, done = std::move(done), stop,
     may_reopen](result<void> read) {
      if (read)
        return done(std::move(read));
      self->after_loss(
        index, view, read.error(), may_reopen, stop,
        [self, index, field, what, into, done,
         stop](const result<std::shared_ptr<set_view>>& next) {
          if (!next)
            return done(fail(next.error()));
          *next ? self->read_by(*next, index, field, what, into, done, stop, false)
                : self->files_of(index)->read(field, std::move(what->wanted), done, stop);
        });
    },
    stop);
}

} // namespace millrace::runtime

// Opening all parts of a set, and opening again what was lost.
#include <millrace/core/gathering.hpp>
#include <millrace/runtime/client/calls/stop_look.hpp>
#include <millrace/runtime/client/calls/whole_set.hpp>

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

namespace millrace::runtime {

namespace {

status not_together(const set_info& set, const std::string& node) {
  return {
    errc::protocol_error, "working set {}: what node {} has does not belong to it", set.name, node};
}

bool is_unconnected(const status& why) {
  return why.code() == errc::peer_lost || why.code() == errc::unavailable;
}

// A part says the same of the whole as the other parts do. One that was preloaded again from the
// same files may be of another preload.
bool belong_together(const set_info& a, const set_info& b) {
  auto same = a.division;
  same.index = b.division.index;
  same.whole = b.division.whole;
  auto same_fields = std::ranges::equal(a.fields, b.fields, [](auto& x, auto& y) {
    return x.sample == y.sample && x.varies == y.varies;
  });
  return same == b.division && have_same_samples(a, b) && a.window_bytes == b.window_bytes &&
    same_fields;
}

} // namespace

whole_set::whole_set(std::shared_ptr<client_core> core, const set_info& home, set_info whole)
  : core_(std::move(core)), info_(std::move(whole)), nodes_(nodes_of(*core_, home)),
    parts_(nodes_.size() * (info_.appended.size() + 1)) {
  segments_.reserve(info_.appended.size() + 1);
  segments_.push_back({0, preloaded_samples(info_), home});
  for (auto& more : info_.appended)
    segments_.push_back({segments_.back().first + segments_.back().samples, more.samples});
  firsts_.reserve(parts_.size() + 1);
  for (auto& one : segments_)
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      firsts_.push_back(one.first + first_sample(one.samples, nodes_.size(), i));
  firsts_.push_back(info_.samples);
}

void whole_set::open(
  std::shared_ptr<client_core> core, const std::string& name, make_files files,
  completion<std::shared_ptr<whole_set>> done) {
  auto home = data_home(*core, name);
  if (!home)
    return done(fail(home.error()));
  set_view::open(
    std::move(core), *home, name, {},
    [files = std::move(files),
     done = std::move(done)](const result<std::shared_ptr<set_view>>& opened) mutable {
      opened ? open_rest(*opened, files, std::move(done)) : done(fail(opened.error()));
    });
}

void whole_set::open_rest(
  const std::shared_ptr<set_view>& home, const make_files& files,
  completion<std::shared_ptr<whole_set>> done) {
  auto info = whole_of(home->info());
  if (!info)
    return done(fail(info.error()));
  std::shared_ptr<whole_set> self{new whole_set{home->core(), home->info(), std::move(*info)}};
  auto base = base_of(home->info());
  if (files && base)
    self->segments_.front().files = files(*base, 0);
  if (is_window(self->info_))
    return open_window(self, home, std::move(done));
  auto nodes = self->nodes_.size();
  std::vector<std::size_t> first, rest; // the first parts of appends say what the others belong to
  first.reserve(self->parts());
  rest.reserve(self->parts());
  for (std::size_t i = 0; i < self->parts(); ++i)
    if (i < nodes ? i != home->info().division.index : i % nodes == 0)
      first.push_back(i);
    else if (i >= nodes)
      rest.push_back(i);
  if (auto taken = self->take(home->info().division.index, home); !taken)
    return done(fail(taken.error()));
  self->open_parts(first, [self, files, rest, done = std::move(done)](const result<void>& opened) {
    if (!opened)
      return done(fail(opened.error()));
    for (std::size_t i = 0; i < self->segments_.size(); ++i) {
      auto& one = self->segments_[i];
      if (auto all = files && i > 0 ? base_of(one.home) : fail(errc::not_found, "no files"))
        one.files = files(*all, i);
      self->has_files_ |= one.files != nullptr;
    }
    self->open_parts(rest, [self, done](const result<void>& r) {
      done(r ? result<std::shared_ptr<whole_set>>{self} : fail(r.error()));
    });
  });
}

void whole_set::open_parts(const std::vector<std::size_t>& which, completion<void> done) {
  if (which.empty())
    return done({});
  auto arrived = gathered(which.size(), std::move(done));
  for (auto index : which)
    set_view::open(
      core_, node_of(index), info_.name, id_of(index),
      [self = shared_from_this(), arrived, index](const result<std::shared_ptr<set_view>>& opened) {
        arrived(self->take(index, opened));
      });
}

// Each part is written once, before anybody reads.
result<void> whole_set::take(std::size_t index, const result<std::shared_ptr<set_view>>& opened) {
  auto part = checked(index, opened);
  if (part) {
    parts_[index].view = *part;
    if (index % nodes_.size() == 0)
      segments_[index / nodes_.size()].home = (*part)->info();
    return {};
  }
  if (!is_lost(index, part.error()))
    return fail(part.error());
  lose(index, nullptr, part.error());
  return {};
}

set_id whole_set::id_of(std::size_t part) const noexcept {
  auto number = part / nodes_.size();
  return number == 0 ? info_.id : info_.appended[number - 1].id;
}

void whole_set::open_window(
  const std::shared_ptr<whole_set>& self, const std::shared_ptr<set_view>& home,
  completion<std::shared_ptr<whole_set>> done) {
  auto& files = self->segments_.front().files;
  if (!files)
    return done(fail(
      errc::invalid_argument,
      "working set {} keeps a window of its samples, and the files have all of them: open it with "
      "its files, or preload it through this client first",
      self->info_.name));
  self->has_files_ = true;
  window_reading::open(
    home, files,
    [self, done = std::move(done)](const result<std::shared_ptr<window_reading>>& opened) {
      if (!opened)
        return done(fail(opened.error()));
      self->window_ = *opened;
      done(self);
    });
}

result<std::shared_ptr<set_view>> whole_set::checked(
  std::size_t index, const result<std::shared_ptr<set_view>>& opened) const {
  if (!opened)
    return fail(not_opened(index, opened.error()));
  if (auto& part = (*opened)->info(); !belongs(part, index))
    return fail(not_together(part, node_of(index)));
  return *opened;
}

status whole_set::not_opened(std::size_t index, const status& why) const {
  auto number = index / nodes_.size();
  if (parts() == 1)
    return why;
  if (number == 0)
    return why.within(fmt::format(
      "opening part {} of working set {}, which node {} has", index, info_.name, node_of(index)));
  return why.within(fmt::format(
    "opening part {} of what append {} has brought to working set {}, which node {} has (append "
    "the same files again, and it has them)",
    index % nodes_.size(), number, info_.name, node_of(index)));
}

bool whole_set::belongs(const set_info& part, std::size_t index) const {
  auto number = index / nodes_.size();
  auto place = index % nodes_.size();
  if (part.division.index != place || is_extension(part) != (number > 0))
    return false;
  if (number == 0 || place > 0)
    return belong_together(part, segments_[number].home);
  auto& wanted = info_.appended[number - 1];
  auto found = appended_of(part);
  found.id = wanted.id; // one that was appended again has another
  found.number = wanted.number;
  return found == wanted && part.division.nodes == segments_[0].home.division.nodes;
}

result<std::shared_ptr<set_view>> whole_set::part(std::size_t index) const {
  if (window_)
    return fail(
      errc::unsupported, "working set {} keeps a window of its samples, not all of them",
      info_.name);
  if (auto view = view_of(index))
    return view;
  open_again(index);
  std::lock_guard guard{mutex_};
  auto& one = parts_[index];
  return one.view ? result<std::shared_ptr<set_view>>{one.view} : fail(one.why);
}

bool whole_set::is_mapped() const {
  if (window_)
    return window_->is_mapped();
  std::lock_guard guard{mutex_};
  return std::ranges::all_of(parts_, [](auto& one) {
    return one.view && (one.view->is_mapped() || one.view->info().size_bytes == 0);
  });
}

std::shared_ptr<set_view> whole_set::view_of(std::size_t index) const {
  std::lock_guard guard{mutex_};
  return parts_[index].view;
}

// Whether files stand for what a server does not give any more.
bool whole_set::is_lost(std::size_t index, const status& why) const {
  return files_of(index) && is_loss(why);
}

void whole_set::lose(
  std::size_t index, const std::shared_ptr<set_view>& view, const status& why) const {
  std::shared_ptr<set_view> gone; // after the lock: it gives back its lease
  std::lock_guard guard{mutex_};
  auto& one = parts_[index];
  if (one.view != view)
    return; // it has been opened again
  gone = std::move(one.view);
  one.view = nullptr;
  one.why = why;
  one.again_at = steady_clock::now() + core_->reads()->retry();
}

// Tries it, when it is time.
void whole_set::open_again(std::size_t index) const {
  {
    std::lock_guard guard{mutex_};
    auto& one = parts_[index];
    if (one.view || one.opening || steady_clock::now() < one.again_at)
      return;
    one.opening = true;
  }
  try {
    open_lost(index, [](const result<std::shared_ptr<set_view>>&) {});
  } catch (const std::bad_alloc&) { // the next read tries again
    std::lock_guard guard{mutex_};
    parts_[index].opening = false;
  }
}

void whole_set::open_lost(std::size_t index, completion<std::shared_ptr<set_view>> done) const {
  auto take_it = [self = shared_from_this(), index,
                  done = std::move(done)](const result<std::shared_ptr<set_view>>& opened) {
    auto part = self->checked(index, opened);
    {
      std::lock_guard guard{self->mutex_};
      auto& one = self->parts_[index];
      one.opening = false;
      if (part && !one.view)
        one.view = *part;
      else if (!part)
        one.again_at = steady_clock::now() + self->core_->reads()->retry();
    }
    done(std::move(part));
  };
  if (index < nodes_.size())
    return set_view::open(core_, node_of(index), info_.name, {}, take_it);
  set_view::open(
    core_, node_of(index), info_.name, id_of(index),
    [self = shared_from_this(), index, take_it](const result<std::shared_ptr<set_view>>& opened) {
      auto gone = !opened && opened.error().code() == errc::not_found;
      gone ? self->open_appended_again(index, take_it) : take_it(opened);
    });
}

// If the home was started anew, and the same files were appended again, it knows the new id.
void whole_set::open_appended_again(
  std::size_t index, completion<std::shared_ptr<set_view>> done) const {
  set_view::open(
    core_, nodes_.front(), info_.name, {},
    [self = shared_from_this(), index,
     done = std::move(done)](const result<std::shared_ptr<set_view>>& home) {
      if (!home)
        return done(home);
      auto& all = (*home)->info().appended;
      auto same = std::ranges::find_if(
        all, [&wanted = self->info_.appended[index / self->nodes_.size() - 1]](auto& one) {
          return one.samples == wanted.samples && one.source == wanted.source &&
            one.left_out == wanted.left_out;
        });
      if (same == all.end())
        return done(
          fail(errc::not_found, "working set {} has no such samples any more", self->info_.name));
      set_view::open(self->core_, self->node_of(index), self->info_.name, same->id, done);
    });
}

result<std::shared_ptr<set_view>> whole_set::opened_again(
  std::size_t index, const std::shared_ptr<set_view>& view, const status& why) const {
  if (window_ || (view && !is_loss(why)))
    return fail(why);
  auto done = core_->make_promise<std::shared_ptr<set_view>>();
  auto tell = [done](const result<std::shared_ptr<set_view>>& opened) { done.set(opened); };
  view ? reopen(index, view, nullptr, tell) : open_lost(index, tell);
  auto opened = done.get_future().result();
  return opened ? opened : fail(why);
}

// With files a read goes on at once, unless the server has said itself that it ended the lease.
void whole_set::after_loss(
  std::size_t index, const std::shared_ptr<set_view>& view, const status& why, bool may_reopen,
  const stop_flag& stop, completion<std::shared_ptr<set_view>> done) const {
  if (!is_loss(why))
    return done(fail(why));
  auto otherwise = [self = shared_from_this(), index, view, why, done] {
    if (!self->files_of(index))
      return done(fail(why));
    self->lose(index, view, why);
    done(std::shared_ptr<set_view>{});
  };
  if (!may_reopen || (files_of(index) && why.code() != errc::not_found))
    return otherwise();
  reopen(index, view, stop, [otherwise, done](const result<std::shared_ptr<set_view>>& opened) {
    opened || opened.error().code() == errc::cancelled ? done(opened) : otherwise();
  });
}

// Several reads may fail at the same time. One of them asks, and all get the answer. What waited
// for a connection in vain does not wait again before `reading.retry`.
void whole_set::reopen(
  std::size_t index, const std::shared_ptr<set_view>& view, const stop_flag& stop,
  completion<std::shared_ptr<set_view>> done) const {
  auto one = std::make_shared<waiting_read>();
  one->stop = stop;
  one->done = std::move(done);
  std::shared_ptr<set_view> now;
  bool asks = false;
  auto until = steady_clock::now();
  {
    std::lock_guard guard{mutex_};
    auto& part = parts_[index];
    if (!files_of(index) && until >= part.again_at)
      until += std::chrono::milliseconds{core_->connect_timeout_ms()};
    now = part.view;
    if (now == view) {
      asks = part.waiting.empty();
      part.waiting.push_back(one);
    }
  }
  if (now != view)
    return tell(
      one,
      now ? result<std::shared_ptr<set_view>>{now} : fail(errc::unavailable, "the part is lost"));
  if (stop)
    look_while(core_->runs_on()->loop(), [one] { return still_waits(one); });
  if (asks)
    ask_for(index, view, until);
}

// A connection that was lost is there again a little later, if at all.
void whole_set::ask_for(
  std::size_t index, const std::shared_ptr<set_view>& view, time_point until) const {
  set_view::open(
    core_, node_of(index), info_.name, view->info().id,
    [self = shared_from_this(), index, view,
     until](const result<std::shared_ptr<set_view>>& opened) {
      auto& core = self->core_;
      auto again = steady_clock::now() +
        std::chrono::milliseconds{core->runs_on()->settings().client.reconnect_backoff_min_ms};
      if (!opened && is_unconnected(opened.error()) && again < until)
        return core->at(again, [self, index, view, until] { self->ask_for(index, view, until); });
      auto part = self->checked(index, opened);
      if (part && (*part)->info().id != view->info().id)
        part = fail(not_together(self->info_, self->node_of(index)));
      std::vector<std::shared_ptr<waiting_read>> all;
      {
        std::lock_guard guard{self->mutex_};
        auto& one = self->parts_[index];
        all.swap(one.waiting);
        if (part && one.view == view)
          one.view = *part; // the old one lives on in this function
        if (!part && is_unconnected(part.error()))
          one.again_at = steady_clock::now() + core->reads()->retry();
      }
      for (auto& one : all)
        tell(one, part);
    });
}

void whole_set::tell(
  const std::shared_ptr<waiting_read>& one, const result<std::shared_ptr<set_view>>& opened) {
  if (one->over.exchange(true))
    return;
  auto stopped = one->stop && *one->stop;
  one->done(stopped ? fail(errc::cancelled, "the read was cancelled") : opened);
}

bool whole_set::still_waits(const std::shared_ptr<waiting_read>& one) {
  if (!one->over && *one->stop)
    tell(one, fail(errc::cancelled, "the read was cancelled"));
  return !one->over;
}

} // namespace millrace::runtime

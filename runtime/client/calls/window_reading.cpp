// The server says what it keeps, and what it wants to keep; the rest comes from the files.
#include <millrace/core/digest.hpp>
#include <millrace/core/gathering.hpp>
#include <millrace/core/planted_defect.hpp>
#include <millrace/runtime/client/calls/stop_look.hpp>
#include <millrace/runtime/client/calls/window_reading.hpp>

#include <algorithm>
#include <utility>

namespace millrace::runtime {

namespace {

constexpr std::size_t values_of_request = 4096;
constexpr std::size_t jobs_of_batch = 8; // among which threads share the files of a batch
const actors::taken_values no_values;

// Whether a window is of the same samples as another one.
bool is_same(const set_info& a, const set_info& b) {
  return is_window(a) && have_same_samples(a, b);
}

} // namespace

window_reading::window_reading(lease_ptr first, std::shared_ptr<set_files> files)
  : core_(first->view->core()), set_(first->view->info()), files_(std::move(files)),
    lease_(std::move(first)) {}

void window_reading::open(
  const std::shared_ptr<set_view>& view, std::shared_ptr<set_files> files,
  completion<std::shared_ptr<window_reading>> done) {
  open_lease(view, [files = std::move(files), done = std::move(done)](const auto& opened) {
    if (!opened)
      return done(fail(opened.error()));
    std::shared_ptr<window_reading> made{new window_reading{*opened, files}};
    done(std::move(made));
  });
}

void window_reading::open_lease(
  const std::shared_ptr<set_view>& view, completion<std::shared_ptr<const lease>> done) {
  view->ask(actors::write_window_request{})
    .chain([view, done = std::move(done)](const result<actors::writable_window>& answer) {
      if (!answer && answer.error().code() != errc::permission_denied)
        return done(fail(answer.error()));
      auto regions = answer ? answer->regions : std::vector<bulk_handle>{};
      if (answer && regions.size() != region_count(view->info()))
        return done(fail(
          errc::protocol_error, "working set {}: node {} gave {} regions to write to",
          view->info().name, view->node(), regions.size()));
      done(std::make_shared<const lease>(lease{view, std::move(regions)}));
    });
}

bool window_reading::is_mapped() {
  std::lock_guard guard{mutex_};
  return lease_ && lease_->view->is_mapped();
}

window_reading::lease_ptr window_reading::now() {
  {
    std::lock_guard guard{mutex_};
    if (lease_)
      return lease_;
  }
  open_again();
  return nullptr;
}

// Tries it, when it is time. What is read meanwhile comes from the files.
void window_reading::open_again() {
  {
    std::lock_guard guard{mutex_};
    if (lease_ || opening_ || steady_clock::now() < again_at_)
      return;
    opening_ = true;
  }
  std::shared_ptr<void> trying{nullptr, [self = shared_from_this()](void*) {
                                 std::lock_guard guard{self->mutex_};
                                 self->opening_ = false;
                                 self->again_at_ =
                                   steady_clock::now() + self->core_->reads()->retry();
                               }};
  auto opened = [self = shared_from_this(), trying](const result<lease_ptr>& next) {
    std::lock_guard guard{self->mutex_};
    if (next)
      self->lease_ = *next;
  };
  auto node = data_home(*core_, set_.name);
  if (!node)
    return opened(fail(node.error()));
  set_view::open(
    core_, *node, set_.name, {},
    [set = set_, opened](const result<std::shared_ptr<set_view>>& view) {
      if (!view || !is_same((*view)->info(), set))
        return opened(fail(errc::not_found, "the window is not there"));
      open_lease(*view, opened);
    });
}

void window_reading::lose(const lease_ptr& which) {
  lease_ptr gone; // after the lock: it gives back its lease
  std::lock_guard guard{mutex_};
  if (lease_ != which)
    return;
  gone = std::move(lease_);
  lease_ = nullptr;
  again_at_ = steady_clock::now() + core_->reads()->retry();
}

void window_reading::read(
  std::size_t field, std::vector<wanted_samples> wanted,
  const std::shared_ptr<const sample_uses>& uses, std::span<std::byte> into, completion<void> done,
  const stop_flag& stop) {
  auto count = (wanted.size() + values_of_request - 1) / values_of_request;
  if (count == 0)
    return done({});
  auto ended = gathered(count, std::move(done));
  for (std::size_t i = 0; i < count; ++i) {
    auto first = wanted.begin() + static_cast<std::ptrdiff_t>(i * values_of_request);
    auto left = static_cast<std::size_t>(wanted.end() - first);
    auto r = std::make_shared<reading>();
    r->field = field;
    r->wanted.assign(first, first + static_cast<std::ptrdiff_t>(std::min(left, values_of_request)));
    r->uses = uses;
    r->into = into;
    r->done = ended;
    r->stop = stop;
    r->passed = i == 0 && uses && uses->field == field ? uses->passed : 0; // once for all of them
    begin(r);
  }
}

void window_reading::begin(const reading_ptr& r) {
  r->from = now();
  attempt(r->from, [&] { r->from ? ask(r) : taken(r, {}); });
}

void window_reading::ask(const reading_ptr& r) {
  actors::take_values_request request;
  request.field = static_cast<std::uint32_t>(r->field);
  request.passed = r->passed;
  request.writes = !r->from->writable.empty() && !lacks_memory_;
  request.values.reserve(r->wanted.size());
  for (auto& one : r->wanted)
    request.values.push_back(
      {one.first, one.bytes, r->uses ? r->uses->after(one.first) : set_.samples});
  r->from->view->ask(std::move(request))
    .chain([self = shared_from_this(), r](const result<actors::taken_values>& answer) {
      auto is_over = r->answered.exchange(true);
      if (!answer)
        self->lose(r->from);
      self->attempt(r->from, [&] {
        auto& values = answer ? *answer : no_values;
        is_over ? self->return_all(r, values) : self->taken(r, values);
      });
    });
  if (r->stop) // last: who looks keeps the reading until there is an answer
    look_while(
      core_->runs_on()->loop(), [self = shared_from_this(), r] { return self->still_waits(r); });
}

// Who cancels does not wait for a server that is slow. Nothing is written before its answer.
bool window_reading::still_waits(const reading_ptr& r) {
  if (*r->stop && !r->answered.exchange(true))
    attempt(r->from, [&] { r->done(fail(errc::cancelled, "the read was cancelled")); });
  return !r->answered;
}

void window_reading::return_all(const reading_ptr& r, const actors::taken_values& values) {
  actors::return_values_request back;
  for (auto& one : values.kept)
    if (one.index < r->wanted.size())
      back.read.push_back(r->wanted[one.index].first);
  for (auto& one : values.to_write)
    if (one.index < r->wanted.size())
      back.unused.push_back(r->wanted[one.index].first);
  if (!back.read.empty() || !back.unused.empty())
    give_back(r, std::move(back));
}

void window_reading::taken(const reading_ptr& r, const actors::taken_values& values) {
  std::vector<bool> is_kept(r->wanted.size());
  for (auto& one : values.kept)
    if (one.index < is_kept.size() && !is_kept[one.index]) {
      is_kept[one.index] = true;
      r->kept.push_back(one);
    }
  for (auto& one : values.to_write)
    if (one.index < is_kept.size() && !is_kept[one.index])
      r->to_write.emplace(one.index, one.address);
  places missing;
  for (std::uint32_t i = 0; i < is_kept.size(); ++i)
    if (!is_kept[i])
      missing.push_back(i);
  auto ended = gathered(is_planted(defect::window_read_ended_early) ? 1 : 2, r->done);
  read_files(r, missing, ended);
  read_kept(r, ended);
}

void window_reading::read_kept(const reading_ptr& r, completion<void> done) {
  if (r->kept.empty())
    return done({});
  std::vector<set_range> ranges;
  ranges.reserve(r->kept.size());
  for (auto& one : r->kept) {
    auto& to = r->wanted[one.index];
    append(ranges, {one.address, to.bytes, to.to});
  }
  r->from->view->read(
    ranges, r->into,
    [self = shared_from_this(), r, done = std::move(done)](const result<void>& read) mutable {
      self->attempt(r->from, [&] {
        read ? self->compare(r, std::move(done)) : self->not_read(r, read.error(), std::move(done));
      });
    },
    r->stop);
}

void window_reading::not_read(const reading_ptr& r, const status& why, completion<void> done) {
  actors::return_values_request back;
  places all;
  back.read.reserve(r->kept.size());
  all.reserve(r->kept.size());
  for (auto& one : r->kept) {
    back.read.push_back(r->wanted[one.index].first);
    all.push_back(one.index);
  }
  give_back(r, std::move(back));
  if (why.code() == errc::cancelled)
    return done(fail(why));
  lose(r->from);
  read_files(r, all, std::move(done));
}

// On movers, as a batch can be large.
void window_reading::compare(const reading_ptr& r, completion<void> done) {
  auto damaged = std::make_shared<flags>(r->kept.size());
  core_->runs_on()->fabric()->movers()->submit(
    static_cast<std::uint32_t>(r->kept.size()),
    [r, damaged](std::uint32_t i) {
      auto& one = r->kept[i];
      auto& at = r->wanted[one.index];
      (*damaged)[i] = digest(at.to, at.bytes) != one.digest;
    },
    [self = shared_from_this(), r, damaged, done = std::move(done)]() mutable {
      self->attempt(r->from, [&] { self->compared(r, *damaged, std::move(done)); });
    },
    transport::job_class::urgent);
}

// What another process has damaged comes from the files.
void window_reading::compared(const reading_ptr& r, const flags& damaged, completion<void> done) {
  actors::return_values_request back;
  places again;
  for (std::size_t i = 0; i < r->kept.size(); ++i) {
    auto place = r->kept[i].index;
    (damaged[i] ? back.damaged : back.read).push_back(r->wanted[place].first);
    if (damaged[i])
      again.push_back(place);
  }
  samples_read_ += back.read.size();
  give_back(r, std::move(back));
  read_files(r, again, std::move(done));
}

void window_reading::read_files(const reading_ptr& r, const places& which, completion<void> done) {
  if (which.empty())
    return done({});
  auto count = std::min(jobs_of_batch, which.size());
  auto ended = gathered(count, std::move(done));
  for (std::size_t i = 0; i < count; ++i) {
    auto at = [&](std::size_t part) {
      return which.begin() + static_cast<std::ptrdiff_t>(which.size() * part / count);
    };
    read_some(r, {at(i), at(i + 1)}, ended);
  }
}

void window_reading::read_some(const reading_ptr& r, const places& which, completion<void> done) {
  std::vector<wanted_samples> some;
  some.reserve(which.size());
  for (auto place : which)
    some.push_back(r->wanted[place]);
  files_->read(
    r->field, std::move(some),
    [self = shared_from_this(), r, which, done = std::move(done)](const result<void>& read) {
      self->attempt(r->from, [&] {
        auto large = self->keep(r, which, read.has_value());
        large.empty() ? done(read) : self->keep_large(r, std::move(large), done);
      });
    },
    r->stop);
}

// Nobody waits for the answer. Without one the lease ends with the connection.
void window_reading::give_back(const reading_ptr& r, actors::return_values_request what) {
  what.field = static_cast<std::uint32_t>(r->field);
  static_cast<void>(r->from->view->ask(std::move(what)));
}

} // namespace millrace::runtime

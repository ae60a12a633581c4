// What the processes of a job ask for, and what they demand of each answer.
#include <millrace/tests/sim/data_rank.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

namespace millrace::sim {

using namespace std::chrono_literals;

namespace {

constexpr auto job_set = "job";

// In which a batch comes, or an error; a set is opened; a preload and an unload end. One thread
// runs everything, so a preload may end after another one that has begun later.
constexpr nanoseconds batch_time_max = 65s, open_time_max = 95s, preload_time_max = 400s,
                      unload_time_max = 95s;

template <class T>
std::string why(const result<T>& r) {
  return r ? "done" : r.error().to_string();
}

} // namespace

data_process::data_process(data_job& of, const std::string& name, bool elsewhere)
  : job_(of), process_(of.in.in.start_process(name)) {
  if (elsewhere)
    job_.in.net->put_elsewhere(process_);
  world().as(process_, [&] { client_.emplace(client::of(job_.in.settings(job_.nodes)).value()); });
}

void data_process::die() {
  over_ = true;
  world().say(process_.name + " dies");
  world().kill(process_);
}

void data_process::check() const {
  for (auto& one : flow_)
    one.check();
}

void data_process::in_time(const std::string& what, nanoseconds since, nanoseconds most) const {
  auto took = std::chrono::duration<double>(world().now() - since).count();
  demand(
    took <= std::chrono::duration<double>(most).count(),
    fmt::format("{}: {} took {} s", process_.name, what, took));
}

void data_process::demand_may_fail(const std::string& doing, const status& bad) const {
  auto code = bad.code();
  demand(job_.disturbed, doing + " failed undisturbed with " + bad.to_string());
  demand(
    code == errc::unavailable || code == errc::peer_lost || code == errc::not_found ||
      code == errc::busy || code == errc::deadline_exceeded,
    doing + " failed with " + bad.to_string());
}

task data_process::preload(std::string name, sample_files files) {
  append_options how;
  while (!over_) {
    auto since = world().now();
    auto made = co_await client_->working_set(name).preload(files.paths, job_.how);
    if (over_)
      co_return;
    in_time("a preload", since, preload_time_max);
    world().say(fmt::format("{} preloads {}: {}", process_.name, name, why(made)));
    if (made && !files.more.empty()) {
      since = world().now();
      made = co_await client_->working_set(name).append(files.more, how);
      if (over_)
        co_return;
      in_time("an append", since, preload_time_max);
      world().say(fmt::format("{} appends to {}: {}", process_.name, name, why(made)));
      demand(
        !made || made->set.samples == files.samples, "an append gives the set all of its samples");
    }
    if (made)
      co_return;
    // Memory returns a little later.
    if (made.error().code() != errc::no_space || !job_.disturbed)
      demand_may_fail("a preload", made.error());
    co_await delay{world(), 50ms};
  }
}

data_rank::data_rank(data_job& of, std::uint32_t number, const std::optional<loader_state>& at)
  : data_process(of, "rank-" + std::to_string(number), of.elsewhere), number_(number), state_(at) {
  world().as(process_, [&] { flow_.push_back(train()); });
}

data_rank::~data_rank() {
  end([&] { close(); });
}

void data_rank::close() {
  if (reader_)
    job_.from_window += reader_->samples_from_window();
  loader_.reset();
  reader_.reset();
}

task data_rank::train() {
  while (goes_on()) {
    co_await open();
    if (goes_on())
      co_await read();
  }
}

task data_rank::open() {
  open_options files;
  if (job_.opens_with_files)
    files.files = job_.files.paths;
  if (job_.has_files && !job_.files.more.empty())
    files.appended.push_back({{}, job_.files.more});
  while (goes_on()) {
    if (job_.ranks_preload)
      co_await preload(job_set, job_.files);
    if (!goes_on())
      co_return;
    auto since = world().now();
    auto opened = co_await client_->working_set(job_set).open(files);
    if (over_)
      co_return;
    in_time("opening", since, open_time_max);
    world().say(fmt::format("{} opens: {}", process_.name, why(opened)));
    if (opened && opened->info().samples != job_.files.samples) {
      // The set was preloaded again, and is to get the rest.
      demand(job_.disturbed, "an append stays");
      demand(
        opened->info().samples == job_.files.samples - job_.files.appended,
        "an append is there whole, or not at all");
      co_await delay{world(), 50ms};
      continue;
    }
    if (opened) {
      reader_.emplace(std::move(*opened));
      auto options = job_.reading;
      options.rank = number_;
      loader_.emplace(reader_->load_batches(options).value());
      if (state_)
        demand(loader_->seek(*state_).ok(), "a set that was preloaded again takes the state");
      co_return;
    }
    demand_may_fail("opening", opened.error());
    co_await delay{world(), 50ms};
  }
}

task data_rank::read() {
  while (goes_on()) {
    co_await delay{world(), nanoseconds{world().random.below(job_.step_ns_max)}};
    if (!goes_on())
      co_return;
    if (job_.ledger->is_far_ahead(number_)) // as collective calls would keep it from
      continue;
    auto since = world().now();
    auto got = co_await loader_->next();
    if (over_)
      co_return;
    in_time("a batch", since, batch_time_max);
    if (!got) {
      world().say(fmt::format("{} reads: {}", process_.name, why(got)));
      demand(!job_.has_files, "reading goes on by the files: " + got.error().to_string());
      demand_may_fail("reading", got.error());
      co_await delay{world(), 20ms};
      if (!over_ && world().random.percent(50))
        co_return close();
      continue;
    }
    *got ? take(**got) : job_.ledger->ended(number_, state_ ? state_->epoch : 0);
    state_ = loader_->state();
  }
}

void data_rank::take(const batch& b) {
  auto pads = job_.reading.remainder == remainder_kind::pad;
  demand(
    b.rows() == (pads ? job_.reading.batch_size : b.ids().size()), "a batch has all its places");
  demand(
    job_.disturbed || job_.is_windowed() || reader_->samples_from_files() == 0,
    "files are not read while all data servers are there");
  auto field = b.field(0);
  auto bounds = b.offsets(0);
  auto each = job_.files.bytes_max;
  for (std::size_t i = 0; i < b.ids().size(); ++i) {
    auto first = bounds.empty() ? i * each : bounds[i];
    auto last = bounds.empty() ? first + each : bounds[i + 1];
    demand(
      job_.files.is_sample(std::span{field.data + first, last - first}, b.ids()[i]),
      fmt::format("{} has the bytes of sample {}", process_.name, b.ids()[i]));
  }
  job_.ledger->got(number_, loader_->set().identity, b, loader_->state());
}

void data_operator::begin_preload(const std::string& name, const sample_files& files) {
  flow_.clear();
  world().as(process_, [&] { flow_.push_back(preload(name, files)); });
}

void data_operator::begin_unload(const std::string& name) {
  flow_.clear();
  world().as(process_, [&] { flow_.push_back(unload(name)); });
}

void data_operator::begin_look(const std::string& name, const sample_files& files) {
  flow_.clear();
  world().as(process_, [&] { flow_.push_back(look(name, files)); });
}

void data_operator::begin_verify(const std::string& name) {
  flow_.clear();
  world().as(process_, [&] { flow_.push_back(verify(name)); });
}

task data_operator::unload(std::string name) {
  while (!over_) {
    auto since = world().now();
    auto gone = co_await client_->working_set(name).unload();
    if (over_)
      co_return;
    in_time("an unload", since, unload_time_max);
    world().say(fmt::format("{} unloads {}: {}", process_.name, name, why(gone)));
    if (gone || gone.error().code() == errc::not_found)
      co_return;
    demand_may_fail("an unload", gone.error());
    co_await delay{world(), 50ms};
  }
}

// With files a set may lack parts, and a window needs them.
task data_operator::look(std::string name, sample_files files) {
  auto set = client_->working_set(name);
  open_options options; // GCC 12 destroys a temporary one in a coroutine twice
  if (job_.is_windowed())
    options.files = files.paths;
  while (!over_) {
    auto known = co_await set.describe();
    if (over_)
      co_return;
    auto opened = co_await set.open(options);
    if (over_)
      co_return;
    world().say(fmt::format("{} opens {}: {}", process_.name, name, why(opened)));
    auto samples = opened ? opened->info().samples : files.samples;
    demand(
      samples == files.samples || samples == files.samples - files.appended,
      fmt::format("{} has {} samples", name, samples));
    if (!known || opened)
      co_return;
    // A node that was away may not be connected again yet.
    auto code = opened.error().code();
    demand(
      code == errc::unavailable || code == errc::peer_lost,
      fmt::format("{} is there whole, or not at all: {}", name, why(opened)));
    co_await delay{world(), 50ms};
  }
}

task data_operator::verify(std::string name) {
  auto set = client_->working_set(name);
  open_options without_files;
  while (!over_) {
    auto opened = co_await set.open(without_files);
    if (over_)
      co_return;
    if (opened) {
      auto compared = co_await opened->verify();
      if (over_)
        co_return;
      world().say(fmt::format("{} verifies {}: {}", process_.name, name, why(compared)));
      if (compared)
        demand(compared->damaged == 0, fmt::format("{} has its bytes", name));
      if (compared)
        co_return;
      demand_may_fail("a verification", compared.error());
    } else if (opened.error().code() == errc::not_found) {
      co_return; // a server has lost it
    } else {
      demand_may_fail("opening", opened.error());
    }
    co_await delay{world(), 50ms};
  }
}

} // namespace millrace::sim

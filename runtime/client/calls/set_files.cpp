// Jobs wait in a queue, and threads work them off as long as there are any.
#include <millrace/core/log.hpp>
#include <millrace/runtime/client/calls/set_files.hpp>
#include <millrace/runtime/node/side_thread.hpp>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

namespace millrace::runtime {

namespace {

// Threads, as a preload has them.
constexpr std::size_t computing_max = 32;
constexpr std::size_t reading_max = 4;

} // namespace

set_files::set_files(
  set_info set, std::vector<std::string> files, storage::samples::sample_options options,
  bool with_threads)
  : set_(std::move(set)), files_(std::move(files)), options_(std::move(options)),
    with_threads_(with_threads) {}

void set_files::lengths(
  std::size_t field, std::vector<std::uint64_t> ids, completion<std::vector<std::uint64_t>> done) {
  add([this, field, ids = std::move(ids), done = std::move(done)](const status& refused) {
    auto why = refused;
    std::vector<std::uint64_t> out;
    try {
      for (std::size_t i = 0; why.ok() && i < ids.size(); ++i)
        out.push_back(reader_->lengths(field)[ids[i]]);
    } catch (const std::exception& e) {
      why = {errc::no_space, "reading files: {}", e.what()};
    }
    done(why.ok() ? result<std::vector<std::uint64_t>>{std::move(out)} : fail(std::move(why)));
  });
}

void set_files::read(
  std::size_t field, std::vector<wanted_samples> wanted, completion<void> done, stop_flag stop) {
  add([this, field, wanted = std::move(wanted), done = std::move(done),
       stop = std::move(stop)](const status& refused) {
    auto why = refused;
    try {
      if (why.ok())
        why = read_now(field, wanted, stop);
    } catch (const std::exception& e) {
      why = {errc::no_space, "reading files: {}", e.what()};
    }
    done(why.ok() ? result<void>{} : fail(std::move(why)));
  });
}

void set_files::add(job next) {
  {
    std::lock_guard guard{mutex_};
    waiting_.push_back(std::move(next));
  }
  start_threads();
}

// One thread opens the files; then it is known how many there may be.
void set_files::start_threads() {
  for (;;) {
    {
      std::lock_guard guard{mutex_};
      if (threads_ >= threads_max_ || starting_ >= waiting_.size())
        return;
      ++threads_;
      ++starting_;
    }
    try {
      run_aside([self = shared_from_this()] { self->work_off(); });
    } catch (const std::exception& e) {
      return end_all({errc::no_space, "reading files: there is no other thread: {}", e.what()});
    }
  }
}

// Returns null for a thread that ends.
set_files::job set_files::take_one(bool is_first) {
  std::lock_guard guard{mutex_};
  starting_ -= is_first;
  if (waiting_.empty()) {
    --threads_;
    return nullptr;
  }
  auto next = std::move(waiting_.front());
  waiting_.pop_front();
  return next;
}

void set_files::work_off() {
  for (auto next = take_one(true); next; next = take_one(false))
    work_on(next);
}

// A job answers before it throws: then it is what goes on with the answer that has failed. The next
// jobs do not suffer.
void set_files::work_on(const job& next) {
  status refused;
  try {
    refused = open();
    if (!refused.ok())
      refused = refused.within("reading samples of " + set_.name);
  } catch (const std::exception& e) {
    refused = {errc::no_space, "reading files: {}", e.what()};
  }
  try {
    next(refused);
  } catch (const std::exception& e) {
    log().error("after reading samples of a set name={} why=\"{}\"", set_.name, e.what());
  }
}

// The threads that are there do what waits; without any, nothing does.
void set_files::end_all(const status& why) {
  std::deque<job> jobs;
  {
    std::lock_guard guard{mutex_};
    --starting_;
    if (--threads_ == 0)
      jobs.swap(waiting_);
  }
  for (auto& next : jobs)
    next(why);
}

// After a failure the next read tries again.
status set_files::open() {
  {
    std::lock_guard guard{opening_};
    if (reader_)
      return {};
    std::vector<storage::samples::damaged_file> left_out;
    left_out.reserve(set_.left_out.size());
    for (auto& path : set_.left_out)
      left_out.push_back({path, left_out_by(set_)});
    auto opened = storage::samples::open_samples(files_, options_, &left_out);
    if (!opened)
      return opened.error();
    if (auto bad = check(**opened); !bad.ok())
      return bad;
    reader_ = std::move(*opened);
    std::lock_guard also{mutex_};
    threads_max_ = threads_for(*reader_);
  }
  start_threads();
  return {};
}

std::size_t set_files::threads_for(const storage::samples::sample_reader& reader) const {
  if (!with_threads_ || reader.prefers_order())
    return 1;
  std::size_t cores = std::max(std::thread::hardware_concurrency(), 1u);
  return std::min(cores, reader.computes() ? computing_max : reading_max);
}

status set_files::check(const storage::samples::sample_reader& reader) const {
  auto& fields = reader.fields();
  if (fields.size() != set_.fields.size())
    return {
      errc::invalid_argument,
      "the files have {} fields, and the set has {}; give what it was "
      "preloaded with",
      fields.size(), set_.fields.size()};
  for (std::size_t f = 0; f < fields.size(); ++f)
    if (fields[f].sample != set_.fields[f].sample || fields[f].varies != set_.fields[f].varies)
      return {
        errc::invalid_argument,
        "the files have a field {}, and the set has {}; give what it was "
        "preloaded with",
        describe(fields[f].sample), describe(set_.fields[f].sample)};
  if (reader.samples() != set_.samples)
    return {
      errc::invalid_argument, "the files have {} samples, and the set has {}", reader.samples(),
      set_.samples};
  if (reader.source() != set_.source)
    return {
      errc::invalid_argument,
      "the files are others than those of the set, or have changed since "
      "the preload (path, size, time or labels)"};
  return {};
}

status set_files::read_now(
  std::size_t field, const std::vector<wanted_samples>& wanted, const stop_flag& stop) {
  std::vector<const wanted_samples*> order;
  order.reserve(wanted.size());
  for (auto& one : wanted)
    order.push_back(&one);
  if (reader_->prefers_order())
    std::ranges::stable_sort(order, {}, [](auto* one) { return one->first; });
  for (auto* one : order) {
    if (stop && *stop)
      return {errc::cancelled, "the read was cancelled"};
    if (auto bad = reader_->read(field, one->first, one->count, {one->to, one->bytes}); !bad.ok())
      return bad.within("reading samples of " + set_.name);
    samples_read_ += one->count;
  }
  return {};
}

} // namespace millrace::runtime

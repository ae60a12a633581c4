// What the processes of a stream ask for, and what they demand of each answer.
#include <millrace/tests/sim/stream_parts.hpp>
#include <millrace/tests/support/pattern.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

namespace millrace::sim {

using namespace std::chrono_literals;

namespace {

constexpr nanoseconds open_time_max = 95s; // in which a stream is opened, or an error comes

} // namespace

void stream_process::begin() {
  if (over_ || !done())
    return;
  finished_ = false;
  flow_.clear();
  world().as(process_, [&] { flow_.push_back(use()); });
}

void stream_process::failed(const std::string& doing, const status& why) {
  ++failures_;
  world().say(fmt::format("{}: {}: {}", process_.name, doing, why.to_string()));
  demand_may_fail(doing, why);
}

producing_process::producing_process(stream_job& of, std::uint64_t number, std::uint64_t made)
  : stream_process(of, fmt::format("producer-{}", number)),
    in_flight_(static_cast<std::uint32_t>(of.in.random.between(1, 8))), made_(made) {}

producing_process::~producing_process() {
  end([&] { producer_.reset(); });
}

task producing_process::use() {
  made_ = std::min(made_, of_.samples * 3 / 4); // another life of the stream gets some, too
  producer_options how;
  how.in_flight = in_flight_;
  auto where = stream();
  while (goes_on()) {
    auto since = world().now();
    auto opened = co_await where.producer(how);
    if (over_)
      co_return;
    in_time("opening a producer", since, open_time_max);
    if (opened) {
      producer_.emplace(std::move(*opened));
      co_await append_all();
      if (over_)
        co_return;
      producer_.reset();
    } else {
      refused("opening a producer", opened.error());
    }
    if (goes_on())
      co_await rest();
  }
}

task producing_process::append_all() {
  auto& life = of_.life_of(producer_->stream().id);
  auto number = of_.openings++;
  std::deque<pending> under_way;
  std::uint64_t sequence = 0;
  for (append_more(under_way, number, sequence); !under_way.empty();
       append_more(under_way, number, sequence)) {
    auto first = std::move(under_way.front());
    under_way.pop_front();
    auto done = co_await first.second;
    if (over_)
      co_return;
    if (!done) {
      refused("appending", done.error());
      co_return;
    }
    life.appended(first.first);
    if (world().random.percent(30))
      co_await pause();
    if (over_)
      co_return;
  }
  co_await end_stream();
}

void producing_process::append_more(
  std::deque<pending>& under_way, std::uint64_t number, std::uint64_t& sequence) {
  auto& life = of_.life_of(producer_->stream().id);
  for (; made_ < of_.samples && under_way.size() < in_flight_; ++made_) {
    sample_label next{number, sequence++};
    life.begins(next);
    under_way.emplace_back(next, append_one(next));
  }
}

future<void> producing_process::append_one(const sample_label& sample) const {
  std::array<std::uint64_t, 2> label{sample.producer, sample.sequence};
  std::vector<std::byte> bytes(of_.sample_bytes);
  testing::write_pattern(
    bytes.data(), sample.sequence * bytes.size(), bytes.size(), sample.producer);
  return producer_->append(
    {tensor_view::dense<std::uint64_t>("label", dtype::u64, {2}, label),
     tensor_view::dense<std::byte>("x", dtype::u8, {bytes.size()}, bytes)});
}

// An end whose answer was lost has ended one producer, and the next one ends another: then some
// find the stream ended before they have appended all.
void producing_process::refused(const std::string& doing, const status& why) {
  finished_ = why.code() == errc::invalid_argument && of_.life_of(of_.present).is_ending();
  if (!finished_)
    failed(doing, why);
}

task producing_process::end_stream() {
  of_.count_end(producer_->stream().id);
  auto ended = co_await producer_->end();
  if (over_)
    co_return;
  if (ended)
    finished_ = true;
  else
    refused("the end of a producer", ended.error());
}

reading_process::reading_process(stream_job& of, std::uint64_t number)
  : stream_process(of, fmt::format("reader-{}", number)) {
  options_.batch_size = of.in.random.between(1, std::min<std::uint64_t>(of.options.capacity, 8));
  options_.batches = static_cast<std::uint32_t>(of.in.random.between(2, 4));
}

reading_process::~reading_process() {
  end([&] { drop_reader(); });
}

void reading_process::drop_reader() {
  held_.reset();
  reader_.reset();
}

// Requests of each size wait at the server, and others have their samples already.
std::uint64_t reading_process::lost_max() const {
  auto most = options_.batch_size;
  return calls_ || gave_up_ ? most * (most + 1) / 2 + most * options_.batches : 0;
}

// Its connection is lost, and what was on the way with it.
void reading_process::count_lost() {
  if (!life_.is_nil())
    life().may_lose(lost_max() + left_);
}

void reading_process::lose() {
  count_lost();
  die();
}

task reading_process::use() {
  auto where = stream();
  while (goes_on()) {
    auto since = world().now();
    auto opened = co_await where.reader(options_);
    if (over_)
      co_return;
    in_time("opening a reader", since, open_time_max);
    if (!opened) {
      count_lost();
      failed("opening a reader", opened.error());
      co_await rest();
      continue;
    }
    reader_.emplace(std::move(*opened));
    opening_ = of_.openings++;
    life_ = reader_->stream().id;
    gave_up_ = false;
    while (reader_ && goes_on())
      co_await take_one();
  }
}

task reading_process::take_one() {
  co_await pause();
  if (over_)
    co_return;
  auto& random = world().random;
  if (random.percent(3)) {
    life().may_put_back();
    left_ += lost_max();
    co_return drop_reader();
  }
  auto wanted = random.between(1, options_.batch_size);
  auto how = of_.gives_up ? random.below(100) : 100;
  auto has_timeout = how < 15, is_cancelled = how >= 15 && how < 25;
  std::chrono::milliseconds timeout{has_timeout ? random.between(1, 40) : 0};
  if (has_timeout || is_cancelled) {
    life().may_put_back();
    gave_up_ = true;
  }
  calls_ = true;
  std::optional next{reader_->next(wanted, timeout)};
  if (is_cancelled) {
    co_await pause();
    if (over_)
      co_return;
    next->cancel();
  }
  auto got = co_await *next;
  if (over_)
    co_return;
  next.reset(); // it has the batch as well
  calls_ = false;
  took(got, wanted, has_timeout || is_cancelled);
}

void reading_process::took(
  const result<std::optional<batch>>& got, std::uint64_t wanted, bool gives_up) {
  if (got && *got) {
    if (held_)
      labels_of(*held_);
    auto labels = labels_of(**got);
    life().got(opening_, (*got)->ids(), labels, wanted);
    held_ = **got;
    return;
  }
  if (got) {
    demand(life().is_ending(), "a stream ends after its producers");
    finished_ = true;
    return drop_reader();
  }
  auto code = got.error().code();
  if (gives_up && (code == errc::deadline_exceeded || code == errc::cancelled))
    return;
  if (gave_up_ && code == errc::no_space) // a batch that nobody wants has its place for a while
    return;
  calls_ = true; // it was taking some
  count_lost();
  calls_ = false;
  life().may_put_back();
  drop_reader();
  failed("a batch", got.error());
}

// Checks the bytes, too.
std::vector<sample_label> reading_process::labels_of(const batch& b) const {
  auto numbers = b.field(0), values = b.field(1);
  auto each = of_.sample_bytes;
  std::vector<sample_label> out;
  out.reserve(b.ids().size());
  for (std::size_t i = 0; i < b.ids().size(); ++i) {
    std::array<std::uint64_t, 2> label{};
    std::memcpy(label.data(), numbers.data + i * sizeof(label), sizeof(label));
    out.push_back({label[0], label[1]});
    demand(
      testing::is_pattern(std::span{values.data + i * each, each}, label[1] * each, label[0]),
      fmt::format("{} has the bytes of sample {} of the stream", process_.name, b.ids()[i]));
  }
  return out;
}

task stream_operator::create() {
  auto where = stream();
  while (!over_) {
    auto made = co_await where.create(of_.options);
    if (over_)
      co_return;
    if (made) {
      of_.present = made->id;
      of_.life_of(made->id);
      co_return;
    }
    // Memory returns a little later.
    if (made.error().code() != errc::no_space || !of_.disturbed)
      failed("creating the stream", made.error());
    co_await rest();
  }
}

task stream_operator::end_stream() {
  auto where = stream();
  of_.life_of(of_.present).ends();
  while (!over_) {
    auto ended = co_await where.end();
    if (over_ || ended)
      co_return;
    failed("ending the stream", ended.error());
    co_await rest();
  }
}

task stream_operator::remove() {
  auto where = stream();
  while (!over_) {
    auto gone = co_await where.remove();
    if (over_ || gone || gone.error().code() == errc::not_found)
      co_return;
    failed("removing the stream", gone.error());
    co_await rest();
  }
}

task stream_operator::look() {
  auto where = stream();
  while (!over_) {
    auto known = co_await where.status();
    if (over_)
      co_return;
    if (known) {
      counts_ = known->counts;
      co_return;
    }
    failed("asking for the stream", known.error());
    co_await rest();
  }
}

} // namespace millrace::sim

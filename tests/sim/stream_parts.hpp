// The processes that use a stream in a simulated cluster: its producers, its readers, and an
// operator who makes and removes it. Used by the scenario of streams.
#pragma once

#include <millrace/runtime/client/stream.hpp>
#include <millrace/tests/sim/data_rank.hpp>
#include <millrace/tests/sim/stream_ledger.hpp>

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace millrace::sim {

/// What all processes know.
struct stream_job : data_job {
  using data_job::data_job;

  stream_options options; // in each life of the stream
  std::uint64_t sample_bytes = 1;
  std::uint64_t samples = 0; // that each producer appends
  bool gives_up = false;     // readers do, after some time

  /// Returns the life of a stream, which may be new.
  stream_ledger& life_of(const set_id& id) { return lives.try_emplace(id, options).first->second; }
  /// A producer calls `end`.
  void count_end(const set_id& id) {
    if (auto& called = ends_called[id]; ++called == options.producers)
      life_of(id).ends();
  }

  std::map<set_id, stream_ledger> lives;
  std::map<set_id, std::uint64_t> ends_called;
  set_id present;             // the life that the operator has begun
  std::uint64_t openings = 0; // of producers and readers
};

/// A process that uses the stream until it is done with it.
class stream_process : public data_process {
public:
  /// Returns how many of its requests have failed.
  std::uint64_t failures() const noexcept { return failures_; }
  /// It begins, or begins again, unless it is still at work.
  void begin();

protected:
  stream_process(stream_job& of, const std::string& name)
    : data_process(of, name, of.elsewhere), of_(of) {}
  ~stream_process() = default;

  virtual task use() = 0;
  void failed(const std::string& doing, const status& why);
  /// Waits after a request that has failed.
  delay rest() const { return {world(), std::chrono::milliseconds{200}}; }
  /// Waits for a time that is drawn.
  delay pause() const { return {world(), nanoseconds{world().random.below(of_.step_ns_max)}}; }
  millrace::stream stream() const { return client_->stream("values"); }
  bool goes_on() const { return !over_ && !finished_; }

  stream_job& of_;
  bool finished_ = false;

private:
  std::uint64_t failures_ = 0;
};

/// Appends samples, several at once, and ends. What may have been appended it does not append
/// again.
class producing_process final : public stream_process {
public:
  /// It has begun to append `made` samples before.
  producing_process(stream_job& of, std::uint64_t number, std::uint64_t made);
  ~producing_process();

  /// Returns how many samples it has begun to append.
  std::uint64_t made() const noexcept { return made_; }

private:
  using pending = std::pair<sample_label, future<void>>;

  task use() override;
  task append_all();
  task end_stream();
  void append_more(std::deque<pending>& under_way, std::uint64_t number, std::uint64_t& sequence);
  future<void> append_one(const sample_label& sample) const;
  void refused(const std::string& doing, const status& why);

  const std::uint32_t in_flight_;
  std::uint64_t made_;
  std::optional<stream_producer> producer_;
};

/// Takes batches until the end. Some calls it cancels, or ends after a time; at times it drops the
/// reader and makes another one.
class reading_process final : public stream_process {
public:
  reading_process(stream_job& of, std::uint64_t number);
  ~reading_process();

  /// It dies. What it was taking may be lost.
  void lose();

private:
  task use() override;
  task take_one();
  void took(const result<std::optional<batch>>& got, std::uint64_t wanted, bool gives_up);
  void drop_reader();
  void count_lost();
  std::vector<sample_label> labels_of(const batch& b) const;
  std::uint64_t lost_max() const;
  stream_ledger& life() const { return of_.life_of(life_); }

  stream_reader_options options_;
  std::uint64_t opening_ = 0;
  set_id life_; // of the stream, in which it reads
  std::optional<stream_reader> reader_;
  std::optional<batch> held_; // its memory stays as it is while the next one comes
  bool calls_ = false;        // a call has no outcome yet
  bool gave_up_ = false;      // samples of an earlier call may be on the way
  std::uint64_t left_ = 0;    // samples that may be on the way to readers which it has dropped
};

/// Makes, ends and removes the stream, until it has done so.
class stream_operator final : public stream_process {
public:
  explicit stream_operator(stream_job& of) : stream_process(of, "operator") {}
  ~stream_operator() {
    end([] {});
  }

  void begin_create() { start(&stream_operator::create); }
  void begin_end() { start(&stream_operator::end_stream); }
  void begin_remove() { start(&stream_operator::remove); }
  /// Asks what the stream counts.
  void begin_look() { start(&stream_operator::look); }
  const stream_counts& counts() const noexcept { return counts_; }

private:
  task use() override { return (this->*what_)(); }
  void start(task (stream_operator::*what)()) {
    what_ = what;
    begin();
  }
  task create();
  task end_stream();
  task remove();
  task look();

  task (stream_operator::*what_)() = nullptr;
  stream_counts counts_;
};

} // namespace millrace::sim

// The processes of a job that reads a working set in a simulated cluster: its ranks, and an
// operator who preloads. Used by the scenario of working sets.
#pragma once

#include <millrace/runtime/client/client.hpp>
#include <millrace/runtime/client/working_set.hpp>
#include <millrace/tests/sim/cluster.hpp>
#include <millrace/tests/sim/sample_ledger.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace millrace::sim {

/// What all processes of a job know.
struct data_job {
  explicit data_job(cluster& c) : in(c) {}

  cluster& in;
  provider_list nodes;
  sample_files files;
  preload_options how;
  bool ranks_preload = false;    // each before it opens the set
  bool has_files = false;        // files stand for data servers that are lost
  bool opens_with_files = false; // or else the client has those of its preload of a window
  bool elsewhere = false;        // no rank maps memory of a data server
  loader_options reading;        // the rank is left open
  std::optional<sample_ledger> ledger;
  std::uint64_t step_ns_max = 1;
  bool disturbed = false;        // something has happened, so that requests may fail
  std::uint64_t from_window = 0; // samples, of readers that are closed

  bool is_windowed() const { return how.window_bytes > 0; }
};

/// A process with a client. Its flow begins at once.
class data_process {
public:
  data_process(const data_process&) = delete;
  data_process& operator=(const data_process&) = delete;

  /// It dies, at any time, also inside a call.
  void die();
  bool dead() const { return over_; }
  process& in() { return process_; }
  void check() const;
  bool done() const { return flow_.empty() || flow_.front().done(); }

protected:
  data_process(data_job& of, const std::string& name, bool elsewhere);
  ~data_process() = default;

  /// Destroys what it had. `drop` destroys what came from the client.
  template <class Drop>
  void end(Drop drop) {
    if (!client_)
      return;
    if (!over_)
      die();
    world().as(process_, [&] {
      world().run_for(std::chrono::seconds{70}); // its threads end, and its requests are over
      drop();
      client_.reset();
    });
    world().bury(process_);
  }

  sim::world& world() const { return job_.in.in; }
  // And appends what is to be appended.
  task preload(std::string name, sample_files files);
  void demand_may_fail(const std::string& doing, const status& bad) const;
  void in_time(const std::string& what, nanoseconds since, nanoseconds most) const;

  data_job& job_;
  process& process_;
  std::optional<millrace::client> client_;
  std::vector<task> flow_;
  bool over_ = false;
};

/// A rank of the job. What it can no longer read it opens again.
class data_rank : public data_process {
public:
  /// It goes on at a state; none: at the beginning.
  data_rank(data_job& of, std::uint32_t number, const std::optional<loader_state>& at);
  ~data_rank();

  /// Ends in order after the present batch.
  void stop() { stopping_ = true; }
  /// Whether it has the set open.
  bool reads() const { return loader_.has_value(); }
  const std::optional<loader_state>& state() const { return state_; }

private:
  task train();
  task open();
  task read();
  void take(const batch& b);
  void close();
  bool goes_on() const { return !over_ && !stopping_; }

  const std::uint32_t number_;
  std::optional<loader_state> state_;
  std::optional<set_reader> reader_;
  std::optional<loader> loader_;
  bool stopping_ = false;
};

/// Preloads and unloads sets, until it has done so.
class data_operator : public data_process {
public:
  explicit data_operator(data_job& of) : data_process(of, "operator", of.elsewhere) {}
  ~data_operator() {
    end([] {});
  }

  void begin_preload(const std::string& name, const sample_files& files);
  void begin_unload(const std::string& name);
  /// Finds out whether a set of these files is there whole, or not at all, and what is appended to
  /// it, too.
  void begin_look(const std::string& name, const sample_files& files);
  /// Compares all samples of a set, if it is there.
  void begin_verify(const std::string& name);

private:
  task unload(std::string name);
  task look(std::string name, sample_files files);
  task verify(std::string name);
};

} // namespace millrace::sim

// Runs helper processes and reads their times; talks to Redis through its C client.
#include <millrace/bench/common/measure.hpp>
#include <millrace/bench/common/peers.hpp>

#include <nlohmann/json.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#ifdef MILLRACE_HIREDIS
#include <hiredis/hiredis.h>
#endif

namespace millrace::bench {

namespace {

using nlohmann::json;

constexpr int start_timeout_ms = 60'000;
constexpr int work_timeout_ms = 300'000;

json building(const model_table& table) {
  json command{{"do", "build"}, {"table", json::array()}};
  for (auto& t : table.tensors.tensors)
    command["table"].push_back({t.name, t.shape});
  return command;
}

} // namespace

void skip_aloud(const std::string& what, const std::string& why) {
  std::printf("skipped: %s: %s\n", what.c_str(), why.c_str());
  std::fflush(stdout);
}

std::optional<python_peer> python_peer::start(const std::string& name, bool announce) {
  auto script = std::string{MILLRACE_BENCH_DIRECTORY} + "/peers/" + name + "_peer.py";
  // Distributions install PyTorch for their own interpreter.
  auto process = child::start({"/usr/bin/python3", script}, true);
  auto hello = process ? process->read_line(start_timeout_ms) : fail(process.error());
  if (!hello) {
    skip_aloud(name, hello.error().detail());
    return {};
  }
  auto said = json::parse(*hello);
  if (said.contains("missing")) {
    skip_aloud(name, said["missing"]);
    return {};
  }
  if (announce)
    std::printf("peer: %s %s\n", name.c_str(), said["version"].get<std::string>().c_str());
  return python_peer{name, std::move(*process)};
}

std::optional<python_peer> python_peer::start_with_package(
  const std::string& name, const std::string& address, bool announce) {
#ifdef MILLRACE_PYTHON_DIRECTORY
  setenv("MILLRACE_ADDRESS", address.c_str(), 1);
  setenv("PYTHONPATH", MILLRACE_PYTHON_DIRECTORY, 1);
  setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
  return start(name, announce);
#else
  static_cast<void>(address);
  static_cast<void>(announce);
  skip_aloud(name, "the build has no package for Python");
  return {};
#endif
}

void python_peer::send(const std::string& command) {
  if (auto bad = process_.write_line(command); !bad.ok())
    give_up(bad, name_);
}

// Returns the answer's line, if it reports no error.
std::string python_peer::answer() {
  auto line = need(process_.read_line(work_timeout_ms), name_);
  if (auto said = json::parse(line); said.contains("error"))
    give_up(name_ + ": " + said["error"].get<std::string>());
  return line;
}

double python_peer::finish() { return json::parse(answer()).value("s", 0.0); }

double python_peer::ask(const std::string& command) {
  send(command);
  return finish();
}

void python_peer::build(const model_table& table) { ask(building(table).dump()); }

void python_peer::build_training(const model_table& table, double iteration_s, unsigned cores) {
  auto command = building(table);
  command["iteration_s"] = iteration_s;
  command["cores"] = cores;
  ask(command.dump());
}

double python_peer::train(int iterations, int distance, const std::string& path) {
  return ask(
    json{{"do", "train"}, {"iterations", iterations}, {"distance", distance}, {"path", path}}
      .dump());
}

double python_peer::measure(const std::string& what, int count) {
  return ask(json{{"do", "measure"}, {"what", what}, {"count", count}}.dump());
}

void python_peer::begin_save(const std::string& path, bool sync) {
  send(json{{"do", "save"}, {"path", path}, {"sync", sync}}.dump());
}

void python_peer::begin_restore(const std::string& path, bool cold) {
  send(json{{"do", "load"}, {"path", path}, {"cold", cold}, {"live", true}}.dump());
}

double python_peer::save(const std::string& path, bool sync) {
  begin_save(path, sync);
  return finish();
}

std::vector<std::pair<std::string, double>> python_peer::save_stages(const std::string& path) {
  send(json{{"do", "stages"}, {"path", path}}.dump());
  std::vector<std::pair<std::string, double>> stages;
  auto said = json::parse(answer());
  for (auto& [name, seconds] : said.at("stages").items())
    stages.emplace_back(name, seconds.get<double>());
  return stages;
}

double python_peer::restore(const std::string& path, bool cold) {
  begin_restore(path, cold);
  return finish();
}

double python_peer::load(
  const std::string& path, bool cold, const std::vector<std::string>& names) {
  return ask(json{{"do", "load"}, {"path", path}, {"cold", cold}, {"names", names}}.dump());
}

redis_peer::redis_peer(child process, void* connection)
  : process_(std::move(process)), connection_(connection) {}

redis_peer::redis_peer(redis_peer&& other) noexcept
  : process_(std::move(other.process_)), connection_(std::exchange(other.connection_, nullptr)) {}

#ifdef MILLRACE_HIREDIS

std::optional<redis_peer> redis_peer::start(const std::string& directory) {
  auto socket = directory + "/redis.sock";
  auto process = child::start(
    {"redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no",
     "--dir", directory, "--loglevel", "warning"});
  if (!process) {
    skip_aloud("redis", process.error().detail());
    return {};
  }
  for (auto attempts_left = 200; attempts_left > 0; --attempts_left) {
    auto* connection = redisConnectUnix(socket.c_str());
    if (connection && connection->err == 0)
      return redis_peer{std::move(*process), connection};
    if (connection)
      redisFree(connection);
    std::this_thread::sleep_for(std::chrono::milliseconds{10});
  }
  skip_aloud("redis", "redis-server is not installed or does not start");
  return {};
}

redis_peer::~redis_peer() {
  if (connection_)
    redisFree(static_cast<redisContext*>(connection_));
}

namespace {

// Reads the replies to a whole pipeline; `use` gets each of them.
template <class Use>
void read_replies(redisContext* connection, std::size_t count, const Use& use) {
  for (std::size_t i = 0; i < count; ++i) {
    void* reply = nullptr;
    if (redisGetReply(connection, &reply) != REDIS_OK || !reply)
      give_up("redis does not answer");
    use(*static_cast<redisReply*>(reply));
    freeReplyObject(reply);
  }
}

} // namespace

double redis_peer::set_many(std::size_t count, const std::byte* data, std::size_t size_bytes) {
  auto* connection = static_cast<redisContext*>(connection_);
  return seconds_of([&] {
    for (std::size_t i = 0; i < count; ++i)
      redisAppendCommand(connection, "SET tiny-%u %b", static_cast<unsigned>(i), data, size_bytes);
    read_replies(connection, count, [](const redisReply& reply) {
      if (reply.type == REDIS_REPLY_ERROR)
        give_up("redis does not take a SET");
    });
  });
}

double redis_peer::get_many(std::size_t count, std::byte* data, std::size_t size_bytes) {
  auto* connection = static_cast<redisContext*>(connection_);
  return seconds_of([&] {
    for (std::size_t i = 0; i < count; ++i)
      redisAppendCommand(connection, "GET tiny-%u", static_cast<unsigned>(i));
    read_replies(connection, count, [&](const redisReply& reply) {
      if (reply.type != REDIS_REPLY_STRING || reply.len != size_bytes)
        give_up("redis has lost a value");
      std::memcpy(data, reply.str, size_bytes);
    });
  });
}

#else

std::optional<redis_peer> redis_peer::start(const std::string&) {
  skip_aloud("redis", "built without hiredis");
  return {};
}

redis_peer::~redis_peer() = default;

double redis_peer::set_many(std::size_t, const std::byte*, std::size_t) { return 0; }
double redis_peer::get_many(std::size_t, std::byte*, std::size_t) { return 0; }

#endif

} // namespace millrace::bench

// Every driver keeps the contract: `local` with memory of this process, `shm` with a child's.
#include "driver_contract.hpp"

#include <millrace/core/codec.hpp>
#include <millrace/core/digest.hpp>
#include <millrace/tests/support/fabric_handler.hpp>
#include <millrace/tests/support/scratch_directory.hpp>

#include <boost/test/unit_test.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <map>

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::transport;

namespace {

constexpr std::uint64_t arena_bytes = 192u << 20;

std::shared_ptr<fabric> fabric_of(const std::shared_ptr<io_loop>& loop, const std::string& driver) {
  fabric_options options;
  options.prefer = {driver};
  options.movers = 2;
  return fabric::create(options, loop).value();
}

class local_rig : public driver_rig {
public:
  local_rig() : loop_(io_loop::start({}).value()), fabric_(fabric_of(loop_, "local")) {
    memory_ =
      fabric_->make_memory({.name = "test", .size_bytes = arena_bytes}, staging_mode::pinned)
        .value();
  }
  ~local_rig() override { loop_->stop(); }

  transport::fabric& fabric() override { return *fabric_; }
  memory_source& memory() override { return *memory_; }
  bulk_handle expose(const matrix_shape& shape, access_mode how, std::uint64_t salt) override {
    auto m = std::make_unique<exposed_matrix>(shape, how, salt);
    auto handle = m->handle();
    owned_[handle.region] = std::move(m);
    return handle;
  }
  void withdraw(const bulk_handle& handle) override { owned_[handle.region]->withdraw(); }
  std::uint64_t content(const bulk_handle& handle) override {
    auto bytes = owned_[handle.region]->dense();
    return digest(bytes.data(), bytes.size());
  }
  bool kill_owner() override { return false; }

private:
  std::shared_ptr<io_loop> loop_;
  std::shared_ptr<transport::fabric> fabric_;
  std::shared_ptr<memory_source> memory_;
  std::map<std::uint64_t, std::unique_ptr<exposed_matrix>> owned_;
};

// The rig's process has the arenas; a child has the memory and is asked through a pipe.
class shm_rig : public driver_rig {
public:
  shm_rig() : loop_(io_loop::start({}).value()), fabric_(fabric_of(loop_, "shm")) {
    memory_ =
      fabric_->make_memory({.name = "test", .size_bytes = arena_bytes}, staging_mode::pinned)
        .value();
    auto handler = std::make_shared<fabric_handler>(fabric_);
    auto address = "unix:" + directory_.path() + "/s.sock";
    listener_ = listener::open(
                  loop_, {.address = address, .allow_uids = {}}, {.local_name = "rig"},
                  [handler](const peer_info&) { return handler; })
                  .value();
    start_child(address);
    BOOST_REQUIRE(handler->wait_open());
  }

  ~shm_rig() override {
    kill_owner();
    listener_.reset();
    loop_->stop();
    fclose(to_child_);
    fclose(from_child_);
  }

  transport::fabric& fabric() override { return *fabric_; }
  memory_source& memory() override { return *memory_; }

  bulk_handle expose(const matrix_shape& shape, access_mode how, std::uint64_t salt) override {
    auto line = ask(
      "expose " + std::to_string(shape.rows) + " " + std::to_string(shape.row_bytes) + " " +
      std::to_string(shape.gap_bytes) + " " + std::to_string(static_cast<int>(how)) + " " +
      std::to_string(salt));
    byte_buffer bytes;
    for (std::size_t i = 0; i + 1 < line.size(); i += 2)
      bytes.push_back(static_cast<std::byte>(std::stoi(line.substr(i, 2), nullptr, 16)));
    return decode<bulk_handle>(bytes, "handle").value();
  }
  void withdraw(const bulk_handle& handle) override {
    ask("withdraw " + std::to_string(handle.region));
  }
  std::uint64_t content(const bulk_handle& handle) override {
    return std::stoull(ask("content " + std::to_string(handle.region)));
  }
  bool kill_owner() override {
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
    child_ = 0;
    return true;
  }

private:
  void start_child(const std::string& address) {
    int in[2], out[2];
    BOOST_REQUIRE(pipe(in) == 0 && pipe(out) == 0);
    child_ = fork();
    if (child_ == 0) {
      dup2(in[0], 0);
      dup2(out[1], 1);
      for (int fd : {in[0], in[1], out[0], out[1]})
        close(fd);
      execl(MEMORY_OWNER, MEMORY_OWNER, address.c_str(), nullptr);
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    to_child_ = fdopen(in[1], "w");
    from_child_ = fdopen(out[0], "r");
  }

  std::string ask(const std::string& command) {
    fprintf(to_child_, "%s\n", command.c_str());
    fflush(to_child_);
    char line[4096] = "";
    BOOST_REQUIRE(fgets(line, sizeof(line), from_child_));
    std::string answer{line};
    answer.pop_back();
    return answer;
  }

  scratch_directory directory_;
  std::shared_ptr<io_loop> loop_;
  std::shared_ptr<transport::fabric> fabric_;
  std::shared_ptr<memory_source> memory_;
  std::shared_ptr<listener> listener_;
  pid_t child_ = 0;
  FILE* to_child_ = nullptr;
  FILE* from_child_ = nullptr;
};

const bool registered[] = {
  add_driver_contract("local", [] { return std::make_unique<local_rig>(); }),
  add_driver_contract("shm", [] { return std::make_unique<shm_rig>(); }),
};

} // namespace

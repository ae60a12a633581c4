// A driver rig with two processes.
// Used by the driver contract and by tests of adopted memory.
#pragma once

#include "driver_contract.hpp"
#include "rig_options.hpp"

#include <millrace/core/codec.hpp>
#include <millrace/core/digest.hpp>
#include <millrace/tests/support/fabric_handler.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/scratch_directory.hpp>

#include <boost/test/unit_test.hpp>
#include <grp.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>

namespace millrace::testing {

/// This process has the arenas. A child has the memory and gets commands through a pipe.
class process_rig : public driver_rig {
public:
  /// `here`, `there`: see `rig_options`. `uid`: the user of the child, for tests that run as root.
  process_rig(
    const std::vector<std::string>& here, const std::vector<std::string>& there,
    std::optional<uid_t> uid = std::nullopt)
    : loop_(net::io_loop::start({}).value()), fabric_(fabric_of(loop_, here)) {
    memory_ = fabric_->make_memory({.name = "test", .size_bytes = rig_arena_bytes}).value();
    auto handler = std::make_shared<fabric_handler>(fabric_);
    auto address = "unix:" + directory_.path() + "/s.sock";
    net::listener_options where{.address = address, .allow_uids = {}};
    if (uid) {
      chmod(directory_.path().c_str(), 0755);
      where.socket_mode = 0666;
      where.allow_uids = {*uid};
    }
    listener_ =
      net::listener::open(loop_, where, {.local_name = "rig"}, [handler](const net::peer_info&) {
        return handler;
      }).value();
    start_child(address, there, uid);
    BOOST_REQUIRE(handler->wait_open());
  }

  ~process_rig() override {
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
      std::to_string(salt) +
      (shape.arena ? " " + std::to_string(static_cast<int>(*shape.arena)) : ""));
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
  void refill(const bulk_handle& handle, std::uint64_t salt) override {
    ask("refill " + std::to_string(handle.region) + " " + std::to_string(salt));
  }
  // Its threads go on for a moment after the signal.
  void stop_owner() override {
    if (child_ > 0) {
      kill(child_, SIGSTOP);
      waitpid(child_, nullptr, WUNTRACED);
    }
  }
  bool kill_owner() override {
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
    child_ = 0;
    return true;
  }

  pid_t owner_pid() const override { return child_; }

protected:
  // A connected peer is not yet reachable if the drivers must exchange messages first.
  void wait_until_reached() {
    auto handle = expose({1, 1, 0}, access_mode::read, 0);
    auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds{60};
    result<transport::transfer_report> moved = fail(errc::unavailable, "not tried");
    while (!moved && std::chrono::steady_clock::now() < deadline) {
      usleep(10'000);
      held_completion<transport::transfer_report> done;
      fabric().submit({.dir = transport::direction::read, .remote = handle}, done.callback());
      moved = done.take();
    }
    BOOST_REQUIRE_MESSAGE(moved.has_value(), why(moved));
    withdraw(handle);
  }

  // Nor can its regions be mapped before it has said so.
  void wait_until_mapped() {
    auto handle = expose({1, 1, 0, transport::arena_sharing::read_only}, access_mode::read, 0);
    auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds{60};
    result<transport::mapped_region> mapped = fail(errc::unavailable, "not tried");
    while (!mapped && std::chrono::steady_clock::now() < deadline) {
      mapped =
        await<transport::mapped_region>([&](auto done) { fabric().map(handle, std::move(done)); });
      usleep(mapped ? 0 : 10'000);
    }
    BOOST_REQUIRE_MESSAGE(mapped.has_value(), why(mapped));
    withdraw(handle);
  }

private:
  void start_child(
    const std::string& address, const std::vector<std::string>& words, std::optional<uid_t> uid) {
    std::vector<char*> arguments;
    std::string program = MEMORY_OWNER;
    BOOST_REQUIRE_MESSAGE(
      access(program.c_str(), X_OK) == 0,
      program << " is missing: ./scripts/build dev memory_owner");
    arguments.push_back(program.data());
    arguments.push_back(const_cast<char*>(address.c_str()));
    for (auto& w : words)
      arguments.push_back(const_cast<char*>(w.c_str()));
    arguments.push_back(nullptr);
    int in[2], out[2];
    BOOST_REQUIRE(pipe(in) == 0 && pipe(out) == 0);
    child_ = fork();
    if (child_ == 0) {
      dup2(in[0], 0);
      dup2(out[1], 1);
      for (int fd : {in[0], in[1], out[0], out[1]})
        close(fd);
      if (uid && (setgroups(0, nullptr) != 0 || setgid(*uid) != 0 || setuid(*uid) != 0))
        _exit(126);
      execv(program.c_str(), arguments.data());
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
  std::shared_ptr<net::io_loop> loop_;
  std::shared_ptr<transport::fabric> fabric_;
  std::shared_ptr<memory_source> memory_;
  std::shared_ptr<net::listener> listener_;
  pid_t child_ = 0;
  FILE* to_child_ = nullptr;
  FILE* from_child_ = nullptr;
};

class shm_rig : public process_rig {
public:
  explicit shm_rig(std::optional<uid_t> uid = std::nullopt) : shm_rig({"shm"}, uid) {}
  explicit shm_rig(const std::vector<std::string>& there, std::optional<uid_t> uid = std::nullopt)
    : process_rig({"shm"}, there, uid) {
    wait_until_mapped();
  }
  transport::driver_capabilities capabilities() const override { return {.maps = true}; }
};

} // namespace millrace::testing

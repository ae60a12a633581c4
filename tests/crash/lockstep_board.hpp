// Memory that the ranks of a job share, as collective calls of a real job would connect them: no
// rank trains on before all have left the same fence. Used by the job that lockstep tests kill, and
// by the test, which makes the file.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>

namespace millrace::testing {

class lockstep_board {
public:
  static constexpr std::uint32_t ranks_max = 8;

  explicit lockstep_board(const std::string& path) {
    auto fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ::ftruncate(fd, sizeof(shared)) != 0)
      throw std::runtime_error{"no board at " + path};
    auto* at = ::mmap(nullptr, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    if (at == MAP_FAILED)
      throw std::runtime_error{"the board cannot be mapped"};
    shared_ = static_cast<shared*>(at);
  }
  ~lockstep_board() { ::munmap(shared_, sizeof(shared)); }
  lockstep_board(const lockstep_board&) = delete;
  lockstep_board& operator=(const lockstep_board&) = delete;

  /// Begins the next round: a rank has died, or all have. Those that live go back.
  void begin_round() { ++shared_->round; }

  /// Takes part in the round that has begun last.
  void join_round() {
    round_ = shared_->round;
    fences_ = 0;
  }

  /// Says that a rank has left one more fence of its round, and waits until all ranks have. Returns
  /// false when the next round has begun.
  [[nodiscard]] bool meet(std::uint32_t rank, std::uint32_t world_size) {
    auto mine = (round_ << 32) | ++fences_;
    shared_->fences[rank] = mine;
    for (std::uint32_t i = 0; i < world_size; ++i)
      while (shared_->fences[i] < mine) {
        if (shared_->round != round_)
          return false;
        std::this_thread::sleep_for(std::chrono::microseconds{50});
      }
    return shared_->round == round_;
  }

private:
  struct shared {
    std::atomic<std::uint64_t> round;
    std::array<std::atomic<std::uint64_t>, ranks_max> fences; // each with its round
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

  shared* shared_;
  std::uint64_t round_ = 0;  // in which this process takes part
  std::uint64_t fences_ = 0; // that it has left in that round
};

} // namespace millrace::testing

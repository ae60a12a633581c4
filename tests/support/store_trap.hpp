// Looks at a mapping after every store into it, as a process that is killed there would leave it.
// Used by crash tests of the pool.
#pragma once

#include <millrace/core/assert.hpp>

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace millrace::testing {

/// Makes the mapping read-only. An instruction that stores into it traps, runs alone with its pages
/// writable, and then `look` is called on the thread that stored. `look` may read the mapping, and
/// may allocate: a store into a mapping is never made by the allocator.
///
/// One at a time; one thread stores. For x86-64, whose flag TF stops after one instruction.
class store_trap {
public:
  store_trap(std::span<std::byte> watched, std::function<void()> look)
    : watched_(watched), look_(std::move(look)) {
    MILLRACE_ASSERT(!active_);
    active_ = this;
    handle(SIGSEGV, on_fault, before_fault_);
    handle(SIGTRAP, on_step, before_step_);
    protect(watched_.data(), watched_.size(), PROT_READ);
  }
  ~store_trap() {
    protect(watched_.data(), watched_.size(), PROT_READ | PROT_WRITE);
    ::sigaction(SIGSEGV, &before_fault_, nullptr);
    ::sigaction(SIGTRAP, &before_step_, nullptr);
    active_ = nullptr;
  }
  store_trap(const store_trap&) = delete;
  store_trap& operator=(const store_trap&) = delete;

  std::uint64_t stores() const { return stores_; }

private:
  static constexpr std::uintptr_t page_bytes = 4096;
  static constexpr greg_t trap_flag = 0x100;

  static void handle(
    int signal, void (*handler)(int, siginfo_t*, void*), struct sigaction& before) {
    struct sigaction action {};
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    MILLRACE_ASSERT(::sigaction(signal, &action, &before) == 0);
  }

  static void protect(void* begin, std::size_t length, int access) {
    MILLRACE_ASSERT(::mprotect(begin, length, access) == 0);
  }

  static void on_fault(int, siginfo_t* info, void* context) {
    auto* at = static_cast<std::byte*>(info->si_addr);
    auto* begin = active_->watched_.data();
    if (at < begin || at >= begin + active_->watched_.size()) {
      // A defect of the test or of the product: the instruction faults again, and ends the process.
      ::sigaction(SIGSEGV, &active_->before_fault_, nullptr);
      return;
    }
    auto page = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(at) & ~(page_bytes - 1));
    MILLRACE_ASSERT(active_->open_ < active_->pages_.size());
    active_->pages_[active_->open_++] = page;
    protect(page, page_bytes, PROT_READ | PROT_WRITE);
    static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] |= trap_flag;
  }

  static void on_step(int, siginfo_t*, void* context) {
    static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~trap_flag;
    while (active_->open_ > 0)
      protect(active_->pages_[--active_->open_], page_bytes, PROT_READ);
    ++active_->stores_;
    active_->look_();
  }

  static inline store_trap* active_ = nullptr;

  std::span<std::byte> watched_;
  std::function<void()> look_;
  std::uint64_t stores_ = 0;
  std::array<void*, 4> pages_{}; // writable now: those that one instruction stores into
  std::size_t open_ = 0;
  struct sigaction before_fault_ {};
  struct sigaction before_step_ {};
};

} // namespace millrace::testing

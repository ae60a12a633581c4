// A test program that uses CUDA by its driver's library: NVIDIA's, or what stands in for it.
// It has a context on its first device.
#pragma once

#include <millrace/tests/support/skipped.hpp>

#include <boost/test/unit_test.hpp>
#include <cuda.h>
#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#ifndef FAKE_CUDA
#define FAKE_CUDA "libcuda.so.1"
#endif

namespace millrace::testing {

class cuda_program {
public:
  static cuda_program& here() {
    static cuda_program p;
    return p;
  }

  // Calls a function of the library by the name that the header gives it.
#define CUDA_CALL(name, ...)                                                                       \
  millrace::testing::cuda_program::here().call<decltype(name)>(CUDA_NAME(name), __VA_ARGS__)
#define CUDA_NAME(name) CUDA_TEXT(name)
#define CUDA_TEXT(name) #name

  template <class F, class... Args>
  void call(const char* name, Args... args) {
    auto* f = reinterpret_cast<F*>(dlsym(library_, name));
    BOOST_TEST_REQUIRE(f != nullptr, name);
    auto code = f(args...);
    BOOST_TEST_REQUIRE(code == CUDA_SUCCESS, name << " gave " << code);
  }

  /// Makes the context current for the calling thread.
  void enter() { CUDA_CALL(cuCtxSetCurrent, context_); }

private:
  cuda_program() : library_(dlopen(FAKE_CUDA, RTLD_NOW | RTLD_GLOBAL)) {
    if (!library_) {
      skipped(std::string{"CUDA: "} + dlerror());
      std::_Exit(77);
    }
    // Not by CUDA_CALL, which asks for this object.
    call<decltype(cuInit)>("cuInit", 0);
    call<decltype(cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain", &context_, 0);
    call<decltype(cuCtxSetCurrent)>("cuCtxSetCurrent", context_);
  }

  void* library_;
  CUcontext context_ = nullptr;
};

/// Memory of the device, in words.
class cuda_words {
public:
  explicit cuda_words(std::size_t count) : count_(count) {
    CUDA_CALL(cuMemAlloc, &at_, count * sizeof(unsigned int));
  }
  ~cuda_words() { CUDA_CALL(cuMemFree, at_); }
  cuda_words(const cuda_words&) = delete;
  cuda_words& operator=(const cuda_words&) = delete;

  std::byte* data() const { return reinterpret_cast<std::byte*>(at_); }
  std::size_t count() const { return count_; }
  void fill(unsigned int value, CUstream stream) {
    CUDA_CALL(cuMemsetD32Async, at_, value, count_, stream);
  }

private:
  std::size_t count_;
  CUdeviceptr at_ = 0;
};

/// Work in a stream that ends when the test says so, or is destroyed.
class unfinished_work {
public:
  explicit unfinished_work(CUstream stream) {
    auto wait = [](void* until) {
      while (!static_cast<std::atomic<bool>*>(until)->load())
        std::this_thread::yield();
    };
    CUDA_CALL(cuLaunchHostFunc, stream, wait, &over_);
  }
  ~unfinished_work() { finish(); }
  unfinished_work(const unfinished_work&) = delete;
  unfinished_work& operator=(const unfinished_work&) = delete;

  void finish() { over_ = true; }

private:
  // The device may look at it after this object is gone.
  static std::atomic<bool>& kept() {
    static std::deque<std::atomic<bool>> all;
    return all.emplace_back(false);
  }

  std::atomic<bool>& over_ = kept();
};

inline CUstream make_stream(unsigned int flags = CU_STREAM_NON_BLOCKING) {
  CUstream stream = nullptr;
  CUDA_CALL(cuStreamCreate, &stream, flags);
  return stream;
}

} // namespace millrace::testing

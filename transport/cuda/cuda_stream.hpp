// Streams of the program's own CUDA code: when they come to a point, and holding them back.
// Used by `cuda_memory`.
#pragma once

#include <millrace/transport/cuda/driver_api.hpp>
#include <millrace/transport/memory/device_memory.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace millrace::transport::cuda {

/// `device_kind::when_reached` for a `CUstream`.
status when_reached(const driver_api& api, CUstream stream, std::function<void()> reached);

/// Holds streams back, each by a word of pinned memory that a device waits for.
/// Threads: any.
class stream_holds : public std::enable_shared_from_this<stream_holds> {
public:
  explicit stream_holds(const driver_api& api) : api_(api) {}

  /// `device_kind::hold` for a `CUstream`.
  result<std::shared_ptr<stream_gate>> hold(CUstream stream);

private:
  class gate;
  // The words live as long as the process: a device may look at one after its gate is gone.
  struct word {
    std::uint32_t* host = nullptr;
    CUdeviceptr device = 0;
    std::uint32_t passes = 0; // what the next stream waits for; it only grows
  };

  result<word> take();
  void give_back(const word& w);
  status make_words();

  const driver_api& api_;
  std::mutex mutex_;
  std::vector<word> free_;
  bool made_ = false;
};

} // namespace millrace::transport::cuda

// Memory that the host cannot touch, such as a GPU's. Its own device copies it.
// Found by pointer when a region is exposed; kinds are registered here.
#pragma once

#include <millrace/core/memory.hpp>
#include <millrace/core/status.hpp>
#include <millrace/net/socket/unique_fd.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::transport {

/// One run of bytes, with its address on both sides of a copy.
struct device_run {
  std::byte* device = nullptr;
  std::byte* host = nullptr;
  std::uint64_t length = 0;
};

enum class device_way : std::uint8_t { to_host, from_host };

/// A descriptor by which other devices reach a range of device memory, and the offset of the range
/// in it.
struct dma_buf {
  net::unique_fd fd;
  std::uint64_t offset = 0;
};

/// The memory of one device. Threads: any.
class device_memory {
public:
  virtual ~device_memory() = default;

  virtual const std::string& name() const noexcept = 0; // "cuda:0"
  /// Returns the name of the device's kind. Memory pinned for one device is pinned for all devices
  /// of its kind.
  virtual std::string_view kind() const noexcept = 0;

  /// Returns the PCI address, "0000:3b:00.0"; empty where it is unknown.
  virtual std::string pci_address() const { return {}; }

  /// Copies all runs, in any order. Blocks until the device is done, so it runs on threads of its
  /// own (`mover_pool::devices`). After it has returned, even with an error, the device touches
  /// nothing more.
  /// Errors:  `io_error` naming the device; the target bytes are then undefined.
  [[nodiscard]] virtual status copy(std::span<const device_run> runs, device_way way) = 0;

  /// Exports a range as a dma-buf.
  /// Errors:  `unsupported` saying what is missing.
  virtual result<dma_buf> export_range(std::byte* data, std::uint64_t length) = 0;
  /// Returns true if a kernel module lets RDMA devices register the memory by its addresses.
  virtual bool peer_memory() const noexcept = 0;

  /// Pins host memory until the returned pointer goes, so that copies with it run at full speed.
  virtual result<std::shared_ptr<void>> pin(std::byte* host, std::uint64_t length) = 0;

  /// Makes memory of the device. The thread that frees it may wait until the device is idle.
  /// Errors:  `no_space` naming the device; `unsupported`.
  virtual result<memory_block> allocate(std::uint64_t size_bytes);

  /// As `device_kind::when_reached`. A null handle is the default stream of this device, whatever
  /// device the calling thread uses.
  virtual status when_reached(void* stream, std::function<void()> reached);
  /// Waits until the device has done all work that it was given.
  virtual status drain() { return {}; }

  /// Makes what other devices have written here visible to everything that this device starts
  /// afterwards.
  virtual void settle() noexcept = 0;
};

/// Copies between lists of device and host memory on one side and host memory on the other side.
///
/// *Problem*: each command to a device costs microseconds, and tensors are many and small, or rows
/// apart. So a batch collects a bounded number of runs and gives them to the device together.
class device_batch {
public:
  explicit device_batch(device_way way) noexcept : way_(way) {}

  /// Adds a run. Without a device both sides are host memory. May copy the runs added before, and
  /// blocks then.
  void add(device_memory* device, const device_run& run);
  /// Copies the remaining runs. Blocks.
  /// Errors:  `io_error` naming the device, for any run since the last `finish`.
  [[nodiscard]] status finish();

private:
  void flush();

  const device_way way_;
  device_memory* device_ = nullptr;
  std::vector<device_run> waiting_; // for `device_`
  status failure_;
};

/// The features of one device, as `millrace doctor` shows them.
struct device_facts {
  std::string name;  // "cuda:0"
  std::string model; // "NVIDIA H200"
  std::uint64_t size_bytes = 0;
  bool dma_buf = false;
  bool peer_memory = false;
  std::string pci_address = {}; // "0000:3b:00.0"; empty where it is unknown
};

/// Work that waits in a stream of a device. Threads: any.
class stream_gate {
public:
  /// Opens the gate.
  virtual ~stream_gate() = default;
  /// Lets the work go on. Calls after the first one do nothing. It does not block.
  virtual void open() noexcept = 0;
};

/// All devices of one vendor.
class device_kind {
public:
  virtual ~device_kind() = default;

  virtual std::string_view name() const noexcept = 0; // "cuda"
  /// Returns the device whose memory `data` points into; null for all other memory. It is called
  /// for every exposed tensor, so it is cheap, and it starts nothing in a process that does not use
  /// the devices anyway.
  virtual std::shared_ptr<device_memory> find(const std::byte* data) = 0;
  /// Returns all devices of this machine. May start the vendor's driver.
  /// Errors:  `unavailable` saying what is missing.
  virtual result<std::vector<device_facts>> examine() = 0;

  /// Returns a device by its number. Starts the vendor's driver if the process does not use it yet;
  /// children that are forked later cannot use it then.
  /// Errors:  `unavailable` saying what is missing; `not_found` naming how many there are;
  ///          `unsupported`.
  virtual result<std::shared_ptr<device_memory>> open(std::uint32_t number);

  /// Calls `reached` when the device has done all work that is in the stream now. The thread that
  /// calls it belongs to the vendor: `reached` returns soon, and does not use the device. After a
  /// failure of the device nothing calls it. `stream` is the vendor's handle.
  /// Errors:  `unsupported`; `invalid_argument` for a stream that cannot be used; `io_error`.
  virtual status when_reached(void* stream, std::function<void()> reached);
  /// Holds back the work that is put into the stream after this call, until the gate is open. Work
  /// of other streams goes on; calls of the vendor's library that wait for the whole device block.
  /// Errors:  as `when_reached`; `busy` where as many streams wait as the device can bear.
  virtual result<std::shared_ptr<stream_gate>> hold(void* stream);
};

/// Returns the kinds of this build and those that were added.
std::vector<std::shared_ptr<device_kind>> device_kinds();
/// Adds a kind until the returned pointer goes. For a program's own devices, and for tests.
/// A forked child has the built-in kinds alone, and adds others anew.
[[nodiscard]] std::shared_ptr<void> add_device_kind(std::shared_ptr<device_kind> kind);
/// Returns the kind with this name.
/// Errors:  `unsupported` naming those of this build.
result<std::shared_ptr<device_kind>> find_device_kind(std::string_view name);
/// Returns a device by its name, "cuda:0", see `device_kind::open`.
/// Errors:  `invalid_argument` for what is no such name; those of `device_kind::open`.
result<std::shared_ptr<device_memory>> open_device(std::string_view name);
/// Returns the device whose memory `data` points into; null for host memory.
std::shared_ptr<device_memory> find_device_memory(const std::byte* data);

/// The pins of one mapping of host memory. A member of the mapping, which it must not outlive.
/// Threads: any.
class device_pins {
public:
  /// Pins `[data, data + length)` for the devices of this kind, the first time. If a device cannot
  /// pin it, copies are slower.
  void pin_for(device_memory& device, std::byte* data, std::uint64_t length);
  void clear() noexcept;

private:
  std::mutex mutex_;
  std::vector<std::pair<std::string, std::shared_ptr<void>>> pins_; // by kind; null: pinning failed
};

} // namespace millrace::transport

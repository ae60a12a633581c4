// Memory that the host cannot touch: a GPU's. Found by its pointers when a region is exposed; copied by its device.
#pragma once

#include <millrace/core/status.hpp>
#include <millrace/net/socket/unique_fd.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::transport {

/// One run of bytes on both sides of a copy.
struct device_run {
  std::byte* device = nullptr;
  std::byte* host = nullptr;
  std::uint64_t length = 0;
};

enum class device_way : std::uint8_t { to_host, from_host };

/// A descriptor by which other devices reach a range of device memory, and where the range begins in it.
struct dma_buf {
  net::unique_fd fd;
  std::uint64_t offset = 0;
};

/// The memory of one device. Threads: any.
class device_memory {
public:
  virtual ~device_memory() = default;

  virtual const std::string& name() const noexcept = 0; // "cuda:0"
  /// Of the device's kind; what one device of a kind pins is pinned for all of them.
  virtual std::string_view kind() const noexcept = 0;

  /// Where it is plugged in, "0000:3b:00.0"; empty where that is not known.
  virtual std::string pci_address() const { return {}; }

  /// Copies all runs, in any order. Blocks until the device is done, so it runs on threads of its own
  /// (`mover_pool::devices`), and touches nothing once it has returned, whatever it returns.
  /// Errors: `io_error` naming the device; then the target bytes are undefined.
  [[nodiscard]] virtual status copy(std::span<const device_run> runs, device_way way) = 0;

  /// Errors: `unsupported`, with what is missing.
  virtual result<dma_buf> export_range(std::byte* data, std::uint64_t length) = 0;
  /// True if a kernel module lets RDMA devices register the memory by its addresses.
  virtual bool peer_memory() const noexcept = 0;

  /// Fixes host memory in place until the returned pointer goes, so that copies with it run at full speed.
  virtual result<std::shared_ptr<void>> pin(std::byte* host, std::uint64_t length) = 0;

  /// What other devices have written here is seen by whatever this device starts afterwards.
  virtual void settle() noexcept = 0;
};

/// Copies between lists of memory, of devices and of the host, and one side's host memory.
///
/// *Problem*: every order to a device costs microseconds, and tensors are many and small, or rows apart. So runs are
/// gathered, a bounded number of them, and a device gets them together.
class device_batch {
public:
  explicit device_batch(device_way way) noexcept : way_(way) {}

  /// Without a device both sides are the host's. May copy what was added before, and blocks then.
  void add(device_memory* device, const device_run& run);
  /// Copies what is left. Blocks. Errors: `io_error` naming the device; of any run since the last `finish`.
  [[nodiscard]] status finish();

private:
  void flush();

  const device_way way_;
  device_memory* device_ = nullptr;
  std::vector<device_run> waiting_; // of that device
  status failure_;
};

/// What one device offers, for `doctor`.
struct device_facts {
  std::string name;  // "cuda:0"
  std::string model; // "NVIDIA H200"
  std::uint64_t size_bytes = 0;
  bool dma_buf = false;
  bool peer_memory = false;
};

/// A maker's devices.
class device_kind {
public:
  virtual ~device_kind() = default;

  virtual std::string_view name() const noexcept = 0; // "cuda"
  /// The device whose memory `data` points into; null for everything else. Asked for every tensor that is exposed, so
  /// it is cheap, and starts nothing in a process that does not use the devices anyway.
  virtual std::shared_ptr<device_memory> find(const std::byte* data) = 0;
  /// All devices of this machine. May start the maker's driver.
  /// Errors: `unavailable` with what is missing.
  virtual result<std::vector<device_facts>> examine() = 0;
};

/// Those of this build, and those that were added.
std::vector<std::shared_ptr<device_kind>> device_kinds();
/// Adds a kind until the returned pointer goes. For a program's own devices, and for tests.
[[nodiscard]] std::shared_ptr<void> add_device_kind(std::shared_ptr<device_kind> kind);
/// The device whose memory `data` points into; null for memory of the host.
std::shared_ptr<device_memory> find_device_memory(const std::byte* data);

/// What a mapping of host memory is pinned for. A member of the mapping, which it must not outlive.
/// Threads: any.
class device_pins {
public:
  /// Pins `[data, data + length)` for the devices of this kind, the first time. A device that cannot copies slower.
  void pin_for(device_memory& device, std::byte* data, std::uint64_t length);
  void clear() noexcept;

private:
  std::mutex mutex_;
  std::vector<std::pair<std::string, std::shared_ptr<void>>> pins_; // by kind; null: it could not
};

} // namespace millrace::transport

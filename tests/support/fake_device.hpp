// Device memory that the host cannot touch: following its pointers crashes.
// Used by transport tests.
#pragma once

#include <millrace/transport/memory/device_memory.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

namespace millrace::testing {

/// One device and its kind at once, registered in the process as long as it lives. Its pointers
/// lead to a mapping without any access. Copies use a second mapping of the same pages. Freed
/// memory is not used again.
class fake_device {
public:
  explicit fake_device(std::uint64_t size_bytes, const std::string& name = "fake:0")
    : memory_(std::make_shared<memory>(size_bytes, name)),
      added_(transport::add_device_kind(std::make_shared<kind>(memory_))) {}

  std::byte* allocate(std::uint64_t size_bytes) {
    if (auto* at = memory_->reserve(size_bytes))
      return at;
    throw std::runtime_error{"the device is full"};
  }
  /// Returns the address at which the test itself reads and writes the memory behind a device
  /// pointer.
  std::byte* shadow(const std::byte* data) const { return memory_->shadow(data); }

  /// Sets a function that every copy calls first. As long as it returns an error, copies report
  /// that error and copy nothing.
  void on_copy(std::function<status()> f) { memory_->set_hook(std::move(f)); }
  /// Lets a range be exported as a duplicate of this descriptor, as if it were a dma-buf.
  void export_as(int fd) { memory_->exported = fd; }

  /// Lets work in this stream, any number, be unfinished until `finish`.
  void make_busy(void* stream) { memory_->make_busy(stream); }
  void finish(void* stream) { memory_->finish(stream); }

  /// Says where in the machine the device is: "0000:3b:00.0".
  void lies_at(const std::string& pci_address) { memory_->pci = pci_address; }

  std::uint64_t copies() const { return memory_->copies; }
  /// Returns how many blocks that Millrace has made on the device are not freed yet.
  std::int64_t blocks() const { return memory_->made; }
  std::uint64_t pins() const { return memory_->pins; }
  std::uint64_t exports() const { return memory_->exports; }

private:
  class memory : public transport::device_memory, public std::enable_shared_from_this<memory> {
  public:
    memory(std::uint64_t size_bytes, std::string name)
      : size_bytes_(size_bytes), name_(std::move(name)) {
      int fd = memfd_create("fake device", MFD_CLOEXEC);
      if (fd < 0 || ftruncate(fd, static_cast<off_t>(size_bytes)) != 0)
        throw std::runtime_error{"no memory for a device"};
      view_ = static_cast<std::byte*>(mmap(nullptr, size_bytes, PROT_NONE, MAP_SHARED, fd, 0));
      shadow_ = static_cast<std::byte*>(
        mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
      close(fd);
      if (view_ == MAP_FAILED || shadow_ == MAP_FAILED)
        throw std::runtime_error{"no mapping for a device"};
    }
    ~memory() override {
      munmap(view_, size_bytes_);
      munmap(shadow_, size_bytes_);
    }

    // Null where the device is full.
    std::byte* reserve(std::uint64_t size_bytes) {
      auto whole = (size_bytes + 4095) / 4096 * 4096 + 4096;
      auto at = used_.fetch_add(whole);
      if (at + size_bytes <= size_bytes_)
        return view_ + at;
      used_ -= whole;
      return nullptr;
    }
    bool has(const std::byte* data, std::uint64_t length = 1) const {
      return data >= view_ && data < view_ + size_bytes_ && length <= size_bytes_ &&
        data + length <= view_ + size_bytes_;
    }
    std::byte* shadow(const std::byte* data) const { return shadow_ + (data - view_); }
    void set_hook(std::function<status()> f) {
      std::lock_guard guard{mutex_};
      hook_ = std::move(f);
    }

    const std::string& name() const noexcept override { return name_; }
    std::string_view kind() const noexcept override { return "fake"; }
    std::string pci_address() const override { return pci; }
    status copy(std::span<const transport::device_run> runs, transport::device_way way) override {
      ++copies;
      std::unique_lock guard{mutex_};
      auto hook = hook_;
      guard.unlock();
      if (auto bad = hook ? hook() : status{}; !bad.ok())
        return bad;
      for (auto& r : runs) {
        if (!has(r.device, r.length))
          return {errc::internal, "a copy outside the device"};
        if (way == transport::device_way::to_host)
          std::memcpy(r.host, shadow(r.device), r.length);
        else
          std::memcpy(shadow(r.device), r.host, r.length);
      }
      return {};
    }
    result<transport::dma_buf> export_range(std::byte* data, std::uint64_t) override {
      if (exported < 0)
        return fail(errc::unsupported, name_ + " exports nothing");
      ++exports;
      return transport::dma_buf{
        net::unique_fd{dup(exported)}, static_cast<std::uint64_t>(data - view_)};
    }
    bool peer_memory() const noexcept override { return false; }
    result<std::shared_ptr<void>> pin(std::byte* host, std::uint64_t) override {
      ++pins;
      return std::shared_ptr<void>{host, [](void*) {}};
    }
    result<memory_block> allocate(std::uint64_t size_bytes) override {
      auto at = reserve(size_bytes);
      if (!at)
        return fail(errc::no_space, "{} is full", name_);
      ++made;
      auto free = [self = shared_from_this()](void*) { --self->made; };
      return memory_block{at, size_bytes, std::shared_ptr<void>{at, std::move(free)}};
    }
    // The device works at once, so its streams wait for nothing but the test.
    status when_reached(void* stream, std::function<void()> reached) override {
      std::unique_lock guard{mutex_};
      if (busy_.contains(stream)) {
        reached_later_.emplace(stream, std::move(reached));
        return {};
      }
      guard.unlock();
      reached();
      return {};
    }
    void make_busy(void* stream) {
      std::lock_guard guard{mutex_};
      busy_.insert(stream);
    }
    void finish(void* stream) {
      std::unique_lock guard{mutex_};
      busy_.erase(stream);
      while (auto next = reached_later_.extract(stream)) {
        guard.unlock();
        next.mapped()();
        guard.lock();
      }
    }
    void settle() noexcept override {}

    std::string pci;
    std::atomic<int> exported = -1;
    std::atomic<std::uint64_t> copies = 0, pins = 0, exports = 0;
    std::atomic<std::int64_t> made = 0;

  private:
    const std::uint64_t size_bytes_;
    const std::string name_;
    std::byte* view_ = nullptr;
    std::byte* shadow_ = nullptr;
    std::atomic<std::uint64_t> used_ = 0;
    std::mutex mutex_;
    std::function<status()> hook_;
    std::set<void*> busy_;
    std::multimap<void*, std::function<void()>> reached_later_; // by stream
  };

  class kind : public transport::device_kind {
  public:
    explicit kind(std::shared_ptr<memory> m) : memory_(std::move(m)) {}
    std::string_view name() const noexcept override { return "fake"; }
    std::shared_ptr<transport::device_memory> find(const std::byte* data) override {
      return memory_->has(data) ? memory_ : nullptr;
    }
    result<std::shared_ptr<transport::device_memory>> open(std::uint32_t number) override {
      if (number > 0)
        return fail(errc::not_found, "there is one fake device");
      return memory_;
    }
    result<std::vector<transport::device_facts>> examine() override {
      return std::vector<transport::device_facts>{{memory_->name(), "fake", 0, false, false}};
    }

  private:
    std::shared_ptr<memory> memory_;
  };

  std::shared_ptr<memory> memory_;
  std::shared_ptr<void> added_;
};

} // namespace millrace::testing

// The memory of a loader: made once, lent batch by batch.
// Internal, used by loaders and streams.
#pragma once

#include <millrace/core/memory.hpp>
#include <millrace/transport/fabric.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace millrace::runtime {

/// Places for batches. It lives as long as one of them is lent.
/// Threads: any.
class receive_ring : public std::enable_shared_from_this<receive_ring> {
public:
  /// Memory of one place. It belongs to who has it lent.
  using place = memory_block;

  /// Makes the memory of places.
  using source = std::function<result<memory_block>(std::uint64_t size_bytes)>;
  /// Returns a source of registered memory of this host.
  static source registered(std::shared_ptr<transport::fabric> fabric);
  /// Returns the same source, whose memory of up to 256 MiB lies in huge pages if the kernel can do
  /// it. That takes 0.5 to 6 ms for 2 MiB.
  static source gathered(source from);

  /// Makes places of `place_bytes`, beside each other.
  /// Errors:  those of the source.
  static result<std::shared_ptr<receive_ring>> make(
    const source& from, std::size_t places, std::uint64_t place_bytes);

  /// Lends a place until the last copy of the pointer is destroyed; null if none is free.
  std::shared_ptr<place> lend();
  /// Returns true if `lend` gives a place, as long as no other thread lends.
  bool has_free() const;
  /// Gives a place other memory if its own is less than `size_bytes`. It keeps that: batches whose
  /// samples vary in size grow their places once in a while, and then no more.
  /// Errors:  as `make`.
  status widen(const source& from, place& which, std::uint64_t size_bytes);
  /// `freed` runs on the thread that returns a place, after it is free.
  void when_freed(std::function<void()> freed);

  std::uint64_t size_bytes() const;

private:
  receive_ring(const memory_block& memory, std::size_t places, std::uint64_t place_bytes);

  void take_back(place* which);

  mutable std::mutex mutex_;
  std::vector<place> places_;
  std::vector<place*> free_;
  std::function<void()> freed_;
  std::uint64_t size_bytes_ = 0;
};

} // namespace millrace::runtime

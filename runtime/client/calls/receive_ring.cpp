// The place that was returned last is lent next: it is the one that caches may still have.
#include <millrace/core/huge_pages.hpp>
#include <millrace/core/rounding.hpp>
#include <millrace/runtime/client/calls/receive_ring.hpp>

#include <algorithm>
#include <utility>

namespace millrace::runtime {

namespace {

constexpr std::uint64_t page_bytes = 4096;
constexpr std::uint64_t gathered_bytes_max = 256u << 20; // a tenth of a second, or a few

result<memory_block> whole_pages(const receive_ring::source& from, std::uint64_t size_bytes) {
  return from(round_up(std::max(size_bytes, page_bytes), page_bytes));
}

} // namespace

receive_ring::source receive_ring::registered(std::shared_ptr<transport::fabric> fabric) {
  return [fabric = std::move(fabric)](std::uint64_t size_bytes) -> result<memory_block> {
    return fabric->make_memory({.name = "millrace.loader", .size_bytes = size_bytes})
      .and_then([&](const auto& memory) { return memory->allocate(size_bytes, page_bytes); });
  };
}

receive_ring::source receive_ring::gathered(source from) {
  return [from = std::move(from)](std::uint64_t size_bytes) {
    auto memory = from(size_bytes);
    if (memory && size_bytes <= gathered_bytes_max)
      gather_huge_pages(memory->data, memory->size_bytes);
    return memory;
  };
}

result<std::shared_ptr<receive_ring>> receive_ring::make(
  const source& from, std::size_t places, std::uint64_t place_bytes) {
  auto memory = whole_pages(from, places * place_bytes);
  if (!memory)
    return fail(memory.error());
  return std::shared_ptr<receive_ring>{new receive_ring{*memory, places, place_bytes}};
}

receive_ring::receive_ring(
  const memory_block& memory, std::size_t places, std::uint64_t place_bytes)
  : size_bytes_(places * place_bytes) {
  for (std::size_t i = 0; i < places; ++i)
    places_.push_back({memory.data + i * place_bytes, place_bytes, memory.owner});
  for (auto& one : places_)
    free_.push_back(&one);
}

std::shared_ptr<receive_ring::place> receive_ring::lend() {
  place* which = nullptr;
  {
    std::lock_guard guard{mutex_};
    if (free_.empty())
      return nullptr;
    which = free_.back();
    free_.pop_back();
  }
  return {which, [self = shared_from_this()](place* p) { self->take_back(p); }};
}

bool receive_ring::has_free() const {
  std::lock_guard guard{mutex_};
  return !free_.empty();
}

status receive_ring::widen(const source& from, place& which, std::uint64_t size_bytes) {
  if (which.size_bytes >= size_bytes)
    return {};
  auto memory = whole_pages(from, size_bytes + size_bytes / 4); // the next ones are larger still
  if (!memory)
    return memory.error();
  memory_block old; // freed without the lock
  std::lock_guard guard{mutex_};
  size_bytes_ += memory->size_bytes - which.size_bytes;
  old = std::exchange(which, std::move(*memory));
  return {};
}

void receive_ring::take_back(place* which) {
  std::function<void()> freed;
  {
    std::lock_guard guard{mutex_};
    free_.push_back(which);
    freed = freed_;
  }
  if (freed)
    freed();
}

void receive_ring::when_freed(std::function<void()> freed) {
  std::lock_guard guard{mutex_};
  freed_ = std::move(freed);
}

std::uint64_t receive_ring::size_bytes() const {
  std::lock_guard guard{mutex_};
  return size_bytes_;
}

} // namespace millrace::runtime

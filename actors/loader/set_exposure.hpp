// The memory of sets and streams as peers reach it. Used by the data server and the stream server.
#pragma once

#include <millrace/actors/leases.hpp>
#include <millrace/storage/samples/sample_pool.hpp>
#include <millrace/transport/fabric.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace millrace::actors {

/// Exposes what a set has of each region.
/// Errors:  those of `transport::expose`; nobody can reach anything then.
inline result<std::vector<transport::region>> expose_regions(
  const std::vector<storage::samples::set_region>& regions, access_mode how) {
  std::vector<transport::region> out;
  for (auto& one : regions) {
    auto bytes = one.bytes;
    auto made = transport::expose(
      {tensor_view{{"a region of a working set", dtype::u8, {bytes.size()}}, bytes.data(), {}}},
      how);
    if (!made)
      return fail(made.error());
    out.push_back(std::move(*made));
  }
  return out;
}

/// The memory of a set as one lease reaches it. `Memory` keeps it.
template <class Memory>
struct exposed_memory {
  std::shared_ptr<Memory> memory;
  std::vector<transport::region> regions;
};

/// Ends an exposure. That waits for transfers to end, so it is done on a mover. `then`, which may
/// be null, runs in the actor of the context.
template <class Context, class Memory>
void withdraw_on_mover(
  Context& context, std::shared_ptr<exposed_memory<Memory>> exposed, std::function<void()> then) {
  auto home = context.template home<void>([then = std::move(then)](const result<void>&) {
    if (then)
      then();
  });
  context.fabric->movers()->submit(
    1,
    [exposed = std::move(exposed)](std::uint32_t) mutable {
      if (exposed)
        exposed->regions.clear();
      exposed = nullptr;
    },
    [home = std::move(home)]() mutable { home({}); });
}

inline std::vector<bulk_handle> handles_of(const std::vector<transport::region>& regions) {
  std::vector<bulk_handle> out;
  out.reserve(regions.size());
  std::ranges::transform(regions, std::back_inserter(out), [](auto& r) { return r.handle(); });
  return out;
}

} // namespace millrace::actors

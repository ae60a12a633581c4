// Notices that the program has cancelled a read that waits.
// Internal, used by reads that wait for a server; needs CAF.
#pragma once

#include <millrace/net/loop/io_loop.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace millrace::runtime {

/// Calls `look` now, and on the loop every 10 ms, as long as it returns true and the loop lives.
/// Who cancels may wait in the actor that gets the answer, so the loop looks.
inline void look_while(const std::weak_ptr<net::io_loop>& loop, std::function<bool()> look) {
  constexpr std::uint32_t again_ms = 10;
  if (!look())
    return;
  if (auto runs = loop.lock())
    runs->run_after(again_ms, [loop, look = std::move(look)] { look_while(loop, look); });
}

} // namespace millrace::runtime

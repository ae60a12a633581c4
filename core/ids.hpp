// Identities: 128-bit values that name processes and layers, and keys that cannot be guessed. Used
// by every room.
#pragma once

#include <millrace/core/inspect.hpp>
#include <millrace/core/status.hpp>

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <string>

namespace millrace {

/// Sixteen bytes with a meaning given by `Tag`.
template <class Tag>
struct id128 {
  std::array<std::uint8_t, 16> bytes{};

  friend auto operator<=>(const id128&, const id128&) = default;
  bool is_nil() const noexcept { return *this == id128{}; }
};

struct peer_tag;
struct key_tag;
struct layer_tag;

/// Identifies one process from start to end. A restarted process has another identity.
using peer_id = id128<peer_tag>;
/// The key that permits moving bytes into or out of one exposed region.
using region_key = id128<key_tag>;
/// The structural identity of a leaf layer.
using layer_id = id128<layer_tag>;

/// Fills `size_bytes` at `data` from the kernel's random generator.
void random_bytes(void* data, std::size_t size_bytes) noexcept;

template <class Id>
Id random_id() noexcept {
  Id id;
  random_bytes(id.bytes.data(), id.bytes.size());
  return id;
}

/// Returns the identity of this process: a hash of its public key, made at first use (see
/// identity.hpp).
const peer_id& this_peer() noexcept;

std::string to_hex(const std::uint8_t* data, std::size_t size_bytes);

template <class Tag>
std::string to_string(const id128<Tag>& id) {
  return to_hex(id.bytes.data(), id.bytes.size());
}

/// Returns whether the keys are equal. Takes the same time whichever byte differs.
bool equal_constant_time(const region_key& a, const region_key& b) noexcept;

template <field_inspector Inspector, class Tag>
typename Inspector::result_type inspect(Inspector& f, id128<Tag>& x) {
  return f(x.bytes);
}

} // namespace millrace

template <class Tag>
struct std::hash<millrace::id128<Tag>> {
  std::size_t operator()(const millrace::id128<Tag>& id) const noexcept {
    std::size_t value;
    std::memcpy(&value, id.bytes.data(), sizeof(value));
    return value;
  }
};

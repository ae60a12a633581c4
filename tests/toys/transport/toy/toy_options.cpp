// The keys of the section `toy`.
#include <millrace/transport/toy/toy_options.hpp>

#include <array>

namespace millrace::config {

template <>
key_table<transport::toy_options> keys_of() {
  using o = transport::toy_options;
  static constexpr auto rows = std::to_array<bound_key<o>>({
    key<&o::transfer_bytes_max>(
      expert(size("transfer_max", 4 * kib, tib, "larger transfers are left to the other drivers"))),
  });
  return {rows};
}

} // namespace millrace::config

// Objects of static storage that threads use after `main` has returned. Used by every room.
#pragma once

namespace millrace {

/// Returns what `make` returned at the first call. It is never destroyed.
///
/// *Problem*: nodes and clients may end on other threads while the process exits, or in a handler
/// of the program that runs late. Objects that were made after the wait for these threads was
/// registered are destroyed before it.
template <class Make>
auto& never_destroyed(Make make) {
  static auto& made = *new auto(make());
  return made;
}

} // namespace millrace

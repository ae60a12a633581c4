// Objects that each thread keeps for itself. Used on paths that would otherwise need new memory.
#pragma once

namespace millrace {

/// Returns the calling thread's `T`, which is made at the first call; null when the objects of the
/// thread have ended: handlers at exit run after those of the main thread.
template <class T>
T* of_this_thread() {
  static constinit thread_local bool has_ended = false;
  struct owned {
    T object;
    ~owned() { has_ended = true; }
  };
  if (has_ended)
    return nullptr;
  static thread_local owned own;
  return &own.object;
}

} // namespace millrace

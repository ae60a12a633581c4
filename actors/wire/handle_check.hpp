// Checks whose memory the bulk handles of a message name. Used by sessions.
#pragma once

#include <millrace/core/bulk_handle.hpp>

#include <array>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace millrace::actors {

/// An inspector that returns true for a message if all its handles, at any depth, name memory of
/// one given process.
class handle_check {
public:
  using result_type = bool;
  static constexpr bool reads_state = true;
  static constexpr bool writes_state = false;

  explicit handle_check(const peer_id& owner) : owner_(owner) {}

  template <class... Ts>
  bool operator()(Ts&&... xs) {
    return (holds(xs) && ...);
  }

private:
  bool holds(const bulk_handle& x) { return !x.length_bytes || x.owner == owner_; }
  bool holds(const std::string&) { return true; }
  template <class Tag>
  bool holds(const id128<Tag>&) {
    return true;
  }
  template <class T, class A>
  bool holds(const std::vector<T, A>& xs) {
    return each_holds(xs);
  }
  template <class T, std::size_t N>
  bool holds(const std::array<T, N>& xs) {
    return each_holds(xs);
  }
  template <class A, class B>
  bool holds(const std::pair<A, B>& x) {
    return holds(x.first) && holds(x.second);
  }
  template <class T>
  bool holds(const T& x) {
    if constexpr (std::is_class_v<T>)
      return inspect(*this, const_cast<T&>(x));
    else
      return true;
  }

  template <class Items>
  bool each_holds(const Items& items) {
    if constexpr (std::is_class_v<typename Items::value_type>)
      for (auto& item : items)
        if (!holds(item))
          return false;
    return true;
  }

  const peer_id& owner_;
};

} // namespace millrace::actors

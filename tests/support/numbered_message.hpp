// Gives every field of a message a value of its own, for tests that compare formats. Used by tests
// of the wire.
#pragma once

#include <millrace/core/ids.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace millrace::testing {

/// An inspector that numbers what it visits: 1, 2, 3 and so on, in every field, however deep.
class numbering {
public:
  using result_type = bool;
  static constexpr bool reads_state = false;
  static constexpr bool writes_state = true;

  template <class... Ts>
  bool operator()(Ts&... xs) {
    (number(xs), ...);
    return true;
  }

private:
  template <class T>
  void number(T& x) {
    if constexpr (std::is_same_v<T, bool>)
      x = true;
    else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>)
      x = static_cast<T>(next_++);
    else
      inspect(*this, x);
  }
  void number(std::byte& x) { x = static_cast<std::byte>(next_++); }
  void number(std::string& x) { x = "text " + std::to_string(next_++); }
  template <class T, class A>
  void number(std::vector<T, A>& xs) {
    xs.resize(2);
    for (auto& x : xs)
      number(x);
  }
  template <class T, std::size_t N>
  void number(std::array<T, N>& xs) {
    for (auto& x : xs)
      number(x);
  }
  template <class A, class B>
  void number(std::pair<A, B>& x) {
    number(x.first), number(x.second);
  }
  template <class Tag>
  void number(id128<Tag>& x) {
    number(x.bytes);
  }

  std::uint64_t next_ = 1;
};

template <class Message>
Message numbered() {
  Message m{};
  numbering number;
  number(m);
  return m;
}

} // namespace millrace::testing

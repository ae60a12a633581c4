// Connections that have not proved themselves yet: how many there may be, and which one is closed
// when there are too many. Used by listeners and by drivers that accept streams.
#pragma once

#include <millrace/core/status.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace millrace::net {

/// Bounds newcomers, in total and for one source.
///
/// *Problem*: every process can connect and then say nothing. A listener that refused newcomers
/// while it has too many would let untrusted peers lock out its members.
///
/// *Rule*: an honest newcomer proves itself within milliseconds, so of too many the oldest is the
/// least likely to be one. It is closed for the new one: the oldest of the same source when the
/// source has too many, else the oldest of a source that has the most.
///
/// Threads: one at a time.
class newcomers {
public:
  using number = std::uint64_t; // identifies one newcomer; never 0
  using refusal = std::function<void(const status& why)>;

  newcomers(std::uint32_t max, std::uint32_t per_source_max)
    : max_(max), per_source_max_(per_source_max) {}

  /// Adds a newcomer. If it is closed later, or all are, `refuse` is called after it was removed.
  number add(const std::string& source, refusal refuse);
  /// Removes one that has proved itself or has gone. Idempotent.
  void remove(number n);
  void refuse_all(const status& why);

  std::size_t size() const noexcept { return known_.size(); }

private:
  struct newcomer {
    std::string source;
    refusal refuse;
  };

  void make_room(const std::string& source);
  void refuse_oldest(const std::function<bool(const newcomer&)>& of_these, const status& why);
  std::uint32_t count_of(const std::string& source) const;

  const std::uint32_t max_;
  const std::uint32_t per_source_max_;
  number next_ = 1;
  std::map<number, newcomer> known_; // the oldest first
  std::map<std::string, std::uint32_t> by_source_;
};

} // namespace millrace::net

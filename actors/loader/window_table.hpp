// The windows of a data server, and what each lease has of them. Used by the data server's actor;
// knows no other actor.
#pragma once

#include <millrace/actors/loader/data_messages.hpp>
#include <millrace/actors/loader/set_exposure.hpp>
#include <millrace/actors/loader/window_buffer.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

namespace millrace::actors {

/// What is left of a lease.
struct ended_window {
  std::shared_ptr<exposed_memory<const storage::samples::stored_set>> memory; // may be null
  /// Runs once nobody can write through the memory any more.
  std::function<void()> then;
};

/// Each window has a buffer, which lives as long as the set. Each lease that writes has an exposure
/// of its own, which ends with it; then what it was writing is free.
/// Threads: one at a time.
class window_table {
public:
  using set_ptr = std::shared_ptr<const storage::samples::stored_set>;

  /// Begins a lease of a window.
  void open(std::uint64_t lease, const set_ptr& set);
  /// Returns the window's memory, writable for who has the lease.
  /// Errors:  `invalid_argument` for a set that is no window; those of `expose_regions`.
  result<std::vector<bulk_handle>> write(std::uint64_t lease);
  /// Errors:  `invalid_argument` for a set that is no window, or values that it cannot have.
  result<taken_values> take(const take_values_request& request);
  /// Errors:  `invalid_argument` for a set that is no window; `not_found` for values that the lease
  ///          does not have: then none of them is returned.
  [[nodiscard]] status give_back(const return_values_request& request);
  /// Ends a lease; none if it is not one of a window.
  std::optional<ended_window> close(std::uint64_t lease);

  /// Returns the counts of a window.
  window_counts counts(const set_ptr& set);

private:
  struct window {
    std::weak_ptr<const storage::samples::stored_set> set;
    std::shared_ptr<window_buffer> buffer;
  };
  struct lease {
    set_ptr set;
    std::shared_ptr<window_buffer> buffer;
    std::shared_ptr<exposed_memory<const storage::samples::stored_set>> memory = nullptr;
    std::multiset<value_key> reading = {};
    std::set<value_key> writing = {};
  };

  std::shared_ptr<window_buffer> buffer_of(const set_ptr& set);
  result<lease*> find(std::uint64_t number);
  static status check(const set_info& set, const take_values_request& request);
  static bool has_all(const lease& of, const return_values_request& request);

  std::map<set_id, window> windows_;
  std::map<std::uint64_t, lease> leases_;
};

} // namespace millrace::actors

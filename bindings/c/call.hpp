// The frame of every C function: what it throws becomes a code and a text, and its arguments are
// checked. Used by all files of the C ABI.
#pragma once

#include "millrace.h"

#include <millrace/core/checkpoint.hpp>
#include <millrace/core/clock.hpp>
#include <millrace/core/status.hpp>
#include <millrace/core/tensor_view.hpp>
#include <millrace/runtime/client/load_target.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::bindings {

/// The longest time that an argument may give, in milliseconds.
inline constexpr std::int64_t timeout_ms_max = 86'400'000;

/// No structure will be as large; a size that was never set often is.
inline constexpr std::size_t structure_bytes_max = 4096;

/// The size of a structure in version 0.1, which programs of that version give. A structure that
/// has grown since has a line of its own here, with that size.
template <class T>
inline constexpr std::size_t first_size = sizeof(T);

template <>
inline constexpr std::size_t first_size<millrace_put_options> =
  offsetof(millrace_put_options, layers);

template <>
inline constexpr std::size_t first_size<millrace_preload_options> =
  offsetof(millrace_preload_options, kind);

template <>
inline constexpr std::size_t first_size<millrace_open_set_options> =
  offsetof(millrace_open_set_options, appended);

template <>
inline constexpr std::size_t first_size<millrace_stream_info> =
  offsetof(millrace_stream_info, name);

template <>
inline constexpr std::size_t first_size<millrace_loader_info> =
  offsetof(millrace_loader_info, samples_from_files);

template <>
inline constexpr std::size_t first_size<millrace_loader_options> =
  offsetof(millrace_loader_options, device);

template <>
inline constexpr std::size_t first_size<millrace_set> = offsetof(millrace_set, servers);

/// The running call of a C function. It names the function in errors.
class call {
public:
  explicit call(const char* function) : function_(function) {}

  status wrong(std::string_view argument, std::string_view what) const;
  /// Names the function beside an error that names the argument.
  status refused(const status& why) const;
  /// Checks that pointers are set.
  status need(std::initializer_list<std::pair<const void*, const char*>> arguments) const;
  result<std::chrono::milliseconds> timeout(std::string_view argument, std::int64_t ms) const;

  /// Copies a structure of the caller, which may be older or newer than `Options`. NULL: zeros.
  template <class Options>
  result<Options> options(const Options* given) const {
    Options known{};
    if (!given)
      return known;
    std::size_t size = 0;
    std::memcpy(&size, given, sizeof(size));
    auto bad = check_size(given, size, first_size<Options>, sizeof(Options));
    if (!bad.ok())
      return fail(bad);
    std::memcpy(static_cast<void*>(&known), given, std::min(size, sizeof(Options)));
    return known;
  }

  /// Writes a structure to the caller's, of the size that is given there.
  template <class Output>
  status give(Output* out, const char* argument, Output value) const {
    auto size = out->struct_size;
    if (size < first_size<Output> || size > structure_bytes_max)
      return wrong(std::string{argument} + "->struct_size", "is not the size; set it before");
    value.struct_size = size;
    std::memset(static_cast<void*>(out), 0, size);
    std::memcpy(static_cast<void*>(out), &value, std::min(size, sizeof(value)));
    return {};
  }

  /// What `offsets` and `global_shape` of a tensor may say: nothing, or the box that is wanted of a
  /// stored tensor, or the place that it has in a whole one.
  enum class extent { whole, box, part };

  /// Copies descriptions of tensors.
  result<std::vector<tensor_view>> tensors(
    const millrace_tensor* given, std::size_t count, extent allowed = extent::whole) const;
  /// Copies the targets of a load, which may be boxes.
  result<std::vector<load_target>> targets(const millrace_tensor* given, std::size_t count) const;
  result<std::vector<std::pair<std::string, std::string>>> pairs(
    std::string_view argument, const millrace_pair* given, std::size_t count) const;
  /// Reads what the options of stores and of publications have in common.
  template <class Given, class Options>
  status read_storing(const Given& o, Options& out) const {
    auto time = timeout("options->timeout_ms", o.timeout_ms);
    if (!time)
      return time.error();
    if (o.checksums < -1 || o.checksums > 1)
      return wrong("options->checksums", fmt::format("is {}; it must be -1, 0 or 1", o.checksums));
    auto metadata = pairs("options->metadata", o.metadata, o.metadata_count);
    if (!metadata)
      return metadata.error();
    out.timeout = *time;
    if (o.checksums != 0)
      out.checksums = o.checksums > 0;
    out.metadata = std::move(*metadata);
    return {};
  }
  /// Copies an array of at most so many strings. `argument` is its name.
  result<std::vector<std::string>> texts(
    std::string_view argument, const char* const* given, std::size_t count,
    std::size_t count_max) const;

private:
  status check_size(
    const void* given, std::size_t size, std::size_t first, std::size_t known) const;
  status wrong_tensor(std::size_t index, std::string_view field, std::string_view what) const;
  status check_tensor(std::size_t index, const millrace_tensor& t, extent allowed) const;
  status check_extent(std::size_t index, const millrace_tensor& t, extent allowed) const;

  const char* function_;
};

/// Keeps the text of a failure for `millrace_error`, and returns its code.
millrace_code report(const status& outcome) noexcept;
/// Does so for the exception that is being handled.
millrace_code report_exception(const char* function) noexcept;

/// Runs the body of a C function: `status body(const call&)`.
template <class F>
millrace_code guarded(const char* function, F&& body) noexcept {
  try {
    return report(std::forward<F>(body)(call{function}));
  } catch (...) {
    return report_exception(function);
  }
}

/// Returns when a wait ends. A negative timeout gives a time after the end of every process that a
/// clock can still count.
time_point deadline_after(std::int64_t timeout_ms);

/// Returns the text of an optional argument.
inline std::string text_or(const char* given, const char* otherwise) {
  return given ? given : otherwise;
}

} // namespace millrace::bindings

// Checks arguments, and keeps the last failure of each thread.
#include "call.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <new>

namespace millrace::bindings {

namespace {

constexpr std::size_t error_bytes = 2048;

// Plain memory: nothing of it must be destroyed when a thread ends.
thread_local std::array<char, error_bytes> last_error{};

// Cuts between two characters.
void end_text(std::size_t written) noexcept {
  auto end = std::min(written, error_bytes - 1);
  if (written > end)
    while (end > 0 && (static_cast<unsigned char>(last_error[end]) & 0xC0) == 0x80)
      --end;
  last_error[end] = '\0';
}

void keep(errc code, const char* text) noexcept {
  auto name = to_string(code);
  std::array<char, error_bytes + 1> line{};
  auto written = std::snprintf(
    line.data(), line.size(), "%.*s: %s", static_cast<int>(name.size()), name.data(), text);
  std::copy_n(line.begin(), error_bytes, last_error.begin());
  end_text(written < 0 ? 0 : static_cast<std::size_t>(written));
}

} // namespace

status call::wrong(std::string_view argument, std::string_view what) const {
  return {errc::invalid_argument, "{}: {} {}", function_, argument, what};
}

status call::refused(const status& why) const { return why.within(function_); }

status call::need(std::initializer_list<std::pair<const void*, const char*>> arguments) const {
  for (auto& [pointer, name] : arguments)
    if (!pointer)
      return wrong(name, "is NULL");
  return {};
}

result<std::chrono::milliseconds> call::timeout(std::string_view argument, std::int64_t ms) const {
  if (ms < 0 || ms > timeout_ms_max)
    return fail(
      wrong(argument, fmt::format("is {}; it must be 0 to {} milliseconds", ms, timeout_ms_max)));
  return std::chrono::milliseconds{ms};
}

status call::check_size(
  const void* given, std::size_t size, std::size_t first, std::size_t known) const {
  if (size < first)
    return wrong(
      "options->struct_size",
      fmt::format("is {}, less than the {} of version 0.1; set it to the size", size, first));
  if (size > structure_bytes_max)
    return wrong("options->struct_size", fmt::format("is {}; set it to the size", size));
  if (size <= known)
    return {};
  auto* bytes = static_cast<const unsigned char*>(given);
  if (std::any_of(bytes + known, bytes + size, [](unsigned char b) { return b != 0; }))
    return wrong("options", "has a field that this version of the library does not know");
  return {};
}

status call::wrong_tensor(std::size_t index, std::string_view field, std::string_view what) const {
  return wrong(fmt::format("tensors[{}]{}", index, field), what);
}

status call::check_extent(std::size_t index, const millrace_tensor& t, extent allowed) const {
  if (allowed == extent::part && !t.offsets != !t.global_shape)
    return wrong_tensor(index, "", "has only one of `offsets` and `global_shape`");
  if (allowed == extent::whole && t.offsets)
    return wrong_tensor(
      index, ".offsets", "is set; it is for loads and for `millrace_register`, so clear it");
  if (allowed != extent::part && t.global_shape)
    return wrong_tensor(
      index, ".global_shape", "is set; it is for `millrace_register`, so clear it");
  return {};
}

status call::check_tensor(std::size_t index, const millrace_tensor& t, extent allowed) const {
  if (!t.name)
    return wrong_tensor(index, ".name", "is NULL");
  if (t.rank < 0 || t.rank > static_cast<std::int32_t>(tensor_rank_max))
    return wrong_tensor(index, ".rank", fmt::format("is {}; at most {}", t.rank, tensor_rank_max));
  if (t.dtype < 0 || t.dtype >= dtype_count)
    return wrong_tensor(index, ".dtype", fmt::format("is {}, which is no type", t.dtype));
  if (t.reserved[0] != 0 || t.reserved[1] != 0)
    return wrong_tensor(
      index, ".reserved", "is set; this version of the library has no use for it");
  if (t.rank > 0 && !t.shape)
    return wrong_tensor(index, ".shape", fmt::format("is NULL, and the rank is {}", t.rank));
  return check_extent(index, t, allowed);
}

result<std::vector<tensor_view>> call::tensors(
  const millrace_tensor* given, std::size_t count, extent allowed) const {
  if (!given)
    return fail(wrong("tensors", "is NULL"));
  if (count == 0 || count > layout_tensors_max)
    return fail(
      wrong("count", fmt::format("is {}; it must be 1 to {}", count, layout_tensors_max)));
  std::vector<tensor_view> views;
  views.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    auto& t = given[i];
    if (auto bad = check_tensor(i, t, allowed); !bad.ok())
      return fail(bad);
    tensor_view view;
    view.desc.name = t.name;
    view.desc.type = static_cast<dtype>(t.dtype);
    view.desc.shape.assign(t.shape, t.shape + t.rank);
    view.data = static_cast<std::byte*>(t.data);
    if (t.strides_bytes)
      view.strides_bytes.assign(t.strides_bytes, t.strides_bytes + t.rank);
    views.push_back(std::move(view));
  }
  return views;
}

result<std::vector<load_target>> call::targets(
  const millrace_tensor* given, std::size_t count) const {
  auto views = tensors(given, count, extent::box);
  if (!views)
    return fail(views.error());
  std::vector<load_target> all(count);
  for (std::size_t i = 0; i < count; ++i) {
    all[i].into = std::move((*views)[i]);
    if (auto* offsets = given[i].offsets)
      all[i].offsets.assign(offsets, offsets + given[i].rank);
  }
  return all;
}

result<std::vector<std::pair<std::string, std::string>>> call::pairs(
  std::string_view argument, const millrace_pair* given, std::size_t count) const {
  constexpr std::size_t count_max = 1024;
  if (count > count_max)
    return fail(wrong(argument, fmt::format("has {} pairs; at most {}", count, count_max)));
  if (count > 0 && !given)
    return fail(wrong(argument, fmt::format("is NULL, and there are {}", count)));
  std::vector<std::pair<std::string, std::string>> all;
  for (std::size_t i = 0; i < count; ++i) {
    if (!given[i].key || !given[i].value)
      return fail(wrong(fmt::format("{}[{}]", argument, i), "has a NULL"));
    all.emplace_back(given[i].key, given[i].value);
  }
  return all;
}

result<std::vector<std::string>> call::texts(
  std::string_view argument, const char* const* given, std::size_t count,
  std::size_t count_max) const {
  if (count > count_max)
    return fail(wrong(argument, fmt::format("has {} texts; at most {}", count, count_max)));
  if (count > 0 && !given)
    return fail(wrong(argument, "is NULL"));
  std::vector<std::string> all;
  for (std::size_t i = 0; i < count; ++i) {
    if (!given[i])
      return fail(wrong(fmt::format("{}[{}]", argument, i), "is NULL"));
    all.emplace_back(given[i]);
  }
  return all;
}

time_point deadline_after(std::int64_t timeout_ms) {
  constexpr std::int64_t forever_ms = 100LL * 366 * 86'400'000;
  auto ms = timeout_ms < 0 ? forever_ms : std::min(timeout_ms, forever_ms);
  return steady_clock::now() + std::chrono::milliseconds{ms};
}

millrace_code report(const status& outcome) noexcept {
  if (!outcome.ok())
    keep(outcome.code(), outcome.detail().c_str());
  return static_cast<millrace_code>(outcome.code());
}

millrace_code report_exception(const char* function) noexcept {
  std::array<char, error_bytes> text{};
  auto code = errc::internal;
  try {
    throw;
  } catch (const error& e) {
    return report(e.why());
  } catch (const std::bad_alloc&) {
    code = errc::no_space;
    std::snprintf(text.data(), text.size(), "%s: this process has no memory left", function);
  } catch (const std::exception& e) {
    std::snprintf(text.data(), text.size(), "%s: %s", function, e.what());
  } catch (...) {
    std::snprintf(text.data(), text.size(), "%s: an unknown exception", function);
  }
  keep(code, text.data());
  return static_cast<millrace_code>(code);
}

} // namespace millrace::bindings

const char* millrace_error(void) { return millrace::bindings::last_error.data(); }

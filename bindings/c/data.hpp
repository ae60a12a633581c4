// What stands behind the readers, loaders and batches of millrace_data.h. Used by the functions of
// both.
#pragma once

#include "making.hpp"

#include <millrace/runtime/client/loader.hpp>
#include <millrace/runtime/client/working_set.hpp>

#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::bindings {

/// What is behind a handle of the program.
template <class T>
struct held {
  explicit held(T o) : of(std::move(o)) {}

  T of;
  process_mark made_in = {};
};

} // namespace millrace::bindings

struct millrace_set_reader : millrace::bindings::held<millrace::set_reader> {
  explicit millrace_set_reader(millrace::set_reader r)
    : held(std::move(r)), left_out(millrace::bindings::pointers_to(of.info().left_out)) {}

  std::vector<const char*> left_out;
};

struct millrace_loader : millrace::bindings::held<millrace::loader> {
  using held::held;
};

struct millrace_batch {
  explicit millrace_batch(millrace::batch b) : of(std::move(b)) {
    for (std::size_t i = 0; i < of.fields(); ++i)
      fields.push_back(of.field(i));
    mask = of.mask();
  }

  millrace::batch of;
  std::vector<millrace::tensor_view> fields; // names and shapes are pointed into
  millrace::tensor_view mask;
  millrace::process_mark made_in = {};
};

namespace millrace::bindings {

/// The end of an epoch, or of a stream, is a batch of its own, which the program sees as NULL.
struct next_batch {
  std::optional<millrace::batch> of;
};

/// Waits for a batch, and gives it.
inline status await_batch(const future<std::optional<batch>>& coming, millrace_batch** out) {
  auto& next = coming.result();
  if (!next)
    return next.error();
  if (*next)
    *out = new millrace_batch{**next};
  return {};
}

/// Hands over the request for a batch, which `millrace_request_batch` gives.
inline status begin_batch(const future<std::optional<batch>>& coming, millrace_request** out) {
  using next_request = making<std::optional<batch>, next_batch>;
  auto begun = std::make_unique<next_request>([](const std::optional<batch>& made) {
    return std::make_unique<next_batch>(next_batch{made});
  });
  begun->begin(coming);
  return hand_over<void>(std::move(begun), out);
}

inline status check_field(const call& here, std::size_t field, std::size_t count) {
  if (field < count)
    return {};
  return here.wrong("field", fmt::format("is {}, and there are {} fields", field, count));
}

/// Reads an option that is a text; NULL: `out` stays. The error of `parse` names the option.
template <class T>
status read_kind(const call& here, const char* text, result<T> (*parse)(std::string_view), T& out) {
  if (!text)
    return {};
  auto kind = parse(text);
  if (!kind)
    return here.refused(kind.error());
  out = *kind;
  return {};
}

/// Checks that an object is there, and that it is not one of the process that forked this one.
template <class Handle>
status need_here(const call& here, const Handle* handle, const char* name) {
  if (!handle)
    return here.wrong(name, "is NULL");
  if (handle->made_in.is_here())
    return {};
  return {
    errc::unavailable, "this {} belongs to process {}; open one here", name,
    handle->made_in.process()};
}

} // namespace millrace::bindings

// Streaming sets in C++17. A part of millrace.hpp, which includes it.
#pragma once

#include "millrace_data.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace millrace::abi {

inline namespace v0 {

/// Appends samples to a stream, see `millrace_append`. One that is destroyed before `end` was over
/// gives up what is under way.
class stream_producer {
public:
  using handle = millrace_producer;
  explicit stream_producer(detail::owned<millrace_producer> p) : of_(std::move(p)) {}

  /// The name, the type and the shape of one sample of each field, valid as long as the producer.
  std::vector<millrace_tensor> fields() const {
    std::vector<millrace_tensor> all(millrace_producer_fields(of_.get()));
    for (std::size_t i = 0; i < all.size(); ++i)
      check(millrace_producer_field(of_.get(), i, &all[i]));
    return all;
  }
  /// A tensor of each field, whose bytes are copied before the call returns. The request is over
  /// when the stream has the sample.
  request append(const tensors& sample) const {
    return detail::begun(
      [&](auto** out) { return millrace_append(of_.get(), sample.data(), sample.size(), out); });
  }
  request end() const {
    return detail::begun([&](auto** out) { return millrace_producer_end(of_.get(), out); });
  }

private:
  detail::owned<millrace_producer> of_;
};

/// Reads batches of a stream, see `millrace_stream_next`. Batches outlive it.
class stream_reader {
public:
  using handle = millrace_stream_reader;
  explicit stream_reader(detail::owned<millrace_stream_reader> r) : of_(std::move(r)) {}

  /// The name, the type and the shape of one sample of each field, valid as long as the reader.
  std::vector<millrace_tensor> fields() const {
    std::vector<millrace_tensor> all(millrace_stream_reader_fields(of_.get()));
    for (std::size_t i = 0; i < all.size(); ++i)
      check(millrace_stream_reader_field(of_.get(), i, &all[i]));
    return all;
  }
  /// Waits for `samples` samples; 0: a whole batch. Gives no batch at the end of the stream. A
  /// `timeout` of 0 waits as long as the stream lives.
  batch next(std::uint64_t samples = 0, std::chrono::milliseconds timeout = {}) const {
    return batch{detail::made<millrace_batch>(
      [&](auto** out) { return millrace_stream_next(of_.get(), samples, timeout.count(), out); })};
  }
  making<batch> begin_next(
    std::uint64_t samples = 0, std::chrono::milliseconds timeout = {}) const {
    return {
      detail::begun([&](auto** out) {
        return millrace_stream_next_begin(of_.get(), samples, timeout.count(), out);
      }),
      millrace_request_batch};
  }

private:
  detail::owned<millrace_stream_reader> of_;
};

/// A streaming set by its name. The client must live as long as it.
class stream {
public:
  stream(const client& by, std::string name) : client_(by.get()), name_(std::move(name)) {}

  const std::string& name() const noexcept { return name_; }

  /// Makes the stream, whose samples have these fields, with `data` NULL.
  request create(const tensors& fields, const millrace_stream_options* options = nullptr) const {
    return detail::begun([&](auto** out) {
      return millrace_stream_create(
        client_, name_.c_str(), fields.data(), fields.size(), options, out);
    });
  }
  /// Waits.
  millrace_stream_info info() const {
    auto i = detail::sized<millrace_stream_info>();
    check(millrace_stream_describe(client_, name_.c_str(), &i));
    return i;
  }
  request end() const {
    return detail::begun(
      [&](auto** out) { return millrace_stream_end(client_, name_.c_str(), out); });
  }
  request remove() const {
    return detail::begun(
      [&](auto** out) { return millrace_stream_remove(client_, name_.c_str(), out); });
  }
  /// Waits until it is open.
  stream_producer producer(const millrace_producer_options* options = nullptr) const {
    return stream_producer{detail::made<millrace_producer>(
      [&](auto** out) { return millrace_open_producer(client_, name_.c_str(), options, out); })};
  }
  /// Waits until it is open.
  stream_reader reader(const millrace_stream_reader_options* options = nullptr) const {
    return stream_reader{detail::made<millrace_stream_reader>([&](auto** out) {
      return millrace_open_stream_reader(client_, name_.c_str(), options, out);
    })};
  }

private:
  millrace_client* client_;
  std::string name_;
};

/// Lists the streams whose names start with `prefix`, see `streams_of`.
inline request list_streams(const client& by, const std::string& prefix = {}) {
  return detail::begun(
    [&](auto** out) { return millrace_list_streams(by.get(), prefix.c_str(), out); });
}

/// The streams of a listing, which is over, or the one that was created. Their strings are valid as
/// long as the request.
inline std::vector<millrace_stream_info> streams_of(const request& listing) {
  std::vector<millrace_stream_info> all(
    millrace_request_count(listing.get()), detail::sized<millrace_stream_info>());
  for (std::size_t i = 0; i < all.size(); ++i)
    check(millrace_request_stream(listing.get(), i, &all[i]));
  return all;
}

} // namespace v0

} // namespace millrace::abi

// Working sets and loaders in C++17. A part of millrace.hpp, which includes it.
#pragma once

#include "millrace.hpp"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace millrace::abi {

inline namespace v0 {

/// A batch in the ring of a loader. Its memory is valid until it is destroyed. Without a batch:
/// the epoch has ended.
class batch {
public:
  using handle = millrace_batch;
  explicit batch(detail::owned<millrace_batch> b) : of_(std::move(b)) {}

  explicit operator bool() const noexcept { return of_ != nullptr; }

  millrace_batch_info info() const {
    auto i = detail::sized<millrace_batch_info>();
    check(millrace_batch_describe(of_.get(), &i));
    return i;
  }
  std::vector<std::uint64_t> ids() const {
    auto i = info();
    return {i.ids, i.ids + i.ids_count};
  }
  millrace_tensor field(std::size_t index) const {
    millrace_tensor t{};
    check(millrace_batch_field(of_.get(), index, &t));
    return t;
  }
  /// See `millrace_batch_follow`.
  void follow(void* cuda_stream) const { check(millrace_batch_follow(of_.get(), cuda_stream)); }
  /// Where in the field each place begins, and where the last one ends. Empty: all are of one size.
  std::vector<std::uint64_t> offsets(std::size_t index) const {
    const std::uint64_t* all = nullptr;
    std::size_t count = 0;
    check(millrace_batch_offsets(of_.get(), index, &all, &count));
    return {all, all + count};
  }

private:
  detail::owned<millrace_batch> of_;
};

/// The batches of one rank, see `millrace_loader_create`.
class loader {
public:
  using handle = millrace_loader;
  explicit loader(detail::owned<millrace_loader> l) : of_(std::move(l)) {}

  /// Waits. Gives no batch at the end of an epoch, once.
  batch next() const {
    return batch{
      detail::made<millrace_batch>([&](auto** out) { return millrace_next(of_.get(), out); })};
  }
  making<batch> begin_next() const {
    return {
      detail::begun([&](auto** out) { return millrace_next_begin(of_.get(), out); }),
      millrace_request_batch};
  }
  /// Where the training is, as JSON.
  std::string state() const {
    char text[MILLRACE_LOADER_STATE_BYTES];
    check(millrace_loader_state(of_.get(), text, sizeof(text)));
    return text;
  }
  /// See `millrace_loader_processors`.
  std::string processors() const {
    char text[8192]; // thousands of processors
    check(millrace_loader_processors(of_.get(), text, sizeof(text)));
    return text;
  }
  void seek(const std::string& state) const {
    check(millrace_loader_seek(of_.get(), state.c_str()));
  }
  void set_epoch(std::uint64_t epoch) const { check(millrace_loader_set_epoch(of_.get(), epoch)); }
  millrace_loader_info info() const {
    auto i = detail::sized<millrace_loader_info>();
    check(millrace_loader_describe(of_.get(), &i));
    return i;
  }

private:
  detail::owned<millrace_loader> of_;
};

/// A working set that is open.
class set_reader {
public:
  using handle = millrace_set_reader;
  explicit set_reader(detail::owned<millrace_set_reader> r) : of_(std::move(r)) {}

  /// Its strings are valid as long as the reader.
  millrace_set info() const {
    auto s = detail::sized<millrace_set>();
    check(millrace_set_reader_describe(of_.get(), &s));
    return s;
  }
  /// The type and the shape of one sample of a field.
  millrace_tensor field(std::size_t index) const {
    millrace_tensor t{};
    check(millrace_set_reader_field(of_.get(), index, &t));
    return t;
  }
  /// Samples that were read from files, see `millrace_set_reader_samples_from_files`.
  std::uint64_t samples_from_files() const noexcept {
    return millrace_set_reader_samples_from_files(of_.get());
  }
  /// Samples that came from a window, see `millrace_set_reader_samples_from_window`.
  std::uint64_t samples_from_window() const noexcept {
    return millrace_set_reader_samples_from_window(of_.get());
  }
  /// The bytes of samples of a field, in the order of `ids`. Waits.
  std::vector<std::uint64_t> sizes(std::size_t field, const std::vector<std::uint64_t>& ids) const {
    auto asked = detail::begun([&](auto** out) {
      return millrace_set_reader_sizes(of_.get(), field, ids.data(), ids.size(), out);
    });
    asked.wait();
    const std::uint64_t* all = nullptr;
    std::size_t count = 0;
    check(millrace_request_sizes(asked.get(), &all, &count));
    return {all, all + count};
  }
  /// The samples that have these texts, see `millrace_find_samples`. Waits.
  std::vector<std::uint64_t> find(std::size_t field, const std::vector<std::string>& texts) const {
    auto asked = detail::begun([&](auto** out) {
      auto all = detail::pointers(texts);
      return millrace_find_samples(of_.get(), field, all.data(), all.size(), out);
    });
    asked.wait();
    const std::uint64_t* ids = nullptr;
    std::size_t count = 0;
    check(millrace_request_samples(asked.get(), &ids, &count));
    return {ids, ids + count};
  }
  /// The memory must stay until the request is over.
  request read_batch(
    std::size_t field, const std::vector<std::uint64_t>& ids, void* into,
    std::size_t into_bytes) const {
    return detail::begun([&](auto** out) {
      return millrace_read_batch(of_.get(), field, ids.data(), ids.size(), into, into_bytes, out);
    });
  }
  /// Reads all samples of a field. The memory must stay until the request is over.
  request load(std::size_t field, void* into, std::size_t into_bytes) const {
    return detail::begun(
      [&](auto** out) { return millrace_load_field(of_.get(), field, into, into_bytes, out); });
  }
  /// Compares all samples with their digests, see `millrace_verify_samples`; `damage_of` says what
  /// was found.
  request verify(millrace_progress progress = nullptr, void* context = nullptr) const {
    return detail::begun(
      [&](auto** out) { return millrace_verify_samples(of_.get(), progress, context, out); });
  }
  /// The samples at positions of an epoch, see `millrace_set_reader_order`.
  std::vector<std::uint64_t> order(
    const millrace_order_options& options, std::uint64_t first, std::size_t count) const {
    std::vector<std::uint64_t> ids(count);
    check(millrace_set_reader_order(of_.get(), &options, first, count, ids.data()));
    return ids;
  }
  /// The positions of samples in an epoch, in the order of `ids`.
  std::vector<std::uint64_t> positions(
    const millrace_order_options& options, std::vector<std::uint64_t> ids) const {
    check(millrace_set_reader_positions(of_.get(), &options, ids.data(), ids.size(), ids.data()));
    return ids;
  }
  loader load_batches(const millrace_loader_options& options) const {
    return loader{detail::made<millrace_loader>(
      [&](auto** out) { return millrace_loader_create(of_.get(), &options, out); })};
  }

private:
  detail::owned<millrace_set_reader> of_;
};

/// A working set by its name. The client must live as long as it.
class working_set {
public:
  working_set(const client& by, std::string name) : client_(by.get()), name_(std::move(name)) {}

  const std::string& name() const noexcept { return name_; }

  request preload(
    const std::vector<std::string>& files,
    const millrace_preload_options* options = nullptr) const {
    return bring(millrace_preload, files, options);
  }
  /// See `millrace_append_to_set`.
  request append(
    const std::vector<std::string>& files,
    const millrace_preload_options* options = nullptr) const {
    return bring(millrace_append_to_set, files, options);
  }
  request describe() const {
    return detail::begun(
      [&](auto** out) { return millrace_describe_set(client_, name_.c_str(), out); });
  }
  /// What a window has, and what it has done. Waits.
  millrace_window_info window() const {
    auto i = detail::sized<millrace_window_info>();
    check(millrace_describe_window(client_, name_.c_str(), &i));
    return i;
  }
  /// How this process would read the set, see `millrace_describe_access`; `parts_of` and
  /// `processors_of` say what was found. `device`: as "cuda:0"; empty: memory of the host.
  request access(const std::string& device = {}) const {
    return detail::begun([&](auto** out) {
      return millrace_describe_access(
        client_, name_.c_str(), device.empty() ? nullptr : device.c_str(), out);
    });
  }
  request unload() const {
    return detail::begun([&](auto** out) { return millrace_unload(client_, name_.c_str(), out); });
  }
  /// Waits until it is open. `options`: files that stand for a data server that is lost.
  set_reader open(const millrace_open_set_options* options = nullptr) const {
    return set_reader{detail::made<millrace_set_reader>(
      [&](auto** out) { return millrace_open_set_with(client_, name_.c_str(), options, out); })};
  }
  making<set_reader> begin_open(const millrace_open_set_options* options = nullptr) const {
    return {
      detail::begun([&](auto** out) {
        return millrace_open_set_with_begin(client_, name_.c_str(), options, out);
      }),
      millrace_request_set_reader};
  }

private:
  template <class Begin>
  request bring(
    Begin begin, const std::vector<std::string>& files,
    const millrace_preload_options* options) const {
    auto paths = detail::pointers(files);
    return detail::begun([&](auto** out) {
      return begin(client_, name_.c_str(), paths.data(), paths.size(), options, out);
    });
  }

  millrace_client* client_;
  std::string name_;
};

/// The files that a preload has left out, see `millrace_request_skipped`. Their strings are valid
/// as long as the request.
inline std::vector<millrace_skipped_file> skipped_files(const request& preload) {
  std::vector<millrace_skipped_file> all;
  auto file = detail::sized<millrace_skipped_file>();
  while (millrace_request_skipped(preload.get(), all.size(), &file) == MILLRACE_OK)
    all.push_back(file);
  return all;
}

/// What a comparison has found, see `millrace_request_damage`. Valid as long as the request.
inline millrace_set_damage damage_of(const request& verify) {
  auto d = detail::sized<millrace_set_damage>();
  check(millrace_request_damage(verify.get(), &d));
  return d;
}

/// How the parts of a set are reached, see `millrace_request_part`. Their strings are valid as long
/// as the request.
inline std::vector<millrace_part_access> parts_of(const request& access) {
  std::vector<millrace_part_access> all(
    millrace_request_count(access.get()), detail::sized<millrace_part_access>());
  for (std::size_t i = 0; i < all.size(); ++i)
    check(millrace_request_part(access.get(), i, &all[i]));
  return all;
}

/// Where the threads that copy would be kept, see `millrace_request_processors`.
inline std::string processors_of(const request& access) {
  auto* text = millrace_request_processors(access.get());
  return text ? text : "";
}

/// Lists the working sets whose names start with `prefix`.
inline request list_sets(const client& by, const std::string& prefix = {}) {
  return detail::begun(
    [&](auto** out) { return millrace_list_sets(by.get(), prefix.c_str(), out); });
}

} // namespace v0

} // namespace millrace::abi

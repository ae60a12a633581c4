// The facades of streams.
#include <millrace/runtime/client/calls/stream_producing.hpp>
#include <millrace/runtime/client/calls/stream_reading.hpp>
#include <millrace/runtime/client/stream.hpp>

namespace millrace {

using runtime::stream_producing;
using runtime::stream_reading;
using runtime::stream_view;

namespace {

// Asks for something to be done.
template <class Request>
future<void> asked_to(
  const std::shared_ptr<runtime::client_core>& core, const std::string& name, Request request) {
  if (auto refused = core->refused<void>(name))
    return *refused;
  auto done = core->make_promise<void>();
  runtime::ask_stream(*core, name, std::move(request))
    .chain([done](const result<actors::done_reply>& r) {
      done.set(r ? result<void>{} : fail(r.error()));
    });
  return done.get_future();
}

// Descriptions from a node may lie.
result<stream_status> checked(const stream_status& one) {
  auto bad = validate(one.options);
  return bad.ok() ? result<stream_status>{one} : fail(errc::protocol_error, bad.detail());
}

// Opens a stream, and makes the object behind a producer or a reader. Memory for it is made on a
// mover: to touch its pages takes longer than the I/O loop has.
template <class Facade, class Behind, class Options>
future<Facade> opened(
  const std::shared_ptr<runtime::client_core>& core, const std::string& name, bool writes,
  const Options& options) {
  if (auto refused = core->refused<Facade>(name))
    return *refused;
  auto done = core->make_promise<Facade>();
  stream_view::open(
    core, name, writes, [done, options](const result<std::shared_ptr<stream_view>>& opened) {
      if (!opened)
        return static_cast<void>(done.set(fail(opened.error())));
      (*opened)->core()->runs_on()->fabric()->movers()->submit(
        1,
        [done, options, view = *opened](std::uint32_t) {
          auto made = Behind::make(view, options);
          if (!made)
            view->leave();
          done.set(
            made ? result<Facade>{Facade{runtime::held_by_program(std::move(*made))}}
                 : fail(made.error()));
        },
        [] {});
    });
  return done.get_future();
}

} // namespace

future<void> stream_producer::append(const std::vector<tensor_view>& sample) const {
  return of_->append(sample);
}
future<void> stream_producer::end() const { return of_->end(); }
const stream_status& stream_producer::stream() const noexcept { return of_->stream(); }

future<std::optional<batch>> stream_reader::next(
  std::uint64_t samples, std::chrono::milliseconds timeout) const {
  return of_->next(samples, timeout);
}
const stream_status& stream_reader::stream() const noexcept { return of_->stream(); }

future<stream_status> stream::create(const stream_options& options) const {
  if (auto refused = core_->refused<stream_status>(name_))
    return *refused;
  auto done = core_->make_promise<stream_status>();
  runtime::ask_stream(
    *core_, name_, actors::create_stream_request{name_, options, core_->timeout_ms()})
    .chain([done](const result<stream_status>& r) { done.set(r ? checked(*r) : fail(r.error())); });
  return done.get_future();
}

future<stream_producer> stream::producer(const producer_options& options) const {
  return opened<stream_producer, stream_producing>(core_, name_, true, options);
}

future<stream_reader> stream::reader(const stream_reader_options& options) const {
  return opened<stream_reader, stream_reading>(core_, name_, false, options);
}

future<stream_status> stream::status() const {
  if (auto refused = core_->refused<stream_status>(name_))
    return *refused;
  auto done = core_->make_promise<stream_status>();
  // The name itself is the first one that begins with it.
  runtime::ask_stream(*core_, name_, actors::list_streams_request{name_, {}, 1})
    .chain([done, name = name_](const result<actors::stream_list>& found) {
      if (!found)
        return static_cast<void>(done.set(fail(found.error())));
      if (found->streams.empty() || found->streams.front().name != name)
        return static_cast<void>(done.set(fail(errc::not_found, "there is no stream {}", name)));
      done.set(checked(found->streams.front()));
    });
  return done.get_future();
}

future<void> stream::end() const {
  return asked_to(core_, name_, actors::end_stream_request{name_});
}

future<void> stream::remove() const {
  return asked_to(core_, name_, actors::remove_stream_request{name_});
}

} // namespace millrace

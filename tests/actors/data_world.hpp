// A data server's actor that peers ask through sessions. Used by its tests.
#pragma once

#include "data_fixture.hpp"

#include <boost/test/unit_test.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>

namespace millrace::testing {

struct data_world : data_fixture {
  data_world() : data_fixture(heap_data_memory{4, 3}) { start(); }

  void start() {
    serve<actors::data_service>(
      actors::data_server_of_node, actors::spawn_data_server(system, deps("n0/data")));
  }

  // An answer may come from a mover.
  template <class Request, class Reply = typename actors::data_service::template reply_of<Request>>
  result<Reply> ask(const Request& request, channel_ptr from = nullptr) {
    auto& by = from ? *from : *channel;
    auto number =
      bring(by, actors::encode_request<actors::data_service>(actors::data_server_of_node, request));
    auto until = std::chrono::steady_clock::now() + std::chrono::seconds{10};
    while (!by.replies.contains(number) && std::chrono::steady_clock::now() < until) {
      run();
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    BOOST_TEST_REQUIRE(by.replies.contains(number));
    return actors::decode_reply<Reply>(by.replies[number]);
  }

  template <class Request>
  errc refusal(const Request& request, channel_ptr from = nullptr) {
    auto reply = ask(request, std::move(from));
    return reply ? errc::ok : reply.error().code();
  }

  std::uint64_t used() { return bytes.memory.pool->stats().used_bytes; }
};

inline actors::reserve_set_request some_set(
  const std::string& name, std::uint64_t samples, std::uint64_t source) {
  actors::reserve_set_request out;
  out.set.name = name;
  out.set.samples = samples;
  out.set.source = source;
  out.set.fields = {{{"x", dtype::u8, {1000}}}};
  return out;
}

} // namespace millrace::testing

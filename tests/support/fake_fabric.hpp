// A fabric that moves bytes only when the test says so. For actors under the deterministic scheduler.
#pragma once

#include "heap_memory_source.hpp"

#include <millrace/transport/fabric.hpp>

#include <cstring>
#include <deque>

namespace millrace::testing {

class fake_fabric : public transport::fabric {
public:
  struct held {
    transport::transfer what;
    completion<transport::transfer_report> done;
  };

  /// Transfers submitted and not yet ended, oldest first.
  std::deque<held> waiting;
  std::uint64_t submitted = 0;

  /// Ends the oldest transfer as if its bytes had moved; reads bring `fill`.
  void finish(std::byte fill = std::byte{7}, std::vector<std::uint64_t> digests = {}) {
    auto h = take();
    for (auto& op : h.what.ops)
      if (h.what.dir == transport::direction::read)
        std::memset(op.local, static_cast<int>(fill), op.length);
    h.what.hold.reset();
    h.done(transport::transfer_report{std::move(digests), "fake"});
  }

  void fail_oldest(const status& why) {
    auto h = take();
    h.what.hold.reset();
    h.done(fail(why));
  }

  result<std::shared_ptr<memory_source>> make_memory(
    const transport::arena_options& options, transport::staging_mode) override {
    return std::make_shared<heap_memory_source>(options.size_bytes);
  }
  void peer_opened(const std::shared_ptr<transport::channel>&) override {}
  void peer_closed(transport::channel&, const status&) override {}
  void on_frame(transport::channel&, transport::frame) override {}
  void submit(transport::transfer t, completion<transport::transfer_report> done) override {
    ++submitted;
    waiting.push_back({std::move(t), std::move(done)});
  }
  const std::shared_ptr<transport::mover_pool>& movers() const noexcept override { return none_; }
  std::vector<transport::path_stats> paths() const override { return {}; }

private:
  held take() {
    auto h = std::move(waiting.front());
    waiting.pop_front();
    return h;
  }

  std::shared_ptr<transport::mover_pool> none_;
};

} // namespace millrace::testing

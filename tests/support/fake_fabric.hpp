// A fabric that moves bytes only when the test says so.
// Used by tests of actors under the deterministic scheduler.
#pragma once

#include "heap_memory_source.hpp"

#include <millrace/transport/fabric.hpp>

#include <cstring>
#include <deque>
#include <map>

namespace millrace::testing {

class fake_fabric : public transport::fabric {
public:
  struct held {
    transport::transfer what;
    completion<transport::transfer_report> done;
  };

  struct held_copy {
    std::vector<transport::local_copy> parts;
    bool write_back = false;
    completion<void> done;
  };

  /// Transfers that were submitted and have not ended, oldest first.
  std::deque<held> waiting;
  std::uint64_t submitted = 0;
  /// Copies within the process that have not ended, oldest first.
  std::deque<held_copy> copying;
  /// Mappings that were adopted and not withdrawn, by their first byte.
  std::map<std::byte*, std::weak_ptr<void>> adopted;

  /// Null, unless the actors of a test need threads that copy.
  std::shared_ptr<transport::mover_pool> with_movers;

  /// Keeps the completions of ended transfers, like a thread that was interrupted right after the
  /// call.
  bool keeps_spent = false;
  std::deque<completion<transport::transfer_report>> spent;

  /// Ends the oldest transfer as if its bytes had moved. A read fills its targets with `fill`, and
  /// reports them as written back if that was asked for.
  void finish(std::byte fill = std::byte{7}, std::vector<std::uint64_t> digests = {}) {
    auto h = take();
    for (auto& op : h.what.ops)
      if (h.what.dir == transport::direction::read)
        std::memset(op.local, static_cast<int>(fill), op.length);
    h.what.hold.reset();
    h.done(transport::transfer_report{std::move(digests), "fake", h.what.write_back});
    if (keeps_spent)
      spent.push_back(std::move(h.done));
  }

  /// Does the oldest copy within the process.
  void finish_copy() {
    auto h = std::move(copying.front());
    copying.pop_front();
    for (auto& part : h.parts)
      std::memcpy(part.target, part.source, part.length);
    h.done({});
  }

  void fail_oldest_copy(const status& why) {
    auto h = std::move(copying.front());
    copying.pop_front();
    h.done(fail(why));
  }

  void fail_oldest(const status& why) {
    auto h = take();
    h.what.hold.reset();
    h.done(fail(why));
  }

  result<std::shared_ptr<memory_source>> make_memory(
    const transport::arena_options& options) override {
    return std::make_shared<heap_memory_source>(options.size_bytes);
  }
  result<std::shared_ptr<void>> adopt(const file_mapping& mapping) override {
    auto token = std::make_shared<file_mapping>(mapping);
    adopted[mapping.data] = token;
    return token;
  }
  void copy(
    std::vector<transport::local_copy> parts, bool write_back, completion<void> done) override {
    copying.push_back({std::move(parts), write_back, std::move(done)});
  }
  void peer_opened(const std::shared_ptr<net::channel>&) override {}
  void peer_closed(net::channel&, const status&) override {}
  std::shared_ptr<net::stream_acceptor> stream_acceptor() const override { return nullptr; }
  void on_frame(net::channel&, net::frame) override {}
  void submit(transport::transfer t, completion<transport::transfer_report> done) override {
    ++submitted;
    waiting.push_back({std::move(t), std::move(done)});
  }
  void map(const bulk_handle&, access_mode, completion<transport::mapped_region> done) override {
    done(fail(errc::unsupported, "the fake fabric maps nothing"));
  }
  const std::shared_ptr<transport::mover_pool>& movers() const noexcept override {
    return with_movers;
  }
  void invalidate(const void*, std::uint64_t) override {}
  std::vector<path_stats> paths() const override { return {}; }
  std::vector<driver_report> reports() const override { return {}; }

private:
  held take() {
    auto h = std::move(waiting.front());
    waiting.pop_front();
    return h;
  }
};

} // namespace millrace::testing

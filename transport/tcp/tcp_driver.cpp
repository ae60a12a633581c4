// Keeps the links to peers and admits their streams.
#include <millrace/transport/peer_links.hpp>
#include <millrace/transport/tcp/peer_link.hpp>
#include <millrace/transport/tcp/stream_admission.hpp>
#include <millrace/transport/tcp/tcp_driver.hpp>

namespace millrace::transport {

namespace {

using tcp::peer_link;

class tcp_driver : public peer_driver, public std::enable_shared_from_this<tcp_driver> {
public:
  tcp_driver(std::shared_ptr<net::io_loop> loop, const tcp_options& options) : options_(options) {
    loops_.first = std::move(loop);
  }

  ~tcp_driver() override {
    if (admission_)
      admission_->close();
    for (auto& link : links_.all())
      link->close({errc::unavailable, "the driver is shutting down"});
    // The last owner may drop the driver on one of these loops. That loop's handle then ends the
    // thread by itself.
    for (auto& loop : loops_.others)
      if (!loop->on_loop())
        loop->stop();
  }

  status open() {
    for (std::uint32_t i = 0; i < std::min(options_.io_threads, options_.streams); ++i) {
      auto loop = net::io_loop::start({.poll_us = 0});
      if (!loop)
        return loop.error();
      loops_.others.push_back(std::move(*loop));
    }
    admission_ = std::make_shared<tcp::stream_admission>(
      loops_.first, options_, [weak = weak_from_this()](const tcp::group_id& group) {
        auto self = weak.lock();
        return self ? self->expected(group) : std::nullopt;
      });
    for (auto& address : options_.listen) {
      auto at = admission_->listen(address);
      if (!at)
        return at.error();
      addresses_.push_back(at->to_string());
    }
    return {};
  }

  std::string_view name() const noexcept override { return "tcp"; }
  driver_capabilities capabilities() const noexcept override { return {}; }
  bool reaches(const peer_id& owner) const noexcept override { return link_to(owner) != nullptr; }
  std::shared_ptr<net::stream_acceptor> stream_acceptor() const override { return admission_; }

  void peer_opened(const std::shared_ptr<net::channel>& c) override {
    auto link = std::make_shared<peer_link>(loops_, options_, c, addresses_);
    links_.add(*c, link);
    link->start();
  }

  void peer_closed(net::channel& c, const status& why) override {
    auto link = links_.take(c);
    if (!link)
      return;
    admission_->retire(link->group());
    link->close(why);
  }

  void submit(transfer t, completion<transfer_report> done) override {
    auto link = link_to(t.remote.owner);
    if (!link)
      return done(fail(errc::peer_lost, "no connection to the process that owns the memory"));
    link->submit(std::move(t), std::move(done));
  }

  void on_message(
    net::channel& c, std::span<const std::byte> body, std::vector<net::unique_fd>) override {
    auto link = links_.find(c);
    if (!link)
      return;
    if (auto bad = link->on_message(body); !bad.ok())
      c.close(bad.within("a tcp message"));
  }

private:
  std::shared_ptr<peer_link> link_to(const peer_id& owner) const noexcept {
    return links_.to(owner, [](auto& link) { return link.reachable(); });
  }

  std::optional<tcp::expected_group> expected(const tcp::group_id& group) const {
    auto link = links_.find_if([&](auto& l) { return l.group() == group; });
    return link ? std::optional{link->expectation()} : std::nullopt;
  }

  const tcp_options options_;
  tcp::stream_loops loops_;
  std::shared_ptr<tcp::stream_admission> admission_;
  std::vector<std::string> addresses_;
  peer_links<peer_link> links_;
};

} // namespace

result<std::shared_ptr<peer_driver>> make_tcp_driver(
  const driver_deps& deps, const tcp_options& options) {
  auto own = options;
  if (!deps.listens)
    own.listen.clear();
  auto made = std::make_shared<tcp_driver>(deps.loop, own);
  if (auto bad = made->open(); !bad.ok())
    return fail(bad);
  return made;
}

} // namespace millrace::transport

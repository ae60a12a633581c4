// Listens on a Unix socket. Owners connect, and print where their memory is on standard output.
#include <millrace/bench/transfer/rig.hpp>
#include <millrace/config/scalar.hpp>
#include <millrace/config/section.hpp>
#include <millrace/core/codec.hpp>
#include <millrace/core/future.hpp>
#include <millrace/transport/tcp/tcp_options.hpp>
#include <millrace/transport/verbs/verbs_options.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>
#include <thread>

namespace millrace::bench {

using namespace net;
using namespace transport;

namespace {

constexpr int owner_timeout_ms = 60'000;
constexpr auto connect_patience = std::chrono::seconds{20};

// Feeds a channel's events to a fabric.
class fabric_link : public channel_handler {
public:
  explicit fabric_link(std::shared_ptr<fabric> f) : fabric_(std::move(f)) {}
  void on_open(const std::shared_ptr<channel>& c) override { fabric_->peer_opened(c); }
  void on_frame(channel& c, frame f) override { fabric_->on_frame(c, std::move(f)); }
  void on_close(channel& c, const status& why) override { fabric_->peer_closed(c, why); }

private:
  std::shared_ptr<fabric> fabric_;
};

std::string to_text(const bulk_handle& h) {
  auto bytes = encode(h);
  return to_hex(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

bulk_handle handle_from(const std::string& text) {
  byte_buffer bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  return need(decode<bulk_handle>(bytes, "handle"), "reading an owner's handle");
}

// Ordinary memory of a trainer, touched.
class exposed_memory {
public:
  exposed_memory(std::uint64_t size_bytes, access_mode how) : size_bytes_(size_bytes) {
    auto* data = mmap(
      nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1,
      0);
    if (data == MAP_FAILED)
      give_up(status_from_errno(errno, "an owner's memory"), "preparing");
    data_ = static_cast<std::byte*>(data);
    std::memset(data_, 0x5a, size_bytes);
    region_ = need(
      transport::expose(
        {tensor_view::dense("bytes", dtype::u8, {size_bytes}, std::span{data_, size_bytes})}, how),
      "exposing");
  }
  ~exposed_memory() {
    region_.withdraw();
    munmap(data_, size_bytes_);
  }
  exposed_memory(const exposed_memory&) = delete;
  exposed_memory& operator=(const exposed_memory&) = delete;

  bulk_handle handle() const { return region_.handle(); }

private:
  std::byte* data_;
  std::uint64_t size_bytes_;
  region region_;
};

// The options of every tcp driver of this run, and the texts that set them.
struct tcp_choice {
  tcp_options options;
  std::vector<std::string> texts;
};

tcp_choice& chosen_tcp() {
  static tcp_choice chosen;
  return chosen;
}

// The channel is a Unix socket, so the streams need their own address.
void over_loopback(fabric_options& options) {
  auto& tcp = options.drivers.edit<tcp_options>() = chosen_tcp().options;
  tcp.listen = {"127.0.0.1:0"};
}

std::string name_of(const verbs_port& p) { return p.device + ":" + std::to_string(p.port); }

void over_rdma(fabric_options& options, side which) {
  if (auto ports = rdma_ports())
    options.drivers.edit<verbs_options>().devices = {
      name_of(which == side::mover ? ports->mover : ports->owner)};
}

} // namespace

const std::vector<driver_kind>& driver_table() {
  static const std::vector<driver_kind> table = {
    {.name = "local", .column = "local", .one_process = true, .copies = true},
    {.name = "shm", .column = "shm", .copies = true, .floor_min = 0.9, .peer_min = 1},
    {.name = "tcp", .column = "tcp", .streams = true, .peer_min = 0.9, .adjust = over_loopback},
    {.name = "tcp",
     .column = "tcp-encrypted",
     .streams = true,
     .adjust =
       [](fabric_options& options) {
         over_loopback(options);
         options.drivers.edit<tcp_options>().encrypt = true;
       }},
    {.name = "verbs", .column = "verbs", .rdma = true, .peer_min = 0.9, .peer_min_256kib = 0.7},
  };
  return table;
}

status set_tcp_option(const std::string& text) {
  auto tcp = config::section_of<tcp_options>("tcp");
  auto equals = text.find('=');
  auto number = tcp.number_of(text.substr(0, equals));
  // The addresses are the rig's own.
  if (
    equals == std::string::npos || !number || tcp.keys[*number].type == config::key_type::endpoints)
    return {
      errc::invalid_argument,
      "no tcp option: " + text + "; KEY=VALUE, as the section tcp of the configuration has them"};
  auto read = config::read_scalar(tcp.keys[*number], text.substr(equals + 1));
  if (!read)
    return read.error().within(text.substr(0, equals));
  auto& o = chosen_tcp().options;
  tcp.put(&o, *number, std::move(*read));
  chosen_tcp().texts.push_back(text);
  return config::check_options(tcp, &o);
}

const driver_kind* find_driver(const std::string& column) {
  for (auto& kind : driver_table())
    if (kind.column == column)
      return &kind;
  return nullptr;
}

std::optional<double> driver_kind::peer_goal(std::uint64_t size_bytes) const {
  if (size_bytes >= 1u << 20)
    return peer_min;
  return size_bytes >= 256u << 10 ? peer_min_256kib : std::nullopt;
}

fabric_options options_of(const driver_kind& kind, side which) {
  fabric_options options;
  options.prefer = {kind.name};
  if (kind.adjust)
    kind.adjust(options);
  if (kind.rdma)
    over_rdma(options, which);
  return options;
}

std::optional<port_pair> rdma_ports() {
  auto ports = describe_verbs_devices({}).ports;
  std::erase_if(ports, [](auto& p) { return !p.remark.empty(); });
  if (ports.empty())
    return std::nullopt;
  return port_pair{ports.back(), ports.front()};
}

struct rig::exposed {
  direction dir;
  exposed_memory memory;
  exposed(direction d, std::uint64_t size_bytes) : dir(d), memory(size_bytes, access_for(d)) {}
};

rig::rig(const driver_kind& kind, std::shared_ptr<io_loop> loop)
  : kind_(kind), loop_(std::move(loop)) {}

rig::~rig() {
  owners_.clear();
  own_.clear();
  listener_.reset();
  block_ = {};
  loop_->stop();
}

result<std::unique_ptr<rig>> rig::make(
  const driver_kind& kind, const std::string& directory, std::uint32_t owners) {
  if (kind.rdma && !rdma_ports())
    return fail(errc::unavailable, describe_verbs_devices({}).remark);
  auto loop = io_loop::start({});
  if (!loop)
    return fail(loop.error());
  std::unique_ptr<rig> made{new rig{kind, *loop}};
  auto f = fabric::create(options_of(kind), *loop);
  if (!f)
    return fail(f.error());
  made->fabric_ = std::move(*f);
  if (!kind.one_process)
    made->start_owners(directory, owners);
  return made;
}

void rig::start_owners(const std::string& directory, std::uint32_t owners) {
  auto address = "unix:" + directory + "/" + kind_.column + ".sock";
  auto link = std::make_shared<fabric_link>(fabric_);
  listener_ = need(
    listener::open(
      loop_, {.address = address, .allow_uids = {}}, {.local_name = "bench"},
      [link](const peer_info&) { return link; }),
    "listening");
  for (std::uint32_t i = 0; i < owners; ++i) {
    std::vector<std::string> command{"/proc/self/exe", "--owner", kind_.column, address};
    std::ranges::copy(chosen_tcp().texts, std::back_inserter(command));
    owners_.push_back(need(child::start(command), "starting an owner"));
    auto hello = need(owners_.back().read_line(owner_timeout_ms), "starting an owner");
    if (hello != "ready")
      give_up("an owner of " + kind_.column + " does not start: " + hello);
  }
}

bulk_handle rig::expose(std::uint32_t owner, direction dir, std::uint64_t size_bytes) {
  if (kind_.one_process) {
    std::erase_if(own_, [&](auto& e) { return e.dir == dir; });
    return own_.emplace_back(dir, size_bytes).memory.handle();
  }
  auto& o = owners_.at(owner);
  auto how = std::to_string(static_cast<int>(access_for(dir)));
  if (auto bad = o.write_line(how + " " + std::to_string(size_bytes)); !bad.ok())
    give_up(bad, "exposing");
  return handle_from(need(o.read_line(owner_timeout_ms), "exposing"));
}

std::span<std::byte> rig::local(std::uint64_t size_bytes) {
  if (block_.size_bytes < size_bytes) {
    block_ = {};
    memory_ = need(fabric_->make_memory({.name = "bench", .size_bytes = size_bytes}), "memory");
    block_ = need(memory_->allocate(size_bytes, 4096), "memory");
  }
  return {block_.data, size_bytes};
}

future<transfer_report> rig::submit(const work& w) {
  transfer t;
  t.dir = w.dir;
  t.remote = w.remote;
  t.ops = w.ops;
  t.hold = block_.owner;
  promise<transfer_report> p{loop_};
  fabric_->submit(std::move(t), [p](result<transfer_report> r) { p.set(std::move(r)); });
  return p.get_future();
}

double rig::move(const work& w) {
  // The driver's own connections may not be established yet.
  auto deadline = steady_clock::now() + connect_patience;
  for (;;) {
    auto begin = steady_clock::now();
    try {
      submit(w).get();
      return std::chrono::duration<double>(steady_clock::now() - begin).count();
    } catch (const error& e) {
      if (e.code() != errc::peer_lost || steady_clock::now() > deadline)
        throw;
      std::this_thread::sleep_for(std::chrono::milliseconds{5});
    }
  }
}

double rig::stream(const std::vector<work>& works, std::uint64_t count, std::uint32_t depth) {
  move(works.front());
  return seconds_of([&] {
    std::deque<future<transfer_report>> in_flight;
    for (std::uint64_t i = 0; i < count; ++i) {
      if (in_flight.size() == depth) {
        in_flight.front().get();
        in_flight.pop_front();
      }
      in_flight.push_back(submit(works[i % works.size()]));
    }
    for (auto& f : in_flight)
      f.get();
  });
}

int own(
  const std::string& column, const std::string& address,
  const std::vector<std::string>& tcp_texts) {
  for (auto& text : tcp_texts)
    if (auto bad = set_tcp_option(text); !bad.ok())
      give_up(bad, "an owner");
  auto* kind = find_driver(column);
  if (!kind)
    give_up("no driver " + column);
  auto loop = need(io_loop::start({}), "an owner");
  auto f = need(fabric::create(options_of(*kind, side::owner), loop), "an owner");
  promise<void> connected;
  connect(
    loop, address, {.local_name = "owner:" + std::to_string(getpid())},
    std::make_shared<fabric_link>(f), [connected](result<std::shared_ptr<channel>> c) {
      connected.set(c ? result<void>{} : fail(c.error()));
    });
  connected.get_future().get();
  std::cout << "ready" << std::endl;
  std::map<int, std::unique_ptr<exposed_memory>> by_access;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words{line};
    int how = 0;
    std::uint64_t size_bytes = 0;
    words >> how >> size_bytes;
    auto& memory = by_access[how];
    memory.reset();
    memory = std::make_unique<exposed_memory>(size_bytes, static_cast<access_mode>(how));
    std::cout << to_text(memory->handle()) << std::endl;
  }
  by_access.clear();
  loop->stop();
  return 0;
}

} // namespace millrace::bench

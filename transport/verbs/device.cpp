// Finds devices and ports, and describes them.
// Called when a driver is made, and by `doctor`.
#include <millrace/transport/memory/memory_distance.hpp>
#include <millrace/transport/verbs/device.hpp>
#include <millrace/transport/verbs/unmap_watch.hpp>

#include <fcntl.h>
#include <fmt/core.h>
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

namespace millrace::transport::verbs {

namespace {

constexpr std::uint32_t soft_vendor_id = 0xff'ffff; // rdma_rxe

std::uint32_t bytes_of(ibv_mtu mtu) { return 128u << mtu; }

gid_type type_of(const ibv_gid_entry& e) {
  switch (e.gid_type) {
  case IBV_GID_TYPE_ROCE_V2:
    return gid_type::roce_v2;
  case IBV_GID_TYPE_ROCE_V1:
    return gid_type::roce_v1;
  default:
    return gid_type::infiniband;
  }
}

std::vector<gid_entry> gids_of(ibv_context* context, std::uint32_t port, int count) {
  std::vector<gid_entry> out;
  for (int i = 0; i < count; ++i) {
    ibv_gid_entry raw{};
    if (ibv_query_gid_ex(context, port, static_cast<std::uint32_t>(i), &raw, 0) != 0)
      continue;
    gid_entry e{static_cast<std::uint32_t>(i), {}, type_of(raw)};
    std::copy_n(raw.gid.raw, e.gid.size(), e.gid.begin());
    out.push_back(e);
  }
  return out;
}

bool wanted(const verbs_options& options, const std::string& name, std::uint32_t port) {
  auto& list = options.devices;
  return list.empty() || std::find(list.begin(), list.end(), name) != list.end() ||
    std::find(list.begin(), list.end(), fmt::format("{}:{}", name, port)) != list.end();
}

std::string locked_memory_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0)
    return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur);
}

// Asks without a dma-buf: a device that can take one complains about the descriptor, not about the
// call.
bool takes_dma_bufs(const device& d) {
  mr_ptr none{ibv_reg_dmabuf_mr(d.pd(), 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE)};
  return none || (errno != EOPNOTSUPP && errno != EPROTONOSUPPORT && errno != ENOSYS);
}

// Returns what the state says about an opened port.
verbs_port described(const device& d, const result<device::address>& now) {
  verbs_port out;
  out.device = ibv_get_device_name(d.context()->device);
  out.port = d.port();
  out.sge_max = d.sge_max();
  out.windows = d.has_windows();
  out.dma_buf = takes_dma_bufs(d);
  out.numa = nodes_near_device(out.device);
  if (!now) {
    out.remark = now.error().detail();
    return out;
  }
  out.active = now->active;
  out.link_layer = now->rail.infiniband ? "infiniband" : "ethernet";
  out.mtu = now->rail.mtu;
  out.gid = to_string(now->rail.gid);
  out.gid_index = now->gid_index;
  out.gid_rule = now->gid_rule;
  out.reads_max = now->rail.reads_max;
  out.message_bytes_max = now->rail.message_bytes_max;
  if (!now->active)
    out.remark = "the port is down";
  return out;
}

} // namespace

result<std::shared_ptr<device>> device::open(
  ibv_device* which, std::uint32_t port, const verbs_options& options) {
  std::string name = ibv_get_device_name(which);
  auto failed = [&](const char* doing) {
    return fail(status_from_errno(errno, std::string{doing} + " RDMA device " + name));
  };
  std::shared_ptr<device> d{new device};
  d->port_ = port;
  d->gid_wanted_ = options.gid_index;
  d->context_.reset(ibv_open_device(which));
  if (!d->context_)
    return failed("opening");
  if (errno = ibv_query_device(d->context(), &d->limits_); errno != 0)
    return failed("asking");
  d->checks_windows_ = options.windows_checked.value_or(d->limits_.vendor_id != soft_vendor_id);
  d->name_ = d->limits_.phys_port_cnt > 1 ? fmt::format("{}:{}", name, port) : name;
  d->pd_.reset(ibv_alloc_pd(d->context()));
  d->channel_.reset(ibv_create_comp_channel(d->context()));
  if (!d->pd_ || !d->channel_)
    return failed("making a protection domain on");
  for (int fd : {d->channel_->fd, d->context_->async_fd})
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  d->node_mask_ = node_mask_of_device(name);
  return d;
}

bool device::has_windows() const noexcept {
  return (limits_.device_cap_flags &
          (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B)) != 0 &&
    limits_.max_mw > 0;
}

std::uint32_t device::sge_max() const noexcept {
  auto most = limits_.max_sge;
  if (limits_.max_sge_rd > 0)
    most = std::min(most, limits_.max_sge_rd);
  return static_cast<std::uint32_t>(std::max(most, 1));
}

result<device::address> device::now() const {
  ibv_port_attr port{};
  if (int why = ibv_query_port(context(), static_cast<std::uint8_t>(port_), &port); why != 0)
    return fail(status_from_errno(why, "asking for the port of RDMA device " + name_));
  auto gid = choose_gid(gids_of(context(), port_, port.gid_tbl_len), gid_wanted_);
  if (!gid)
    return fail(errc::unavailable, "{}: {}", name_, gid.error().detail());
  address out;
  out.rail.gid = gid->entry.gid;
  out.rail.infiniband = port.link_layer == IBV_LINK_LAYER_INFINIBAND;
  out.rail.lid = port.lid;
  out.rail.mtu = bytes_of(port.active_mtu);
  auto reads_max = std::min(limits_.max_qp_rd_atom, limits_.max_qp_init_rd_atom);
  out.rail.reads_max = static_cast<std::uint32_t>(std::max(reads_max, 0));
  out.rail.message_bytes_max = port.max_msg_sz;
  out.gid_index = gid->entry.index;
  out.gid_rule = gid->rule;
  out.active = port.state == IBV_PORT_ACTIVE;
  return out;
}

namespace {

// Lets no other thread fork while libibverbs lists devices.
//
// *Problem*: the library holds a lock meanwhile. A child would wait for it without end.
class listing {
public:
  listing() {
    static const bool registered = ::pthread_atfork(lock, unlock, unlock) == 0;
    static_cast<void>(registered);
    lock();
  }
  ~listing() { unlock(); }
  listing(const listing&) = delete;
  listing& operator=(const listing&) = delete;

private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static void lock() { mutex().lock(); }
  static void unlock() { mutex().unlock(); }
};

} // namespace

device_list open_devices(const verbs_options& options, verbs_state& state) {
  const listing no_fork;
  device_list out;
  state.locked_memory = locked_memory_limit();
  state.unmaps_watched = options.watch_unmaps && can_watch_unmaps();
  int count = 0;
  auto** list = ibv_get_device_list(&count);
  for (int i = 0; i < count; ++i) {
    std::string name = ibv_get_device_name(list[i]);
    std::uint32_t ports = 1;
    for (std::uint32_t port = 1; port <= ports; ++port) {
      if (port > 1 && !wanted(options, name, port))
        continue;
      auto d = device::open(list[i], port, options);
      if (!d) {
        state.ports.push_back({});
        state.ports.back().device = name;
        state.ports.back().remark = d.error().detail();
        break;
      }
      ports = (*d)->limits().phys_port_cnt;
      auto now = (*d)->now();
      auto port_state = described(**d, now);
      if (!wanted(options, name, port))
        port_state.remark = "not among the devices of the configuration";
      if (port_state.remark.empty() && out.size() < rails_max)
        out.push_back(std::move(*d));
      state.ports.push_back(std::move(port_state));
    }
  }
  if (list)
    ibv_free_device_list(list);
  if (count == 0)
    state.remark = "this machine shows no RDMA device";
  else if (out.empty())
    state.remark =
      "no RDMA port is usable: " + state.ports.front().device + ": " + state.ports.front().remark;
  return out;
}

} // namespace millrace::transport::verbs

namespace millrace::transport {

verbs_state describe_verbs_devices(const verbs_options& options) {
  verbs_state out;
  verbs::open_devices(options, out);
  return out;
}

} // namespace millrace::transport

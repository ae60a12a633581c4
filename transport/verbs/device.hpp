// One port of one RDMA device, opened.
// Made at start by the driver; used by everything in this folder.
#pragma once

#include <millrace/net/socket/unique_fd.hpp>
#include <millrace/transport/verbs/messages.hpp>
#include <millrace/transport/verbs/verbs_options.hpp>
#include <millrace/transport/verbs/verbs_state.hpp>

#include <infiniband/verbs.h>

#include <memory>
#include <string>
#include <vector>

namespace millrace::transport::verbs {

/// Frees objects of libibverbs.
struct ibv_free {
  void operator()(ibv_context* x) const noexcept { ibv_close_device(x); }
  void operator()(ibv_pd* x) const noexcept { ibv_dealloc_pd(x); }
  void operator()(ibv_comp_channel* x) const noexcept { ibv_destroy_comp_channel(x); }
  void operator()(ibv_cq* x) const noexcept { ibv_destroy_cq(x); }
  void operator()(ibv_qp* x) const noexcept { ibv_destroy_qp(x); }
  void operator()(ibv_mr* x) const noexcept { ibv_dereg_mr(x); }
  void operator()(ibv_mw* x) const noexcept { ibv_dealloc_mw(x); }
};
using context_ptr = std::unique_ptr<ibv_context, ibv_free>;
using pd_ptr = std::unique_ptr<ibv_pd, ibv_free>;
using channel_ptr = std::unique_ptr<ibv_comp_channel, ibv_free>;
using cq_ptr = std::unique_ptr<ibv_cq, ibv_free>;
using qp_ptr = std::unique_ptr<ibv_qp, ibv_free>;
using mr_ptr = std::unique_ptr<ibv_mr, ibv_free>;
using mw_ptr = std::unique_ptr<ibv_mw, ibv_free>;

/// An open port. Its members do not change. Threads: any.
class device {
public:
  /// Opens a port.
  /// Errors:  `permission_denied`, `io_error`; `unavailable` for a port without an address.
  static result<std::shared_ptr<device>> open(
    ibv_device* which, std::uint32_t port, const verbs_options& options);

  const std::string& name() const noexcept { return name_; } // "rxe0" or "mlx5_0:2"
  std::uint32_t port() const noexcept { return port_; }
  ibv_context* context() const noexcept { return context_.get(); }
  ibv_pd* pd() const noexcept { return pd_.get(); }
  ibv_comp_channel* channel() const noexcept { return channel_.get(); }
  const ibv_device_attr& limits() const noexcept { return limits_; }
  bool has_windows() const noexcept;
  /// Returns true if the device keeps peers inside a window, even if the registration below it
  /// covers more.
  bool checks_windows() const noexcept { return has_windows() && checks_windows_; }
  std::uint64_t node_mask() const noexcept { return node_mask_; } // see `node_mask_of_device`
  std::uint32_t sge_max() const noexcept; // some devices have a lower limit for reads

  /// The port as it is now: addresses come and go.
  struct address {
    rail_info rail;
    std::uint32_t gid_index = 0;
    std::string gid_rule;
    bool active = false;
  };
  result<address> now() const;

private:
  device() = default;

  std::string name_;
  std::uint32_t port_ = 0;
  std::uint64_t node_mask_ = 0;
  std::optional<std::uint32_t> gid_wanted_;
  bool checks_windows_ = true;
  ibv_device_attr limits_{};
  context_ptr context_;
  pd_ptr pd_;
  channel_ptr channel_;
};

using device_list = std::vector<std::shared_ptr<device>>;

/// Opens the ports that the options name. Never fails: `state` says what was left out, and why.
device_list open_devices(const verbs_options& options, verbs_state& state);

} // namespace millrace::transport::verbs

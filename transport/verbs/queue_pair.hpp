// One connected queue pair with its completion queue and the windows that are bound over it.
// Owned by a `rail`.
#pragma once

#include <millrace/transport/memory/device_memory.hpp>
#include <millrace/transport/verbs/device.hpp>
#include <millrace/transport/verbs/transfer_plan.hpp>

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

struct rdma_cm_id;

namespace millrace::transport::verbs {

/// A key by which one peer reaches exactly one range of this process. It is a memory window of type
/// 2, which is bound over one queue pair. For GPU memory, and where the device has no such windows,
/// it is a registration of exactly that range.
///
/// Threads: any.
class remote_key : public std::enable_shared_from_this<remote_key> {
public:
  /// The range to open. `parent` is a registration of more than the range, with this device.
  struct range {
    std::byte* data = nullptr;
    std::uint64_t length = 0;
    direction dir = direction::read; // what the peer may do
    ibv_mr* parent = nullptr;
    std::shared_ptr<void> parent_owner;
    device_memory* of = nullptr; // the device that has the memory; null: host memory
  };
  /// Makes a key. If it is a window, it must still be bound. `count` counts the keys that live.
  /// Errors:  `no_space`, `unsupported`.
  static result<std::shared_ptr<remote_key>> make(
    const std::shared_ptr<device>& d, range what,
    std::shared_ptr<std::atomic<std::uint64_t>> count);
  ~remote_key() { revoke(); }

  bool needs_binding() const noexcept { return needs_binding_; }
  std::uint32_t key() const noexcept { return key_; }

  /// Revokes the key. When it returns, no peer reaches the range by it. A second call does nothing.
  void revoke() noexcept;

private:
  friend class queue_pair;
  remote_key() = default;

  std::shared_ptr<device> device_;
  std::shared_ptr<std::atomic<std::uint64_t>> count_;
  range what_;
  bool needs_binding_ = false;
  std::uint32_t key_ = 0;
  std::mutex mutex_;
  mw_ptr window_;
  mr_ptr region_;
};

/// A queue pair. Threads: one thread makes it, then one thread at a time uses it.
class queue_pair {
public:
  /// Makes a queue pair, as far as possible without the peer.
  /// Errors:  `no_space`, `io_error`, naming the device.
  static result<std::unique_ptr<queue_pair>> open(
    const std::shared_ptr<device>& d, const verbs_options& options);
  ~queue_pair() { close(); }

  /// Ends the peer's access, and the device's access to the memory of requests in flight, even if
  /// other objects still hold this queue pair. It cannot be used any more. A second call does
  /// nothing.
  void close() noexcept;

  /// Returns our half of the connection.
  connect offer() const;
  /// Connects. May block for a second while the network finds the peer.
  /// Errors:  `unavailable` naming the device and the peer's address.
  [[nodiscard]] status join(const connect& theirs, const verbs_options& options);

  /// Connects with the parameters that librdmacm found, when its request was received or answered.
  [[nodiscard]] status join(rdma_cm_id& id, const connect& theirs, const verbs_options& options);

  std::uint32_t number() const noexcept { return qp_->qp_num; }
  std::uint32_t reads_with(const connect& theirs) const noexcept;
  std::uint64_t message_bytes_max() const noexcept { return message_bytes_max_; }

  /// Posts a request. `signal` asks for a completion.
  /// Errors:  `io_error`.
  [[nodiscard]] status post(
    std::uint64_t id, bool signal, direction dir, const request& what, std::uint64_t address,
    std::uint32_t key, const local_keys& keys);
  [[nodiscard]] status post_bind(std::uint64_t id, bool signal, remote_key& key);
  /// Posts a write of no bytes, which completes if the peer is reachable.
  [[nodiscard]] status post_probe(std::uint64_t id);

  /// Returns the available completions; empty if there are none.
  std::span<const ibv_wc> poll();
  /// Makes the next completion wake the thread that waits for the device's channel.
  void arm() noexcept { ibv_req_notify_cq(cq_.get(), 0); }

private:
  queue_pair() = default;
  status create(const verbs_options& options);
  status to_init();
  status to_receive(const connect& theirs, const verbs_options& options);
  status to_send(const verbs_options& options);
  ibv_mtu mtu_with(const connect& theirs, const verbs_options& options) const noexcept;
  status step_by(
    rdma_cm_id& id, ibv_qp_state to, const connect& theirs, const verbs_options& options);
  status joined(const status& outcome, const connect& theirs, const verbs_options& options);
  status post_one(ibv_send_wr& wr, bool signal);

  std::shared_ptr<device> device_;
  device::address address_;
  cq_ptr cq_; // outlives qp_
  qp_ptr qp_;
  std::uint32_t psn_ = 0;
  std::uint32_t inline_bytes_ = 0;
  std::uint32_t reads_max_ = 0;
  std::uint64_t message_bytes_max_ = 0;
  std::vector<std::weak_ptr<remote_key>> keys_;
  std::size_t keys_swept_at_ = 64;
  std::vector<ibv_sge> ranges_;
  std::array<ibv_wc, 32> completions_{};
};

} // namespace millrace::transport::verbs

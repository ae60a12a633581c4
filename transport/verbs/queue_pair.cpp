// The life of a queue pair, and posting to it.
// Made on the set-up thread; used on the completion thread.
#include <millrace/transport/verbs/queue_pair.hpp>

#include <rdma/rdma_cma.h>

#include <algorithm>
#include <bit>
#include <cerrno>

namespace millrace::transport::verbs {

namespace {

status failed(int why, const char* doing, const device& d) {
  return status_from_errno(why, std::string{doing} + " a queue pair of " + d.name());
}

ibv_mtu mtu_of(std::uint32_t bytes) {
  return static_cast<ibv_mtu>(std::countr_zero(std::clamp(bytes, 256u, 4096u)) - 7);
}

// Returns the device's exponent for at least this many milliseconds: 4.096 us times a power of two.
std::uint8_t timeout_exponent(std::uint32_t ms) {
  std::uint8_t exponent = 1;
  while (exponent < 31 && (4096ull << exponent) < std::uint64_t{ms} * 1'000'000)
    ++exponent;
  return exponent;
}

} // namespace

result<std::unique_ptr<queue_pair>> queue_pair::open(
  const std::shared_ptr<device>& d, const verbs_options& options) {
  auto now = d->now();
  if (!now)
    return fail(now.error());
  if (!now->active)
    return fail(errc::unavailable, "the port of {} is down", d->name());
  std::unique_ptr<queue_pair> q{new queue_pair};
  q->device_ = d;
  q->address_ = *now;
  q->address_.rail.reads_max = std::min(q->address_.rail.reads_max, 128u);
  random_bytes(&q->psn_, sizeof(q->psn_));
  q->psn_ &= 0xff'ffff;
  if (auto bad = q->create(options); !bad.ok())
    return fail(bad);
  if (auto bad = q->to_init(); !bad.ok())
    return fail(bad);
  return q;
}

status queue_pair::create(const verbs_options& options) {
  auto depth = options.queue_depth;
  cq_.reset(
    ibv_create_cq(device_->context(), static_cast<int>(depth + 1), nullptr, device_->channel(), 0));
  if (!cq_)
    return failed(errno, "making the completion queue for", *device_);
  ibv_qp_init_attr attr{};
  attr.send_cq = attr.recv_cq = cq_.get();
  attr.qp_type = IBV_QPT_RC;
  attr.cap.max_send_wr = depth;
  attr.cap.max_recv_wr = 1;
  attr.cap.max_send_sge = std::min(options.sge_max, device_->sge_max());
  attr.cap.max_recv_sge = 1;
  // Devices do not say how much they take inline, so less is requested until one agrees.
  for (auto bytes = options.inline_bytes_max;; bytes /= 2) {
    attr.cap.max_inline_data = bytes;
    qp_.reset(ibv_create_qp(device_->pd(), &attr));
    if (qp_ || bytes == 0)
      break;
  }
  if (!qp_)
    return failed(errno, "making", *device_);
  inline_bytes_ = std::min(attr.cap.max_inline_data, options.inline_bytes_max);
  ranges_.resize(std::min(options.sge_max, device_->sge_max()));
  return {};
}

status queue_pair::to_init() {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = static_cast<std::uint8_t>(device_->port());
  attr.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  int why = ibv_modify_qp(
    qp_.get(), &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  return why == 0 ? status{} : failed(why, "preparing", *device_);
}

connect queue_pair::offer() const {
  connect out;
  out.number = qp_->qp_num;
  out.psn = psn_;
  out.rail = address_.rail;
  return out;
}

status queue_pair::join(const connect& theirs, const verbs_options& options) {
  auto outcome = to_receive(theirs, options);
  if (outcome.ok())
    outcome = to_send(options);
  return joined(outcome, theirs, options);
}

status queue_pair::join(rdma_cm_id& id, const connect& theirs, const verbs_options& options) {
  status outcome;
  for (auto to : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS})
    if (outcome.ok())
      outcome = step_by(id, to, theirs, options);
  return joined(outcome, theirs, options);
}

status queue_pair::joined(
  const status& outcome, const connect& theirs, const verbs_options& options) {
  if (!outcome.ok())
    return {
      errc::unavailable, "connecting to {}: {}", to_string(theirs.rail.gid), outcome.detail()};
  message_bytes_max_ = std::min(
    {address_.rail.message_bytes_max, theirs.rail.message_bytes_max, options.message_bytes_max});
  message_bytes_max_ = std::max<std::uint64_t>(message_bytes_max_, 1);
  return {};
}

std::uint32_t queue_pair::reads_with(const connect& theirs) const noexcept {
  return std::min(address_.rail.reads_max, theirs.rail.reads_max);
}

ibv_mtu queue_pair::mtu_with(const connect& theirs, const verbs_options& options) const noexcept {
  auto mtu = std::min(address_.rail.mtu, theirs.rail.mtu);
  return mtu_of(options.mtu != 0 ? std::min(mtu, options.mtu) : mtu);
}

status queue_pair::to_receive(const connect& theirs, const verbs_options& options) {
  reads_max_ = reads_with(theirs);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = mtu_with(theirs, options);
  attr.dest_qp_num = theirs.number;
  attr.rq_psn = theirs.psn;
  attr.max_dest_rd_atomic = static_cast<std::uint8_t>(reads_max_);
  attr.min_rnr_timer = 12;
  attr.ah_attr.port_num = static_cast<std::uint8_t>(device_->port());
  attr.ah_attr.dlid = static_cast<std::uint16_t>(theirs.rail.lid);
  attr.ah_attr.is_global = 1;
  std::copy(theirs.rail.gid.begin(), theirs.rail.gid.end(), attr.ah_attr.grh.dgid.raw);
  attr.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(address_.gid_index);
  attr.ah_attr.grh.hop_limit = 64;
  int why = ibv_modify_qp(
    qp_.get(), &attr,
    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  return why == 0 ? status{} : failed(why, "connecting", *device_);
}

status queue_pair::to_send(const verbs_options& options) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = timeout_exponent(options.ack_timeout_ms);
  attr.retry_cnt = static_cast<std::uint8_t>(std::min(options.ack_retries, 7u));
  attr.rnr_retry = 7;
  attr.sq_psn = psn_;
  attr.max_rd_atomic = static_cast<std::uint8_t>(reads_max_);
  int why = ibv_modify_qp(
    qp_.get(), &attr,
    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
      IBV_QP_MAX_QP_RD_ATOMIC);
  return why == 0 ? status{} : failed(why, "connecting", *device_);
}

// The connection manager supplies the partner, the path and the sequence numbers. The bounds are
// ours.
status queue_pair::step_by(
  rdma_cm_id& id, ibv_qp_state to, const connect& theirs, const verbs_options& options) {
  reads_max_ = reads_with(theirs);
  ibv_qp_attr attr{};
  attr.qp_state = to;
  int mask = 0;
  if (rdma_init_qp_attr(&id, &attr, &mask) != 0)
    return failed(errno, "asking rdma_cm for", *device_);
  attr.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  attr.path_mtu = std::min(attr.path_mtu, mtu_with(theirs, options));
  attr.max_dest_rd_atomic = attr.max_rd_atomic = static_cast<std::uint8_t>(reads_max_);
  attr.min_rnr_timer = 12;
  attr.timeout = timeout_exponent(options.ack_timeout_ms);
  attr.retry_cnt = static_cast<std::uint8_t>(options.ack_retries);
  attr.rnr_retry = 7;
  int why = ibv_modify_qp(qp_.get(), &attr, mask);
  return why == 0 ? status{} : failed(why, "connecting", *device_);
}

void queue_pair::close() noexcept {
  if (!qp_)
    return;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  ibv_modify_qp(qp_.get(), &attr, IBV_QP_STATE);
  // Windows go first, since a queue pair cannot be destroyed while windows are bound over it.
  for (auto& weak : keys_)
    if (auto key = weak.lock())
      key->revoke();
  qp_.reset();
}

status queue_pair::post_one(ibv_send_wr& wr, bool signal) {
  wr.send_flags |= signal ? static_cast<unsigned>(IBV_SEND_SIGNALED) : 0u;
  ibv_send_wr* refused = nullptr;
  int why = ibv_post_send(qp_.get(), &wr, &refused);
  return why == 0 ? status{} : failed(why, "posting to", *device_);
}

status queue_pair::post(
  std::uint64_t id, bool signal, direction dir, const request& what, std::uint64_t address,
  std::uint32_t key, const local_keys& keys) {
  for (std::size_t i = 0; i < what.local.size(); ++i) {
    auto& p = what.local[i];
    ranges_[i] = {
      reinterpret_cast<std::uintptr_t>(p.data), static_cast<std::uint32_t>(p.length),
      keys[p.memory]};
  }
  ibv_send_wr wr{};
  wr.wr_id = id;
  wr.sg_list = ranges_.data();
  wr.num_sge = static_cast<int>(what.local.size());
  wr.opcode = dir == direction::read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
  if (dir == direction::write && what.length <= inline_bytes_)
    wr.send_flags = IBV_SEND_INLINE;
  wr.wr.rdma.remote_addr = address;
  wr.wr.rdma.rkey = key;
  return post_one(wr, signal);
}

status queue_pair::post_bind(std::uint64_t id, bool signal, remote_key& key) {
  std::lock_guard guard{key.mutex_};
  if (!key.window_)
    return {errc::permission_denied, "the memory behind the handle was withdrawn"};
  ibv_send_wr wr{};
  wr.wr_id = id;
  wr.opcode = IBV_WR_BIND_MW;
  wr.bind_mw.mw = key.window_.get();
  wr.bind_mw.rkey = ibv_inc_rkey(key.window_->rkey);
  wr.bind_mw.bind_info.mr = key.what_.parent;
  wr.bind_mw.bind_info.addr = reinterpret_cast<std::uintptr_t>(key.what_.data);
  wr.bind_mw.bind_info.length = key.what_.length;
  wr.bind_mw.bind_info.mw_access_flags =
    key.what_.dir == direction::read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
  if (auto bad = post_one(wr, signal); !bad.ok())
    return bad;
  key.key_ = wr.bind_mw.rkey;
  key.window_->rkey = wr.bind_mw.rkey;
  keys_.push_back(key.weak_from_this());
  if (keys_.size() >= keys_swept_at_) {
    std::erase_if(keys_, [](auto& weak) { return weak.expired(); });
    keys_swept_at_ = std::max<std::size_t>(64, 2 * keys_.size());
  }
  return {};
}

status queue_pair::post_probe(std::uint64_t id) {
  ibv_send_wr wr{};
  wr.wr_id = id;
  wr.opcode = IBV_WR_RDMA_WRITE;
  return post_one(wr, true);
}

std::span<const ibv_wc> queue_pair::poll() {
  int n = ibv_poll_cq(cq_.get(), static_cast<int>(completions_.size()), completions_.data());
  return {completions_.data(), static_cast<std::size_t>(std::max(n, 0))};
}

} // namespace millrace::transport::verbs

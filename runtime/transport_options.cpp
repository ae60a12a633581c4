// One line an option; the bounds are those of config/schema.cpp.
#include <millrace/runtime/transport_options.hpp>

namespace millrace::runtime {

namespace {

// Bounded by the schema far below what 32 bits hold.
std::uint32_t narrow(std::uint64_t value) { return static_cast<std::uint32_t>(value); }

} // namespace

transport::shm_options shm_options_of(const config::shm_settings& s) {
  transport::shm_options o;
  o.transfers_max = s.transfers_max;
  o.backlog_bytes_max = s.backlog_max_bytes;
  o.mapped_max = s.mapped_max;
  o.batch_delay_ms = narrow(s.batch_delay_ms);
  o.answer_timeout_ms = narrow(s.answer_timeout_ms);
  return o;
}

transport::tcp_options tcp_options_of(const config::tcp_settings& s) {
  transport::tcp_options o;
  o.listen = s.listen;
  o.streams = s.streams;
  o.io_threads = s.io_threads;
  o.chunk_bytes = s.chunk_bytes;
  o.small_bytes_max = s.small_max_bytes;
  o.requests_max = s.requests_max;
  o.inflight_bytes_max = s.inflight_max_bytes;
  o.transfers_max = s.transfers_max;
  o.connect_timeout_ms = narrow(s.connect_timeout_ms);
  o.admission_timeout_ms = narrow(s.admission_timeout_ms);
  o.stall_timeout_ms = narrow(s.stall_timeout_ms);
  o.backoff_min_ms = narrow(s.backoff_min_ms);
  o.backoff_max_ms = narrow(s.backoff_max_ms);
  o.attempts_max = s.attempts_max;
  // The kernel counts seconds; what is not never is not 0.
  o.keepalive_s = narrow((s.keepalive_ms + 999) / 1000);
  o.send_buffer_bytes = s.send_buffer_bytes;
  o.receive_buffer_bytes = s.receive_buffer_bytes;
  o.admissions_max = s.admissions_max;
  o.admissions_per_source_max = s.admissions_per_source_max;
  o.checksum = s.checksum;
  o.encrypt = s.encrypt;
  return o;
}

transport::verbs_options verbs_options_of(const config::verbs_settings& s) {
  transport::verbs_options o;
  o.devices = s.devices;
  o.gid_index = s.gid_index;
  o.mtu = s.mtu;
  o.connect = s.connect == config::verbs_connect::rdma_cm ? transport::verbs_connect::rdma_cm
                                                          : transport::verbs_connect::channel;
  o.setup_threads = s.setup_threads;
  o.queue_depth = s.queue_depth;
  o.sge_max = s.sge_max;
  o.inline_bytes_max = narrow(s.inline_max_bytes);
  o.message_bytes_max = s.message_max_bytes;
  o.inflight_bytes_max = s.inflight_max_bytes;
  o.port_inflight_bytes_max = s.port_inflight_max_bytes;
  o.signal_interval = s.signal_interval;
  o.stripe_bytes_min = s.stripe_min_bytes;
  o.poll_us = narrow(s.poll_us);
  o.sleep_ms = narrow(s.sleep_ms);
  o.bind_thread = s.bind_thread;
  o.connect_timeout_ms = narrow(s.connect_timeout_ms);
  o.ack_timeout_ms = narrow(s.ack_timeout_ms);
  o.ack_retries = s.ack_retries;
  o.op_timeout_ms = narrow(s.op_timeout_ms);
  o.op_retries = s.op_retries;
  o.probe_interval_ms = narrow(s.probe_interval_ms);
  o.register_retry_ms = narrow(s.register_retry_ms);
  o.cache_entries_max = s.cache_entries_max;
  o.cache_bytes_max = s.cache_max_bytes;
  o.windows_checked = s.windows_checked;
  o.watch_unmaps = s.watch_unmaps;
  o.grants_max = s.grants_max;
  o.windows_max = s.windows_max;
  o.backlog_bytes_max = s.backlog_bytes_max;
  return o;
}

transport::staged_options staged_options_of(const config::staged_settings& s) {
  transport::staged_options o;
  o.size_bytes = s.size_bytes;
  o.chunk_bytes = s.chunk_bytes;
  o.chunks_max = s.chunks_max;
  o.transfers_max = s.transfers_max;
  o.hold_timeout_ms = narrow(s.hold_timeout_ms);
  return o;
}

transport::fabric_options fabric_options_of(const config::settings& s) {
  transport::fabric_options o;
  o.prefer = s.transport.prefer;
  o.prefer_is_explicit = s.transport.prefer != config::transport_settings{}.prefer;
  o.retry_after_ms = narrow(s.transport.retry_after_ms);
  o.movers = s.transport.movers;
  o.device_threads = s.transport.device_threads;
  o.limits.chunk_bytes = s.transport.chunk_bytes;
  o.shm = shm_options_of(s.shm);
  o.tcp = tcp_options_of(s.tcp);
  o.verbs = verbs_options_of(s.verbs);
  o.staged = staged_options_of(s.staged);
  return o;
}

} // namespace millrace::runtime

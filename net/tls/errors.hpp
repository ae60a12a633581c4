// Explains broken TLS sessions to the operator of the cluster, with the remedy.
// Called by `stream` and `context`.
#pragma once

#include <millrace/net/channel/handshake.hpp>
#include <millrace/net/tls/context.hpp>

#include <string>

namespace millrace::net::tls {

/// The facts about a session that broke.
struct session_fault {
  unsigned long openssl_error = 0; // the first in OpenSSL's queue; 0 if it is empty
  int error_number = 0;            // the socket's `errno`
  bool ended = false;              // the peer closed
  bool established = false;        // the handshake had ended
  long verify_result = 0;          // the check of the peer's certificate
};

/// Returns `permission_denied` when the two sides do not trust each other, `protocol_error` when
/// the other side does not speak TLS 1.3, `peer_lost` when it went away.
status explain_fault(const context& context, handshake_side side, const session_fault& fault);

/// OpenSSL's texts for the errors in its queue. Empties the queue.
std::string openssl_errors();

} // namespace millrace::net::tls

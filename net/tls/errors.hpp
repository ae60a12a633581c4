// What a broken TLS session means for whoever runs the cluster, with the remedy.
// Called by `stream` and `context`.
#pragma once

#include <millrace/net/channel/handshake.hpp>
#include <millrace/net/tls/context.hpp>

#include <string>

namespace millrace::net::tls {

/// What is known of a session that broke.
struct session_fault {
  unsigned long openssl_error = 0; // the first of OpenSSL's queue; 0 if it has none
  int error_number = 0;            // of the socket
  bool ended = false;              // the peer closed
  bool established = false;        // the handshake was over
  long verify_result = 0;          // of the peer's certificate
};

/// Errors: `permission_denied` when the two sides do not trust each other, `protocol_error` when the other side
/// speaks something else, `peer_lost` when it went away.
status explain_fault(const context& context, handshake_side side, const session_fault& fault);

/// OpenSSL's own words for the errors in its queue, which is emptied.
std::string openssl_errors();

} // namespace millrace::net::tls

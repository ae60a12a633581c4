// Converts errors to those of CAF and back.
#include <millrace/actors/vocabulary.hpp>

#include <caf/atom.hpp>
#include <caf/message.hpp>
#include <caf/sec.hpp>

namespace millrace::actors {

caf::error to_caf_error(const status& s) {
  // CAF treats an error with code 0 as success.
  if (s.ok())
    return caf::make_error(errc::internal, "an error without a cause");
  return caf::make_error(s.code(), s.detail());
}

status to_status(const caf::error& e) {
  if (e.category() == caf::atom("millrace")) {
    auto detail = e.context().match_elements<std::string>() ? e.context().get_as<std::string>(0)
                                                            : std::string{};
    return {errc_from_wire(e.code()), std::move(detail)};
  }
  if (e == caf::sec::request_timeout)
    return {errc::deadline_exceeded, "no answer within the time allowed"};
  if (e == caf::sec::request_receiver_down)
    return {errc::unavailable, "the actor asked has ended; ask again"};
  return {errc::internal, "an actor failed with code {}", e.code()};
}

} // namespace millrace::actors

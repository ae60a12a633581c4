// Reads exceptions and the last messages of actors.
#include <millrace/actors/supervision.hpp>
#include <millrace/core/log.hpp>

#include <caf/exit_reason.hpp>

namespace millrace::actors {

std::string what_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

status failure_of(
  std::string_view who, std::string_view message, const std::exception_ptr& thrown) {
  return {errc::internal, "{} failed in {}: {}", who, message, what_of(thrown)};
}

status ending_of(const status& of_handler, std::string_view who, const std::exception_ptr& thrown) {
  auto why = of_handler.ok() ? failure_of(who, "CAF", thrown) : of_handler;
  log().error("an actor ends: {}", why.detail());
  return why;
}

status reason_of(const caf::down_msg& down) {
  auto& why = down.reason;
  if (!why || why == caf::exit_reason::kill || why == caf::exit_reason::user_shutdown)
    return {};
  return to_status(why);
}

status loss_of(status why) {
  return why.ok() ? status{errc::peer_lost, "the connection was closed"} : why;
}

} // namespace millrace::actors

// Says what is missing from a listing.
#include <millrace/tools/command.hpp>
#include <millrace/tools/listing.hpp>

namespace millrace::tools {

int report_silent(
  invocation& call, const std::vector<silent_provider>& silent, const std::string& keeper) {
  if (!call.json)
    for (auto& provider : silent)
      report(
        call,
        provider.why.within(
          (provider.name.empty() ? "a " + keeper : keeper + " " + provider.name) +
          " is missing from this listing"));
  return silent.empty() ? exit_ok : exit_failed;
}

} // namespace millrace::tools

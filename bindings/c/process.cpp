// The version of the library, the names of codes, and the job that this process belongs to.
#include "call.hpp"

#include <millrace/runtime/client/job.hpp>
#include <millrace/version.hpp>

#include <optional>
#include <string>
#include <string_view>

using namespace millrace::bindings;
using millrace::errc;
using millrace::status;

#define MILLRACE_TEXT_OF(x) #x
#define MILLRACE_TEXT(x) MILLRACE_TEXT_OF(x)
static_assert(
  std::string_view{millrace::version} ==
    MILLRACE_TEXT(MILLRACE_VERSION_MAJOR) "." MILLRACE_TEXT(
      MILLRACE_VERSION_MINOR) "." MILLRACE_TEXT(MILLRACE_VERSION_PATCH),
  "millrace.h has another version than the project");
static_assert(MILLRACE_INTERNAL == static_cast<millrace_code>(errc::internal));
static_assert(MILLRACE_C128 + 1 == millrace::dtype_count);

namespace {

template <std::size_t Size>
void copy_cut(char (&to)[Size], const std::string& from) {
  from.copy(to, Size - 1);
}

template <class Number>
std::int64_t number_or_none(const std::optional<Number>& number) {
  return number ? static_cast<std::int64_t>(*number) : -1;
}

} // namespace

const char* millrace_version(void) { return millrace::version; }

uint32_t millrace_version_number(void) { return MILLRACE_VERSION_NUMBER; }

const char* millrace_code_name(millrace_code code) {
  if (code < 0 || code > MILLRACE_INTERNAL)
    return "unknown";
  return millrace::to_string(static_cast<errc>(code)).data();
}

millrace_code millrace_job(millrace_job_info* job) {
  return guarded(__func__, [&](const call& here) -> status {
    if (!job)
      return here.wrong("job", "is NULL");
    if (auto bad = here.give(job, "job", millrace_job_info{}); !bad.ok())
      return bad;
    auto found = millrace::job::from_environment();
    if (!found)
      return found.error();
    if (!*found)
      return {errc::not_found, "no launcher has started this process as a rank of a job"};
    auto& j = **found;
    millrace_job_info info{};
    info.rank = j.rank;
    info.world_size = j.world_size;
    info.local_rank = number_or_none(j.local_rank);
    info.local_world_size = number_or_none(j.local_world_size);
    info.restart_count = j.restart_count;
    info.life = j.life;
    copy_cut(info.launcher, j.launcher);
    copy_cut(info.run_id, j.run_id);
    return here.give(job, "job", info);
  });
}

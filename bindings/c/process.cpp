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
#define SAME_CODE(c, cpp) static_assert(MILLRACE_##c == static_cast<int>(errc::cpp))
#define SAME_TYPE(c, cpp) static_assert(MILLRACE_##c == static_cast<int>(millrace::dtype::cpp))
SAME_CODE(OK, ok);
SAME_CODE(INVALID_ARGUMENT, invalid_argument);
SAME_CODE(NOT_FOUND, not_found);
SAME_CODE(ALREADY_EXISTS, already_exists);
SAME_CODE(PERMISSION_DENIED, permission_denied);
SAME_CODE(BUSY, busy);
SAME_CODE(NO_SPACE, no_space);
SAME_CODE(CORRUPT_DATA, corrupt_data);
SAME_CODE(UNSUPPORTED_VERSION, unsupported_version);
SAME_CODE(PEER_LOST, peer_lost);
SAME_CODE(DEADLINE_EXCEEDED, deadline_exceeded);
SAME_CODE(CANCELLED, cancelled);
SAME_CODE(UNAVAILABLE, unavailable);
SAME_CODE(IO_ERROR, io_error);
SAME_CODE(PROTOCOL_ERROR, protocol_error);
SAME_CODE(UNKNOWN_LAYERS, unknown_layers);
SAME_CODE(UNSUPPORTED, unsupported);
SAME_CODE(INTERNAL, internal);
SAME_TYPE(BOOL, boolean);
SAME_TYPE(F4, f4);
SAME_TYPE(F6_E2M3, f6_e2m3);
SAME_TYPE(F6_E3M2, f6_e3m2);
SAME_TYPE(U8, u8);
SAME_TYPE(I8, i8);
SAME_TYPE(F8_E5M2, f8_e5m2);
SAME_TYPE(F8_E4M3, f8_e4m3);
SAME_TYPE(F8_E8M0, f8_e8m0);
SAME_TYPE(I16, i16);
SAME_TYPE(U16, u16);
SAME_TYPE(F16, f16);
SAME_TYPE(BF16, bf16);
SAME_TYPE(I32, i32);
SAME_TYPE(U32, u32);
SAME_TYPE(F32, f32);
SAME_TYPE(C64, c64);
SAME_TYPE(F64, f64);
SAME_TYPE(I64, i64);
SAME_TYPE(U64, u64);
SAME_TYPE(C128, c128);
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

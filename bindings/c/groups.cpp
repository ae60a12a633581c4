// Groups that broadcast.
#include "data.hpp"

#include <millrace/runtime/client/broadcast_group.hpp>

using namespace millrace::bindings;
using millrace::status;

struct millrace_group : held<millrace::broadcast_group> {
  using held::held;
};

namespace {

using joining = making<millrace::broadcast_group, millrace_group>;

// A group of the parent is none in a forked child.
std::vector<millrace::group_rank> members_of(const millrace_group* group) {
  return group && group->made_in.is_here() ? group->of.members()
                                           : std::vector<millrace::group_rank>{};
}

} // namespace

millrace_code millrace_join_group(
  millrace_client* client, const char* group, const millrace_group_options* options,
  millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    auto bad =
      here.need({{client, "client"}, {group, "group"}, {options, "options"}, {request, "request"}});
    if (!bad.ok())
      return bad;
    auto given = here.options(options);
    if (!given)
      return given.error();
    auto timeout = here.timeout("options->timeout_ms", given->timeout_ms);
    if (!timeout)
      return timeout.error();
    millrace::group_options o{
      given->rank, given->size, text_or(given->node, ""), text_or(given->who, ""), *timeout};
    auto begun = std::make_unique<joining>(
      [](const millrace::broadcast_group& g) { return std::make_unique<millrace_group>(g); });
    begun->begin(client->of.join_group(group, o));
    *request = begun.release();
    return {};
  });
}

millrace_code millrace_request_group(millrace_request* request, millrace_group** group) {
  return give_made(__func__, request, "group", group);
}

millrace_code millrace_group_broadcast(
  millrace_group* group, const millrace_tensor* tensors, size_t count, uint32_t root,
  int64_t timeout_ms, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = need_here(here, group, "group"); !bad.ok())
      return bad;
    auto timeout = here.timeout("timeout_ms", timeout_ms);
    if (!timeout)
      return timeout.error();
    auto views = here.tensors(tensors, count);
    if (!views)
      return views.error();
    return begin<millrace::broadcast_receipt>(request, [&] {
      return group->of.broadcast(std::move(*views), {root, *timeout});
    });
  });
}

millrace_code millrace_group_renew(
  millrace_group* group, int64_t timeout_ms, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = need_here(here, group, "group"); !bad.ok())
      return bad;
    auto timeout = here.timeout("timeout_ms", timeout_ms);
    if (!timeout)
      return timeout.error();
    return begin<void>(request, [&] { return group->of.renew(*timeout); });
  });
}

uint64_t millrace_group_epoch(const millrace_group* group) {
  return group && group->made_in.is_here() ? group->of.epoch() : 0;
}

size_t millrace_group_size(const millrace_group* group) { return members_of(group).size(); }

millrace_code millrace_group_rank(const millrace_group* group, size_t index, uint32_t* rank) {
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{group, "group"}, {rank, "rank"}}); !bad.ok())
      return bad;
    auto all = members_of(group);
    if (index >= all.size())
      return here.wrong("index", fmt::format("is {}; the epoch has {} members", index, all.size()));
    *rank = all[index].rank;
    return {};
  });
}

void millrace_group_release(millrace_group* group) { end(group); }

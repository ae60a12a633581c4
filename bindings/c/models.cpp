// Models of the repository.
#include "graph.hpp"
#include "handles.hpp"

#include <millrace/core/model_graph.hpp>
#include <millrace/runtime/client/repository.hpp>

#include <algorithm>

using namespace millrace::bindings;
using millrace::status;

namespace {

constexpr const char* default_group = "default";

millrace::repository models_of(const millrace_client& client, const char* group) {
  return client.of.repository(text_or(group, default_group));
}

millrace::result<millrace::store_options> store_options_of(
  const call& here, const millrace_put_options& o) {
  millrace::store_options s;
  if (auto bad = here.read_storing(o, s); !bad.ok())
    return millrace::fail(bad);
  s.pinned = o.pinned != 0;
  return s;
}

} // namespace

millrace_code millrace_put(
  millrace_client* client, const char* model, const millrace_tensor* tensors, size_t count,
  const millrace_put_options* options, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{client, "client"}, {model, "model"}}); !bad.ok())
      return bad;
    auto given = here.options(options);
    if (!given)
      return given.error();
    auto how = store_options_of(here, *given);
    if (!how)
      return how.error();
    auto views = here.tensors(tensors, count);
    if (!views)
      return views.error();
    auto to = models_of(*client, given->group);
    if (given->layers_count == 0 && !given->layers)
      return begin<millrace::receipt>(
        request, [&] { return to.store(model, std::move(*views), std::move(*how)); });
    auto graph = graph_of(here, {"options->layers", given->layers, given->layers_count}, *views);
    if (!graph)
      return graph.error();
    return begin<millrace::receipt>(
      request, [&] { return to.store(model, *graph, std::move(*views), std::move(*how)); });
  });
}

millrace_code millrace_get(
  millrace_client* client, const char* model, const millrace_tensor* tensors, size_t count,
  const millrace_get_options* options, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{client, "client"}, {model, "model"}}); !bad.ok())
      return bad;
    auto given = here.options(options);
    if (!given)
      return given.error();
    auto timeout = here.timeout("options->timeout_ms", given->timeout_ms);
    if (!timeout)
      return timeout.error();
    auto targets = here.targets(tensors, count);
    if (!targets)
      return targets.error();
    return begin<millrace::load_receipt>(request, [&] {
      return models_of(*client, given->group)
        .load(model, std::move(*targets), {given->version, *timeout});
    });
  });
}

millrace_code millrace_await(
  millrace_client* client, const char* group, const char* model, uint64_t newer_than,
  int64_t timeout_ms, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{client, "client"}, {model, "model"}}); !bad.ok())
      return bad;
    auto timeout = here.timeout("timeout_ms", timeout_ms);
    if (!timeout)
      return timeout.error();
    return begin<millrace::model_record>(
      request, [&] { return models_of(*client, group).newer(model, newer_than, *timeout); });
  });
}

millrace_code millrace_describe(
  millrace_client* client, const char* group, const char* model, uint64_t version,
  millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{client, "client"}, {model, "model"}}); !bad.ok())
      return bad;
    return begin<millrace::model_info>(
      request, [&] { return models_of(*client, group).describe(model, version); });
  });
}

millrace_code millrace_identify_layers(
  const millrace_layer* layers, size_t layers_count, const millrace_tensor* tensors, size_t count,
  unsigned char* ids) {
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{ids, "ids"}}); !bad.ok())
      return bad;
    auto views = count > 0 ? here.tensors(tensors, count)
                           : millrace::result<std::vector<millrace::tensor_view>>{};
    if (!views)
      return views.error();
    auto graph = graph_of(here, {"layers", layers, layers_count}, *views);
    if (!graph)
      return graph.error();
    auto found = millrace::identify_layers(*graph);
    if (!found)
      return found.error();
    for (auto& id : *found) {
      static_assert(sizeof(id.bytes) == sizeof(millrace_layer::id));
      ids =
        std::copy_n(reinterpret_cast<const unsigned char*>(id.bytes.data()), id.bytes.size(), ids);
    }
    return {};
  });
}

millrace_code millrace_list(
  millrace_client* client, const char* group, const char* prefix, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (!client)
      return here.wrong("client", "is NULL");
    return begin<millrace::listed<millrace::model_summary>>(
      request, [&] { return models_of(*client, group).list(text_or(prefix, "")); });
  });
}

millrace_code millrace_erase(
  millrace_client* client, const char* group, const char* model, millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{client, "client"}, {model, "model"}}); !bad.ok())
      return bad;
    return begin<void>(request, [&] { return models_of(*client, group).erase(model); });
  });
}

millrace_code millrace_pin(
  millrace_client* client, const char* group, const char* model, int32_t pinned,
  millrace_request** request) {
  clear(request);
  return guarded(__func__, [&](const call& here) -> status {
    if (auto bad = here.need({{client, "client"}, {model, "model"}}); !bad.ok())
      return bad;
    return begin<void>(request, [&] { return models_of(*client, group).pin(model, pinned != 0); });
  });
}

// The orders of epochs, as functions of a set. They send no message.
#include "data.hpp"

#include <algorithm>
#include <span>

using namespace millrace::bindings;
using millrace::status;

namespace {

millrace::result<millrace::sample_order> order_of(
  const call& here, const millrace_set_reader& reader, const millrace_order_options* options) {
  auto given = here.options(options);
  if (!given)
    return millrace::fail(given.error());
  millrace::shuffle_kind shuffle;
  auto bad = read_kind(here, given->shuffle, &millrace::shuffle_kind::parse, shuffle);
  if (!bad.ok())
    return millrace::fail(bad);
  return reader.of.order(given->seed, given->epoch, shuffle);
}

} // namespace

millrace_code millrace_set_reader_order(
  const millrace_set_reader* reader, const millrace_order_options* options, uint64_t first,
  size_t count, uint64_t* ids) {
  return guarded(__func__, [&](const call& here) -> status {
    auto bad = here.need({{reader, "reader"}});
    if (bad.ok() && count > 0)
      bad = here.need({{ids, "ids"}});
    if (!bad.ok())
      return bad;
    auto order = order_of(here, *reader, options);
    if (!order)
      return order.error();
    if (first > order->size() || count > order->size() - first)
      return here.wrong(
        "first",
        fmt::format(
          "is {}, and count is {}; the order has {} positions", first, count, order->size()));
    for (auto& id : std::span{ids, count})
      id = order->at(first++);
    return {};
  });
}

millrace_code millrace_set_reader_positions(
  const millrace_set_reader* reader, const millrace_order_options* options, const uint64_t* ids,
  size_t count, uint64_t* positions) {
  return guarded(__func__, [&](const call& here) -> status {
    auto bad = here.need({{reader, "reader"}});
    if (bad.ok() && count > 0)
      bad = here.need({{ids, "ids"}, {positions, "positions"}});
    if (!bad.ok())
      return bad;
    auto order = order_of(here, *reader, options);
    if (!order)
      return order.error();
    std::span wanted{ids, count};
    auto behind =
      std::ranges::find_if(wanted, [&](std::uint64_t id) { return id >= order->size(); });
    if (behind != wanted.end())
      return here.wrong(
        "ids", fmt::format("has {}, and the set has {} samples", *behind, order->size()));
    std::ranges::transform(
      wanted, positions, [&](std::uint64_t id) { return order->position_of(id); });
    return {};
  });
}

// `fill_shares` decides; this says who has joined what, and what is to be withdrawn.
#include <millrace/actors/loader/filling_table.hpp>

#include <algorithm>
#include <iterator>
#include <utility>

namespace millrace::actors {

void filling_table::begin(std::uint64_t number, const filling_ptr& set) {
  by_number_.emplace(number, std::make_shared<filling>(filling{number, ++begun_, set}));
}

// One that was given up is there until its leader leaves. The one that has begun last has the name.
result<std::shared_ptr<filling_table::filling>> filling_table::find(const std::string& name) const {
  std::shared_ptr<filling> out;
  for (auto& [number, one] : by_number_) {
    if (one->set->info().name == name && (!out || one->begun > out->begun))
      out = one;
  }
  if (!out)
    return fail(errc::not_found, "nobody fills a working set of the name {}", name);
  return out;
}

// Places of fields do not count: they depend on the division.
status filling_table::check_same(const set_info& set, set_info wanted) {
  wanted.region_bytes = set.region_bytes;
  if (auto bad = place_fields(wanted); !bad.ok())
    return bad;
  auto is_part = is_divided(wanted) ? wanted.division == set.division : set.division.index == 0;
  auto same = is_part && have_same_samples(set, wanted) && set.extension == wanted.extension &&
    !is_window(set) && !is_window(wanted);
  return same ? status{}
              : status{
                  errc::already_exists, "working set {} is being preloaded by {} from other files",
                  set.name, set.owner};
}

// A connection that has joined has claims, perhaps. Others with its number would not know them.
status filling_table::check_room(const filling& of, const filler& asker) {
  auto& name = of.set->info().name;
  if (!of.shares)
    return {errc::busy, "working set {}: who preloads it has not begun", name};
  if (std::ranges::any_of(of.joined, [&](auto& one) { return one.second.who.is_same(asker); }))
    return {errc::busy, "working set {}: this process helps to fill it already", name};
  if (of.joined.size() >= members_max)
    return {errc::busy, "working set {}: {} clients fill it already", name, members_max};
  return {};
}

// Who writes decides what others read; so it is the owner of the set.
result<set_reservation> filling_table::join(
  std::uint64_t number, set_info wanted, const filler& asker, time_point now) {
  auto found = find(wanted.name);
  if (!found)
    return fail(found.error());
  auto& of = **found;
  auto& info = of.set->info();
  if (auto bad = check_same(info, std::move(wanted)); !bad.ok())
    return fail(bad);
  if (!storage::samples::may_change(info.owner, asker.owner))
    return fail(
      errc::permission_denied,
      "working set {} is being preloaded by {}, and {} may not write to it", info.name, info.owner,
      asker.owner);
  if (auto bad = check_room(of, asker); !bad.ok())
    return fail(bad);
  auto regions = expose_regions(of.set->regions(), access_mode::write);
  if (!regions)
    return fail(regions.error());
  auto memory = std::make_shared<exposed_memory<storage::samples::set_filling>>();
  memory->memory = of.set;
  memory->regions = std::move(*regions);
  set_reservation out{info, false, number, handles_of(memory->regions)};
  of.shares->join(number);
  of.joined.emplace(number, member{std::move(memory), asker, now});
  by_number_.emplace(number, *found);
  return out;
}

status filling_table::check_cut(filling& of, const claim_blocks_request& request) {
  if (!of.shares && request.number == of.leader) {
    of.shares.emplace(request.blocks);
    of.shares->join(request.number);
    of.cut = request.cut;
  }
  auto same = of.shares && of.shares->blocks() == request.blocks && of.cut == request.cut;
  return same ? status{}
              : status{
                  errc::invalid_argument,
                  "working set {}: who preloads it has cut it into other blocks, or decodes images "
                  "otherwise; let all clients, and their libjpeg-turbo, be of one version",
                  of.set->info().name};
}

status filling_table::finish(filling& of, const claim_blocks_request& request) {
  for (auto& one : request.written) {
    if (!of.shares->finish(request.number, one.blocks))
      return {
        errc::not_found,
        "working set {}: the blocks {} to {} are none that this process has claimed",
        of.set->info().name, one.blocks.first, one.blocks.first + one.blocks.count};
    of.written_bytes += one.data_bytes;
  }
  return {};
}

result<claimed_blocks> filling_table::claim(const claim_blocks_request& request, time_point now) {
  auto found = by_number_.find(request.number);
  if (found == by_number_.end())
    return fail(errc::not_found, "{} is not the number of a set that is filled", request.number);
  auto& of = *found->second;
  if (auto bad = check_cut(of, request); !bad.ok())
    return fail(bad);
  if (auto bad = finish(of, request); !bad.ok())
    return fail(bad);
  claimed_blocks out;
  out.blocks = of.shares->claim(request.number, request.below, request.wanted);
  out.more = of.shares->has_before(request.below);
  out.unclaimed = of.shares->unclaimed();
  out.elsewhere = of.shares->elsewhere(request.number);
  out.written_bytes = of.written_bytes;
  auto own = of.joined.find(request.number);
  if (own != of.joined.end() && (out.blocks.count > 0 || !request.written.empty()))
    own->second.went_on_at = now;
  return out;
}

// Others have something to do as long as they have blocks.
std::vector<std::uint64_t> filling_table::stalled(std::uint64_t asker, time_point now) const {
  std::vector<std::uint64_t> out;
  auto found = by_number_.find(asker);
  if (found == by_number_.end() || !found->second->shares)
    return out;
  auto& of = *found->second;
  if (of.shares->unclaimed() > 0 || of.shares->claimed(asker) > 0)
    return out;
  out.reserve(of.joined.size());
  for (auto& [number, one] : of.joined)
    if (of.shares->claimed(number) > 0 && now - one.went_on_at >= stalled_after)
      out.push_back(number);
  return out;
}

status filling_table::check_written(std::uint64_t leader) const {
  auto found = by_number_.find(leader);
  auto whole =
    found == by_number_.end() || !found->second->shares || found->second->shares->all_written();
  return whole ? status{}
               : status{
                   errc::invalid_argument, "working set {}: not all of its blocks are written",
                   found->second->set->info().name};
}

std::vector<ended_filling> filling_table::close(std::uint64_t number) {
  std::vector<ended_filling> out;
  auto found = by_number_.find(number);
  if (found == by_number_.end())
    return out;
  auto of = std::move(found->second);
  by_number_.erase(found);
  if (number == of->leader) {
    out.reserve(of->joined.size());
    for (auto& [joined, one] : std::exchange(of->joined, {})) {
      by_number_.erase(joined);
      out.push_back({std::move(one.memory), nullptr});
    }
    return out;
  }
  auto own = of->joined.extract(number);
  out.push_back({std::move(own.mapped().memory), [of, number] { of->shares->leave(number); }});
  return out;
}

} // namespace millrace::actors

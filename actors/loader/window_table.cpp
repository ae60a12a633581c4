// Buffers decide; this says who has which values.
#include <millrace/actors/loader/window_table.hpp>

#include <algorithm>
#include <utility>

namespace millrace::actors {

namespace {

constexpr std::size_t lease_values_max = 65'536; // that one lease reads or writes at a time

} // namespace

std::shared_ptr<window_buffer> window_table::buffer_of(const set_ptr& set) {
  std::erase_if(windows_, [](auto& one) { return one.second.set.expired(); });
  auto& info = set->info();
  auto& one = windows_[info.id];
  if (!one.buffer)
    one = {set, std::make_shared<window_buffer>(info.size_bytes, info.samples)};
  return one.buffer;
}

void window_table::open(std::uint64_t number, const set_ptr& set) {
  leases_.emplace(number, lease{set, buffer_of(set)});
}

result<window_table::lease*> window_table::find(std::uint64_t number) {
  auto found = leases_.find(number);
  if (found == leases_.end())
    return fail(errc::invalid_argument, "lease {} is none of a window", number);
  return &found->second;
}

result<std::vector<bulk_handle>> window_table::write(std::uint64_t number) {
  auto found = find(number);
  if (!found)
    return fail(found.error());
  auto& of = **found;
  if (!of.memory) {
    auto made = expose_regions(of.set->regions(), access_mode::write);
    if (!made)
      return fail(made.error());
    of.memory = std::make_shared<exposed_memory<const storage::samples::stored_set>>(
      exposed_memory<const storage::samples::stored_set>{of.set, std::move(*made)});
  }
  return handles_of(of.memory->regions);
}

status window_table::check(const set_info& set, const take_values_request& request) {
  if (request.field >= set.fields.size())
    return {
      errc::invalid_argument, "working set {} has {} fields, and none with the number {}", set.name,
      set.fields.size(), request.field};
  auto& field = set.fields[request.field];
  for (auto& one : request.values)
    if (
      one.sample >= set.samples ||
      (field.varies ? one.bytes > field.data_bytes : one.bytes != field.bytes))
      return {
        errc::invalid_argument,
        "working set {} has no sample {} of {} bytes in field {}",
        set.name,
        one.sample,
        one.bytes,
        field.sample.name};
  return {};
}

result<taken_values> window_table::take(const take_values_request& request) {
  auto found = find(request.lease);
  if (!found)
    return fail(found.error());
  auto& of = **found;
  if (auto bad = check(of.set->info(), request); !bad.ok())
    return fail(bad);
  taken_values out;
  for (std::uint32_t i = 0; i < request.values.size(); ++i) {
    if (of.reading.size() + of.writing.size() >= lease_values_max)
      break;
    auto& one = request.values[i];
    value_key key{request.field, one.sample};
    if (auto place = of.buffer->take(key, one.bytes, one.needed_in)) {
      of.reading.insert(key);
      out.kept.push_back({i, place->address, place->digest});
    } else if (request.writes && of.memory) {
      if (auto address = of.buffer->begin_write(key, one.bytes, one.needed_in)) {
        of.writing.insert(key);
        out.to_write.push_back({i, *address});
      }
    }
  }
  of.buffer->pass(request.passed);
  return out;
}

// A value may be given to one lease several times.
bool window_table::has_all(const lease& of, const return_values_request& request) {
  std::multiset<value_key> given;
  std::set<value_key> lent;
  for (auto* samples : {&request.read, &request.damaged})
    for (auto sample : *samples)
      given.insert({request.field, sample});
  auto once = true;
  for (auto& one : request.written)
    once = lent.insert({request.field, one.sample}).second && once;
  for (auto sample : request.unused)
    once = lent.insert({request.field, sample}).second && once;
  return once && std::ranges::includes(of.reading, given) &&
    std::ranges::includes(of.writing, lent);
}

status window_table::give_back(const return_values_request& request) {
  auto found = find(request.lease);
  if (!found)
    return found.error();
  auto& of = **found;
  if (!has_all(of, request))
    return {
      errc::not_found, "a value of working set {} is not one that this process has",
      of.set->info().name};
  auto key_of = [&](std::uint64_t sample) { return value_key{request.field, sample}; };
  auto end_reading = [&](std::uint64_t sample) {
    of.reading.erase(of.reading.find(key_of(sample)));
    return key_of(sample);
  };
  for (auto sample : request.read)
    of.buffer->release(end_reading(sample));
  for (auto sample : request.damaged)
    of.buffer->drop(end_reading(sample));
  for (auto& one : request.written) {
    of.writing.erase(key_of(one.sample));
    of.buffer->commit(key_of(one.sample), one.digest);
  }
  for (auto sample : request.unused) {
    of.writing.erase(key_of(sample));
    of.buffer->abandon(key_of(sample));
  }
  return {};
}

// Who reads compares digests, so a reader that goes on after its lease does no harm. A writer does.
std::optional<ended_window> window_table::close(std::uint64_t number) {
  auto found = leases_.find(number);
  if (found == leases_.end())
    return std::nullopt;
  auto of = std::move(found->second);
  leases_.erase(found);
  for (auto& key : of.reading)
    of.buffer->release(key);
  return ended_window{of.memory, [buffer = of.buffer, writing = std::move(of.writing)] {
                        for (auto& key : writing)
                          buffer->abandon(key);
                      }};
}

window_counts window_table::counts(const set_ptr& set) { return buffer_of(set)->counts(); }

} // namespace millrace::actors

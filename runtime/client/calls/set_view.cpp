// Opening: the server's answer is checked, and every region is mapped, all at once. Reading: by
// copies or by transfers.
#include <millrace/core/gathering.hpp>
#include <millrace/runtime/client/calls/set_view.hpp>

#include <algorithm>
#include <cstring>
#include <new>

namespace millrace::runtime {

namespace {

using transport::mapped_region;
using word = std::atomic<std::uint64_t>;

constexpr std::uint64_t scan_bytes = 4u << 20;

// Checks that the regions are those of the set, before anything relies on it.
status check(const actors::opened_set& opened, const std::string& name, const set_id& id) {
  auto& set = opened.set;
  auto bad = validate(set);
  if (bad.ok() && set.name != name)
    bad = {errc::protocol_error, "it is called {}", set.name};
  if (bad.ok() && !id.is_nil() && set.id != id && set.division.whole != id)
    bad = {errc::protocol_error, "it is another one"};
  if (bad.ok() && opened.regions.size() != region_count(set))
    bad = {errc::protocol_error, "{} regions for {} bytes", opened.regions.size(), set.size_bytes};
  auto words = size_bytes(opened.generations) / sizeof(word);
  auto left = set.size_bytes;
  for (auto& region : opened.regions) {
    auto wanted = std::min(left, set.region_bytes);
    if (bad.ok() && (size_bytes(region.memory) != wanted || region.slot >= words))
      bad = {errc::protocol_error, "a region of {} bytes is not one", size_bytes(region.memory)};
    left -= wanted;
  }
  return bad.ok() ? bad : status{errc::protocol_error, "working set {}: {}", name, bad.detail()};
}

} // namespace

result<std::vector<std::string>> data_homes(const client_core& core, const std::string& name) {
  std::vector<std::pair<double, std::string>> scored;
  for (auto& node : core.where().nodes)
    if (node.data_bytes > 0)
      scored.emplace_back(placement_score(name, node.name, 1), node.name);
  if (scored.empty())
    return fail(
      errc::not_found, "no node keeps working sets; set data.capacity in the file of a node");
  std::ranges::stable_sort(scored, [](auto& a, auto& b) { return a.first > b.first; });
  std::vector<std::string> out;
  out.reserve(scored.size());
  for (auto& [score, node] : scored)
    out.push_back(std::move(node));
  return out;
}

result<std::string> data_home(const client_core& core, const std::string& name) {
  auto homes = data_homes(core, name);
  return homes ? result<std::string>{homes->front()} : fail(homes.error());
}

std::vector<std::string> nodes_of(const client_core& core, const set_info& home) {
  return is_divided(home) ? home.division.nodes
                          : std::vector{data_home(core, home.name).value_or("")};
}

status check_nodes(const client_core& core, const set_info& part) {
  auto& known = core.where().nodes;
  for (auto& node : part.division.nodes)
    if (std::ranges::find(known, node, &node_entry::name) == known.end())
      return {
        errc::invalid_argument,
        "working set {} has a part at node {}, which is not among the nodes that this client "
        "knows; "
        "let the configurations of all nodes, and of the client, list the same ones "
        "(cluster.nodes)",
        part.name, node};
  return {};
}

bool is_loss(const status& why) {
  switch (why.code()) {
  case errc::peer_lost:
  case errc::unavailable:
  case errc::not_found:
  case errc::deadline_exceeded:
    return true;
  default:
    return false;
  }
}

set_view::set_view(std::shared_ptr<client_core> core, std::string node, actors::opened_set opened)
  : core_(std::move(core)), node_(std::move(node)), opened_(std::move(opened)) {}

// Without memory for the message the lease ends with the connection.
set_view::~set_view() {
  try {
    if (core_->refusal().ok())
      static_cast<void>(ask_data(*core_, node_, actors::close_set_request{opened_.lease}));
  } catch (const std::bad_alloc&) { // see above
  }
}

void set_view::open(
  std::shared_ptr<client_core> core, const std::string& node, const std::string& name,
  const set_id& id, completion<std::shared_ptr<set_view>> done) {
  auto mark = random_id<set_id>();
  auto opening =
    ask_data(*core, node, actors::open_set_request{name, core->timeout_ms(), id, mark});
  opening.chain([core, node, name, id, mark,
                 done = std::move(done)](const result<actors::opened_set>& opened) mutable {
    if (!opened) {
      if (opened.error().code() == errc::deadline_exceeded)
        give_back_late(*core, node, mark);
      return done(fail(opened.error()));
    }
    std::shared_ptr<set_view> view{new set_view{core, node, *opened}};
    auto bad = check(*opened, name, id);
    if (bad.ok())
      bad = check_nodes(*core, opened->set);
    if (!bad.ok())
      return done(fail(bad));
    view->map(std::move(done));
  });
}

// As for streams: the server has opened the set before it sees this, if it ever does.
void set_view::give_back_late(client_core& core, const std::string& node, const set_id& mark) {
  actors::close_set_request request;
  request.mark = mark;
  static_cast<void>(ask_data(core, node, std::move(request)));
}

void set_view::map(completion<std::shared_ptr<set_view>> done) {
  auto self = shared_from_this();
  auto all = std::make_shared<gathering<mapped_region>>(
    opened_.regions.size() + 1,
    [self, done = std::move(done)](result<std::vector<mapped_region>> mapped) {
      // Another host, or a process of it that maps nothing: the handles serve for transfers.
      if (!mapped && mapped.error().code() == errc::unsupported)
        return done(self);
      auto bad = mapped ? self->take(std::move(*mapped)) : mapped.error();
      done(
        bad.ok() ? result<std::shared_ptr<set_view>>{self}
                 : fail(bad.within(fmt::format(
                     "opening working set {} of node {}", self->info().name, self->node()))));
    });
  auto& fabric = *core_->runs_on()->fabric();
  auto map_one = [&](std::size_t i, const bulk_handle& handle) {
    fabric.map(
      handle, [all, i](result<mapped_region> mapped) { all->arrived(i, std::move(mapped)); });
  };
  for (std::size_t i = 0; i < opened_.regions.size(); ++i)
    map_one(i, opened_.regions[i].memory);
  map_one(opened_.regions.size(), opened_.generations);
}

status set_view::take(std::vector<mapped_region> mapped) {
  generations_ = std::move(mapped.back());
  if (reinterpret_cast<std::uintptr_t>(generations_.data) % alignof(word) != 0)
    return {errc::protocol_error, "the generations of node {} lie askew", node()};
  mapped.pop_back();
  regions_ = std::move(mapped);
  return still_ours();
}

status set_view::still_ours() const {
  if (regions_.empty())
    return {}; // each transfer has checked it
  // What was read before is read no later than the words.
  std::atomic_thread_fence(std::memory_order_acquire);
  auto* words = reinterpret_cast<const word*>(generations_.data);
  for (auto& region : opened_.regions)
    if (words[region.slot].load(std::memory_order_relaxed) != region.generation)
      return {
        errc::not_found,
        "working set {} was unloaded, and others have its memory; preload it again", info().name};
  return {};
}

// The addresses may come from another process: entries of a table, or the place of a field.
status set_view::check_ranges(const std::vector<set_range>& ranges) const {
  for (auto& range : ranges)
    if (range.address > info().size_bytes || range.length > info().size_bytes - range.address)
      return {
        errc::corrupt_data,
        "working set {} of node {}: {} bytes at address {} are not in the set, which has {}",
        info().name,
        node(),
        range.length,
        range.address,
        info().size_bytes};
  return {};
}

void set_view::read(
  const std::vector<set_range>& ranges, std::span<std::byte> into, completion<void> done,
  std::shared_ptr<const std::atomic<bool>> stop) const {
  if (auto bad = check_ranges(ranges); !bad.ok())
    return done(fail(bad));
  if (!regions_.empty())
    return copy(ranges, std::move(done));
  auto reads = by_transfers(ranges, into);
  reads.stop = std::move(stop);
  core_->reads()->read(
    std::move(reads), [self = shared_from_this(), done = std::move(done)](result<void> moved) {
      done(moved ? std::move(moved) : fail(self->explained(moved.error())));
    });
}

void set_view::entries(
  std::size_t field, const std::vector<std::uint64_t>& ids,
  completion<std::vector<sample_entry>> done) const {
  auto& of = info().fields[field];
  auto each = entry_bytes(of);
  auto bytes = std::make_shared<std::vector<std::byte>>(ids.size() * each);
  std::vector<set_range> ranges; // entries of neighbours are one
  for (std::size_t i = 0; i < ids.size(); ++i)
    append(ranges, {of.table + ids[i] * each, each, bytes->data() + i * each});
  read(
    ranges, *bytes,
    [self = shared_from_this(), field, ids, bytes, done = std::move(done)](const result<void>& r) {
      done(r ? self->entries_in(*bytes, field, ids) : fail(r.error()));
    });
}

result<std::vector<sample_entry>> set_view::entries_in(
  std::span<const std::byte> bytes, std::size_t field,
  const std::vector<std::uint64_t>& ids) const {
  auto& of = info().fields[field];
  auto each = entry_bytes(of);
  std::vector<sample_entry> out;
  out.reserve(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    sample_entry one{of.base + ids[i] * of.bytes, of.bytes, 0};
    std::memcpy(of.varies ? &one.address : &one.digest, bytes.data() + i * each, each);
    if (auto bad = validate(one, info(), field, ids[i]); !bad.ok())
      return fail(bad);
    out.push_back(one);
  }
  return out;
}

void set_view::copy(const std::vector<set_range>& ranges, completion<void> done) const {
  std::vector<transport::local_copy> parts;
  parts.reserve(ranges.size());
  for (auto& range : ranges) {
    auto* to = range.to;
    for_each_piece(info().region_bytes, range.address, range.length, [&](const set_piece& piece) {
      parts.push_back({to, regions_[piece.region].data + piece.offset, piece.length});
      to += piece.length;
    });
  }
  core_->runs_on()->fabric()->copy(
    std::move(parts), false,
    [self = shared_from_this(), done = std::move(done)](result<void> copied) {
      if (auto ours = self->still_ours(); copied && !ours.ok())
        copied = fail(ours);
      done(std::move(copied));
    });
}

remote_read set_view::by_transfers(
  const std::vector<set_range>& ranges, std::span<std::byte> into) const {
  remote_read out;
  out.parts.reserve(ranges.size());
  out.into = into;
  for (auto& range : ranges) {
    auto* to = range.to;
    for_each_piece(info().region_bytes, range.address, range.length, [&](const set_piece& piece) {
      out.parts.push_back({&opened_.regions[piece.region].memory, piece.offset, piece.length, to});
      to += piece.length;
    });
  }
  out.keep = shared_from_this();
  return out;
}

// The region is gone if the data server has ended the lease: with its connection, or its actor.
status set_view::explained(const status& why) const {
  if (why.code() == errc::permission_denied)
    return {
      errc::not_found,
      "working set {} is not open any more: node {} has ended the lease, as it does when a "
      "connection is lost; open it again ({})",
      info().name, node(), why.detail()};
  // It is the way that damaged the bytes. The set is as it was.
  auto code = why.code() == errc::corrupt_data ? errc::io_error : why.code();
  return status{code, "{}", why.detail()}.within(
    fmt::format("reading working set {} of node {}", info().name, node()));
}

std::span<const std::byte> set_view::mapped_from(std::uint64_t address) const noexcept {
  if (regions_.empty() || address >= info().size_bytes)
    return {};
  auto& region = regions_[address / info().region_bytes];
  return std::span{region.data, region.size_bytes}.subspan(address & (info().region_bytes - 1));
}

result<std::span<const std::byte>> set_scan::at(std::uint64_t address, std::uint64_t length) {
  if (auto here = view_.mapped_from(address); !here.empty())
    return here.first(std::min<std::uint64_t>(here.size(), length));
  if (address < begin_ || address >= end_) {
    if (auto bad = view_.check_ranges({{address, length, nullptr}}); !bad.ok())
      return fail(bad);
    begin_ = address;
    end_ = std::min(address + scan_bytes, view_.info().size_bytes);
    block_.resize(end_ - begin_);
    auto done = view_.core()->make_promise<void>();
    view_.read({{begin_, end_ - begin_, block_.data()}}, block_, [done](result<void> r) {
      done.set(std::move(r));
    });
    if (auto read = done.get_future().result(); !read) {
      end_ = begin_;
      return fail(read.error());
    }
  }
  auto rest = std::span<const std::byte>{block_}.subspan(address - begin_);
  return rest.first(std::min<std::uint64_t>(rest.size(), length));
}

} // namespace millrace::runtime

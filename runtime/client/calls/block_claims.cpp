// One request is under way at a time.
#include <millrace/core/digest.hpp>
#include <millrace/runtime/client/calls/block_claims.hpp>
#include <millrace/runtime/client/calls/set_view.hpp>
#include <millrace/storage/samples/image.hpp>

#include <algorithm>
#include <iterator>
#include <utility>

namespace millrace::runtime {

namespace {

constexpr std::uint64_t claim_blocks_min = 4; // of a claim, if there are so many

// Libraries that decode images otherwise would make other samples.
std::uint64_t cut_of(const part_blocks& part, const preload_call& call) {
  if (call.options.decode.empty())
    return part.cut();
  running_digest all;
  for (auto one : {part.cut(), storage::samples::decoder_mark()})
    all.add(&one, sizeof(one));
  return all.value();
}

status lie(const part_blocks& part) {
  return {
    errc::protocol_error,
    "the data server of node {} has given blocks of {} that were not asked for", part.of().node,
    part.set().name};
}

} // namespace

block_claims::block_claims(
  const preload_call& call, const std::vector<std::unique_ptr<part_blocks>>& parts, bool in_order,
  std::optional<std::size_t> begin)
  : call_(call), parts_(parts), known_(parts.size()) {
  for (std::size_t p = 0; p < parts.size(); ++p)
    known_[p].cut = cut_of(*parts[p], call);
  auto fields = in_order && !parts.empty() ? parts.front()->set().fields.size() : 0;
  order_.reserve(parts.size() * (fields + 2));
  for (std::size_t p = 1; p < parts.size() && !begin; ++p)
    order_.push_back({p, 0});
  for (std::size_t f = 0; f < fields; ++f)
    for (std::size_t p = 0; p < parts.size(); ++p)
      order_.push_back({p, parts[p]->end_of(f)});
  if (in_order)
    return;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    auto p = (begin.value_or(0) + i) % parts.size();
    order_.push_back({p, parts[p]->blocks().size()});
  }
}

void block_claims::begin_pass(std::uint64_t ahead) {
  ahead_ = ahead;
  at_ = 0;
  if (std::exchange(first_pass_, false)) {
    pass_ = order_;
    return;
  }
  pass_.clear();
  pass_.reserve(parts_.size());
  for (std::size_t p = 0; p < parts_.size(); ++p)
    pass_.push_back({p, parts_[p]->blocks().size()});
}

result<bool> block_claims::look() {
  while (ready_.empty()) {
    ask();
    if (!asked_ && ready_.empty() && at_ == pass_.size())
      return false;
    if (auto bad = hear(); !bad.ok())
      return fail(bad);
  }
  return true;
}

result<std::optional<claimed_block>> block_claims::take() {
  if (ready_blocks() <= ahead_)
    ask();
  auto any = look();
  if (!any)
    return fail(any.error());
  if (!*any)
    return std::optional<claimed_block>{};
  auto& first = ready_.front();
  claimed_block out{first, first->next++};
  if (out.claim->next == out.claim->end)
    ready_.pop_front();
  return std::optional{std::move(out)};
}

std::uint64_t block_claims::ready_blocks() const {
  std::uint64_t out = 0;
  for (auto& one : ready_)
    out += one->end - one->next;
  return out;
}

// Asks the part that is next for more, unless it was asked.
void block_claims::ask() {
  if (asked_ || at_ == pass_.size())
    return;
  auto of = pass_[at_];
  actors::claim_blocks_request request;
  request.number = parts_[of.part]->of().reserved.number;
  request.blocks = parts_[of.part]->blocks().size();
  request.below = of.below;
  request.wanted = static_cast<std::uint32_t>(std::max(ahead_, claim_blocks_min));
  request.timeout_ms = call_.core->timeout_ms(call_.options.timeout);
  {
    std::lock_guard guard{mutex_};
    auto& known = known_[of.part];
    if (known.alone)
      return take_alone(of);
    request.cut = known.cut;
    request.written = std::exchange(known.written, {});
  }
  auto told = request.written;
  asked_.emplace(question{
    of, std::move(told), ask_data(*call_.core, parts_[of.part]->of().node, std::move(request))});
}

// Called under the lock.
void block_claims::take_alone(const stretch& of) {
  auto& next = known_[of.part].next_alone;
  if (auto first = std::exchange(next, std::max(next, of.below)); first < of.below)
    keep(of.part, {first, of.below - first});
  ++at_;
}

status block_claims::hear() {
  if (!asked_)
    return {};
  auto& outcome = asked_->answer.result();
  auto asked = std::move(*asked_);
  asked_.reset();
  return outcome ? take_answer(asked, *outcome) : failed(asked, outcome.error());
}

status block_claims::take_answer(const question& asked, const actors::claimed_blocks& answer) {
  auto [first, count] = answer.blocks;
  if (count > asked.of.below || first > asked.of.below - count)
    return lie(*parts_[asked.of.part]);
  std::lock_guard guard{mutex_};
  auto& known = known_[asked.of.part];
  for (auto& one : asked.told)
    known.told_bytes += one.data_bytes;
  auto elsewhere = answer.written_bytes - std::min(answer.written_bytes, known.told_bytes);
  bytes_elsewhere_ += elsewhere - std::exchange(known.bytes_elsewhere, elsewhere);
  known.unclaimed = answer.unclaimed;
  known.elsewhere = answer.elsewhere;
  if (count > 0)
    keep(asked.of.part, answer.blocks);
  if (count == 0 || !answer.more)
    ++at_;
  return {};
}

// What was not told is told later.
status block_claims::failed(const question& asked, const status& why) {
  std::lock_guard guard{mutex_};
  auto& known = known_[asked.of.part];
  if (why.code() == errc::unsupported) {
    known.alone = true;
    return {};
  }
  known.written.insert(known.written.end(), asked.told.begin(), asked.told.end());
  return why.within("node " + parts_[asked.of.part]->of().node);
}

void block_claims::keep(std::size_t part, const actors::block_range& blocks) {
  ready_.push_back(std::make_shared<block_claim>(
    block_claim{part, blocks.first, blocks.first + blocks.count, blocks.first, blocks.count}));
}

bool block_claims::moved(const claimed_block& one) {
  std::lock_guard guard{mutex_};
  return --one.claim->left == 0;
}

std::uint64_t block_claims::bytes_of(const block_claim& claim) const {
  std::uint64_t out = 0;
  for (auto i = claim.first; i < claim.end; ++i)
    out += parts_[claim.part]->blocks()[i].data_bytes;
  return out;
}

void block_claims::written(const block_claim& claim) {
  std::lock_guard guard{mutex_};
  known_[claim.part].written.push_back({{claim.first, claim.end - claim.first}, bytes_of(claim)});
}

bool block_claims::others_have_some() const {
  std::lock_guard guard{mutex_};
  return std::ranges::any_of(
    known_, [](auto& one) { return one.unclaimed > 0 || one.elsewhere > 0; });
}

} // namespace millrace::runtime

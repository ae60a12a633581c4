// Checks on the loop, registers on a mover, binds on the completion thread, and answers.
#include <millrace/transport/driver_message.hpp>
#include <millrace/transport/verbs/lending_side.hpp>

#include <algorithm>

namespace millrace::transport::verbs {

lending_side::lending_side(
  std::shared_ptr<net::channel> c, const link_parts& parts, const rail_set& rails)
  : channel_(std::move(c)), parts_(parts), rails_(rails),
    book_(std::make_shared<grant_book>(
      parts.sources, parts.options, [c = std::weak_ptr{channel_}](std::uint64_t region) {
        if (auto open = c.lock())
          static_cast<void>(send(*open, message_kind::withdrawn, withdrawn{region}));
      })) {}

// A peer without a right to the region gets a refusal at once.
status lending_side::on_ask(const ask& m) {
  if (auto bad = check(m); !bad.ok())
    return bad;
  auto how = access_for(static_cast<direction>(m.dir));
  auto memory = find_region(m.region, m.key, how, memory_reach::any);
  if (!memory) {
    refuse(m.number, memory.error());
    return {};
  }
  if (auto bad = admit(m); !bad.ok()) {
    refuse(m.number, bad);
    return {};
  }
  prepare(std::make_shared<question>(question{m, std::move(*memory)}));
  return {};
}

// An honest peer asks for a region again only after it has an answer.
status lending_side::admit(const ask& m) {
  std::lock_guard guard{mutex_};
  if (answering_.size() >= parts_.options.grants_max)
    return {errc::unsupported, "too many regions asked for at once"};
  if (!answering_.insert(m.region).second)
    return {errc::unsupported, "that region is being opened already"};
  return {};
}

void lending_side::prepare(question_ptr q) {
  parts_.movers->submit(
    1,
    [self = self(), q](std::uint32_t) {
      auto made = self->book_->prepare(
        q->m.region, q->memory, static_cast<direction>(q->m.dir), self->live_pairs());
      self->parts_.thread->post([self, q, made = std::move(made)] {
        made ? self->bind(q, *made) : self->answer(*q, fail(made.error()));
      });
    },
    [] {}, class_for(static_cast<direction>(q->m.dir)));
}

void lending_side::bind(const question_ptr& q, grant_book::prepared p) {
  auto round = std::make_shared<bind_round>();
  round->of = q;
  round->g = std::move(p.g);
  round->pairs = std::move(p.unbound);
  round->failed.resize(round->pairs.size());
  for (std::size_t i = 0; i < round->pairs.size(); ++i) {
    auto& over = round->pairs[i].over;
    auto* r = rails_.find(over.pair);
    if (closed_ || !r || !r->live() || r->generation() != over.generation) {
      round->failed[i] = true;
      continue;
    }
    for (auto& key : round->pairs[i].keys) {
      if (!key->needs_binding())
        continue;
      ++round->missing;
      r->bind(key, [this, round, i](const status& outcome) {
        if (!outcome.ok())
          round->failed[i] = true;
        bound(*round);
      });
    }
  }
  bound(*round);
}

void lending_side::bound(bind_round& round) {
  if (--round.missing > 0)
    return;
  std::vector<pair_grant> good;
  for (std::size_t i = 0; i < round.pairs.size(); ++i)
    if (!round.failed[i])
      good.push_back(std::move(round.pairs[i]));
  auto m = book_->answer(round.g, std::move(good));
  // A queue pair was joined after the keys were made. The peer asks again when one of its own comes
  // up, but this may have happened before it gets this answer.
  if (m && !covers_live_pairs(*m))
    return prepare(round.of);
  answer(*round.of, std::move(m));
}

bool lending_side::covers_live_pairs(const granted& m) const {
  return std::all_of(rails_.begin(), rails_.end(), [&](auto& r) {
    return !r->live() || std::any_of(m.pairs.begin(), m.pairs.end(), [&](auto& p) {
      return p.pair == r->pair() && p.generation == r->generation();
    });
  });
}

void lending_side::answer(const question& q, result<granted> m) {
  {
    std::lock_guard guard{mutex_};
    answering_.erase(q.m.region);
  }
  if (!m)
    return refuse(q.m.number, m.error());
  m->number = q.m.number;
  auto sent = send(*channel_, message_kind::granted, *m);
  // The keys of many ranges over many queue pairs may be too many for one message.
  if (!sent.ok())
    refuse(q.m.number, {errc::unsupported, sent.detail()});
}

void lending_side::refuse(std::uint64_t number, const status& why) {
  granted m;
  m.number = number;
  m.code = static_cast<std::uint8_t>(why.code());
  m.detail = why.detail();
  send_or_close(*channel_, message_kind::granted, m);
}

void lending_side::set_live_pairs(std::vector<live_pair> live) {
  std::lock_guard guard{mutex_};
  live_ = std::move(live);
}

std::vector<live_pair> lending_side::live_pairs() const {
  std::lock_guard guard{mutex_};
  return live_;
}

void lending_side::close() {
  closed_ = true;
  shut();
  clear();
}

} // namespace millrace::transport::verbs

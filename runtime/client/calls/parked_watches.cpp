// Parks watches, and asks for the news of all of them with one request.
#include <millrace/actors/checkpoint/checkpoint_messages.hpp>
#include <millrace/actors/store/store_messages.hpp>
#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/client/calls/parked_watches.hpp>

#include <atomic>
#include <chrono>
#include <utility>
#include <vector>

namespace millrace::runtime {

namespace {

// How long one request waits for news. The client waits longer, so that no answer is lost.
constexpr std::uint32_t wait_ms = 60'000;
constexpr std::chrono::milliseconds wait_for_answer{90'000};

// Turns under way together, at one provider. A connection has 256 credits, for all that is asked.
constexpr std::size_t turns_max = 64;

std::atomic<std::uint64_t> last_number = 0;

} // namespace

template <class Request, class Done>
void parked_watches::ask(const Request& request, time_point deadline, Done done) {
  // The calls keep the client, and this with it. A request for news waits long, and must not.
  auto heard = [weak = core_.weak_from_this(), done = std::move(done)](const auto& outcome) {
    if (auto core = weak.lock())
      done(outcome);
  };
  if (what_ == watched::models)
    core_.ask_until<actors::store_service>(deadline, provider_, request, std::move(heard));
  else
    core_.ask_until<actors::checkpoint_service>(deadline, provider_, request, std::move(heard));
}

std::uint64_t parked_watches::park(actors::watch_request request, time_point deadline, tell told) {
  auto number = request.number = last_number.fetch_add(1) + 1;
  entries_.emplace(number, entry{std::move(told)});
  in_turn([this, request = std::move(request), deadline](std::function<void()> over) {
    auto at = entries_.find(request.number);
    if (at == entries_.end())
      return over(); // withdrawn
    at->second.is_asked = true;
    ask(
      request, deadline,
      [this, number = request.number,
       over = std::move(over)](const result<actors::done_reply>& parked) {
        on_parked(number, parked ? status{} : parked.error());
        over();
      });
  });
  return number;
}

void parked_watches::in_turn(turn begin) {
  turns_.push_back(std::move(begin));
  begin_turns();
}

// What is over at once does not begin the next one from inside.
void parked_watches::begin_turns() {
  if (std::exchange(beginning_, true))
    return;
  while (under_way_ < turns_max && !turns_.empty()) {
    auto begin = std::move(turns_.front());
    turns_.pop_front();
    ++under_way_;
    begin([this] {
      --under_way_;
      begin_turns();
    });
  }
  beginning_ = false;
}

void parked_watches::on_parked(std::uint64_t number, const status& outcome) {
  auto at = entries_.find(number);
  if (at == entries_.end())
    return;
  if (!outcome.ok())
    return end(number, fail(outcome));
  at->second.is_parked = true;
  at->second.round = round_;
  ++parked_;
  ask_for_news();
  auto told = at->second.told; // the call may end the entry
  told(watch_step::parked);
}

void parked_watches::withdraw(std::uint64_t number) {
  auto at = entries_.find(number);
  if (at == entries_.end())
    return;
  auto was_asked = at->second.is_asked;
  parked_ -= at->second.is_parked ? 1 : 0;
  entries_.erase(at);
  if (was_asked)
    in_turn([this, number](std::function<void()> over) {
      actors::unwatch_request request;
      request.number = number;
      ask(
        request, core_.deadline_after(),
        [over = std::move(over)](const result<actors::done_reply>&) { over(); });
    });
}

void parked_watches::ask_for_news() {
  if (asking_ || parked_ == 0)
    return;
  asking_ = true;
  actors::watch_news_request request;
  request.wait_ms = wait_ms;
  ask(
    request, steady_clock::now() + wait_for_answer,
    [this, round = ++round_](const result<actors::watch_news>& news) { on_news(round, news); });
}

void parked_watches::on_news(std::uint64_t round, const result<actors::watch_news>& news) {
  asking_ = false;
  if (news)
    for (auto& item : news->items) {
      if (item.code == 0)
        end(item.number, watch_step::woken);
      else
        end(item.number, fail(errc_from_wire(item.code), std::string{item.detail}));
    }
  // A provider that knows no watch of this connection has lost those parked before the request. A
  // request that failed says nothing of those that were parked while it waited, and the next one
  // may go to a connection that has other watches.
  if (!news)
    end_all_before(round + 1, news.error());
  else if (!news->more)
    end_all_before(
      round, {errc::peer_lost, "the connection through which the watch came was lost"});
  ask_for_news();
}

void parked_watches::end_all_before(std::uint64_t round, const status& why) {
  std::vector<std::uint64_t> lost;
  for (auto& [number, e] : entries_)
    if (e.is_parked && e.round < round)
      lost.push_back(number);
  for (auto number : lost)
    end(number, fail(why));
}

void parked_watches::end(std::uint64_t number, result<watch_step> outcome) {
  auto at = entries_.find(number);
  if (at == entries_.end())
    return;
  parked_ -= at->second.is_parked ? 1 : 0;
  auto told = std::move(at->second.told);
  entries_.erase(at);
  told(std::move(outcome));
}

} // namespace millrace::runtime

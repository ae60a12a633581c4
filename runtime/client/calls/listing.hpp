// Lists names page by page, from all providers at once.
// Internal, used by `store_call` and `checkpoints`.
#pragma once

#include <millrace/core/future.hpp>
#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/client/listed.hpp>

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace millrace::runtime {

/// Part of a listing, sorted.
template <class Item>
struct listing_page {
  std::vector<Item> items;
  bool more = false; // there may be more after the last item
};

/// A listing in progress. `Item` is what a page holds; items are sorted by `name_of(item)`. A
/// provider that fails is noted, and does not hold up the others. If all fail, the listing fails
/// like the first one. It ends when `ask` has ended for each provider.
template <class Item>
class listing : public std::enable_shared_from_this<listing<Item>> {
public:
  using page = listing_page<Item>;
  /// Asks a provider for the page that follows the name `after`.
  using ask_page =
    std::function<void(std::size_t provider, const std::string& after, completion<page>)>;

  /// Lists the names of these providers, of which there is at least one.
  static future<listed<Item>> begin(
    std::shared_ptr<client_core> core, std::vector<std::size_t> providers, ask_page ask,
    const std::string& (*name_of)(const Item&)) {
    std::vector<std::string> names;
    names.reserve(providers.size());
    for (auto provider : providers)
      names.push_back(core->entry(provider).name);
    return begin(std::move(core), std::move(providers), std::move(names), std::move(ask), name_of);
  }
  /// Lists what others keep that are asked by numbers, too, and have these names.
  static future<listed<Item>> begin(
    std::shared_ptr<client_core> core, std::vector<std::size_t> numbers,
    std::vector<std::string> names, ask_page ask, const std::string& (*name_of)(const Item&)) {
    auto self = std::make_shared<listing>();
    self->done_ = core->make_promise<listed<Item>>();
    self->core_ = std::move(core);
    self->providers_ = std::move(numbers);
    self->names_ = std::move(names);
    self->ask_ = std::move(ask);
    self->name_of_ = name_of;
    self->said_.resize(self->providers_.size());
    auto out = self->done_.get_future();
    for (std::size_t i = 0; i < self->providers_.size(); ++i)
      self->next(i, {});
    return out;
  }

private:
  // What one provider has said so far.
  struct answer {
    std::vector<Item> items;
    status why;
  };

  void next(std::size_t at, const std::string& after) {
    ask_(providers_[at], after, [self = this->shared_from_this(), at, after](result<page> r) {
      auto& [items, why] = self->said_[at];
      if (!r) {
        why = r.error();
        return self->ended();
      }
      // Names must ascend from page to page, so that the listing ends whatever the provider sends.
      auto last = r->items.empty() ? after : self->name_of_(r->items.back());
      bool more = r->more && last > after;
      std::ranges::move(r->items, std::back_inserter(items));
      more ? self->next(at, last) : self->ended();
    });
  }

  void ended() {
    if (++ended_ < providers_.size())
      return;
    listed<Item> out;
    for (std::size_t i = 0; i < said_.size(); ++i) {
      auto& provider = names_[i];
      for (auto& item : said_[i].items)
        out.found.push_back({std::move(item), provider});
      if (!said_[i].why.ok())
        out.silent.push_back({provider, said_[i].why});
    }
    if (out.silent.size() == providers_.size())
      return static_cast<void>(done_.set(fail(out.silent.front().why)));
    std::stable_sort(out.found.begin(), out.found.end(), [this](auto& a, auto& b) {
      return name_of_(a) < name_of_(b);
    });
    done_.set(std::move(out));
  }

  std::shared_ptr<client_core> core_;
  std::vector<std::size_t> providers_;
  std::vector<std::string> names_;
  ask_page ask_;
  const std::string& (*name_of_)(const Item&) = nullptr;
  promise<listed<Item>> done_;
  std::vector<answer> said_; // by provider, in their order
  std::atomic<std::size_t> ended_ = 0;
};

} // namespace millrace::runtime

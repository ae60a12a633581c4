// Lists names page by page, from one provider after the other.
// Internal, used by `store_call` and `checkpoints`.
#pragma once

#include <millrace/core/future.hpp>
#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/client/listed.hpp>

#include <algorithm>
#include <functional>
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
/// provider that fails is noted, and the others are asked all the same. If all fail, the listing
/// fails like the first one.
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
    auto self = std::make_shared<listing>();
    self->done_ = core->make_promise<listed<Item>>();
    self->core_ = std::move(core);
    self->providers_ = std::move(providers);
    self->ask_ = std::move(ask);
    self->name_of_ = name_of;
    auto out = self->done_.get_future();
    self->next(0, {});
    return out;
  }

private:
  void next(std::size_t at, const std::string& after) {
    if (at == providers_.size())
      return finish();
    ask_(providers_[at], after, [self = this->shared_from_this(), at, after](result<page> r) {
      auto& provider = self->core_->entry(self->providers_[at]).name;
      if (!r) {
        self->out_.silent.push_back({provider, r.error()});
        return self->next(at + 1, {});
      }
      // Names must ascend from page to page, so that the listing ends whatever the provider sends.
      auto last = r->items.empty() ? after : self->name_of_(r->items.back());
      bool more = r->more && last > after;
      for (auto& item : r->items)
        self->out_.found.push_back({std::move(item), provider});
      self->next(more ? at : at + 1, more ? last : std::string{});
    });
  }

  void finish() {
    if (out_.silent.size() == providers_.size())
      return static_cast<void>(done_.set(fail(out_.silent.front().why)));
    std::stable_sort(out_.found.begin(), out_.found.end(), [this](auto& a, auto& b) {
      return name_of_(a) < name_of_(b);
    });
    done_.set(std::move(out_));
  }

  std::shared_ptr<client_core> core_;
  std::vector<std::size_t> providers_;
  ask_page ask_;
  const std::string& (*name_of_)(const Item&) = nullptr;
  promise<listed<Item>> done_;
  listed<Item> out_;
};

} // namespace millrace::runtime

// Lists names page by page, from one provider after the other.
// Internal, used by `store_call` and `checkpoints`.
#pragma once

#include <millrace/core/future.hpp>

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

/// A listing in progress. `Item` is what a page holds; items are sorted by `name_of(item)`.
template <class Item>
class listing : public std::enable_shared_from_this<listing<Item>> {
public:
  using page = listing_page<Item>;
  /// Asks a provider for the page that follows the name `after`.
  using ask_page =
    std::function<void(std::size_t provider, const std::string& after, completion<page>)>;

  listing(
    std::vector<std::size_t> providers, ask_page ask, const std::string& (*name_of)(const Item&),
    promise<std::vector<Item>> done)
    : providers_(std::move(providers)), ask_(std::move(ask)), name_of_(name_of),
      done_(std::move(done)) {}

  void begin() { next(0, {}); }

private:
  void next(std::size_t at, const std::string& after) {
    if (at == providers_.size()) {
      std::sort(found_.begin(), found_.end(), [this](auto& a, auto& b) {
        return name_of_(a) < name_of_(b);
      });
      done_.set(std::move(found_));
      return;
    }
    ask_(providers_[at], after, [self = this->shared_from_this(), at, after](result<page> r) {
      if (!r)
        return static_cast<void>(self->done_.set(fail(r.error())));
      // Names must ascend from page to page, so that the listing ends whatever the provider sends.
      auto last = r->items.empty() ? after : self->name_of_(r->items.back());
      bool more = r->more && last > after;
      std::move(r->items.begin(), r->items.end(), std::back_inserter(self->found_));
      self->next(more ? at : at + 1, more ? last : std::string{});
    });
  }

  std::vector<std::size_t> providers_;
  ask_page ask_;
  const std::string& (*name_of_)(const Item&);
  promise<std::vector<Item>> done_;
  std::vector<Item> found_;
};

} // namespace millrace::runtime

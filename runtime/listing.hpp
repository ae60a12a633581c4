// Lists page by page from one provider after the other. Internal.
#pragma once

#include <millrace/core/future.hpp>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace millrace::runtime {

/// A listing under way. `Item` is what a page holds; `name_of(item)` is what it is sorted by.
template <class Item>
class listing : public std::enable_shared_from_this<listing<Item>> {
public:
  using page = std::vector<Item>;
  /// Asks a provider for the page that follows the name `after`.
  using ask_page =
    std::function<void(std::size_t provider, const std::string& after, completion<page>)>;

  listing(
    std::vector<std::size_t> providers, std::size_t page_items, ask_page ask,
    const std::string& (*name_of)(const Item&), promise<page> done)
    : providers_(std::move(providers)), page_items_(page_items), ask_(std::move(ask)),
      name_of_(name_of), done_(std::move(done)) {}

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
    ask_(providers_[at], after, [self = this->shared_from_this(), at](result<page> r) {
      if (!r)
        return static_cast<void>(self->done_.set(fail(r.error())));
      bool more = r->size() >= self->page_items_;
      auto last = r->empty() ? std::string{} : self->name_of_(r->back());
      std::move(r->begin(), r->end(), std::back_inserter(self->found_));
      self->next(more ? at : at + 1, more ? last : std::string{});
    });
  }

  std::vector<std::size_t> providers_;
  std::size_t page_items_;
  ask_page ask_;
  const std::string& (*name_of_)(const Item&);
  promise<page> done_;
  page found_;
};

} // namespace millrace::runtime

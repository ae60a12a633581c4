// The base of operations that read a stored model window by window. Used by loads and by
// verifications.
#pragma once

#include <millrace/actors/layout_offsets.hpp>
#include <millrace/actors/load_operation.hpp>

#include <memory>
#include <utility>
#include <vector>

namespace millrace::actors {

/// Opens a model, plans the windows to read, and keeps at most `windows_max` of them in flight.
template <class Request, class Receipt>
class reading_operation : public timed_operation<Request, Receipt>,
                          public std::enable_shared_from_this<reading_operation<Request, Receipt>> {
public:
  reading_operation(
    std::shared_ptr<operation_context> context, Request request, model_opener open,
    time_point arrived, answer<Receipt> done)
    : timed_operation<Request, Receipt>(
        std::move(context), std::move(request), arrived, std::move(done)),
      open_(std::move(open)) {}

protected:
  /// Returns what is being done to which model, for errors.
  virtual std::string name() const = 0;
  /// Returns for what the windows are read.
  virtual staging_use use() const { return staging_use::restore; }
  /// Called when the model is open. Returns what to read of it, or an error.
  virtual result<std::vector<storage::wanted>> choose() = 0;
  /// Called with window number `index` of the plan. The window's user must call `done_with_window`
  /// or give up.
  virtual void on_window(std::size_t index, storage::window w) = 0;
  /// Called when every window was used.
  virtual void on_everything_read() = 0;

  const storage::opened_model& model() const { return *model_; }
  const std::vector<std::vector<storage::wanted>>& plan() const { return windows_; }

  void done_with_window() {
    --in_flight_;
    pump();
  }

  /// Runs `f(*this as Self, x)` in the actor unless the operation has answered by then.
  template <class Self, class T, class F>
  completion<T> later(F f) {
    return this->context_->template home<T>(
      [self = this->shared_from_this(), f = std::move(f)](result<T> x) mutable {
        if (!self->answered())
          f(static_cast<Self&>(*self), std::move(x));
      });
  }

private:
  using base = reading_operation;

  void start() final {
    std::exchange(open_, nullptr)(later<base, std::shared_ptr<storage::opened_model>>(
      [](base& self, auto opened) { self.on_opened(std::move(opened)); }));
  }

  void let_go() final {
    need_.end();
    model_.reset();
  }

  void on_opened(result<std::shared_ptr<storage::opened_model>> opened) {
    if (!opened)
      return this->give_up(opened.error());
    model_ = std::move(*opened);
    auto chosen = choose();
    if (!chosen)
      return this->give_up(chosen.error().within(name()));
    windows_ = model_->plan(*chosen);
    pump();
  }

  void pump() {
    while (!this->answered() && next_ < windows_.size() &&
           in_flight_ < this->context_->bounds.windows_max) {
      ++in_flight_;
      this->context_->ask_for_window(
        {this->request_.from.holder, use(), this->deadline(), &need_}, model_->window_bytes(),
        [self = this->shared_from_this(), index = next_++](result<memory_block> staging) {
          if (!self->answered())
            self->fetch(index, std::move(staging));
        });
    }
    if (!this->answered() && in_flight_ == 0 && next_ == windows_.size())
      on_everything_read();
  }

  void fetch(std::size_t index, result<memory_block> staging) {
    if (!staging)
      return this->give_up(staging.error().within(name()));
    model_->fetch(
      windows_[index], std::move(*staging),
      later<base, storage::window>([index](base& self, result<storage::window> w) {
        if (!w)
          return self.give_up(w.error().within(self.name()));
        self.on_window(index, std::move(*w));
      }));
  }

  model_opener open_;
  staging_need need_;
  std::shared_ptr<storage::opened_model> model_;
  std::vector<std::vector<storage::wanted>> windows_;
  std::size_t next_ = 0;
  std::uint32_t in_flight_ = 0;
};

} // namespace millrace::actors

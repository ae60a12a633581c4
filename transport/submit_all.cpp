// Counts the transfers of a batch. Nobody reads their reports, so they are not kept.
#include <millrace/transport/submit_all.hpp>

#include <memory>
#include <mutex>
#include <utility>

namespace millrace::transport {

namespace {

class batch_outcome {
public:
  batch_outcome(std::size_t count, completion<void> done)
    : missing_(count), done_(std::move(done)) {}

  void arrived(const result<transfer_report>& outcome) {
    {
      std::lock_guard guard{mutex_};
      if (!outcome && why_.ok())
        why_ = outcome.error();
      if (--missing_ > 0)
        return;
    }
    done_(why_.ok() ? result<void>{} : fail(why_));
  }

private:
  std::mutex mutex_;
  std::size_t missing_;
  status why_;
  completion<void> done_;
};

} // namespace

void submit_all(fabric& by, std::vector<transfer> batch, completion<void> done) {
  if (batch.empty())
    return done({});
  auto all = std::make_shared<batch_outcome>(batch.size(), std::move(done));
  for (auto& one : batch)
    by.submit(std::move(one), [all](const result<transfer_report>& r) { all->arrived(r); });
}

} // namespace millrace::transport

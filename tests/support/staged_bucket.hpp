// A bucket whose windows need staging memory, though its models lie in memory.
// Used by tests of the actors that lend it.
#pragma once

#include <millrace/storage/bucket.hpp>

#include <utility>

namespace millrace::testing {

/// Passes all calls on to another bucket. Its windows keep the staging memory that they are lent.
class staged_bucket final : public storage::bucket {
public:
  staged_bucket(std::shared_ptr<storage::bucket> inner, std::uint64_t window_bytes)
    : inner_(std::move(inner)), window_bytes_(window_bytes) {}

  std::string_view kind() const noexcept override { return inner_->kind(); }
  storage::bucket_capabilities capabilities() const noexcept override {
    auto can = inner_->capabilities();
    can.in_place = false;
    return can;
  }
  void reserve(
    model_spec spec, std::vector<described_layer> layers,
    completion<std::unique_ptr<storage::reservation>> done) override {
    inner_->reserve(
      std::move(spec), std::move(layers), [bytes = window_bytes_, done = std::move(done)](auto r) {
        if (r)
          r = std::make_unique<staged_room>(std::move(*r), bytes);
        done(std::move(r));
      });
  }
  void open(
    std::string name, std::uint64_t version,
    completion<std::shared_ptr<storage::opened_model>> done) override {
    inner_->open(std::move(name), version, [bytes = window_bytes_, done = std::move(done)](auto m) {
      if (m)
        m = std::make_shared<staged_model>(std::move(*m), bytes);
      done(std::move(m));
    });
  }
  void erase(std::string name, std::uint64_t version, completion<void> done) override {
    inner_->erase(std::move(name), version, std::move(done));
  }
  void pin(std::string name, bool pinned, completion<void> done) override {
    inner_->pin(std::move(name), pinned, std::move(done));
  }
  void list(
    std::string prefix, std::string after, std::uint32_t count_max,
    completion<std::vector<model_summary>> done) override {
    inner_->list(std::move(prefix), std::move(after), count_max, std::move(done));
  }
  void resolve(std::vector<layer_id> ids, completion<std::vector<described_layer>> done) override {
    inner_->resolve(std::move(ids), std::move(done));
  }
  storage::bucket_stats stats() const override { return inner_->stats(); }
  status close(std::uint32_t deadline_ms) override { return inner_->close(deadline_ms); }

private:
  static completion<storage::window> keep(memory_block staging, completion<storage::window> done) {
    return [staging = std::move(staging), done = std::move(done)](auto w) {
      if (w)
        w->hold = std::make_shared<std::pair<std::shared_ptr<void>, memory_block>>(
          std::move(w->hold), staging);
      done(std::move(w));
    };
  }

  class staged_room final : public storage::reservation {
  public:
    staged_room(std::unique_ptr<storage::reservation> inner, std::uint64_t window_bytes)
      : inner_(std::move(inner)), window_bytes_(window_bytes) {}
    std::uint32_t window_count() const noexcept override { return inner_->window_count(); }
    std::uint64_t window_bytes() const noexcept override { return window_bytes_; }
    void acquire(
      std::uint32_t index, memory_block staging, completion<storage::window> done) override {
      if (staging.size_bytes < window_bytes_)
        return done(fail(errc::internal, "no staging memory"));
      inner_->acquire(index, {}, keep(std::move(staging), std::move(done)));
    }
    void commit(std::uint32_t index, completion<void> done) override {
      inner_->commit(index, std::move(done));
    }
    void publish(std::vector<std::uint64_t> digests, completion<std::uint64_t> done) override {
      inner_->publish(std::move(digests), std::move(done));
    }

  private:
    std::unique_ptr<storage::reservation> inner_;
    std::uint64_t window_bytes_;
  };

  class staged_model final : public storage::opened_model {
  public:
    staged_model(std::shared_ptr<storage::opened_model> inner, std::uint64_t window_bytes)
      : inner_(std::move(inner)), window_bytes_(window_bytes) {}
    const model_record& record() const noexcept override { return inner_->record(); }
    std::vector<std::vector<storage::wanted>> plan(
      const std::vector<storage::wanted>& ranges) const override {
      return inner_->plan(ranges);
    }
    std::uint64_t window_bytes() const noexcept override { return window_bytes_; }
    void fetch(
      std::vector<storage::wanted> ranges, memory_block staging,
      completion<storage::window> done) override {
      if (staging.size_bytes < window_bytes_)
        return done(fail(errc::internal, "no staging memory"));
      inner_->fetch(std::move(ranges), {}, keep(std::move(staging), std::move(done)));
    }

  private:
    std::shared_ptr<storage::opened_model> inner_;
    std::uint64_t window_bytes_;
  };

  std::shared_ptr<storage::bucket> inner_;
  std::uint64_t window_bytes_;
};

} // namespace millrace::testing

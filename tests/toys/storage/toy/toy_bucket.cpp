// All calls but `reserve` are those of the memory bucket.
#include <millrace/storage/memory/memory_bucket.hpp>
#include <millrace/storage/toy/toy_bucket.hpp>

#include <fstream>

namespace millrace::storage {

namespace {

class toy_bucket : public bucket {
public:
  toy_bucket(std::shared_ptr<bucket> inner, std::uint32_t models_max)
    : inner_(std::move(inner)), models_max_(models_max) {}

  std::string_view kind() const noexcept override { return "toy"; }
  bucket_capabilities capabilities() const noexcept override { return inner_->capabilities(); }

  void reserve(
    model_spec spec, std::vector<described_layer> layers,
    completion<std::unique_ptr<reservation>> done) override {
    // A full bucket takes what the provider itself keeps.
    bool always = is_always_taken(spec, [] { return true; });
    if (!always && inner_->stats().models >= models_max_)
      return done(fail(
        errc::no_space,
        "the bucket holds " + std::to_string(models_max_) +
          " models; remove one, or raise models_max"));
    inner_->reserve(std::move(spec), std::move(layers), std::move(done));
  }
  void open(std::string name, std::uint64_t version, completion<std::shared_ptr<opened_model>> done)
    override {
    inner_->open(std::move(name), version, std::move(done));
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
  bucket_stats stats() const override { return inner_->stats(); }
  status close(std::uint32_t deadline_ms) override { return inner_->close(deadline_ms); }

private:
  const std::shared_ptr<bucket> inner_;
  const std::uint32_t models_max_;
};

} // namespace

result<std::shared_ptr<bucket>> open_toy_bucket(
  toy_bucket_options options, std::shared_ptr<memory_source> memory) {
  auto inner = open_memory_bucket(
    {.capacity_bytes = options.capacity_bytes,
     .descriptions_max_bytes = options.descriptions_max_bytes},
    std::move(memory));
  if (!inner)
    return fail(inner.error());
  return std::make_shared<toy_bucket>(std::move(*inner), options.models_max);
}

bool is_toy_bucket(const std::string& path) { return std::ifstream{path + "/toy"}.is_open(); }

status salvage_toy_bucket(const std::string& path, salvager& to) {
  return verify_toy_bucket(path, [&](auto& model) { to.lose(model.name); });
}

status verify_toy_bucket(
  const std::string& path, const std::function<void(const model_at_rest&)>& seen) {
  std::ifstream names{path + "/toy"};
  for (std::string name; std::getline(names, name);)
    seen({.name = name, .version = 1, .outcome = {errc::corrupt_data, "its bytes were in memory"}});
  return {};
}

} // namespace millrace::storage

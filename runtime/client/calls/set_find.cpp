// Block after block: the sizes of the samples, and then the bytes of those that have a wanted size.
#include <millrace/runtime/client/calls/set_find.hpp>

#include <algorithm>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace millrace::runtime {

namespace {

class finding {
public:
  finding(const set_reader& set, std::size_t field, const std::vector<std::string>& texts)
    : set_(set), field_(field) {
    for (auto& text : texts) {
      wanted_.emplace(text, nowhere);
      sizes_.insert(text.size());
    }
    missing_ = wanted_.size();
  }

  status run(stop_mark& mark, std::uint64_t samples_at_once) {
    auto samples = set_.info().samples;
    for (std::uint64_t first = 0; first < samples && missing_ > 0; first += samples_at_once) {
      if (mark.is_stopped())
        return {errc::cancelled, "finding samples: cancelled by the caller"};
      if (auto bad = look_at(first, std::min(samples_at_once, samples - first)); !bad.ok())
        return bad;
    }
    return {};
  }

  result<std::vector<std::uint64_t>> in_order_of(const std::vector<std::string>& texts) const {
    std::vector<std::uint64_t> out;
    out.reserve(texts.size());
    for (auto& text : texts) {
      out.push_back(wanted_.at(text));
      if (out.back() == nowhere)
        return fail(
          errc::not_found, "working set {} has no sample whose {} is '{}'", set_.info().name,
          set_.info().fields[field_].sample.name, text);
    }
    return out;
  }

private:
  static constexpr auto nowhere = ~std::uint64_t{0};

  status look_at(std::uint64_t first, std::uint64_t count) {
    std::vector<std::uint64_t> ids(count);
    std::iota(ids.begin(), ids.end(), first);
    auto sizes = set_.sizes(field_, ids).result();
    if (!sizes)
      return sizes.error();
    std::vector<std::uint64_t> likely;
    std::uint64_t bytes = 0;
    for (std::uint64_t i = 0; i < count; ++i)
      if (sizes_.contains((*sizes)[i])) {
        likely.push_back(ids[i]);
        bytes += (*sizes)[i];
      }
    return likely.empty() ? status{} : compare(likely, bytes, first, *sizes);
  }

  status compare(
    const std::vector<std::uint64_t>& ids, std::uint64_t bytes, std::uint64_t first,
    const std::vector<std::uint64_t>& sizes) {
    std::string texts(bytes, '\0');
    auto read = set_.read_batch(field_, ids, std::as_writable_bytes(std::span{texts})).result();
    if (!read)
      return read.error();
    std::string_view rest = texts;
    for (auto id : ids) {
      auto size = sizes[id - first];
      found(rest.substr(0, size), id);
      rest.remove_prefix(size);
    }
    return {};
  }

  void found(std::string_view text, std::uint64_t id) {
    auto one = wanted_.find(text);
    if (one != wanted_.end() && one->second == nowhere) {
      one->second = id;
      --missing_;
    }
  }

  const set_reader& set_;
  const std::size_t field_;
  std::unordered_map<std::string_view, std::uint64_t> wanted_; // the sample of each text
  std::unordered_set<std::uint64_t> sizes_;                    // of the texts
  std::size_t missing_ = 0;
};

} // namespace

bool has_texts(const sample_field& field) noexcept {
  return field.varies && field.sample.type == dtype::u8 && field.sample.shape.size() == 1;
}

result<std::vector<std::uint64_t>> find_samples(
  const set_reader& set, std::size_t field, const std::vector<std::string>& texts, stop_mark& mark,
  std::uint64_t samples_at_once) {
  finding all{set, field, texts};
  if (auto bad = all.run(mark, samples_at_once); !bad.ok())
    return fail(bad);
  return all.in_order_of(texts);
}

} // namespace millrace::runtime

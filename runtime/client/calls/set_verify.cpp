// Part after part, and field after field, by entries and the bytes that they name.
#include <millrace/core/digest.hpp>
#include <millrace/runtime/client/calls/set_verify.hpp>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace millrace::runtime {

namespace {

constexpr std::size_t named_max = 10; // damaged samples
constexpr std::uint64_t report_bytes = 64u << 20;

// Compares the samples of a set.
class verifying {
public:
  verifying(const whole_set& whole, stop_mark& mark, const progress_callback& progress)
    : whole_(whole), mark_(mark), progress_(progress) {
    for (auto& field : whole.info().fields)
      all_ += field.data_bytes;
  }

  result<set_damage> run() {
    for (std::size_t part = 0; part < whole_.parts(); ++part) {
      damaged_.clear();
      for (std::size_t f = 0; f < whole_.info().fields.size(); ++f)
        if (auto bad = compare_part(f, part); !bad.ok())
          return fail(bad);
      count(part);
    }
    return out_;
  }

private:
  static constexpr std::uint64_t entries_at_once = 1024;

  status compare_part(std::size_t field, std::size_t part) {
    if (auto bad = open(part); !bad.ok())
      return bad;
    auto samples = view_->info().samples;
    for (std::uint64_t first = 0; first < samples; first += entries_at_once)
      if (auto bad = compare_some(field, part, first, std::min(entries_at_once, samples - first));
          !bad.ok())
        return bad;
    return view_->still_ours();
  }

  status open(std::size_t part) {
    auto view = whole_.part(part);
    if (!view && is_loss(view.error()))
      view = whole_.opened_again(part, nullptr, view.error());
    if (view)
      use(*view);
    return view ? status{} : view.error();
  }

  void use(std::shared_ptr<set_view> view) {
    scan_.reset();
    view_ = std::move(view);
    scan_.emplace(*view_);
  }

  // A part that is opened again has its samples at the same addresses.
  status compare_some(
    std::size_t field, std::size_t part, std::uint64_t first, std::uint64_t count) {
    auto before = done_;
    auto bad = compare(field, first, count);
    if (bad.ok())
      return bad;
    auto again = whole_.opened_again(part, view_, bad);
    if (!again)
      return again.error();
    use(*again);
    done_ = before;
    return compare(field, first, count);
  }

  // A sample whose entry lies is damaged. Which one it is, fewer entries at once tell.
  status compare(std::size_t field, std::uint64_t first, std::uint64_t count) {
    auto found = entries_of(field, first, count);
    if (found) {
      for (std::uint64_t i = 0; i < count; ++i) {
        auto whole = is_whole((*found)[i]);
        auto stop = whole ? add(first + i, *whole, (*found)[i].length) : whole.error();
        if (!stop.ok())
          return stop;
      }
      return {};
    }
    if (found.error().code() != errc::corrupt_data)
      return found.error();
    if (count == 1)
      return add(first, false, 0);
    auto half = count / 2;
    auto bad = compare(field, first, half);
    return bad.ok() ? compare(field, first + half, count - half) : bad;
  }

  result<std::vector<sample_entry>> entries_of(
    std::size_t field, std::uint64_t first, std::uint64_t count) const {
    std::vector<std::uint64_t> ids(count);
    std::iota(ids.begin(), ids.end(), first);
    auto done = view_->core()->make_promise<std::vector<sample_entry>>();
    view_->entries(field, ids, [done](auto found) { done.set(std::move(found)); });
    return done.get_future().result();
  }

  status add(std::uint64_t sample, bool whole, std::uint64_t bytes) {
    if (!whole) {
      damaged_.resize(view_->info().samples);
      damaged_[sample] = true;
    }
    done_ += bytes;
    return report();
  }

  // A sample is damaged if one of its fields is.
  void count(std::size_t part) {
    out_.samples += view_->info().samples;
    for (std::size_t i = 0; i < damaged_.size(); ++i)
      if (damaged_[i] && out_.damaged++ < named_max)
        out_.first.push_back(whole_.first_of(part) + i);
  }

  result<bool> is_whole(const sample_entry& entry) {
    running_digest found;
    for (std::uint64_t at = 0; at < entry.length;) {
      auto some = scan_->at(entry.address + at, entry.length - at);
      if (!some)
        return fail(some.error());
      found.add(some->data(), some->size());
      at += some->size();
    }
    return found.value() == entry.digest;
  }

  status report() {
    if (done_ - reported_ < report_bytes && done_ < all_)
      return {};
    reported_ = done_;
    auto stop = mark_.report(progress_, done_, all_);
    return stop.ok() ? view_->still_ours() : stop;
  }

  const whole_set& whole_;
  std::shared_ptr<set_view> view_; // of the part that is compared
  std::optional<set_scan> scan_;
  std::vector<bool> damaged_; // samples of the part; empty if there are none
  stop_mark& mark_;
  const progress_callback& progress_;
  std::uint64_t all_ = 0;                 // bytes
  std::uint64_t done_ = 0, reported_ = 0; // of them
  set_damage out_;
};

} // namespace

result<set_damage> verify_set(
  const whole_set& whole, stop_mark& mark, const progress_callback& progress) {
  return verifying{whole, mark, progress}.run();
}

} // namespace millrace::runtime

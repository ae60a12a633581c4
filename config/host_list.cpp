// Expands one host expression after the other. The names multiply with each bracket, within the
// bound.
#include <millrace/config/address.hpp>
#include <millrace/config/document.hpp>
#include <millrace/config/host_list.hpp>

#include <charconv>
#include <iterator>

namespace millrace::config {

namespace {

constexpr std::size_t digits_max = 9;

struct range {
  std::uint32_t first = 0;
  std::uint32_t last = 0;
  std::size_t digits = 1; // the least number; zeros fill up
};

std::string padded(std::uint32_t number, std::size_t digits) {
  auto text = std::to_string(number);
  return text.size() < digits ? std::string(digits - text.size(), '0') + text : text;
}

class expander {
public:
  explicit expander(std::string_view text) : text_(text) {}

  result<std::vector<std::string>> run() {
    if (text_.size() > host_list_bytes_max)
      return fail(errc::invalid_argument, "a list of hosts longer than the bound");
    while (ok_ && at_ <= text_.size()) {
      one_expression();
      if (at_ < text_.size() && text_[at_] != ',')
        ok_ = false;
      ++at_;
    }
    if (!ok_)
      return fail(
        errc::invalid_argument,
        "'{}' is no list of hosts such as n[01-03,7],login, of at most {} hosts", shown(text_),
        listed_hosts_max);
    return std::move(hosts_);
  }

private:
  bool at_end_of_expression() const { return at_ >= text_.size() || text_[at_] == ','; }

  void one_expression() {
    std::vector<std::string> names{""};
    while (ok_ && !at_end_of_expression()) {
      if (text_[at_] == '[')
        multiply(names);
      else
        append(names);
    }
    for (auto& name : names)
      ok_ = ok_ && check_host(name).ok();
    ok_ = ok_ && hosts_.size() + names.size() <= listed_hosts_max;
    if (ok_)
      std::move(names.begin(), names.end(), std::back_inserter(hosts_));
  }

  // Appends the plain text up to the next bracket or the end.
  void append(std::vector<std::string>& names) {
    auto stop = std::min(text_.find_first_of("[],", at_), text_.size());
    if (stop == at_ || stop - at_ > host_bytes_max) {
      ok_ = false;
      return;
    }
    for (auto& name : names) {
      name += text_.substr(at_, stop - at_);
      ok_ = ok_ && name.size() <= host_bytes_max;
    }
    at_ = stop;
  }

  // Reads "[1-3,7]" and appends each of the numbers to every name so far.
  void multiply(std::vector<std::string>& names) {
    auto ranges = read_ranges();
    std::size_t numbers = 0;
    for (auto& r : ranges)
      numbers += std::size_t{r.last} - r.first + 1;
    ok_ = ok_ && numbers > 0 && numbers <= listed_hosts_max / names.size();
    if (!ok_)
      return;
    std::vector<std::string> longer;
    longer.reserve(names.size() * numbers);
    for (auto& name : names)
      for (auto& r : ranges)
        for (auto i = r.first; i <= r.last; ++i)
          longer.push_back(name + padded(i, r.digits));
    names = std::move(longer);
    ok_ = names.front().size() <= host_bytes_max;
  }

  std::vector<range> read_ranges() {
    std::vector<range> ranges;
    do {
      ++at_; // the bracket, or a comma
      auto r = read_range();
      if (!ok_ || ranges.size() == listed_hosts_max) {
        ok_ = false;
        return {};
      }
      ranges.push_back(r);
    } while (at_ < text_.size() && text_[at_] == ',');
    ok_ = at_ < text_.size() && text_[at_] == ']';
    ++at_;
    return ranges;
  }

  range read_range() {
    range r;
    auto before = at_;
    r.first = read_number();
    r.digits = at_ - before;
    r.last = r.first;
    if (at_ < text_.size() && text_[at_] == '-') {
      ++at_;
      r.last = read_number();
    }
    ok_ = ok_ && r.first <= r.last && r.last - r.first < listed_hosts_max;
    return r;
  }

  std::uint32_t read_number() {
    std::uint32_t number = 0;
    auto begin = text_.data() + at_;
    auto stop = std::from_chars(begin, text_.data() + text_.size(), number);
    auto digits = static_cast<std::size_t>(stop.ptr - begin);
    ok_ = ok_ && stop.ec == std::errc{} && digits <= digits_max;
    at_ += digits;
    return number;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  bool ok_ = true;
  std::vector<std::string> hosts_;
};

} // namespace

result<std::vector<std::string>> expand_host_list(std::string_view text) {
  return expander{text}.run();
}

} // namespace millrace::config

// One load: opens the model, checks the request, lets the fabric push window after window, and
// verifies.
#include <millrace/actors/block_check.hpp>
#include <millrace/actors/reading_operation.hpp>
#include <millrace/core/assert.hpp>
#include <millrace/core/box.hpp>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <unordered_map>

namespace millrace::actors {

namespace {

using storage::wanted;
using storage::window;

// Runs pushed in one transfer, which bounds its memory, here and at the peer.
constexpr std::size_t runs_at_once = 16'384;

// Bytes of one tensor, with their place in the target.
struct range {
  std::uint32_t tensor = 0;
  std::uint64_t first = 0;
  std::uint64_t length = 0;
  std::uint64_t target = 0;
  const box_runs* runs = nullptr; // the part that is asked for, from `first` on; null: all of it
};

class load_operation : public reading_operation<load_request, load_reply> {
public:
  load_operation(
    std::shared_ptr<operation_context> context, load_request request, model_opener open,
    time_point arrived, answer<load_reply> done, const char* versions_are)
    : reading_operation(
        std::move(context), std::move(request), std::move(open), arrived, std::move(done)),
      versions_are_(versions_are) {}

private:
  std::string name() const override { return "loading " + request_.model; }

  result<std::vector<wanted>> choose() override {
    opened_at_ = steady_clock::now();
    receipt_.times.reserve_us = us_between(begun_, opened_at_);
    if (auto bad = select(); !bad.ok())
      return fail(bad);
    if (receipt_.verified)
      offsets_ = layout_offsets{model().record().spec.tensors};
    std::vector<wanted> aligned;
    for (auto& r : ranges_)
      aligned.push_back(cover(r));
    return aligned;
  }

  // Turns selections into ranges. A selection that does not fit is an error before a byte moves.
  status select() {
    auto& record = model().record();
    receipt_.verified = !record.digests.empty() || size_bytes(record.spec.tensors) == 0;
    for (auto& s : request_.selections) {
      auto found = find(s.expected.name);
      if (!found)
        return {errc::not_found, "it has no tensor " + s.expected.name};
      auto bad = add_range(record.spec.tensors.tensors[*found], *found, s);
      if (!bad.ok())
        return bad;
    }
    eager_ = !request_.target.length_bytes;
    if (eager_ && receipt_.size_bytes > context_->bounds.eager_bytes_max)
      return {errc::invalid_argument, "too many bytes for a message; offer memory for them"};
    if (!eager_ && size_bytes(request_.target) != receipt_.size_bytes)
      return {
        errc::invalid_argument, "{} bytes are selected, the memory offered has {}",
        receipt_.size_bytes, size_bytes(request_.target)};
    if (eager_)
      receipt_.eager.resize(receipt_.size_bytes);
    return {};
  }

  // Tensors are often asked for in the order in which they are stored: the map is made for others.
  std::optional<std::uint32_t> find(const std::string& name) {
    auto& tensors = model().record().spec.tensors.tensors;
    if (next_ < tensors.size() && tensors[next_].name == name)
      return next_++;
    if (by_name_.empty())
      for (auto& tensor : tensors)
        by_name_.emplace(tensor.name, static_cast<std::uint32_t>(by_name_.size()));
    auto found = by_name_.find(name);
    if (found == by_name_.end())
      return {};
    next_ = found->second + 1;
    return found->second;
  }

  status add_range(const tensor_desc& stored, std::uint32_t index, const selection& s) {
    auto mismatch = status{
      errc::invalid_argument, "tensor {} is {}, not {}", stored.name, describe(stored),
      describe(s.expected)};
    if (s.expected.type != stored.type || s.expected.shape.size() != stored.shape.size())
      return mismatch;
    if (!s.offsets.empty())
      return add_box(stored, index, {s.offsets, s.expected.shape});
    auto same = s.rows ? std::size_t{1} : std::size_t{0};
    if (s.rows && stored.shape.empty())
      return {errc::invalid_argument, "tensor {} is a scalar: it has no rows", stored.name};
    if (!std::equal(
          stored.shape.begin() + same, stored.shape.end(), s.expected.shape.begin() + same))
      return mismatch;
    range r{index, 0, size_bytes(stored).value(), receipt_.size_bytes};
    if (s.rows) {
      auto rows = s.expected.shape[0];
      if (s.first_row > stored.shape[0] || rows > stored.shape[0] - s.first_row)
        return {errc::invalid_argument,
                "rows {} to +{} of tensor {}, which has {}",
                s.first_row,
                rows,
                stored.name,
                stored.shape[0]};
      auto bytes = row_bytes(stored);
      if (!bytes)
        return bytes.error();
      r.first = s.first_row * *bytes;
      r.length = rows * *bytes;
    }
    receipt_.size_bytes += r.length;
    if (r.length > 0)
      ranges_.push_back(r);
    return {};
  }

  // Runs whose digest blocks touch make up one range.
  status add_box(const tensor_desc& stored, std::uint32_t index, const tensor_box& box) {
    auto runs = runs_of(stored, box);
    if (!runs)
      return runs.error();
    if (runs->size_bytes() == 0)
      return {};
    if (runs->count() > context_->bounds.box_runs_max - box_runs_)
      return {
        errc::invalid_argument,
        "the box {} of tensor {} has {} runs of {} bytes each, too many for one load "
        "(limits.box_runs_max); load whole rows, or several smaller boxes",
        describe(box),
        stored.name,
        runs->count(),
        runs->run_bytes()};
    box_runs_ += runs->count();
    auto [groups, inside] = runs->grouped(digest_block_bytes);
    if (auto bad = keep_ranges(groups.count()); !bad.ok())
      return bad;
    auto* several = inside.count() > 1 ? &inner_runs_.emplace_back(inside) : nullptr;
    scattered_ |= runs->count() > 1;
    for (std::uint64_t i = 0; i < groups.count(); ++i)
      ranges_.push_back(
        {index, groups.first_byte() + groups.offset(i), groups.run_bytes(),
         receipt_.size_bytes + i * inside.size_bytes(), several});
    receipt_.size_bytes += runs->size_bytes();
    return {};
  }

  // Takes places for the ranges of one more box. All of a load are taken together: a process that
  // has no other load of boxes gets them whenever they are free.
  status keep_ranges(std::uint64_t more) {
    kept_ranges_ += more;
    places_.reset();
    auto places = context_->box_ranges->lend(request_.from.holder, kept_ranges_);
    if (!places)
      return places.error();
    places_ = std::move(*places);
    return {};
  }

  // Returns the whole digest blocks around a range, so that they can be verified.
  wanted cover(const range& r) const {
    auto bytes = *size_bytes(model().record().spec.tensors.tensors[r.tensor]);
    auto first = r.first / digest_block_bytes * digest_block_bytes;
    auto last =
      (r.first + r.length + digest_block_bytes - 1) / digest_block_bytes * digest_block_bytes;
    return {r.tensor, first, std::min(last, bytes) - first};
  }

  // The place in `ranges_` at which a window's pieces begin: the range, and how much of its cover
  // is done.
  struct cursor {
    std::size_t range = 0;
    std::uint64_t done = 0;
  };

  // The ranges of a plan come in order, so each window begins where the one before it ended.
  void find_starts() {
    cursor at;
    for (auto& window : plan()) {
      starts_.push_back(at);
      for (auto& w : window)
        step_cursor(at, w.length);
    }
  }

  void step_cursor(cursor& c, std::uint64_t length) const {
    c.done += length;
    if (c.done >= cover(ranges_[c.range]).length)
      c = {c.range + 1, 0};
  }

  void on_window(std::size_t index, window w) override {
    if (starts_.empty())
      find_starts();
    if (scattered_)
      return on_scattered({std::move(w), starts_[index]});
    auto at = starts_[index];
    transport::copy_list ops;
    ops.reserve(w.pieces.size());
    for (auto& piece : w.pieces) {
      ops.push_back(op_for(piece, ranges_[at.range]));
      step_cursor(at, piece.length);
    }
    if (eager_)
      return on_moved(w, copy_eager(ops));
    transport::transfer t;
    t.dir = transport::direction::write;
    t.remote = request_.target;
    t.channel = request_.from.connection;
    t.digests = receipt_.verified;
    t.hold = w.hold;
    t.ops = std::move(ops);
    context_->move(
      std::move(t),
      later<load_operation, transport::transfer_report>(
        [w = std::move(w)](load_operation& self, auto report) {
          self.on_moved(w, std::move(report));
        }));
  }

  // Returns the op for the part of a piece that was asked for. The rest of the piece only counts
  // for the digests.
  transport::copy_op op_for(const storage::piece& piece, const range& r) const {
    auto first = std::max(piece.tensor_offset, r.first);
    auto last = std::min(piece.tensor_offset + piece.length, r.first + r.length);
    MILLRACE_ASSERT(piece.tensor == r.tensor && first < last);
    transport::copy_op op;
    op.remote_offset = r.target + (first - r.first);
    op.local = piece.data + (first - piece.tensor_offset);
    op.length = last - first;
    if (receipt_.verified) {
      op.lead = first - piece.tensor_offset;
      op.tail = piece.tensor_offset + piece.length - last;
    }
    return op;
  }

  // A window of which many short runs may be asked for. To digest the blocks around each of them
  // would digest some blocks again and again. So movers of this process check each block once, and
  // the runs are pushed afterwards, some at a time.
  struct scattered_window {
    window w;
    cursor at;                             // the range of the piece
    std::size_t piece = 0;                 // that is being pushed
    std::optional<std::uint64_t> run = {}; // of the range; nothing: the first one in the piece
  };

  void on_scattered(scattered_window s) {
    auto kept = std::make_shared<scattered_window>(std::move(s));
    if (!receipt_.verified)
      return push_runs(kept);
    check_blocks(
      *context_->fabric->movers(), kept->w, offsets_, model().record().digests,
      later<load_operation, std::vector<checked_block>>(
        [kept](load_operation& self, const auto& blocks) {
          for (auto& b : *blocks)
            if (!b.ok)
              return self.give_up(self.corrupt(b.tensor, b.tensor_offset));
          self.push_runs(kept);
        }));
  }

  void push_runs(const std::shared_ptr<scattered_window>& s) {
    auto ops = next_runs(*s);
    if (ops.empty())
      return done_with_window();
    if (eager_) {
      receipt_.driver = "eager";
      for (; !ops.empty(); ops = next_runs(*s))
        for (auto& op : ops)
          std::memcpy(receipt_.eager.data() + op.remote_offset, op.local, op.length);
      return done_with_window();
    }
    transport::transfer t;
    t.dir = transport::direction::write;
    t.remote = request_.target;
    t.channel = request_.from.connection;
    t.hold = s->w.hold;
    t.ops = std::move(ops);
    context_->move(
      std::move(t),
      later<load_operation, transport::transfer_report>([s](load_operation& self, auto report) {
        if (!report)
          return self.give_up(report.error().within(self.name()));
        self.receipt_.driver = report->driver;
        self.push_runs(s);
      }));
  }

  std::vector<transport::copy_op> next_runs(scattered_window& s) const {
    std::vector<transport::copy_op> ops;
    while (s.piece < s.w.pieces.size() && ops.size() < runs_at_once) {
      auto& piece = s.w.pieces[s.piece];
      if (add_runs(s, piece, ops)) {
        ++s.piece;
        s.run.reset();
        step_cursor(s.at, piece.length);
      }
    }
    return ops;
  }

  // Adds the runs in a piece. Returns false if some are left.
  bool add_runs(
    scattered_window& s, const storage::piece& piece, std::vector<transport::copy_op>& ops) const {
    auto& r = ranges_[s.at.range];
    MILLRACE_ASSERT(piece.tensor == r.tensor);
    const box_runs one{0, r.length, {}};
    auto& runs = r.runs ? *r.runs : one;
    auto begin = std::max(piece.tensor_offset, r.first) - r.first;
    auto end = piece.tensor_offset + piece.length - r.first;
    auto run = s.run ? *s.run : runs.first_ending_after(begin);
    for (; run < runs.count(); ++run) {
      auto at = runs.offset(run);
      if (at >= end)
        break;
      if (ops.size() == runs_at_once) {
        s.run = run;
        return false;
      }
      auto first = std::max(at, begin), last = std::min(at + runs.run_bytes(), end);
      transport::copy_op op;
      op.remote_offset = r.target + run * runs.run_bytes() + (first - at);
      op.local = piece.data + (r.first + first - piece.tensor_offset);
      op.length = last - first;
      ops.push_back(op);
    }
    return true;
  }

  result<transport::transfer_report> copy_eager(const transport::copy_list& ops) {
    transport::transfer_report report{{}, "eager"};
    for (auto& op : ops) {
      std::memcpy(receipt_.eager.data() + op.remote_offset, op.local, op.length);
      auto covered = op.lead + op.length + op.tail;
      for (std::uint64_t at = 0; receipt_.verified && at < covered; at += digest_block_bytes)
        report.digests.push_back(
          digest(op.local - op.lead + at, std::min(digest_block_bytes, covered - at)));
    }
    return report;
  }

  void on_moved(const window& w, result<transport::transfer_report> report) {
    if (!report)
      return give_up(report.error().within(name()));
    receipt_.driver = report->driver;
    if (auto bad = verify(w, report->digests); !bad.ok())
      return give_up(bad);
    done_with_window();
  }

  status verify(const window& w, const std::vector<std::uint64_t>& computed) const {
    if (!receipt_.verified)
      return {};
    std::size_t at = 0;
    auto& digests = model().record().digests;
    for (auto& piece : w.pieces) {
      auto first = offsets_.digest_of(piece);
      for (std::uint64_t i = 0; i < digest_count(piece.length); ++i)
        if (computed[at++] != digests[first + i])
          return corrupt(piece.tensor, piece.tensor_offset + i * digest_block_bytes);
    }
    return {};
  }

  status corrupt(std::uint32_t tensor, std::uint64_t tensor_offset) const {
    auto& record = model().record();
    return {
      errc::corrupt_data,
      "model {} {} {}, tensor {}: bytes from {} on do not match their checksum; the "
      "loaded bytes are not to be used",
      request_.model,
      versions_are_,
      record.version,
      record.spec.tensors.tensors[tensor].name,
      tensor_offset};
  }

  void on_everything_read() override {
    auto now = steady_clock::now();
    receipt_.times.move_us = us_between(opened_at_, now);
    receipt_.model = request_.model;
    receipt_.version = model().record().version;
    receipt_.stored_at_ns = model().record().stored_at_ns;
    receipt_.extra_bytes = model().record().extra_bytes;
    receipt_.provider = context_->provider;
    succeed();
  }

  time_point opened_at_;
  std::uint32_t next_ = 0; // after the tensor that was found last
  std::unordered_map<std::string_view, std::uint32_t> by_name_; // empty until it is needed
  std::vector<range> ranges_;
  std::deque<box_runs> inner_runs_; // of the ranges
  std::uint64_t box_runs_ = 0;      // in all boxes
  std::uint64_t kept_ranges_ = 0;   // of these boxes, in `ranges_`
  std::shared_ptr<void> places_;    // for them
  bool scattered_ = false;          // a box has several runs
  layout_offsets offsets_;
  std::vector<cursor> starts_; // one per window
  bool eager_ = false;
  const char* const versions_are_;
};

} // namespace

std::shared_ptr<operation> make_load_operation(
  std::shared_ptr<operation_context> context, load_request request, model_opener open,
  time_point arrived, answer<load_reply> done, const char* versions_are) {
  return std::make_shared<load_operation>(
    std::move(context), std::move(request), std::move(open), arrived, std::move(done),
    versions_are);
}

} // namespace millrace::actors

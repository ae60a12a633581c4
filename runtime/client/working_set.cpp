// The facades of working sets, and the check of what they are asked for.
#include <millrace/core/digest.hpp>
#include <millrace/runtime/client/calls/batch_loader.hpp>
#include <millrace/runtime/client/calls/preload.hpp>
#include <millrace/runtime/client/calls/set_access.hpp>
#include <millrace/runtime/client/calls/set_find.hpp>
#include <millrace/runtime/client/calls/set_parts.hpp>
#include <millrace/runtime/client/calls/set_verify.hpp>
#include <millrace/runtime/client/calls/whole_set.hpp>
#include <millrace/runtime/client/working_set.hpp>
#include <millrace/runtime/node/side_thread.hpp>
#include <millrace/storage/samples/sample_reader.hpp>

#include <algorithm>
#include <atomic>
#include <exception>
#include <iterator>
#include <new>
#include <numeric>
#include <optional>
#include <system_error>
#include <unordered_set>
#include <utility>

namespace millrace {

using runtime::set_scan;
using runtime::set_view;
using runtime::whole_set;

namespace {

// Runs `work` on a thread of its own. Its result, or its exception, is that of the future.
template <class T, class Work>
future<T> aside(const std::shared_ptr<runtime::client_core>& core, const char* doing, Work work) {
  auto done = core->make_promise<T>();
  try {
    runtime::run_aside([done, doing, work = std::move(work)] {
      try {
        done.set(work());
      } catch (const std::bad_alloc&) {
        done.set(fail(errc::no_space, "{}: this process has no memory left", doing));
      } catch (const std::exception& e) {
        done.set(fail(errc::internal, "{}: {}", doing, e.what()));
      } catch (...) {
        done.set(fail(errc::internal, "{}: an exception of the program", doing));
      }
    });
  } catch (const std::system_error& e) {
    done.set(fail(errc::no_space, "{}: there is no other thread: {}", doing, e.what()));
  }
  return done.get_future();
}

// The same for work that reports its progress: cancelling it ends the reports, and then the work.
template <class T, class Work>
future<T> aside(
  const std::shared_ptr<runtime::client_core>& core, const char* doing,
  const std::shared_ptr<runtime::stop_mark>& mark, Work work) {
  auto done = core->make_promise<T>();
  // The caller does not have the future yet, so it cannot have cancelled.
  static_cast<void>(done.on_cancel([mark] { mark->stop(); }));
  aside<T>(core, doing, std::move(work)).chain([done](const result<T>& r) { done.set(r); });
  return done.get_future();
}

using stop_flag = std::shared_ptr<const std::atomic<bool>>;
using uses_ptr = std::shared_ptr<const runtime::sample_uses>;

// What writes into memory of the program. All that writes there shares it. If the last of that is
// gone without an outcome, for want of memory, the read has failed.
class movement {
public:
  explicit movement(const runtime::client_core& core)
    : done_(core.make_promise<void>()), moved_(core.make_promise<void>()) {}
  ~movement() {
    if (!ended_)
      fail_without_memory();
  }
  movement(const movement&) = delete;
  movement& operator=(const movement&) = delete;

  // Who cancels has the memory back when the call returns.
  future<void> begin(const std::shared_ptr<std::atomic<bool>>& stop) {
    static_cast<void>(done_.on_cancel([stop, untouched = moved_.get_future()] {
      *stop = true;
      static_cast<void>(untouched.result());
    }));
    return done_.get_future();
  }
  void end(result<void> r) {
    ended_ = true;
    moved_.set({});
    done_.set(std::move(r));
  }

private:
  // Without memory for the words, the promises say that they were dropped.
  void fail_without_memory() noexcept {
    try {
      end(fail(
        errc::no_space,
        "reading samples: this process has no memory left, or its client was closed"));
    } catch (const std::bad_alloc&) { // see above
    }
  }

  const promise<void> done_, moved_;
  bool ended_ = false; // the last one who has it knows
};

// Starts what writes into memory of the program, and says when it has ended. `stop` becomes true
// when nobody wants it any more. Without memory to go on, what has begun ends first.
template <class Start>
future<void> moving(const std::shared_ptr<whole_set>& view, Start start) {
  auto stop = std::make_shared<std::atomic<bool>>(false);
  auto all = std::make_shared<movement>(*view->core());
  auto done = all->begin(stop);
  try {
    start([all](result<void> r) { all->end(std::move(r)); }, stop);
  } catch (const std::bad_alloc&) {
    *stop = true;
  }
  return done;
}

status check_field(const set_info& set, std::size_t field) {
  if (field < set.fields.size())
    return {};
  return {
    errc::invalid_argument, "working set {} has {} fields, and none with the number {}", set.name,
    set.fields.size(), field};
}

status check_ids(const set_info& set, std::size_t field, const std::vector<std::uint64_t>& ids) {
  auto bad = check_field(set, field);
  for (auto id : ids)
    if (bad.ok() && id >= set.samples)
      bad = {
        errc::invalid_argument, "working set {} has {} samples, and none with the number {}",
        set.name, set.samples, id};
  return bad;
}

std::vector<std::uint64_t> all_ids(const set_info& set) {
  std::vector<std::uint64_t> ids(set.samples);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

// For a field whose samples have the same size.
status check_size(
  const set_info& set, std::size_t field, std::uint64_t count, std::span<std::byte> into) {
  std::uint64_t wanted = 0;
  if (__builtin_mul_overflow(count, set.fields[field].bytes, &wanted) || wanted != into.size())
    return {
      errc::invalid_argument, "{} samples of {} bytes are not {} bytes", count,
      set.fields[field].bytes, into.size()};
  return {};
}

// Returns the bytes of samples; null if they are more than 64 bits count.
std::optional<std::uint64_t> sum_of(const std::vector<sample_entry>& entries) {
  std::uint64_t sum = 0;
  for (auto& entry : entries)
    if (__builtin_add_overflow(sum, entry.length, &sum))
      return std::nullopt;
  return sum;
}

status lying_table(const set_info& set, std::size_t field) {
  return {
    errc::corrupt_data,
    "working set {}, field {}: the table says that samples have more bytes than the field, which "
    "has {}; unload the set and preload it again",
    set.name, set.fields[field].sample.name, set.fields[field].data_bytes};
}

// Checks that different samples of a field do not have more bytes than all of its samples.
status check_sum(
  const set_info& set, std::size_t field, const std::vector<std::uint64_t>& ids,
  const std::vector<sample_entry>& entries) {
  auto most = set.fields[field].data_bytes;
  auto all = sum_of(entries);
  if (all && *all <= most)
    return {};
  std::unordered_set<std::uint64_t> seen;
  std::vector<sample_entry> different;
  for (std::size_t i = 0; i < entries.size(); ++i)
    if (seen.insert(ids[i]).second)
      different.push_back(entries[i]);
  auto sum = sum_of(different);
  return all && sum && *sum <= most ? status{} : lying_table(set, field);
}

// Reads samples of a field that varies.
void read_varying(
  const whole_set& set, std::size_t field, const std::vector<std::uint64_t>& ids,
  const std::vector<sample_entry>& entries, std::span<std::byte> into, completion<void> moved,
  stop_flag stop, const uses_ptr& uses = nullptr) {
  auto wanted = sum_of(entries);
  if (!wanted)
    return moved(fail(lying_table(set.info(), field)));
  if (*wanted != into.size())
    return moved(fail(
      errc::invalid_argument, "{} samples have {} bytes, not {}", entries.size(), *wanted,
      into.size()));
  set.read(field, ids, entries, into, std::move(moved), std::move(stop), uses);
}

future<void> filled_varying(
  const std::shared_ptr<whole_set>& view, std::size_t field, const std::vector<std::uint64_t>& ids,
  std::span<std::byte> into) {
  return moving(view, [&](completion<void> moved, const stop_flag& stop) {
    view->entries(
      field, ids,
      [view, field, ids, into, moved = std::move(moved),
       stop](result<std::vector<sample_entry>> found) {
        try {
          found ? read_varying(*view, field, ids, *found, into, moved, stop)
                : moved(fail(found.error()));
        } catch (const std::bad_alloc&) { // what has begun has `moved`, and ends it
        }
      },
      stop);
  });
}

using preloading_ptr = std::shared_ptr<runtime::preloading>;

void go_on(
  const std::shared_ptr<runtime::client_core>& core, const preloading_ptr& work,
  const promise<preloaded_set>& done);

// While a preload waits for another client, it does not hold the program's reference; one that
// waits for its helpers does.
void look_again(
  const std::shared_ptr<runtime::client_core>& core, const preloading_ptr& work,
  const promise<preloaded_set>& done) {
  core->at(
    steady_clock::now() + work->pause(),
    [here = core->shared_from_this(), kept = work->leads() ? core : nullptr,
     of_program = std::weak_ptr{core}, work, done] {
      if (auto still = of_program.lock())
        return go_on(still, work, done);
      done.set(fail(errc::cancelled, "preloading: the client was closed while the preload waited"));
    });
}

// Its result is undone if nobody wants it any more, but for a set that others have filled, too.
void go_on(
  const std::shared_ptr<runtime::client_core>& core, const preloading_ptr& work,
  const promise<preloaded_set>& done) {
  using outcome = std::optional<preloaded_set>;
  aside<outcome>(core, "preloading", [core, work] {
    return work->go_on(core);
  }).chain([core, work, done](const result<outcome>& r) {
    if (r && !*r)
      return look_again(core, work, done);
    auto wanted = done.set(r ? result<preloaded_set>{**r} : fail(r.error()));
    if (!wanted && r && !(*r)->existed && !work->appends() && !work->was_shared())
      runtime::unload_parts(core, (*r)->set, [](const result<void>&) {});
  });
}

// Null without files.
runtime::make_files files_of(open_options options) {
  std::vector<appended_files> all;
  all.reserve(options.appended.size() + 1);
  all.push_back({static_cast<const set_file_options&>(options), std::move(options.files)});
  std::ranges::move(options.appended, std::back_inserter(all));
  if (std::ranges::all_of(all, [](auto& one) { return one.files.empty(); }))
    return nullptr;
  return [all = std::move(all)](const set_info& of, std::size_t number) {
    return number < all.size() && !all[number].files.empty()
      ? std::make_shared<runtime::set_files>(
          of, all[number].files, runtime::sample_options_of(all[number]), is_window(of))
      : nullptr;
  };
}

} // namespace

result<preload_kind> parse_preload_kind(std::string_view text) {
  if (text == "automatic")
    return preload_kind::automatic;
  if (text == "arrays")
    return preload_kind::arrays;
  if (text == "files")
    return preload_kind::files;
  return fail(errc::invalid_argument, "kind: '{}' is none of automatic, arrays and files", text);
}

result<damage_policy> parse_damage_policy(std::string_view text) {
  if (text == "fail")
    return damage_policy::fail;
  if (text == "skip")
    return damage_policy::skip;
  return fail(errc::invalid_argument, "on_error: '{}' is neither fail nor skip", text);
}

const set_info& set_reader::info() const noexcept { return view_->info(); }

std::uint64_t set_reader::samples_from_files() const noexcept {
  return view_->samples_from_files();
}

std::uint64_t set_reader::samples_from_window() const noexcept {
  return view_->samples_from_window();
}

sample_order set_reader::order(
  std::uint64_t seed, std::uint64_t epoch, shuffle_kind shuffle) const {
  return {info().samples, {info().identity, seed, epoch}, shuffle};
}

future<std::vector<std::uint64_t>> set_reader::sizes(
  std::size_t field, std::vector<std::uint64_t> ids) const {
  using sizes = std::vector<std::uint64_t>;
  if (auto refused = view_->core()->refused<sizes>())
    return *refused;
  if (auto bad = check_ids(info(), field, ids); !bad.ok())
    return ready_future<sizes>(fail(bad));
  if (auto& f = info().fields[field]; !f.varies)
    return ready_future<sizes>(sizes(ids.size(), f.bytes));
  auto done = view_->core()->make_promise<sizes>();
  entries(field, ids).chain([done](const result<std::vector<sample_entry>>& found) {
    if (!found)
      return static_cast<void>(done.set(fail(found.error())));
    sizes out;
    out.reserve(found->size());
    for (auto& entry : *found)
      out.push_back(entry.length);
    done.set(std::move(out));
  });
  return done.get_future();
}

future<std::vector<std::uint64_t>> set_reader::find(
  std::size_t field, std::vector<std::string> texts) const {
  using samples = std::vector<std::uint64_t>;
  if (auto refused = view_->core()->refused<samples>())
    return *refused;
  auto bad = check_field(info(), field);
  if (bad.ok() && !runtime::has_texts(info().fields[field]))
    bad = {
      errc::invalid_argument, "working set {}: the samples of field {} are no texts", info().name,
      info().fields[field].sample.name};
  if (!bad.ok())
    return ready_future<samples>(fail(bad));
  auto mark = std::make_shared<runtime::stop_mark>();
  return aside<samples>(
    view_->core(), "finding samples", mark, [self = *this, field, texts = std::move(texts), mark] {
      return runtime::find_samples(self, field, texts, *mark);
    });
}

future<std::vector<sample_entry>> set_reader::entries(
  std::size_t field, const std::vector<std::uint64_t>& ids) const {
  auto done = view_->core()->make_promise<std::vector<sample_entry>>();
  view_->entries(
    field, ids, [done, view = view_, field, ids](result<std::vector<sample_entry>> found) {
      auto bad = found ? check_sum(view->info(), field, ids, *found) : found.error();
      done.set(bad.ok() ? std::move(found) : fail(std::move(bad)));
    });
  return done.get_future();
}

future<void> set_reader::read_at(
  std::size_t field, const std::vector<std::uint64_t>& ids, const std::vector<sample_entry>& where,
  std::span<std::byte> into, const uses_ptr& uses) const {
  return moving(view_, [&](completion<void> moved, stop_flag stop) {
    info().fields[field].varies
      ? read_varying(*view_, field, ids, where, into, std::move(moved), std::move(stop), uses)
      : view_->read(field, ids, {}, into, std::move(moved), std::move(stop), uses);
  });
}

future<void> set_reader::read_batch(
  std::size_t field, std::vector<std::uint64_t> ids, std::span<std::byte> into) const {
  if (auto refused = view_->core()->refused<void>())
    return *refused;
  auto& set = info();
  auto bad = check_ids(set, field, ids);
  if (bad.ok() && set.fields[field].varies)
    return filled_varying(view_, field, ids, into);
  if (bad.ok())
    bad = check_size(set, field, ids.size(), into);
  if (!bad.ok())
    return ready_future<void>(fail(bad));
  return moving(view_, [&](completion<void> moved, stop_flag stop) {
    view_->read(field, ids, {}, into, std::move(moved), std::move(stop));
  });
}

future<void> set_reader::read(
  std::size_t field, std::uint64_t id, std::span<std::byte> into) const {
  return read_batch(field, {id}, into);
}

future<void> set_reader::load(std::size_t field, std::span<std::byte> into) const {
  if (auto refused = view_->core()->refused<void>())
    return *refused;
  auto bad = check_field(info(), field);
  if (bad.ok() && info().fields[field].varies)
    return filled_varying(view_, field, all_ids(info()), into);
  if (bad.ok())
    bad = check_size(info(), field, info().samples, into);
  if (!bad.ok())
    return ready_future<void>(fail(bad));
  return moving(view_, [&](completion<void> moved, stop_flag stop) {
    view_->read_all(field, into, std::move(moved), std::move(stop));
  });
}

result<loader> set_reader::load_batches(const loader_options& options) const {
  auto made = runtime::batch_loader::make(view_->core(), *this, options);
  return made ? result<loader>{loader{std::move(*made)}} : fail(made.error());
}

future<set_damage> set_reader::verify(progress_callback progress) const {
  if (auto refused = view_->core()->refused<set_damage>())
    return *refused;
  auto mark = std::make_shared<runtime::stop_mark>();
  return aside<set_damage>(
    view_->core(), "comparing samples", mark, [view = view_, mark, progress = std::move(progress)] {
      return runtime::verify_set(*view, *mark, progress);
    });
}

working_set::working_set(std::shared_ptr<runtime::client_core> core, std::string name)
  : core_(std::move(core)), name_(std::move(name)) {}

result<std::string> working_set::node() const {
  if (auto refused = core_->refusal(); !refused.ok())
    return fail(refused);
  return runtime::data_home(*core_, name_);
}

future<preloaded_set> working_set::preload(
  std::vector<std::string> files, preload_options options) const {
  return begin(std::move(files), std::move(options), false);
}

future<preloaded_set> working_set::append(
  std::vector<std::string> files, append_options options) const {
  if (options.labels == storage::samples::labels_of_folders)
    return ready_future<preloaded_set>(fail(
      errc::invalid_argument,
      "appending to working set {}: folders are numbered among those of all files, so the labels "
      "of an append would not be those of the set; give them as a CSV file",
      name_));
  preload_options how;
  static_cast<set_file_options&>(how) = options;
  how.timeout = options.timeout;
  how.progress = std::move(options.progress);
  how.waits = std::move(options.waits);
  return begin(std::move(files), std::move(how), true);
}

future<preloaded_set> working_set::begin(
  std::vector<std::string> files, preload_options options, bool appends) const {
  if (auto refused = core_->refused<preloaded_set>(name_))
    return *refused;
  runtime::preload_call call{nullptr, name_, std::move(files), std::move(options)};
  call.appends = appends;
  auto done = core_->make_promise<preloaded_set>();
  // The caller does not have the future yet, so it cannot have cancelled.
  static_cast<void>(done.on_cancel([mark = call.mark] { mark->stop(); }));
  go_on(core_, std::make_shared<runtime::preloading>(std::move(call)), done);
  return done.get_future();
}

future<set_info> working_set::describe() const {
  if (auto refused = core_->refused<set_info>(name_))
    return *refused;
  auto done = core_->make_promise<set_info>();
  runtime::describe_home(core_, name_, [done](result<set_info> found) {
    done.set(found ? whole_of(*found) : std::move(found));
  });
  return done.get_future();
}

future<window_counts> working_set::window() const {
  if (auto refused = core_->refused<window_counts>(name_))
    return *refused;
  return runtime::ask_home(*core_, name_, actors::count_window_request{name_});
}

future<set_access> working_set::access(std::string device) const {
  if (auto refused = core_->refused<set_access>(name_))
    return *refused;
  auto done = core_->make_promise<set_access>();
  runtime::find_access(core_, name_, std::move(device), [done](result<set_access> found) {
    done.set(std::move(found));
  });
  return done.get_future();
}

future<set_reader> working_set::open(open_options options) const {
  if (auto refused = core_->refused<set_reader>(name_))
    return *refused;
  auto files = files_of(std::move(options));
  if (!files) // those that this client has preloaded a window from
    files = [core = core_, name = name_](
              const set_info& set, std::size_t number) -> std::shared_ptr<runtime::set_files> {
      auto of_window = is_window(set) ? files_of(core->window_files(name)) : nullptr;
      return of_window ? of_window(set, number) : nullptr;
    };
  auto done = core_->make_promise<set_reader>();
  whole_set::open(
    core_, name_, std::move(files), [done](const result<std::shared_ptr<whole_set>>& view) {
      done.set(view ? result<set_reader>{set_reader{*view}} : fail(view.error()));
    });
  return done.get_future();
}

future<void> working_set::unload() const {
  if (auto refused = core_->refused<void>(name_))
    return *refused;
  auto done = core_->make_promise<void>();
  runtime::unload_set(core_, name_, [core = core_, name = name_, done](result<void> r) {
    if (r || r.error().code() == errc::not_found)
      core->forget_window(name);
    done.set(std::move(r));
  });
  return done.get_future();
}

} // namespace millrace

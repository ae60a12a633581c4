// What a provider knows of the views of its group, and which answers hold by that alone. Kept in
// the provider's bucket; asked by its `tensor_store`.
#pragma once

#include <millrace/actors/store/store_messages.hpp>
#include <millrace/core/clock.hpp>
#include <millrace/storage/bucket.hpp>
#include <millrace/storage/model_check.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace millrace::actors {

/// The provider's place in the configuration.
struct placement_file {
  std::string id; // may be empty
  std::string name;
  std::string group;
  std::vector<group_member> members; // the group with this provider; ids may be missing
  bool of_several = false;           // the file has other providers, of any group
};

/// What a bucket keeps beside its models.
struct kept_placement {
  std::string id;
  std::string group;              // in the file of the last start
  std::vector<group_member> file; // the group's members in that file, by name
  bool proposes = false;          // the file shall become a view
  std::string first_group;        // the group of models that name none
  std::vector<group_history> histories;

  friend bool operator==(const kept_placement&, const kept_placement&) = default;
};
MILLRACE_INSPECT(kept_placement, x.id, x.group, x.file, x.proposes, x.first_group, x.histories)

/// Returns true if a bucket may lose models without being asked, see `group_member`.
bool forgets(const storage::bucket& bucket);

/// Returns the placement of a provider that is alone in its group.
kept_placement placement_alone(const std::string& name, const std::string& group);

/// Reads what a bucket keeps, compares it with the file, and keeps the outcome. Blocks. Logs where
/// file and bucket disagree.
/// Errors:  the bucket's; `corrupt_data`.
result<kept_placement> placement_at_start(
  storage::bucket& bucket, const placement_file& file, std::chrono::milliseconds deadline);

/// Writes it to the bucket, as durably as the bucket stores models.
void keep_placement(storage::bucket& bucket, const kept_placement& what, completion<void> done);

/// Stores a version without tensors.
void store_empty(storage::bucket& bucket, model_spec spec, completion<void> done);

/// Used in one actor.
///
/// It does not answer alone before a client has compared its views with those of the others, since
/// the group may have changed while it was away. While some of these cannot be asked, one request
/// in `compares_every` makes its client try again; the others are answered meanwhile.
class placement_keeper {
public:
  static constexpr std::chrono::seconds compares_every{10};

  /// `now` returns the time.
  placement_keeper(kept_placement kept, std::function<time_point()> now);

  const kept_placement& kept() const noexcept { return kept_; }
  std::uint64_t kept_bytes() const;

  /// Checks that this provider alone can answer for a model. `stored_in`: the view of the version
  /// that it has, if it has one and the answer depends on it.
  /// Errors:  `unsupported_version` when other providers must be asked.
  status may_answer(
    const std::string& model, const placement_claim& by,
    std::optional<std::uint64_t> stored_in = {});

  /// Checks that a model may be stored here. Returns the claim for `still_holds`.
  result<placement_claim> may_store(const std::string& model, const placement_claim& by);
  /// Checks that no newer view came since `may_store`.
  status still_holds(const std::string& model, const placement_claim& by) const;

  /// Checks a version that the bucket opened, or that it has none. A mark, and a model of another
  /// group, count as none.
  template <class Opened>
  result<Opened> check_opened(
    const std::string& model, const placement_claim& by, result<Opened> opened) {
    auto none = !opened && opened.error().code() == errc::not_found;
    if (!opened && !none)
      return opened;
    auto* spec = opened ? &(*opened)->record().spec : nullptr;
    auto ours = spec && group_of(*spec) == group_of(by);
    auto bad = may_answer(model, by, ours ? std::optional{spec->view} : std::nullopt);
    if (!bad.ok())
      return fail(bad);
    if (spec && (!ours || spec->erased))
      return fail(storage::no_such_model(model, 0, 0));
    return opened;
  }

  location describe(const std::string& group) const;

  const std::string& group_of(const placement_claim& by) const {
    return by.group.empty() ? kept_.group : by.group;
  }
  const std::string& group_of(const model_spec& spec) const {
    return spec.group.empty() ? kept_.first_group : spec.group;
  }
  /// True if models of several groups may be here.
  bool is_mixed() const noexcept { return kept_.histories.size() > 1; }

  /// Takes a peer's views. Changes under older ones are refused from now on. Returns true if such
  /// changes may be under way.
  /// Errors:  `invalid_argument`; `busy` when a view is missing that is known here.
  result<bool> adopt(const adopt_request& told);

  /// Counts changes of models. `when_idle` runs its argument when those counted now are over.
  void begin_change() noexcept { ++changes_; }
  void end_change();
  void when_idle(std::function<void()> then);
  /// Drops what waits for the end of changes.
  void forget_waiting() { waiting_.clear(); }

private:
  const group_history* find(const std::string& group) const;
  static bool has_settled(const group_history& h);
  bool is_settled(const group_history& h) const;
  status ask_others(const std::string& model, const std::string& group) const;
  bool must_compare(const std::string& group);

  struct comparison {
    views_compared with = views_compared::with_none;
    time_point next;        // when to try again, if it was with some
    bool under_way = false; // a client was told to try again, and has not said what came of it
  };

  kept_placement kept_;
  std::function<time_point()> now_;
  std::uint64_t start_ = 0;
  std::map<std::string, comparison> compared_; // by group; those that are not here: with all
  std::uint64_t changes_ = 0;
  std::vector<std::function<void()>> waiting_;
};

} // namespace millrace::actors

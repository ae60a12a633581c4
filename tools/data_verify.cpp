// `millrace data verify`: reads the samples of a set, or computes the order of one of its epochs.
#include <millrace/core/batch_plan.hpp>
#include <millrace/core/checkpoint.hpp>
#include <millrace/tools/connection.hpp>
#include <millrace/tools/data_verify.hpp>
#include <millrace/tools/describe_set.hpp>
#include <millrace/tools/progress_line.hpp>
#include <millrace/tools/text.hpp>

#include <fmt/format.h>

#include <optional>
#include <ostream>
#include <vector>

namespace millrace::tools {

namespace {

constexpr std::uint64_t batch_max = std::uint64_t{1} << 31;

struct verify_options : connection_options {
  std::string set;
  std::optional<std::uint64_t> epoch;
  std::uint64_t seed = 0;
  std::optional<std::uint64_t> world;
  std::uint64_t batch = 1;
  std::string shuffle = "full";
  std::string remainder = "short";
};

int compare_samples(invocation& call, const working_set& set) {
  auto info = set.describe().result();
  if (!info)
    return report(call, info.error());
  if (is_window(*info))
    return report(
      call,
      status{
        errc::unsupported,
        "working set {} keeps a window of its samples, and the files are the original: only sets "
        "that have all samples in memory are verified",
        set.name()});
  auto reader = set.open().result();
  if (!reader)
    return report(call, reader.error());
  auto found = [&] {
    progress_line line{call, set.name()};
    return reader->verify(line.callback()).result();
  }();
  if (!found)
    return report(call, found.error());
  auto code = found->damaged == 0 ? exit_ok : exit_failed;
  auto size_bytes = samples_bytes(reader->info());
  if (call.json) {
    print_json(
      call,
      {{"ok", found->damaged == 0},
       {"name", set.name()},
       {"samples", found->samples},
       {"read_bytes", size_bytes},
       {"damaged", found->damaged},
       {"first_damaged", found->first}});
    return code;
  }
  call.out << printable(set.name()) << ": " << counted(found->samples, "sample") << " compared, "
           << human_size(size_bytes) << " read";
  if (found->damaged > 0)
    call.out << ", " << counted(found->damaged, "sample")
             << " damaged: " << fmt::format("{}", fmt::join(found->first, ", "))
             << (found->damaged > found->first.size() ? ", ..." : "");
  call.out << '\n';
  return code;
}

struct rank_share {
  std::uint64_t samples = 0;
  std::uint64_t padding = 0;
};

// What the ranks of a job have of an epoch.
struct shares {
  std::vector<rank_share> ranks;
  std::uint64_t batches = 0;
  std::uint64_t samples = 0; // of all ranks
  std::uint64_t digest = 0;  // of these samples, batch after batch, and in each rank after rank
};

// Walks through the batches as the ranks do.
shares shares_of(const sample_order& order, const batch_plan& plan) {
  shares out;
  out.ranks.resize(plan.world_size);
  samples_digest all;
  for (std::uint64_t at = 0; plan.batches_from(at) > 0; at = plan.after(at)) {
    ++out.batches;
    for (std::uint64_t rank = 0; rank < plan.world_size; ++rank) {
      auto slice = plan.slice(at, rank);
      for (std::uint64_t i = 0; i < slice.count; ++i)
        all.add(order.at(slice.first + i));
      out.ranks[rank].samples += slice.count;
      out.ranks[rank].padding += slice.padding;
      out.samples += slice.count;
    }
  }
  out.digest = all.value();
  return out;
}

// An epoch and its ranks, as the options name them.
struct wanted_order {
  shuffle_kind shuffle;
  batch_plan plan; // without the samples
};

result<wanted_order> parse(const verify_options& options) {
  auto shuffle = shuffle_kind::parse(options.shuffle);
  if (!shuffle)
    return fail(shuffle.error());
  auto remainder = parse_remainder(options.remainder);
  if (!remainder)
    return fail(remainder.error());
  auto world = options.world.value_or(1);
  if (world < 1 || world > world_size_max)
    return fail(errc::invalid_argument, "--world {}: a number from 1 to {}", world, world_size_max);
  if (options.batch < 1 || options.batch > batch_max)
    return fail(
      errc::invalid_argument, "--batch {}: a number from 1 to {}", options.batch, batch_max);
  return wanted_order{*shuffle, {0, options.batch, world, *remainder}};
}

json shares_json(const shares& s, const batch_plan& plan, bool equal) {
  json ranks = json::array();
  for (std::size_t i = 0; i < s.ranks.size(); ++i)
    ranks.push_back(
      {{"rank", i},
       {"batches", s.batches},
       {"samples", s.ranks[i].samples},
       {"padding", s.ranks[i].padding}});
  return {
    {"world_size", plan.world_size},
    {"batch_size", plan.batch_size},
    {"remainder", to_string(plan.remainder)},
    {"batches", s.batches},
    {"samples", s.samples},
    {"left_out", plan.samples - s.samples},
    {"digest", checksum_text(s.digest)},
    {"equal", equal},
    {"ranks", ranks}};
}

void print_shares(std::ostream& out, const shares& s, const batch_plan& plan, bool equal) {
  table ranks{{">rank", ">batches", ">samples", ">padding"}};
  for (std::size_t i = 0; i < s.ranks.size(); ++i)
    ranks.add(
      {std::to_string(i), std::to_string(s.batches), std::to_string(s.ranks[i].samples),
       std::to_string(s.ranks[i].padding)});
  out << counted(plan.world_size, "rank") << ", " << counted(plan.batch_size, "sample")
      << " a batch, remainder " << to_string(plan.remainder) << '\n';
  ranks.print(out, "  ");
  auto left_out = plan.samples - s.samples;
  out << "digest of the samples of all ranks, batch by batch: " << checksum_text(s.digest)
      << (equal ? ", that of " : ", which is not that of ")
      << (left_out == 0 ? std::string{"the order"}
                        : fmt::format("the order without its last {} samples", left_out))
      << '\n';
}

int verify_order(invocation& call, const verify_options& options, const working_set& set) {
  auto wanted = parse(options);
  if (!wanted)
    return report(call, {wanted.error(), exit_usage});
  auto info = set.describe().result();
  if (!info)
    return report(call, info.error());
  sample_order order{
    info->samples, {info->identity, options.seed, *options.epoch}, wanted->shuffle};
  auto digest = order.digest();
  json document = {
    {"name", info->name},
    {"identity", checksum_text(info->identity)},
    {"samples", info->samples},
    {"epoch", *options.epoch},
    {"seed", options.seed},
    {"shuffle", wanted->shuffle.to_string()},
    {"digest", checksum_text(digest)}};
  if (!call.json)
    call.out << printable(info->name) << ": " << counted(info->samples, "sample") << ", epoch "
             << *options.epoch << ", seed " << options.seed << ", shuffle "
             << wanted->shuffle.to_string() << "\ndigest of the order: " << checksum_text(digest)
             << '\n';
  auto equal = true;
  if (options.world) {
    auto plan = wanted->plan;
    plan.samples = info->samples;
    auto parts = shares_of(order, plan);
    equal = parts.digest == (parts.samples == info->samples ? digest : order.digest(parts.samples));
    if (call.json)
      document["world"] = shares_json(parts, plan, equal);
    else
      print_shares(call.out, parts, plan, equal);
  }
  if (call.json)
    print_json(call, document);
  return equal ? exit_ok : exit_failed;
}

int verify(invocation& call, const verify_options& options) {
  auto client = connect_to(options);
  if (!client)
    return report(call, client.error());
  auto set = client->working_set(options.set);
  return options.epoch ? verify_order(call, options, set) : compare_samples(call, set);
}

} // namespace

void add_data_verify(CLI::App& data, invocation& call) {
  auto [command, options] = add_command<verify_options>(
    data, call, "verify",
    "Compare the samples of a set with their digests; or, with --epoch, print the digest of the "
    "order of an epoch, and with --world what each rank has of it and the digest of the samples "
    "of all ranks, which does not depend on their number",
    verify);
  add_connection_options(*command, *options);
  command->add_option("NAME", options->set, "name of the set")->type_name("")->required();
  auto* epoch = command->add_option("--epoch", options->epoch, "the order of this epoch")
                  ->type_name("NUMBER")
                  ->check(whole_number());
  auto* seed = command->add_option("--seed", options->seed, "the seed of the training")
                 ->type_name("NUMBER")
                 ->check(whole_number());
  epoch->needs(seed);
  seed->needs(epoch);
  command->add_option("--shuffle", options->shuffle, "full, none, or block:N (default: full)")
    ->type_name("KIND")
    ->needs(epoch);
  auto* world = command->add_option("--world", options->world, "the number of ranks, to 65536")
                  ->type_name("NUMBER")
                  ->check(whole_number())
                  ->needs(epoch);
  command->add_option("--batch", options->batch, "samples in a rank's batch (default: 1)")
    ->type_name("NUMBER")
    ->check(whole_number())
    ->needs(world);
  command
    ->add_option(
      "--remainder", options->remainder,
      "what becomes of the samples after the last full batch: short, pad or drop (default: short)")
    ->type_name("KIND")
    ->needs(world);
}

} // namespace millrace::tools

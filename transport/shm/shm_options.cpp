// The keys of the section `shm`.
#include <millrace/core/durations.hpp>
#include <millrace/transport/shm/shm_options.hpp>

#include <array>

namespace millrace::config {

template <>
key_table<transport::shm_options> keys_of() {
  using o = transport::shm_options;
  static constexpr auto rows = std::to_array<bound_key<o>>({
    key<&o::transfers_max>(expert(count(
      "transfers_max", 1, 1u << 24,
      "transfers that wait or run with each peer; more get the answer `busy`. Every 32768 parts "
      "of a transfer count as one"))),
    key<&o::backlog_bytes_max>(expert(size(
      "backlog_max", mib, tib,
      "memory for the lists of parts of one peer's transfers; more transfers get the answer "
      "`busy`"))),
    key<&o::mapped_max>(expert(count(
      "mapped_max", 1, 65'536,
      "arenas, files and separate parts of files of all peers that are mapped at a time, which "
      "processes share; a peer that announces more loses its connection"))),
    key<&o::batch_delay_ms>(expert(ms(
      "batch_delay", 1, 60 * second_ms,
      "longest time that a short transfer, or its end, waits for others to share a message"))),
    key<&o::answer_timeout_ms>(expert(ms(
      "answer_timeout", second_ms, day_ms,
      "a peer that owes answers and sends none for this time counts as lost"))),
  });
  return {rows};
}

} // namespace millrace::config

// Every message of actors and of the shm driver, decoded from bytes nobody vouches for.
#include <millrace/actors/wire/envelope.hpp>
#include <millrace/transport/shm/messages.hpp>

#include <cstdlib>

namespace {

using namespace millrace;

// What decodes must encode to something that decodes to the same bytes again.
template <class T>
void try_decode(std::span<const std::byte> in) {
  auto value = decode<T>(in, "fuzz", {.decoded_bytes_max = 1u << 20});
  if (!value)
    return;
  auto once = encode(*value);
  auto again = decode<T>(once, "fuzz");
  if (!again || encode(*again) != once)
    std::abort();
}

template <class... Ts>
void try_one(unsigned which, std::span<const std::byte> in) {
  unsigned i = 0;
  ((i++ == which % sizeof...(Ts) ? try_decode<Ts>(in) : void()), ...);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0)
    return 0;
  std::span<const std::byte> in{reinterpret_cast<const std::byte*>(data) + 1, size - 1};
  using namespace actors;
  namespace shm = transport::shm;
  try_one<
    store_request, store_receipt, load_request, load_receipt, describe_request, list_request,
    model_list, erase_request, pin_request, resolve_request, layer_list, provider_status, directory,
    node_status, request_head, reply_head, shm::announce, shm::forget, shm::asks, shm::answers,
    shm::announce_file, shm::grant, enroll_request, enroll_receipt, leave_request, save_request,
    durable_request, save_receipt, restore_request, checkpoint_list, list_checkpoints_request,
    describe_shard_request, shard_spec, verify_request, verify_receipt, erase_checkpoint_request,
    repack_request, repack_receipt>(data[0], in);
  return 0;
}

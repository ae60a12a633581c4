// Decodes every message of every service and of the shm driver from untrusted bytes.
#include <millrace/actors/services.hpp>
#include <millrace/actors/wire/envelope.hpp>
#include <millrace/tests/support/message_round_trip.hpp>
#include <millrace/transport/shm/messages.hpp>

#include <cstdlib>
#include <vector>

namespace {

using namespace millrace;
using decoder = bool (*)(std::span<const std::byte>);

template <class... Messages>
void add(std::vector<decoder>& to) {
  (to.push_back(testing::comes_again<Messages>), ...);
}

// The first byte of an input chooses one: what is added goes to the end.
const std::vector<decoder>& decoders() {
  static const auto all = [] {
    namespace shm = transport::shm;
    std::vector<decoder> to;
    add<
      actors::request_head, actors::reply_head, shm::announce, shm::forget, shm::asks, shm::answers,
      shm::announce_file, shm::grant>(to);
    actors::all_services::each([&]<class Service>() {
      testing::each_message<Service>([&]<class Message>() { add<Message>(to); });
    });
    add<shm::abilities, shm::map_question, shm::map_answer>(to);
    return to;
  }();
  return all;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0)
    return 0;
  std::span<const std::byte> in{reinterpret_cast<const std::byte*>(data) + 1, size - 1};
  if (!decoders()[data[0] % decoders().size()](in))
    std::abort();
  return 0;
}

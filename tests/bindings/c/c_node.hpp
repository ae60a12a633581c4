// A node with models and a pool for checkpoints, by the C functions. Used by the tests of the C
// ABI.
#pragma once

#include <millrace/tests/support/process.hpp>

#include <boost/test/unit_test.hpp>
#include <millrace.h>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::testing {

/// The codes of calls, with the text of the failure where a test expects none.
#define MUST(call) BOOST_REQUIRE_MESSAGE((call) == MILLRACE_OK, #call << ": " << millrace_error())

/// Checks that a call is refused with a text that has both parts.
#define REFUSED(call, function, argument)                                                          \
  do {                                                                                             \
    BOOST_TEST((call) == MILLRACE_INVALID_ARGUMENT, #call);                                        \
    std::string text = millrace_error();                                                           \
    BOOST_TEST(text.find(function ": ") != std::string::npos, text);                               \
    BOOST_TEST(text.find(argument) != std::string::npos, text);                                    \
  } while (false)

/// A matrix of 64 rows, with numbers of its own.
struct matrix {
  static constexpr std::uint64_t shape[] = {64, 32};
  std::vector<float> elements = std::vector<float>(64 * 32);

  explicit matrix(float first = 0) {
    for (auto& e : elements)
      e = first++;
  }

  millrace_tensor tensor(const char* name = "w") {
    millrace_tensor t{};
    t.name = name;
    t.data = elements.data();
    t.dtype = MILLRACE_F32;
    t.rank = 2;
    t.shape = shape;
    return t;
  }
};

template <class T>
T sized() {
  T value{};
  value.struct_size = sizeof(T);
  return value;
}

struct c_node {
  scratch dir;
  std::string config;
  millrace_node* node = nullptr;
  millrace_client* client = nullptr;

  c_node() {
    config = dir.write(
      "node.yaml",
      "node: { name: n0, listen: 'unix:" + dir / "n0.sock" + "' }\n" +
        "staging: { size: 16MiB }\n"
        "providers:\n"
        "  - { name: fast, capacity: 32MiB }\n"
        "  - { name: pool, group: pool, bucket: pmem, capacity: 32MiB, path: '" +
        dir / "pool" + "' }\n");
    MUST(millrace_embed(config.c_str(), nullptr, &node));
    MUST(millrace_node_client(node, &client));
  }
  ~c_node() {
    millrace_release(client);
    if (node)
      millrace_node_stop(node, nullptr);
    millrace_node_release(node);
  }

  millrace_client* connect() const {
    millrace_client* out = nullptr;
    MUST(millrace_connect(millrace_node_address(node), nullptr, &out));
    return out;
  }

  millrace_checkpointer* job(const millrace_tensor& tensor, const char* name = "run") const {
    auto options = sized<millrace_checkpoint_options>();
    options.name = name;
    millrace_checkpointer* out = nullptr;
    MUST(millrace_register(client, &options, &tensor, 1, &out));
    return out;
  }
};

} // namespace millrace::testing

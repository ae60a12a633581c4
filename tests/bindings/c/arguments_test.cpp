// Tests wrong arguments of every C function: each is refused, by name, and nothing happens.
#include "c_node.hpp"
#include "call.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

using namespace millrace::testing;

namespace {

// So that a function that forgets to clear its output is seen.
template <class T>
T* stale() {
  static char byte;
  return reinterpret_cast<T*>(&byte);
}

// A structure that had no second field once.
struct grown {
  std::size_t struct_size;
  std::int64_t first;
  std::int64_t added;
};

// One field more than this library knows.
struct later_put_options {
  millrace_put_options known;
  std::uint64_t added;
};

} // namespace

template <>
constexpr std::size_t millrace::bindings::first_size<grown> = offsetof(grown, added);

BOOST_FIXTURE_TEST_SUITE(arguments, c_node)

BOOST_AUTO_TEST_CASE(clients_and_nodes_refuse_null) {
  auto* c = stale<millrace_client>();
  auto* n = stale<millrace_node>();
  REFUSED(millrace_connect(nullptr, nullptr, nullptr), "millrace_connect", "client");
  REFUSED(millrace_open(nullptr, &c), "millrace_open", "config_file");
  BOOST_TEST(!c);
  REFUSED(millrace_open(config.c_str(), nullptr), "millrace_open", "client");
  REFUSED(millrace_embed(nullptr, nullptr, &n), "millrace_embed", "config_file");
  BOOST_TEST(!n);
  REFUSED(millrace_embed(config.c_str(), nullptr, nullptr), "millrace_embed", "node");
  REFUSED(millrace_node_client(nullptr, &c), "millrace_node_client", "node");
  REFUSED(millrace_node_client(node, nullptr), "millrace_node_client", "client");
  REFUSED(millrace_node_stop(nullptr, nullptr), "millrace_node_stop", "node");
  BOOST_TEST(!millrace_node_address(nullptr));
  auto* r = stale<millrace_request>();
  REFUSED(millrace_connect_begin("ftp://x", nullptr, &r), "millrace_connect_begin", "ftp://x");
  BOOST_TEST(!r);
  REFUSED(millrace_connect_begin(nullptr, nullptr, nullptr), "millrace_connect_begin", "request");
  r = stale<millrace_request>();
  REFUSED(millrace_embed_begin(nullptr, nullptr, &r), "millrace_embed_begin", "config_file");
  BOOST_TEST(!r);
  REFUSED(
    millrace_embed_begin(config.c_str(), nullptr, nullptr), "millrace_embed_begin", "request");
  millrace_release(nullptr);
  millrace_node_release(nullptr);
  millrace_checkpointer_release(nullptr);
  millrace_queue_release(nullptr);
  millrace_detach(nullptr);
}

BOOST_AUTO_TEST_CASE(addresses_and_files_that_are_none_are_named) {
  millrace_client* c = nullptr;
  REFUSED(millrace_connect("ftp://x", nullptr, &c), "millrace_connect", "ftp://x");
  REFUSED(millrace_connect("tls://localhost:1", nullptr, &c), "millrace_connect", "secret");
  BOOST_TEST(millrace_open("/nonexistent/file", &c) != MILLRACE_OK);
  BOOST_TEST(std::string{millrace_error()}.find("/nonexistent/file") != std::string::npos);
  millrace_node* n = nullptr;
  BOOST_TEST(millrace_embed("/nonexistent/file", nullptr, &n) != MILLRACE_OK);
  BOOST_TEST(!n);
  BOOST_TEST(millrace_embed(config.c_str(), "no-such-node", &n) != MILLRACE_OK);
  BOOST_TEST(!n);
}

BOOST_AUTO_TEST_CASE(models_refuse_null) {
  matrix m;
  auto t = m.tensor();
  auto* r = stale<millrace_request>();
  REFUSED(millrace_put(nullptr, "m", &t, 1, nullptr, &r), "millrace_put", "client");
  BOOST_TEST(!r);
  REFUSED(millrace_put(client, nullptr, &t, 1, nullptr, &r), "millrace_put", "model");
  REFUSED(millrace_put(client, "m", nullptr, 1, nullptr, &r), "millrace_put", "tensors");
  REFUSED(millrace_put(client, "m", &t, 0, nullptr, &r), "millrace_put", "count");
  REFUSED(millrace_put(client, "m", &t, SIZE_MAX, nullptr, &r), "millrace_put", "count");
  REFUSED(millrace_get(nullptr, "m", &t, 1, nullptr, &r), "millrace_get", "client");
  REFUSED(millrace_get(client, nullptr, &t, 1, nullptr, &r), "millrace_get", "model");
  REFUSED(millrace_get(client, "m", nullptr, 1, nullptr, &r), "millrace_get", "tensors");
  REFUSED(millrace_await(nullptr, nullptr, "m", 0, 0, &r), "millrace_await", "client");
  REFUSED(millrace_await(client, nullptr, nullptr, 0, 0, &r), "millrace_await", "model");
  REFUSED(millrace_await(client, nullptr, "m", 0, -5, &r), "millrace_await", "timeout_ms");
  REFUSED(millrace_await(client, nullptr, "m", 0, INT64_MAX, &r), "millrace_await", "timeout_ms");
  REFUSED(millrace_describe(nullptr, nullptr, "m", 0, &r), "millrace_describe", "client");
  REFUSED(millrace_describe(client, nullptr, nullptr, 0, &r), "millrace_describe", "model");
  REFUSED(millrace_list(nullptr, nullptr, nullptr, &r), "millrace_list", "client");
  REFUSED(millrace_erase(nullptr, nullptr, "m", &r), "millrace_erase", "client");
  REFUSED(millrace_erase(client, nullptr, nullptr, &r), "millrace_erase", "model");
  REFUSED(millrace_pin(nullptr, nullptr, "m", 1, &r), "millrace_pin", "client");
  REFUSED(millrace_pin(client, nullptr, nullptr, 1, &r), "millrace_pin", "model");
}

BOOST_AUTO_TEST_CASE(tensors_that_are_none_are_named_by_their_place) {
  matrix m;
  auto refuse = [&](const char* field, auto change) {
    millrace_tensor both[] = {m.tensor("a"), m.tensor("b")};
    change(both[1]);
    REFUSED(millrace_put(client, "m", both, 2, nullptr, nullptr), "millrace_put", field);
  };
  static const std::uint64_t numbers[2] = {0, 0};
  refuse("tensors[1].name", [](auto& t) { t.name = nullptr; });
  refuse("tensors[1].rank", [](auto& t) { t.rank = -1; });
  refuse("tensors[1].rank", [](auto& t) { t.rank = 33; });
  refuse("tensors[1].rank", [](auto& t) { t.rank = INT32_MAX; });
  refuse("tensors[1].dtype", [](auto& t) { t.dtype = -1; });
  refuse("tensors[1].dtype", [](auto& t) { t.dtype = 21; });
  refuse("tensors[1].dtype", [](auto& t) { t.dtype = 256; });
  refuse("tensors[1].shape", [](auto& t) { t.shape = nullptr; });
  refuse("tensors[1].offsets", [](auto& t) { t.offsets = numbers; });
  refuse("tensors[1].global_shape", [](auto& t) { t.global_shape = numbers; });
}

BOOST_AUTO_TEST_CASE(what_the_runtime_refuses_is_an_error_of_the_call) {
  matrix m;
  auto expect_refused = [&](const char* model, millrace_tensor t) {
    auto* r = stale<millrace_request>();
    BOOST_TEST(millrace_put(client, model, &t, 1, nullptr, &r) == MILLRACE_INVALID_ARGUMENT);
    BOOST_TEST(!r);
  };
  static const std::uint64_t huge[] = {UINT64_MAX, UINT64_MAX};
  auto t = m.tensor();
  expect_refused("", t);
  t.data = nullptr;
  expect_refused("m", t);
  t = m.tensor();
  t.shape = huge;
  expect_refused("m", t);
  expect_refused("m", m.tensor("\xff\xfe"));
}

BOOST_AUTO_TEST_CASE(options_that_are_none_are_named) {
  matrix m;
  auto t = m.tensor();
  auto refuse = [&](const char* field, auto change) {
    auto o = sized<millrace_put_options>();
    change(o);
    REFUSED(millrace_put(client, "m", &t, 1, &o, nullptr), "millrace_put", field);
  };
  static const millrace_pair half[] = {{"key", nullptr}};
  refuse("struct_size", [](auto& o) { o.struct_size = 0; });
  refuse(
    "struct_size", [](auto& o) { o.struct_size = offsetof(millrace_put_options, layers) - 1; });
  refuse("struct_size", [](auto& o) { o.struct_size = SIZE_MAX; });
  refuse("timeout_ms", [](auto& o) { o.timeout_ms = -1; });
  refuse("timeout_ms", [](auto& o) { o.timeout_ms = INT64_MAX; });
  refuse("checksums", [](auto& o) { o.checksums = 2; });
  refuse("metadata", [](auto& o) { o.metadata_count = 1; });
  refuse("metadata", [](auto& o) { o.metadata_count = SIZE_MAX; });
  refuse("metadata[0]", [](auto& o) {
    o.metadata = half;
    o.metadata_count = 1;
  });
}

BOOST_AUTO_TEST_CASE(options_of_a_later_version_pass_while_their_new_fields_are_unset) {
  matrix m;
  auto t = m.tensor();
  later_put_options later{};
  later.known.struct_size = sizeof(later);
  MUST(millrace_put(client, "m", &t, 1, &later.known, nullptr));
  later.added = 1;
  REFUSED(millrace_put(client, "m", &t, 1, &later.known, nullptr), "millrace_put", "options");
}

BOOST_AUTO_TEST_CASE(options_of_clients_are_checked) {
  millrace_client* c = nullptr;
  auto o = sized<millrace_client_options>();
  o.timeout_ms = -1;
  REFUSED(millrace_connect(millrace_node_address(node), &o, &c), "millrace_connect", "timeout_ms");
  o.timeout_ms = 0;
  o.connect_timeout_ms = INT64_MAX;
  REFUSED(
    millrace_connect(millrace_node_address(node), &o, &c), "millrace_connect",
    "connect_timeout_ms");
  o.connect_timeout_ms = 0;
  for (auto bytes : {std::uint64_t{1}, UINT64_MAX}) {
    o.staging_bytes = bytes;
    REFUSED(
      millrace_connect(millrace_node_address(node), &o, &c), "millrace_connect", "staging_bytes");
  }
  o.staging_bytes = 0;
  const char* users[] = {"root", nullptr};
  o.trust_users_count = 2;
  REFUSED(millrace_connect(millrace_node_address(node), &o, &c), "millrace_connect", "trust_users");
  o.trust_users = users;
  REFUSED(
    millrace_connect(millrace_node_address(node), &o, &c), "millrace_connect", "trust_users[1]");
  o.trust_users_count = SIZE_MAX;
  REFUSED(
    millrace_connect(millrace_node_address(node), &o, &c), "millrace_connect",
    "trust_users has 18446744073709551615 texts");
  BOOST_TEST(!c);
  o.trust_users_count = 1;
  MUST(millrace_connect(millrace_node_address(node), &o, &c));
  millrace_release(c);
}

// No structure of the interface has grown yet.
BOOST_AUTO_TEST_CASE(a_structure_that_has_grown_is_taken_and_given_in_its_former_size) {
  using millrace::bindings::call;
  grown whole{sizeof(grown), 1, 2};
  call here{"f"};
  BOOST_TEST(here.options(&whole)->added == 2);
  whole.struct_size = offsetof(grown, added);
  auto former = here.options(&whole);
  BOOST_TEST_REQUIRE(former.has_value());
  BOOST_TEST(former->first == 1);
  BOOST_TEST(former->added == 0);
  BOOST_TEST(here.give(&whole, "out", grown{0, 7, 8}).ok());
  BOOST_TEST(whole.first == 7);
  BOOST_TEST(whole.added == 2); // not the caller's
  --whole.struct_size;
  BOOST_TEST(!here.options(&whole).has_value());
  BOOST_TEST(!here.give(&whole, "out", grown{}).ok());
}

BOOST_AUTO_TEST_CASE(strides_that_lead_out_of_all_memory_are_refused) {
  matrix m;
  auto t = m.tensor();
  for (std::int64_t far : {INT64_MIN, INT64_MAX, INT64_MIN / 2, INT64_MAX / 63}) {
    const std::int64_t strides[] = {far, 4};
    t.strides_bytes = strides;
    BOOST_TEST(millrace_put(client, "m", &t, 1, nullptr, nullptr) == MILLRACE_INVALID_ARGUMENT);
    BOOST_TEST(millrace_get(client, "m", &t, 1, nullptr, nullptr) == MILLRACE_INVALID_ARGUMENT);
    auto o = sized<millrace_checkpoint_options>();
    o.name = "run";
    millrace_checkpointer* ck = nullptr;
    BOOST_TEST(millrace_register(client, &o, &t, 1, &ck) == MILLRACE_INVALID_ARGUMENT);
  }
}

BOOST_AUTO_TEST_CASE(checkpoints_refuse_null_and_nonsense) {
  matrix m;
  auto t = m.tensor();
  auto o = sized<millrace_checkpoint_options>();
  auto* ck = stale<millrace_checkpointer>();
  auto* r = stale<millrace_request>();
  REFUSED(millrace_register(nullptr, &o, &t, 1, &ck), "millrace_register", "client");
  BOOST_TEST(!ck);
  REFUSED(millrace_register(client, nullptr, &t, 1, &ck), "millrace_register", "options");
  REFUSED(millrace_register(client, &o, &t, 1, nullptr), "millrace_register", "checkpointer");
  REFUSED(millrace_register(client, &o, &t, 1, &ck), "millrace_register", "name");
  o.name = "run";
  REFUSED(millrace_register(client, &o, nullptr, 1, &ck), "millrace_register", "tensors");
  o.busy = 2;
  REFUSED(millrace_register(client, &o, &t, 1, &ck), "millrace_register", "busy");
  o.busy = MILLRACE_BUSY_WAIT;
  o.axes_count = 1;
  REFUSED(millrace_register(client, &o, &t, 1, &ck), "millrace_register", "axes");
  REFUSED(
    millrace_register_begin(client, &o, &t, 1, nullptr), "millrace_register_begin", "request");
  REFUSED(millrace_register_begin(client, &o, &t, 1, &r), "millrace_register_begin", "axes");
  BOOST_TEST(!r);
  REFUSED(millrace_register_begin(nullptr, &o, &t, 1, &r), "millrace_register_begin", "client");
  REFUSED(
    millrace_register_begin(client, nullptr, &t, 1, &r), "millrace_register_begin", "options");
}

BOOST_AUTO_TEST_CASE(calls_of_checkpoints_refuse_null_and_nonsense) {
  matrix m;
  auto t = m.tensor();
  auto* r = stale<millrace_request>();
  REFUSED(millrace_save(nullptr, 1, 0, nullptr, 0, &r, nullptr), "millrace_save", "checkpointer");
  BOOST_TEST(!r);
  REFUSED(
    millrace_save_after(nullptr, nullptr, 1, 0, nullptr, 0, &r, nullptr), "millrace_save_after",
    "checkpointer");
  REFUSED(millrace_fence(nullptr, nullptr), "millrace_fence", "checkpointer");
  REFUSED(millrace_fence_stream(nullptr, nullptr), "millrace_fence_stream", "checkpointer");
  REFUSED(millrace_rebind(nullptr, &t, 1), "millrace_rebind", "checkpointer");
  REFUSED(millrace_restore(nullptr, -1, &r), "millrace_restore", "checkpointer");
  REFUSED(millrace_close(nullptr, 0, &r), "millrace_close", "checkpointer");
  REFUSED(millrace_await_step(nullptr, nullptr, "m", -1, 0, &r), "millrace_await_step", "client");
  REFUSED(millrace_await_step(client, nullptr, nullptr, -1, 0, &r), "millrace_await_step", "model");
  REFUSED(
    millrace_await_step(client, nullptr, "m", -2, 0, &r), "millrace_await_step", "newer_than");
  REFUSED(
    millrace_get_shard(nullptr, "m", 0, -1, &t, 1, nullptr, &r), "millrace_get_shard", "client");
  REFUSED(
    millrace_get_shard(client, nullptr, 0, -1, &t, 1, nullptr, &r), "millrace_get_shard", "model");
  REFUSED(
    millrace_get_shard(client, "m", 0, INT64_MIN, &t, 1, nullptr, &r), "millrace_get_shard",
    "step");
  REFUSED(
    millrace_get_global(nullptr, "m", -1, &t, 1, nullptr, &r), "millrace_get_global", "client");
  REFUSED(
    millrace_get_global(client, nullptr, -1, &t, 1, nullptr, &r), "millrace_get_global", "model");
  REFUSED(millrace_get_global(client, "m", -2, &t, 1, nullptr, &r), "millrace_get_global", "step");
  REFUSED(
    millrace_get_global(client, "m", -1, nullptr, 1, nullptr, &r), "millrace_get_global",
    "tensors");
  REFUSED(millrace_list_runs(nullptr, nullptr, nullptr, &r), "millrace_list_runs", "client");
  REFUSED(millrace_list_steps(nullptr, nullptr, "m", &r), "millrace_list_steps", "client");
  REFUSED(millrace_list_steps(client, nullptr, nullptr, &r), "millrace_list_steps", "model");
  REFUSED(
    millrace_describe_shard(nullptr, nullptr, "m", 0, -1, &r), "millrace_describe_shard", "client");
  REFUSED(
    millrace_describe_shard(client, nullptr, nullptr, 0, -1, &r), "millrace_describe_shard",
    "model");
  REFUSED(
    millrace_describe_shard(client, nullptr, "m", 0, -2, &r), "millrace_describe_shard", "step");
  REFUSED(millrace_erase_run(nullptr, nullptr, "m", &r), "millrace_erase_run", "client");
  REFUSED(millrace_erase_run(client, nullptr, nullptr, &r), "millrace_erase_run", "model");
  REFUSED(millrace_erase_step(nullptr, nullptr, "m", 1, &r), "millrace_erase_step", "client");
  REFUSED(millrace_erase_step(client, nullptr, nullptr, 1, &r), "millrace_erase_step", "model");
  auto of_version = sized<millrace_get_options>();
  of_version.version = 3;
  REFUSED(
    millrace_get_shard(client, "m", 0, -1, &t, 1, &of_version, &r), "millrace_get_shard",
    "version");
}

BOOST_AUTO_TEST_CASE(a_part_of_a_tensor_has_a_place_that_makes_sense) {
  matrix m;
  auto t = m.tensor();
  auto o = sized<millrace_checkpoint_options>();
  o.name = "run";
  millrace_checkpointer* ck = nullptr;
  const std::uint64_t whole[] = {128, 32}, offsets[] = {64, 0}, outside[] = {65, 0};
  t.global_shape = whole;
  REFUSED(millrace_register(client, &o, &t, 1, &ck), "millrace_register", "tensors[0]");
  t.global_shape = nullptr;
  t.offsets = offsets;
  REFUSED(millrace_register(client, &o, &t, 1, &ck), "millrace_register", "tensors[0]");
  t.global_shape = whole;
  t.offsets = outside;
  BOOST_TEST(millrace_register(client, &o, &t, 1, &ck) == MILLRACE_INVALID_ARGUMENT);
  BOOST_TEST(!ck);
  t.offsets = offsets;
  MUST(millrace_register(client, &o, &t, 1, &ck));
  MUST(millrace_rebind(ck, &t, 1));
  const std::uint64_t elsewhere[] = {0, 0};
  t.offsets = elsewhere;
  REFUSED(millrace_rebind(ck, &t, 1), "millrace_rebind", "tensors[0]");
  t.offsets = t.global_shape = nullptr;
  REFUSED(millrace_rebind(ck, &t, 1), "millrace_rebind", "tensors[0]");
  MUST(millrace_close(ck, 1, nullptr));
  millrace_checkpointer_release(ck);
}

BOOST_AUTO_TEST_CASE(a_registered_shard_refuses_nonsense_and_goes_on) {
  matrix m;
  auto t = m.tensor();
  auto* ck = job(t);
  millrace_request* r = nullptr;
  REFUSED(millrace_save(ck, 1, 2, nullptr, 0, &r, nullptr), "millrace_save", "flags");
  REFUSED(millrace_save(ck, 1, 0, nullptr, 1, &r, nullptr), "millrace_save", "extra");
  REFUSED(
    millrace_save_after(ck, nullptr, 1, 0, nullptr, 1, &r, nullptr), "millrace_save_after",
    "extra");
  // This process does not use CUDA, or the build has none. The failure counts as that of a save,
  // once.
  BOOST_TEST(millrace_save_after(ck, nullptr, 1, 0, nullptr, 0, &r, nullptr) != MILLRACE_OK);
  const std::string why = millrace_error();
  const auto build_has_cuda = why.find("CUDA") != std::string::npos;
  BOOST_TEST((build_has_cuda || why.find("'cuda'; this build has none") != std::string::npos), why);
  BOOST_TEST(r == nullptr);
  BOOST_TEST(millrace_fence_stream(ck, nullptr) != MILLRACE_OK);
  if (build_has_cuda)
    MUST(millrace_fence_stream(ck, nullptr));
  else
    BOOST_TEST(millrace_fence(ck, nullptr) != MILLRACE_OK);
  // No signed number is as large, and `millrace_restore` takes one.
  BOOST_TEST(
    millrace_save(ck, UINT64_MAX, 0, nullptr, 0, &r, nullptr) == MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_rebind(ck, nullptr, 1), "millrace_rebind", "tensors");
  REFUSED(millrace_rebind(ck, &t, SIZE_MAX), "millrace_rebind", "count");
  t.dtype = MILLRACE_I32;
  BOOST_TEST(millrace_rebind(ck, &t, 1) == MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_restore(ck, -2, &r), "millrace_restore", "step");
  // A program that falls back to a save without a stream is not refused because of the first.
  BOOST_TEST(millrace_save_after(ck, nullptr, 1, 0, nullptr, 0, &r, nullptr) != MILLRACE_OK);
  MUST(millrace_save(ck, 1, 0, nullptr, 0, nullptr, &r));
  MUST(millrace_wait(&r, MILLRACE_FOREVER));
  MUST(millrace_close(ck, 1, nullptr));
  millrace_checkpointer_release(ck);
}

BOOST_AUTO_TEST_CASE(requests_and_queues_refuse_null) {
  int over = 7;
  std::size_t index = 0, size = 0;
  const void* data = nullptr;
  auto receipt = sized<millrace_receipt>();
  auto model = sized<millrace_model>();
  millrace_tensor tensor;
  millrace_request* none = nullptr;
  REFUSED(millrace_wait(nullptr, 0), "millrace_wait", "request");
  REFUSED(millrace_test(nullptr, &over), "millrace_test", "request");
  REFUSED(millrace_test(&none, nullptr), "millrace_test", "over");
  REFUSED(millrace_waitall(1, nullptr, 0, nullptr), "millrace_waitall", "requests");
  REFUSED(millrace_waitall(SIZE_MAX, &none, 0, nullptr), "millrace_waitall", "count");
  REFUSED(millrace_waitany(1, nullptr, 0, &index), "millrace_waitany", "requests");
  REFUSED(millrace_waitany(SIZE_MAX, &none, 0, &index), "millrace_waitany", "count");
  REFUSED(millrace_waitany(1, &none, 0, nullptr), "millrace_waitany", "index");
  REFUSED(millrace_cancel(nullptr), "millrace_cancel", "request");
  REFUSED(millrace_request_wait(nullptr, 0), "millrace_request_wait", "request");
  REFUSED(millrace_request_receipt(nullptr, &receipt), "millrace_request_receipt", "request");
  REFUSED(millrace_request_extra(nullptr, &data, &size), "millrace_request_extra", "request");
  BOOST_TEST(millrace_request_count(nullptr) == 0u);
  REFUSED(millrace_request_model(nullptr, 0, &model), "millrace_request_model", "request");
  REFUSED(millrace_request_tensor(nullptr, 0, &tensor), "millrace_request_tensor", "request");
  auto run = sized<millrace_run>();
  millrace_pair pair;
  REFUSED(millrace_request_run(nullptr, 0, &run), "millrace_request_run", "request");
  REFUSED(millrace_request_metadata(nullptr, 0, &pair), "millrace_request_metadata", "request");
  auto step = sized<millrace_step>();
  REFUSED(millrace_request_step(nullptr, 0, &step), "millrace_request_step", "request");
  REFUSED(millrace_request_axis(nullptr, 0, &pair), "millrace_request_axis", "request");
  auto* c = stale<millrace_client>();
  auto* n = stale<millrace_node>();
  auto* ck = stale<millrace_checkpointer>();
  REFUSED(millrace_request_client(nullptr, &c), "millrace_request_client", "request");
  REFUSED(millrace_request_node(nullptr, &n), "millrace_request_node", "request");
  REFUSED(millrace_request_checkpointer(nullptr, &ck), "millrace_request_checkpointer", "request");
  BOOST_TEST((!c && !n && !ck));
  BOOST_TEST(!millrace_request_silent(nullptr, 0));
  auto* q = stale<millrace_queue>();
  REFUSED(millrace_queue_create(0, nullptr), "millrace_queue_create", "queue");
  MUST(millrace_queue_create(4, &q));
  std::uint64_t token = 0;
  REFUSED(millrace_queue_add(q, nullptr, 1), "millrace_queue_add", "request");
  REFUSED(millrace_queue_add(nullptr, nullptr, 1), "millrace_queue_add", "queue");
  REFUSED(millrace_queue_poll(nullptr, &token, 1, 0, &size), "millrace_queue_poll", "queue");
  REFUSED(millrace_queue_poll(q, nullptr, 1, 0, &size), "millrace_queue_poll", "tokens");
  REFUSED(millrace_queue_poll(q, &token, 1, 0, nullptr), "millrace_queue_poll", "taken");
  BOOST_TEST(millrace_queue_fd(nullptr) == -1);
  millrace_queue_release(q);
}

BOOST_AUTO_TEST_CASE(a_request_that_is_over_refuses_null_and_places_behind_the_last) {
  matrix m;
  auto t = m.tensor();
  MUST(millrace_put(client, "m", &t, 1, nullptr, nullptr));
  millrace_request* r = nullptr;
  MUST(millrace_list(client, nullptr, nullptr, &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  const void* bytes = nullptr;
  std::size_t count = 0;
  auto model = sized<millrace_model>();
  auto run = sized<millrace_run>();
  REFUSED(millrace_request_receipt(r, nullptr), "millrace_request_receipt", "receipt");
  REFUSED(millrace_request_extra(r, nullptr, &count), "millrace_request_extra", "extra");
  REFUSED(millrace_request_extra(r, &bytes, nullptr), "millrace_request_extra", "extra_bytes");
  REFUSED(millrace_request_model(r, 0, nullptr), "millrace_request_model", "model");
  REFUSED(millrace_request_model(r, SIZE_MAX, &model), "millrace_request_model", "index");
  REFUSED(millrace_request_run(r, 0, nullptr), "millrace_request_run", "run");
  REFUSED(millrace_request_run(r, 0, &run), "millrace_request_run", "index");
  REFUSED(millrace_request_tensor(r, 0, nullptr), "millrace_request_tensor", "tensor");
  REFUSED(millrace_request_tensor(r, SIZE_MAX, &t), "millrace_request_tensor", "index");
  REFUSED(millrace_request_metadata(r, 0, nullptr), "millrace_request_metadata", "pair");
  auto step = sized<millrace_step>();
  REFUSED(millrace_request_step(r, 0, nullptr), "millrace_request_step", "step");
  REFUSED(millrace_request_step(r, 0, &step), "millrace_request_step", "index");
  REFUSED(millrace_request_axis(r, 0, nullptr), "millrace_request_axis", "pair");
  REFUSED(millrace_request_client(r, nullptr), "millrace_request_client", "client");
  millrace_client* c = nullptr;
  millrace_node* n = nullptr;
  millrace_checkpointer* ck = nullptr;
  REFUSED(millrace_request_client(r, &c), "millrace_request_client", "makes no client");
  REFUSED(millrace_request_node(r, &n), "millrace_request_node", "makes no node");
  REFUSED(
    millrace_request_checkpointer(r, &ck), "millrace_request_checkpointer",
    "makes no checkpointer");
  for (std::size_t size : {std::size_t{0}, sizeof(model) - 1, SIZE_MAX}) {
    model.struct_size = size;
    REFUSED(millrace_request_model(r, 0, &model), "millrace_request_model", "struct_size");
  }
  for (auto ms : {INT64_MIN, INT64_MAX})
    MUST(millrace_request_wait(r, ms));
  MUST(millrace_wait(&r, INT64_MIN));
}

BOOST_AUTO_TEST_CASE(names_that_none_can_have_are_refused_everywhere) {
  matrix m;
  auto t = m.tensor();
  auto o = sized<millrace_checkpoint_options>();
  millrace_checkpointer* ck = nullptr;
  const std::string too_long(1u << 20, 'x');
  for (auto* name : {"", "\xff\xfe", too_long.c_str()}) {
    auto expect_refused = [&](millrace_code code, const char* call) {
      BOOST_TEST(code == MILLRACE_INVALID_ARGUMENT, call << ": " << millrace_error());
    };
    expect_refused(millrace_put(client, name, &t, 1, nullptr, nullptr), "put");
    expect_refused(millrace_get(client, name, &t, 1, nullptr, nullptr), "get");
    expect_refused(millrace_await(client, nullptr, name, 0, 0, nullptr), "await");
    expect_refused(millrace_describe(client, nullptr, name, 0, nullptr), "describe");
    expect_refused(millrace_erase(client, nullptr, name, nullptr), "erase");
    expect_refused(millrace_pin(client, nullptr, name, 1, nullptr), "pin");
    expect_refused(millrace_await_step(client, nullptr, name, -1, 0, nullptr), "await_step");
    expect_refused(millrace_get_shard(client, name, 0, -1, &t, 1, nullptr, nullptr), "get_shard");
    expect_refused(millrace_get_global(client, name, -1, &t, 1, nullptr, nullptr), "get_global");
    expect_refused(millrace_list_steps(client, nullptr, name, nullptr), "list_steps");
    expect_refused(millrace_describe_shard(client, nullptr, name, 0, -1, nullptr), "describe");
    expect_refused(millrace_erase_run(client, nullptr, name, nullptr), "erase_run");
    expect_refused(millrace_erase_step(client, nullptr, name, 1, nullptr), "erase_step");
    o.name = name;
    expect_refused(millrace_register(client, &o, &t, 1, &ck), "register");
  }
}

BOOST_AUTO_TEST_CASE(the_size_of_each_options_structure_is_checked) {
  matrix m;
  auto t = m.tensor();
  millrace_client* c = nullptr;
  millrace_checkpointer* ck = nullptr;
  for (std::size_t cut : {std::size_t{0}, std::size_t{1}}) {
    auto wrong = [&](auto o) {
      o.struct_size = cut == 0 ? 0 : o.struct_size - cut;
      return o;
    };
    auto of_client = wrong(sized<millrace_client_options>());
    REFUSED(millrace_connect(nullptr, &of_client, &c), "millrace_connect", "struct_size");
    auto of_get = wrong(sized<millrace_get_options>());
    REFUSED(millrace_get(client, "m", &t, 1, &of_get, nullptr), "millrace_get", "struct_size");
    REFUSED(
      millrace_get_global(client, "m", -1, &t, 1, &of_get, nullptr), "millrace_get_global",
      "struct_size");
    auto of_job = wrong(sized<millrace_checkpoint_options>());
    of_job.name = "run";
    REFUSED(millrace_register(client, &of_job, &t, 1, &ck), "millrace_register", "struct_size");
  }
}

BOOST_AUTO_TEST_CASE(outputs_of_a_wrong_size_are_refused) {
  matrix m;
  auto t = m.tensor();
  millrace_request* r = nullptr;
  MUST(millrace_put(client, "m", &t, 1, nullptr, &r));
  MUST(millrace_request_wait(r, MILLRACE_FOREVER));
  millrace_receipt receipt{};
  for (auto size : {std::size_t{0}, sizeof(receipt) - 1, SIZE_MAX}) {
    receipt.struct_size = size;
    REFUSED(
      millrace_request_receipt(r, &receipt), "millrace_request_receipt", "receipt->struct_size");
  }
  struct {
    millrace_receipt known;
    std::uint64_t added;
  } later;
  std::memset(&later, 0xEE, sizeof(later));
  later.known.struct_size = sizeof(later);
  MUST(millrace_request_receipt(r, &later.known));
  BOOST_TEST(later.added == 0u);
  BOOST_TEST(later.known.struct_size == sizeof(later));
  BOOST_TEST(later.known.size_bytes == m.elements.size() * sizeof(float));
  millrace_detach(&r);
  millrace_job_info job{};
  REFUSED(millrace_job(&job), "millrace_job", "struct_size");
  REFUSED(millrace_job(nullptr), "millrace_job", "job");
}

BOOST_AUTO_TEST_CASE(codes_have_names_and_the_versions_agree) {
  BOOST_TEST(std::string{millrace_code_name(MILLRACE_OK)} == "ok");
  BOOST_TEST(std::string{millrace_code_name(MILLRACE_NOT_FOUND)} == "not_found");
  BOOST_TEST(std::string{millrace_code_name(MILLRACE_INTERNAL)} == "internal");
  for (auto none : {-1, 18, INT32_MAX, INT32_MIN})
    BOOST_TEST(std::string{millrace_code_name(none)} == "unknown");
  BOOST_TEST(millrace_version_number() == static_cast<std::uint32_t>(MILLRACE_VERSION_NUMBER));
  BOOST_TEST(std::string{millrace_version()} == "0.1.0");
}

BOOST_AUTO_TEST_CASE(a_long_text_is_cut_between_two_characters) {
  millrace_client* c = nullptr;
  for (std::size_t shift = 0; shift < 3; ++shift) {
    std::string path(shift, 'x');
    for (int i = 0; i < 2000; ++i)
      path += "\u20AC"; // of three bytes
    BOOST_TEST(millrace_open(path.c_str(), &c) != MILLRACE_OK);
    std::string text = millrace_error();
    BOOST_TEST(text.size() <= 2047u);
    BOOST_TEST(text.size() >= 2045u);
    auto last = text.find_last_of('\xE2');
    BOOST_TEST((last == std::string::npos || text.size() - last == 3u));
  }
}

BOOST_AUTO_TEST_SUITE_END()

/* The layout of every structure on 64-bit machines, every number that has a name, and the type of
 * every function. Programs are compiled with them: none may change. A field is added at the end of
 * a structure that begins with its size; `first_size` in call.hpp then has a line with the former
 * size. */
#include <assert.h>
#include <millrace.h>

#define SIZE(type, bytes) static_assert(sizeof(type) == (bytes), "the size of " #type)
#define AT(type, field, bytes)                                                                     \
  static_assert(offsetof(type, field) == (bytes), "the place of " #field)

#define VALUE(name, number) static_assert(MILLRACE_##name == (number), "the number of " #name)

VALUE(OK, 0);
VALUE(INVALID_ARGUMENT, 1);
VALUE(NOT_FOUND, 2);
VALUE(ALREADY_EXISTS, 3);
VALUE(PERMISSION_DENIED, 4);
VALUE(BUSY, 5);
VALUE(NO_SPACE, 6);
VALUE(CORRUPT_DATA, 7);
VALUE(UNSUPPORTED_VERSION, 8);
VALUE(PEER_LOST, 9);
VALUE(DEADLINE_EXCEEDED, 10);
VALUE(CANCELLED, 11);
VALUE(UNAVAILABLE, 12);
VALUE(IO_ERROR, 13);
VALUE(PROTOCOL_ERROR, 14);
VALUE(UNKNOWN_LAYERS, 15);
VALUE(UNSUPPORTED, 16);
VALUE(INTERNAL, 17);
VALUE(BOOL, 0);
VALUE(F4, 1);
VALUE(F6_E2M3, 2);
VALUE(F6_E3M2, 3);
VALUE(U8, 4);
VALUE(I8, 5);
VALUE(F8_E5M2, 6);
VALUE(F8_E4M3, 7);
VALUE(F8_E8M0, 8);
VALUE(I16, 9);
VALUE(U16, 10);
VALUE(F16, 11);
VALUE(BF16, 12);
VALUE(I32, 13);
VALUE(U32, 14);
VALUE(F32, 15);
VALUE(C64, 16);
VALUE(F64, 17);
VALUE(I64, 18);
VALUE(U64, 19);
VALUE(C128, 20);
VALUE(BUSY_WAIT, 0);
VALUE(BUSY_REFUSE, 1);
VALUE(SAVE_DIRECT, 0);
VALUE(SAVE_SNAPSHOT, 1);
VALUE(FOREVER, -1);
VALUE(LOADER_STATE_BYTES, 512);

SIZE(millrace_code, 4);
SIZE(millrace_tensor, 72);
AT(millrace_tensor, name, 0);
AT(millrace_tensor, data, 8);
AT(millrace_tensor, dtype, 16);
AT(millrace_tensor, rank, 20);
AT(millrace_tensor, shape, 24);
AT(millrace_tensor, strides_bytes, 32);
AT(millrace_tensor, offsets, 40);
AT(millrace_tensor, global_shape, 48);
AT(millrace_tensor, reserved, 56);

SIZE(millrace_pair, 16);
AT(millrace_pair, key, 0);
AT(millrace_pair, value, 8);

SIZE(millrace_client_options, 80);
AT(millrace_client_options, struct_size, 0);
AT(millrace_client_options, secret, 8);
AT(millrace_client_options, timeout_ms, 16);
AT(millrace_client_options, connect_timeout_ms, 24);
AT(millrace_client_options, staging_bytes, 32);
AT(millrace_client_options, certificate, 40);
AT(millrace_client_options, key, 48);
AT(millrace_client_options, authority, 56);
AT(millrace_client_options, trust_users, 64);
AT(millrace_client_options, trust_users_count, 72);

SIZE(millrace_put_options, 64);
AT(millrace_put_options, struct_size, 0);
AT(millrace_put_options, group, 8);
AT(millrace_put_options, timeout_ms, 16);
AT(millrace_put_options, pinned, 24);
AT(millrace_put_options, checksums, 28);
AT(millrace_put_options, metadata, 32);
AT(millrace_put_options, metadata_count, 40);
AT(millrace_put_options, layers, 48);
AT(millrace_put_options, layers_count, 56);

SIZE(millrace_layer, 80);
AT(millrace_layer, label, 0);
AT(millrace_layer, kind, 8);
AT(millrace_layer, attributes, 16);
AT(millrace_layer, attributes_count, 24);
AT(millrace_layer, inputs, 32);
AT(millrace_layer, inputs_count, 40);
AT(millrace_layer, id, 48);
AT(millrace_layer, reserved, 64);

SIZE(millrace_get_options, 32);
AT(millrace_get_options, struct_size, 0);
AT(millrace_get_options, group, 8);
AT(millrace_get_options, timeout_ms, 16);
AT(millrace_get_options, version, 24);

SIZE(millrace_checkpoint_options, 88);
AT(millrace_checkpoint_options, struct_size, 0);
AT(millrace_checkpoint_options, name, 8);
AT(millrace_checkpoint_options, group, 16);
AT(millrace_checkpoint_options, rank, 24);
AT(millrace_checkpoint_options, world_size, 28);
AT(millrace_checkpoint_options, keep, 32);
AT(millrace_checkpoint_options, busy, 36);
AT(millrace_checkpoint_options, timeout_ms, 40);
AT(millrace_checkpoint_options, life, 48);
AT(millrace_checkpoint_options, axes, 56);
AT(millrace_checkpoint_options, axes_count, 64);
AT(millrace_checkpoint_options, metadata, 72);
AT(millrace_checkpoint_options, metadata_count, 80);

SIZE(millrace_receipt, 80);
AT(millrace_receipt, struct_size, 0);
AT(millrace_receipt, name, 8);
AT(millrace_receipt, provider, 16);
AT(millrace_receipt, driver, 24);
AT(millrace_receipt, version, 32);
AT(millrace_receipt, step, 40);
AT(millrace_receipt, size_bytes, 48);
AT(millrace_receipt, stored_at_ns, 56);
AT(millrace_receipt, durable, 64);
AT(millrace_receipt, verified, 68);
AT(millrace_receipt, complete, 72);
AT(millrace_receipt, reserved, 76);

SIZE(millrace_model, 64);
AT(millrace_model, struct_size, 0);
AT(millrace_model, name, 8);
AT(millrace_model, provider, 16);
AT(millrace_model, version, 24);
AT(millrace_model, size_bytes, 32);
AT(millrace_model, tensors, 40);
AT(millrace_model, stored_at_ns, 48);
AT(millrace_model, pinned, 56);
AT(millrace_model, reserved, 60);

SIZE(millrace_run, 56);
AT(millrace_run, struct_size, 0);
AT(millrace_run, name, 8);
AT(millrace_run, provider, 16);
AT(millrace_run, newest_step, 24);
AT(millrace_run, size_bytes, 32);
AT(millrace_run, world_size, 40);
AT(millrace_run, shards, 44);
AT(millrace_run, complete_steps, 48);
AT(millrace_run, in_use, 52);

SIZE(millrace_step, 32);
AT(millrace_step, struct_size, 0);
AT(millrace_step, step, 8);
AT(millrace_step, size_bytes, 16);
AT(millrace_step, saved_at_ns, 24);

SIZE(millrace_job_info, 344);
AT(millrace_job_info, struct_size, 0);
AT(millrace_job_info, rank, 8);
AT(millrace_job_info, world_size, 16);
AT(millrace_job_info, local_rank, 24);
AT(millrace_job_info, local_world_size, 32);
AT(millrace_job_info, restart_count, 40);
AT(millrace_job_info, life, 48);
AT(millrace_job_info, launcher, 56);
AT(millrace_job_info, run_id, 88);

SIZE(millrace_preload_options, 112);
AT(millrace_preload_options, struct_size, 0);
AT(millrace_preload_options, timeout_ms, 8);
AT(millrace_preload_options, progress, 16);
AT(millrace_preload_options, context, 24);
AT(millrace_preload_options, kind, 32);
AT(millrace_preload_options, fields, 40);
AT(millrace_preload_options, fields_count, 48);
AT(millrace_preload_options, labels, 56);
AT(millrace_preload_options, on_error, 64);
AT(millrace_preload_options, while_used, 72);
AT(millrace_preload_options, servers, 76);
AT(millrace_preload_options, decode, 80);
AT(millrace_preload_options, decode_count, 88);
AT(millrace_preload_options, image_pixels_max, 96);
AT(millrace_preload_options, window_bytes, 104);

SIZE(millrace_open_set_options, 48);
AT(millrace_open_set_options, struct_size, 0);
AT(millrace_open_set_options, files, 8);
AT(millrace_open_set_options, files_count, 16);
AT(millrace_open_set_options, preloaded, 24);
AT(millrace_open_set_options, appended, 32);
AT(millrace_open_set_options, appended_count, 40);

SIZE(millrace_skipped_file, 32);
AT(millrace_skipped_file, struct_size, 0);
AT(millrace_skipped_file, path, 8);
AT(millrace_skipped_file, why, 16);
AT(millrace_skipped_file, code, 24);
AT(millrace_skipped_file, reserved, 28);

SIZE(millrace_set, 112);
AT(millrace_set, struct_size, 0);
AT(millrace_set, name, 8);
AT(millrace_set, provider, 16);
AT(millrace_set, owner, 24);
AT(millrace_set, samples, 32);
AT(millrace_set, fields, 40);
AT(millrace_set, size_bytes, 48);
AT(millrace_set, identity, 56);
AT(millrace_set, preloaded_at_ns, 64);
AT(millrace_set, existed, 72);
AT(millrace_set, while_used, 76);
AT(millrace_set, servers, 80);
AT(millrace_set, appends, 84);
AT(millrace_set, window_bytes, 88);
AT(millrace_set, left_out, 96);
AT(millrace_set, left_out_count, 104);

SIZE(millrace_window_info, 80);
AT(millrace_window_info, struct_size, 0);
AT(millrace_window_info, size_bytes, 8);
AT(millrace_window_info, kept_bytes, 16);
AT(millrace_window_info, kept, 24);
AT(millrace_window_info, given, 32);
AT(millrace_window_info, missing, 40);
AT(millrace_window_info, written, 48);
AT(millrace_window_info, refused, 56);
AT(millrace_window_info, evicted, 64);
AT(millrace_window_info, damaged, 72);

SIZE(millrace_set_damage, 40);
AT(millrace_set_damage, struct_size, 0);
AT(millrace_set_damage, samples, 8);
AT(millrace_set_damage, damaged, 16);
AT(millrace_set_damage, first, 24);
AT(millrace_set_damage, first_count, 32);

SIZE(millrace_part_access, 40);
AT(millrace_part_access, struct_size, 0);
AT(millrace_part_access, node, 8);
AT(millrace_part_access, by, 16);
AT(millrace_part_access, why, 24);
AT(millrace_part_access, code, 32);
AT(millrace_part_access, reserved, 36);

SIZE(millrace_order_options, 32);
AT(millrace_order_options, struct_size, 0);
AT(millrace_order_options, seed, 8);
AT(millrace_order_options, epoch, 16);
AT(millrace_order_options, shuffle, 24);

SIZE(millrace_loader_options, 96);
AT(millrace_loader_options, struct_size, 0);
AT(millrace_loader_options, batch_size, 8);
AT(millrace_loader_options, rank, 16);
AT(millrace_loader_options, world_size, 24);
AT(millrace_loader_options, seed, 32);
AT(millrace_loader_options, epoch, 40);
AT(millrace_loader_options, shuffle, 48);
AT(millrace_loader_options, remainder, 56);
AT(millrace_loader_options, fields, 64);
AT(millrace_loader_options, fields_count, 72);
AT(millrace_loader_options, prefetch, 80);
AT(millrace_loader_options, reserved, 84);
AT(millrace_loader_options, device, 88);

SIZE(millrace_stream_options, 56);
AT(millrace_stream_options, struct_size, 0);
AT(millrace_stream_options, capacity, 8);
AT(millrace_stream_options, policy, 16);
AT(millrace_stream_options, when_full, 24);
AT(millrace_stream_options, producers, 32);
AT(millrace_stream_options, seed, 40);
AT(millrace_stream_options, threshold, 48);

SIZE(millrace_stream_info, 184);
AT(millrace_stream_info, struct_size, 0);
AT(millrace_stream_info, capacity, 8);
AT(millrace_stream_info, size_bytes, 16);
AT(millrace_stream_info, producers, 24);
AT(millrace_stream_info, producers_ended, 32);
AT(millrace_stream_info, readers, 40);
AT(millrace_stream_info, appended, 48);
AT(millrace_stream_info, given, 56);
AT(millrace_stream_info, repeated, 64);
AT(millrace_stream_info, dropped, 72);
AT(millrace_stream_info, replaced, 80);
AT(millrace_stream_info, present, 88);
AT(millrace_stream_info, writing, 96);
AT(millrace_stream_info, reading, 104);
AT(millrace_stream_info, append_waits, 112);
AT(millrace_stream_info, take_waits, 120);
AT(millrace_stream_info, ended, 128);
AT(millrace_stream_info, reserved, 132);
AT(millrace_stream_info, name, 136);
AT(millrace_stream_info, provider, 144);
AT(millrace_stream_info, owner, 152);
AT(millrace_stream_info, policy, 160);
AT(millrace_stream_info, when_full, 168);
AT(millrace_stream_info, created_at_ns, 176);

SIZE(millrace_producer_options, 16);
AT(millrace_producer_options, struct_size, 0);
AT(millrace_producer_options, in_flight, 8);
AT(millrace_producer_options, reserved, 12);

SIZE(millrace_stream_reader_options, 24);
AT(millrace_stream_reader_options, struct_size, 0);
AT(millrace_stream_reader_options, batch_size, 8);
AT(millrace_stream_reader_options, batches, 16);
AT(millrace_stream_reader_options, reserved, 20);

SIZE(millrace_group_options, 40);
AT(millrace_group_options, struct_size, 0);
AT(millrace_group_options, rank, 8);
AT(millrace_group_options, size, 12);
AT(millrace_group_options, node, 16);
AT(millrace_group_options, who, 24);
AT(millrace_group_options, timeout_ms, 32);
SIZE(millrace_publisher_options, 48);
AT(millrace_publisher_options, struct_size, 0);
AT(millrace_publisher_options, group, 8);
AT(millrace_publisher_options, metadata, 16);
AT(millrace_publisher_options, metadata_count, 24);
AT(millrace_publisher_options, timeout_ms, 32);
AT(millrace_publisher_options, checksums, 40);
AT(millrace_publisher_options, reserved, 44);

SIZE(millrace_loader_info, 160);
AT(millrace_loader_info, struct_size, 0);
AT(millrace_loader_info, batches_per_epoch, 8);
AT(millrace_loader_info, batches_left, 16);
AT(millrace_loader_info, epoch, 24);
AT(millrace_loader_info, position, 32);
AT(millrace_loader_info, batches, 40);
AT(millrace_loader_info, samples, 48);
AT(millrace_loader_info, bytes, 56);
AT(millrace_loader_info, ready, 64);
AT(millrace_loader_info, reading, 72);
AT(millrace_loader_info, held, 80);
AT(millrace_loader_info, waits, 88);
AT(millrace_loader_info, waited_ns, 96);
AT(millrace_loader_info, ring_bytes, 104);
AT(millrace_loader_info, samples_from_files, 112);
AT(millrace_loader_info, remote_limit_bytes, 120);
AT(millrace_loader_info, remote_inflight_bytes, 128);
AT(millrace_loader_info, remote_inflight_stages, 136);
AT(millrace_loader_info, remote_stages, 144);
AT(millrace_loader_info, samples_from_window, 152);

SIZE(millrace_batch_info, 64);
AT(millrace_batch_info, struct_size, 0);
AT(millrace_batch_info, epoch, 8);
AT(millrace_batch_info, position, 16);
AT(millrace_batch_info, rows, 24);
AT(millrace_batch_info, ids_count, 32);
AT(millrace_batch_info, ids, 40);
AT(millrace_batch_info, mask, 48);
AT(millrace_batch_info, fields, 56);

/* The type of every function: a declaration of another type does not compile. */
const char* millrace_version(void);
uint32_t millrace_version_number(void);
const char* millrace_error(void);
const char* millrace_code_name(millrace_code code);
millrace_code millrace_connect(
  const char* address, const millrace_client_options* options, millrace_client** client);
millrace_code millrace_connect_begin(
  const char* address, const millrace_client_options* options, millrace_request** request);
millrace_code millrace_request_client(millrace_request* request, millrace_client** client);
millrace_code millrace_open(const char* config_file, millrace_client** client);
void millrace_release(millrace_client* client);
millrace_code millrace_embed(const char* config_file, const char* name, millrace_node** node);
millrace_code millrace_embed_begin(
  const char* config_file, const char* name, millrace_request** request);
millrace_code millrace_request_node(millrace_request* request, millrace_node** node);
millrace_code millrace_node_client(millrace_node* node, millrace_client** client);
const char* millrace_node_address(const millrace_node* node);
millrace_code millrace_node_stop(millrace_node* node, millrace_request** request);
void millrace_node_release(millrace_node* node);
millrace_code millrace_put(
  millrace_client* client, const char* model, const millrace_tensor* tensors, size_t count,
  const millrace_put_options* options, millrace_request** request);
millrace_code millrace_get(
  millrace_client* client, const char* model, const millrace_tensor* tensors, size_t count,
  const millrace_get_options* options, millrace_request** request);
millrace_code millrace_await(
  millrace_client* client, const char* group, const char* model, uint64_t newer_than,
  int64_t timeout_ms, millrace_request** request);
millrace_code millrace_describe(
  millrace_client* client, const char* group, const char* model, uint64_t version,
  millrace_request** request);
millrace_code millrace_identify_layers(
  const millrace_layer* layers, size_t layers_count, const millrace_tensor* tensors, size_t count,
  unsigned char* ids);
millrace_code millrace_list(
  millrace_client* client, const char* group, const char* prefix, millrace_request** request);
millrace_code millrace_erase(
  millrace_client* client, const char* group, const char* model, millrace_request** request);
millrace_code millrace_pin(
  millrace_client* client, const char* group, const char* model, int32_t pinned,
  millrace_request** request);
millrace_code millrace_register(
  millrace_client* client, const millrace_checkpoint_options* options,
  const millrace_tensor* tensors, size_t count, millrace_checkpointer** checkpointer);
millrace_code millrace_register_begin(
  millrace_client* client, const millrace_checkpoint_options* options,
  const millrace_tensor* tensors, size_t count, millrace_request** request);
millrace_code millrace_request_checkpointer(
  millrace_request* request, millrace_checkpointer** checkpointer);
millrace_code millrace_save(
  millrace_checkpointer* checkpointer, uint64_t step, uint32_t flags, const void* extra,
  size_t extra_bytes, millrace_request** staged, millrace_request** durable);
millrace_code millrace_save_after(
  millrace_checkpointer* checkpointer, void* cuda_stream, uint64_t step, uint32_t flags,
  const void* extra, size_t extra_bytes, millrace_request** staged, millrace_request** durable);
millrace_code millrace_fence(millrace_checkpointer* checkpointer, millrace_request** request);
millrace_code millrace_fence_stream(millrace_checkpointer* checkpointer, void* cuda_stream);
millrace_code millrace_rebind(
  millrace_checkpointer* checkpointer, const millrace_tensor* tensors, size_t count);
millrace_code millrace_restore(
  millrace_checkpointer* checkpointer, int64_t step, millrace_request** request);
millrace_code millrace_close(
  millrace_checkpointer* checkpointer, int32_t finished, millrace_request** request);
void millrace_checkpointer_release(millrace_checkpointer* checkpointer);
millrace_code millrace_await_step(
  millrace_client* client, const char* group, const char* model, int64_t newer_than,
  int64_t timeout_ms, millrace_request** request);
millrace_code millrace_get_shard(
  millrace_client* client, const char* model, uint32_t rank, int64_t step,
  const millrace_tensor* tensors, size_t count, const millrace_get_options* options,
  millrace_request** request);
millrace_code millrace_get_global(
  millrace_client* client, const char* model, int64_t step, const millrace_tensor* tensors,
  size_t count, const millrace_get_options* options, millrace_request** request);
millrace_code millrace_list_runs(
  millrace_client* client, const char* group, const char* prefix, millrace_request** request);
millrace_code millrace_list_steps(
  millrace_client* client, const char* group, const char* model, millrace_request** request);
millrace_code millrace_describe_shard(
  millrace_client* client, const char* group, const char* model, uint32_t rank, int64_t step,
  millrace_request** request);
millrace_code millrace_erase_run(
  millrace_client* client, const char* group, const char* model, millrace_request** request);
millrace_code millrace_erase_step(
  millrace_client* client, const char* group, const char* model, uint64_t step,
  millrace_request** request);
millrace_code millrace_wait(millrace_request** request, int64_t timeout_ms);
millrace_code millrace_test(millrace_request** request, int* over);
millrace_code millrace_waitall(
  size_t count, millrace_request** requests, int64_t timeout_ms, millrace_code* each);
millrace_code millrace_waitany(
  size_t count, millrace_request** requests, int64_t timeout_ms, size_t* index);
millrace_code millrace_cancel(millrace_request* request);
void millrace_detach(millrace_request** request);
millrace_code millrace_request_wait(millrace_request* request, int64_t timeout_ms);
millrace_code millrace_request_receipt(millrace_request* request, millrace_receipt* receipt);
millrace_code millrace_request_extra(
  millrace_request* request, const void** extra, size_t* extra_bytes);
size_t millrace_request_count(millrace_request* request);
millrace_code millrace_request_model(
  millrace_request* request, size_t index, millrace_model* model);
millrace_code millrace_request_run(millrace_request* request, size_t index, millrace_run* run);
millrace_code millrace_request_step(millrace_request* request, size_t index, millrace_step* step);
millrace_code millrace_request_tensor(
  millrace_request* request, size_t index, millrace_tensor* tensor);
millrace_code millrace_request_layer(
  millrace_request* request, size_t index, millrace_layer* layer);
millrace_code millrace_request_tensor_layer(
  millrace_request* request, size_t index, uint32_t* layer);
millrace_code millrace_request_metadata(
  millrace_request* request, size_t index, millrace_pair* pair);
millrace_code millrace_request_axis(millrace_request* request, size_t index, millrace_pair* pair);
const char* millrace_request_silent(millrace_request* request, size_t index);
millrace_code millrace_queue_create(uint32_t tokens_max, millrace_queue** queue);
int millrace_queue_fd(const millrace_queue* queue);
millrace_code millrace_queue_add(
  millrace_queue* queue, const millrace_request* request, uint64_t token);
millrace_code millrace_queue_poll(
  millrace_queue* queue, uint64_t* tokens, size_t count, int64_t timeout_ms, size_t* taken);
void millrace_queue_release(millrace_queue* queue);
millrace_code millrace_job(millrace_job_info* job);
millrace_code millrace_append_to_set(
  millrace_client* client, const char* set, const char* const* files, size_t count,
  const millrace_preload_options* options, millrace_request** request);
millrace_code millrace_preload(
  millrace_client* client, const char* set, const char* const* files, size_t count,
  const millrace_preload_options* options, millrace_request** request);
millrace_code millrace_describe_set(
  millrace_client* client, const char* set, millrace_request** request);
millrace_code millrace_describe_window(
  millrace_client* client, const char* set, millrace_window_info* info);
millrace_code millrace_list_sets(
  millrace_client* client, const char* prefix, millrace_request** request);
millrace_code millrace_describe_access(
  millrace_client* client, const char* set, const char* device, millrace_request** request);
millrace_code millrace_request_part(
  millrace_request* request, size_t index, millrace_part_access* part);
const char* millrace_request_processors(millrace_request* request);
millrace_code millrace_unload(millrace_client* client, const char* set, millrace_request** request);
millrace_code millrace_request_set(millrace_request* request, size_t index, millrace_set* set);
millrace_code millrace_request_skipped(
  millrace_request* request, size_t index, millrace_skipped_file* file);
millrace_code millrace_open_set(
  millrace_client* client, const char* set, millrace_set_reader** reader);
millrace_code millrace_open_set_begin(
  millrace_client* client, const char* set, millrace_request** request);
millrace_code millrace_open_set_with(
  millrace_client* client, const char* set, const millrace_open_set_options* options,
  millrace_set_reader** reader);
millrace_code millrace_open_set_with_begin(
  millrace_client* client, const char* set, const millrace_open_set_options* options,
  millrace_request** request);
millrace_code millrace_request_set_reader(millrace_request* request, millrace_set_reader** reader);
millrace_code millrace_set_reader_describe(const millrace_set_reader* reader, millrace_set* set);
millrace_code millrace_set_reader_field(
  const millrace_set_reader* reader, size_t field, millrace_tensor* tensor);
uint64_t millrace_set_reader_samples_from_files(const millrace_set_reader* reader);
uint64_t millrace_set_reader_samples_from_window(const millrace_set_reader* reader);
millrace_code millrace_set_reader_sizes(
  millrace_set_reader* reader, size_t field, const uint64_t* ids, size_t count,
  millrace_request** request);
millrace_code millrace_request_sizes(
  millrace_request* request, const uint64_t** sizes, size_t* count);
millrace_code millrace_read_batch(
  millrace_set_reader* reader, size_t field, const uint64_t* ids, size_t count, void* into,
  size_t into_bytes, millrace_request** request);
millrace_code millrace_load_field(
  millrace_set_reader* reader, size_t field, void* into, size_t into_bytes,
  millrace_request** request);
millrace_code millrace_verify_samples(
  millrace_set_reader* reader, millrace_progress progress, void* context,
  millrace_request** request);
millrace_code millrace_request_damage(millrace_request* request, millrace_set_damage* damage);
millrace_code millrace_set_reader_order(
  const millrace_set_reader* reader, const millrace_order_options* options, uint64_t first,
  size_t count, uint64_t* ids);
millrace_code millrace_set_reader_positions(
  const millrace_set_reader* reader, const millrace_order_options* options, const uint64_t* ids,
  size_t count, uint64_t* positions);
void millrace_set_reader_release(millrace_set_reader* reader);
millrace_code millrace_loader_create(
  millrace_set_reader* reader, const millrace_loader_options* options, millrace_loader** loader);
millrace_code millrace_next(millrace_loader* loader, millrace_batch** batch);
millrace_code millrace_next_begin(millrace_loader* loader, millrace_request** request);
millrace_code millrace_stream_create(
  millrace_client* client, const char* stream, const millrace_tensor* fields, size_t count,
  const millrace_stream_options* options, millrace_request** request);
millrace_code millrace_stream_describe(
  millrace_client* client, const char* stream, millrace_stream_info* info);
millrace_code millrace_list_streams(
  millrace_client* client, const char* prefix, millrace_request** request);
millrace_code millrace_request_stream(
  millrace_request* request, size_t index, millrace_stream_info* stream);
millrace_code millrace_stream_end(
  millrace_client* client, const char* stream, millrace_request** request);
millrace_code millrace_stream_remove(
  millrace_client* client, const char* stream, millrace_request** request);
millrace_code millrace_open_producer(
  millrace_client* client, const char* stream, const millrace_producer_options* options,
  millrace_producer** producer);
size_t millrace_producer_fields(const millrace_producer* producer);
millrace_code millrace_producer_field(
  const millrace_producer* producer, size_t field, millrace_tensor* tensor);
size_t millrace_stream_reader_fields(const millrace_stream_reader* reader);
millrace_code millrace_stream_reader_field(
  const millrace_stream_reader* reader, size_t field, millrace_tensor* tensor);
millrace_code millrace_append(
  millrace_producer* producer, const millrace_tensor* sample, size_t count,
  millrace_request** request);
millrace_code millrace_producer_end(millrace_producer* producer, millrace_request** request);
void millrace_producer_release(millrace_producer* producer);
millrace_code millrace_open_stream_reader(
  millrace_client* client, const char* stream, const millrace_stream_reader_options* options,
  millrace_stream_reader** reader);
millrace_code millrace_stream_next(
  millrace_stream_reader* reader, uint64_t samples, int64_t timeout_ms, millrace_batch** batch);
millrace_code millrace_stream_next_begin(
  millrace_stream_reader* reader, uint64_t samples, int64_t timeout_ms, millrace_request** request);
void millrace_stream_reader_release(millrace_stream_reader* reader);
millrace_code millrace_publisher_create(
  millrace_client* client, const char* weights, const millrace_tensor* tensors, size_t count,
  const millrace_publisher_options* options, millrace_publisher** publisher);
millrace_code millrace_publish(
  millrace_publisher* publisher, uint64_t version, millrace_request** staged,
  millrace_request** stored);
millrace_code millrace_publisher_rebind(
  millrace_publisher* publisher, const millrace_tensor* tensors, size_t count);
void millrace_publisher_release(millrace_publisher* publisher);
millrace_code millrace_follow(
  millrace_client* client, const char* group, const char* weights, millrace_follower** follower);
millrace_code millrace_follower_next(
  millrace_follower* follower, int64_t timeout_ms, millrace_request** request);
millrace_code millrace_follower_load(
  millrace_follower* follower, const millrace_tensor* tensors, size_t count, int64_t timeout_ms,
  millrace_request** request);
void millrace_follower_release(millrace_follower* follower);
millrace_code millrace_join_group(
  millrace_client* client, const char* group, const millrace_group_options* options,
  millrace_request** request);
millrace_code millrace_request_group(millrace_request* request, millrace_group** group);
millrace_code millrace_group_broadcast(
  millrace_group* group, const millrace_tensor* tensors, size_t count, uint32_t root,
  int64_t timeout_ms, millrace_request** request);
millrace_code millrace_group_renew(
  millrace_group* group, int64_t timeout_ms, millrace_request** request);
uint64_t millrace_group_epoch(const millrace_group* group);
size_t millrace_group_size(const millrace_group* group);
millrace_code millrace_group_rank(const millrace_group* group, size_t index, uint32_t* rank);
void millrace_group_release(millrace_group* group);
millrace_code millrace_request_batch(millrace_request* request, millrace_batch** batch);
millrace_code millrace_loader_state(const millrace_loader* loader, char* text, size_t text_bytes);
millrace_code millrace_loader_seek(millrace_loader* loader, const char* state);
millrace_code millrace_loader_set_epoch(millrace_loader* loader, uint64_t epoch);
millrace_code millrace_loader_describe(const millrace_loader* loader, millrace_loader_info* info);
millrace_code millrace_loader_processors(
  const millrace_loader* loader, char* text, size_t text_bytes);
void millrace_loader_release(millrace_loader* loader);
millrace_code millrace_batch_describe(const millrace_batch* batch, millrace_batch_info* info);
millrace_code millrace_batch_field(
  const millrace_batch* batch, size_t field, millrace_tensor* tensor);
millrace_code millrace_batch_offsets(
  const millrace_batch* batch, size_t field, const uint64_t** offsets, size_t* count);
millrace_code millrace_batch_follow(const millrace_batch* batch, void* cuda_stream);
void millrace_batch_release(millrace_batch* batch);

/* The layout of every structure on 64-bit machines, and every number that has a name. Programs are
 * compiled with them: none may change. A field is added at the end of a structure that begins with
 * its size; `first_size` in call.hpp then has a line with the former size. */
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

SIZE(millrace_put_options, 48);
AT(millrace_put_options, struct_size, 0);
AT(millrace_put_options, group, 8);
AT(millrace_put_options, timeout_ms, 16);
AT(millrace_put_options, pinned, 24);
AT(millrace_put_options, checksums, 28);
AT(millrace_put_options, metadata, 32);
AT(millrace_put_options, metadata_count, 40);

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

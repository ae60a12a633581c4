/* Millrace in C: the one stable binary interface, `libmillrace.so.0`. docs/c-api.md is its guide.
 *
 * Threads.   Every function may be called from any thread, but not from a signal handler. Several
 *            threads may use an object at the same time, but none while another one releases it. A
 *            request belongs to one thread at a time, except that any thread may cancel it, and
 *            several may be in `millrace_request_wait`.
 * Errors.    A function that can fail returns a code. `millrace_error` has the text of this
 *            thread's last failure. No function throws or longjmps. A wrong argument gives
 *            MILLRACE_INVALID_ARGUMENT, and its text names the function and the argument. A lack of
 *            memory gives MILLRACE_NO_SPACE. Every call that asks a service can give
 *            MILLRACE_DEADLINE_EXCEEDED, MILLRACE_PEER_LOST, MILLRACE_UNAVAILABLE, MILLRACE_BUSY,
 *            MILLRACE_PERMISSION_DENIED, MILLRACE_CANCELLED, MILLRACE_PROTOCOL_ERROR,
 *            MILLRACE_IO_ERROR of its disks, and MILLRACE_INTERNAL. After the first three and
 *            MILLRACE_CANCELLED a change may have happened, or still happen. "Errors:" names the
 *            others.
 * Strings.   UTF-8 that ends in NUL. They are copied, and so are shapes and strides.
 * Tensors.   The memory at `data` must stay until the request is over. That of a registered shard
 *            must stay until its checkpointer is closed.
 * Options.   Set `struct_size` to the size of the structure, and other fields to 0 for the default.
 *            NULL for a whole structure means the same, except for `millrace_register`. A structure
 *            of a later version is accepted while the fields that this library does not know are 0.
 * Bounds.    1,024 pairs of metadata, of axes, or of a layer's attributes; 1,024 trusted users;
 *            1,048,576 requests of one wait; 1,048,576 layers.
 * Exit.      The process waits at its exit for objects that end, for ten seconds at most. Handlers
 *            of `atexit` may still use and release objects, but perhaps not start or connect.
 * Objects.   Each is released once. What was made from an object works on after its release.
 *            Releasing never waits and accepts NULL. An output is NULL after a failure.
 * Requests.  An output `request` may be NULL: the call then waits and returns the outcome.
 *            Otherwise a failure that is known at once is returned, without a request.
 * Fork.      In a forked child, objects of the parent give MILLRACE_UNAVAILABLE at once. Connect
 *            there.
 * Signals.   A handler that returns does not end a wait. Wait with a timeout, or watch the
 *            descriptor of a queue with `ppoll`. Threads of Millrace block all signals but those
 *            of their own faults.
 */
#ifndef MILLRACE_H
#define MILLRACE_H

#include <stddef.h>
#include <stdint.h>

#define MILLRACE_VERSION_MAJOR 0
#define MILLRACE_VERSION_MINOR 1
#define MILLRACE_VERSION_PATCH 0
#define MILLRACE_VERSION_NUMBER                                                                    \
  (MILLRACE_VERSION_MAJOR * 1000000 + MILLRACE_VERSION_MINOR * 1000 + MILLRACE_VERSION_PATCH)

#if defined(__GNUC__)
#define MILLRACE_API __attribute__((visibility("default")))
#else
#define MILLRACE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Later versions add codes at the end. */
typedef int32_t millrace_code;
enum {
  MILLRACE_OK = 0,
  MILLRACE_INVALID_ARGUMENT = 1, /* the call is wrong; repeating it will not help */
  MILLRACE_NOT_FOUND = 2,
  MILLRACE_ALREADY_EXISTS = 3,
  MILLRACE_PERMISSION_DENIED = 4,
  MILLRACE_BUSY = 5,     /* a limit is reached, or it is not over yet; try again */
  MILLRACE_NO_SPACE = 6, /* of a provider, a pool, a buffer, or this process */
  MILLRACE_CORRUPT_DATA = 7,
  MILLRACE_UNSUPPORTED_VERSION = 8,
  MILLRACE_PEER_LOST = 9,
  MILLRACE_DEADLINE_EXCEEDED = 10,
  MILLRACE_CANCELLED = 11,
  MILLRACE_UNAVAILABLE = 12, /* shutting down, not reachable, or an object of another process */
  MILLRACE_IO_ERROR = 13,
  MILLRACE_PROTOCOL_ERROR = 14,
  MILLRACE_UNKNOWN_LAYERS = 15, /* between services; no function gives it */
  MILLRACE_UNSUPPORTED = 16,
  MILLRACE_INTERNAL = 17 /* a defect in Millrace */
};

/* The element types. Later versions add some at the end. */
enum {
  MILLRACE_BOOL = 0,
  MILLRACE_F4 = 1,
  MILLRACE_F6_E2M3 = 2,
  MILLRACE_F6_E3M2 = 3,
  MILLRACE_U8 = 4,
  MILLRACE_I8 = 5,
  MILLRACE_F8_E5M2 = 6,
  MILLRACE_F8_E4M3 = 7,
  MILLRACE_F8_E8M0 = 8,
  MILLRACE_I16 = 9,
  MILLRACE_U16 = 10,
  MILLRACE_F16 = 11,
  MILLRACE_BF16 = 12,
  MILLRACE_I32 = 13,
  MILLRACE_U32 = 14,
  MILLRACE_F32 = 15,
  MILLRACE_C64 = 16,
  MILLRACE_F64 = 17,
  MILLRACE_I64 = 18,
  MILLRACE_U64 = 19,
  MILLRACE_C128 = 20
};

typedef struct millrace_client millrace_client;
typedef struct millrace_node millrace_node;
typedef struct millrace_checkpointer millrace_checkpointer;
typedef struct millrace_request millrace_request;
typedef struct millrace_queue millrace_queue;

/* A tensor in the caller's memory, or the description of a stored one, with `data` NULL. */
typedef struct {
  const char* name;
  void* data;    /* only read by `millrace_put` and `millrace_save` */
  int32_t dtype; /* MILLRACE_F32, ... */
  int32_t rank;  /* 0: a scalar */
  const uint64_t* shape;
  const int64_t* strides_bytes; /* NULL: dense, the last index fastest */
  const uint64_t* offsets;      /* loads: where the wanted box begins; NULL: the whole tensor */
  const uint64_t* global_shape; /* `millrace_register`: of the tensor of which this is the part at
                                   `offsets`; NULL, both: it is whole */
  uint64_t reserved[2];         /* 0 */
} millrace_tensor;

typedef struct {
  const char* key;
  const char* value;
} millrace_pair;

/* A leaf layer of a model's architecture. Its identity comes from its kind, its attributes, the
 * names, types and shapes of its tensors, and the identities of its inputs; not from its label. */
typedef struct {
  const char* label; /* its tensors are "LABEL.ROLE", or "ROLE" where it is "" or NULL */
  const char* kind;  /* its class, such as "Linear" */
  const millrace_pair* attributes; /* hyper-parameters in any order */
  size_t attributes_count;
  const uint32_t* inputs; /* the indices of the layers that feed it, in the order of its inputs */
  size_t inputs_count;
  unsigned char id[16]; /* its identity, which `millrace_request_layer` gives */
  uint64_t reserved[2]; /* 0 */
} millrace_layer;

/* Timeouts are in milliseconds, at most a day. 0: as the client is configured, 60 s by default. A
 * service ends each request after its `limits.request_timeout_max`, an hour by default. */
typedef struct {
  size_t struct_size;
  const char* secret;             /* the file with the cluster's secret, for tls:// addresses */
  int64_t timeout_ms;             /* of each request that has none of its own */
  int64_t connect_timeout_ms;     /* at most an hour; 0: 5 s */
  uint64_t staging_bytes;         /* for snapshots of puts, 1 MiB to 16 TiB; 0: 64 MiB */
  const char* certificate;        /* PEM files instead of the secret: this program's, */
  const char* key;                /* its private key, */
  const char* authority;          /* and the authority that has signed all */
  const char* const* trust_users; /* users of this host whose services the client may use, besides
                                     its own and root's */
  size_t trust_users_count;
} millrace_client_options;

typedef struct {
  size_t struct_size;
  const char* group; /* NULL: "default" */
  int64_t timeout_ms;
  int32_t pinned;    /* nonzero: never evicted */
  int32_t checksums; /* 0: as the provider is configured; 1: on; -1: off */
  const millrace_pair* metadata;
  size_t metadata_count;
  const millrace_layer* layers; /* the architecture; NULL: a chain of layers by the names of the
                                   tensors, up to their last dots */
  size_t layers_count;
} millrace_put_options;

typedef struct {
  size_t struct_size;
  const char* group; /* NULL: "default"; of checkpoints: any provider that keeps some */
  int64_t timeout_ms;
  uint64_t version; /* 0: the newest; of checkpoints it must be 0 */
} millrace_get_options;

enum { MILLRACE_BUSY_WAIT = 0, MILLRACE_BUSY_REFUSE = 1 };

typedef struct {
  size_t struct_size;
  const char* name;  /* of the model, the same on all ranks */
  const char* group; /* NULL: any provider that keeps checkpoints */
  uint32_t rank;
  uint32_t world_size; /* 0: 1 */
  uint32_t keep;       /* versions of each shard; 0: 2 */
  int32_t busy;        /* of a save that comes while another is in flight */
  int64_t timeout_ms;
  uint64_t life;             /* of one run, equal on all ranks, see `millrace_job`; 0: drawn */
  const millrace_pair* axes; /* shown in listings */
  size_t axes_count;
  const millrace_pair* metadata;
  size_t metadata_count;
} millrace_checkpoint_options;

/* What a request that has succeeded did. Fields that do not apply are 0 or NULL: `version` is that
 * of models, `step` of checkpoints, `stored_at_ns` of what was loaded by one provider, restored or
 * described, `durable` of puts and saves, `verified` of puts, loads and restores, `complete` of
 * saves, `millrace_get_global` and `millrace_await_step`. `provider` is NULL for awaits and for
 * `millrace_describe_shard`. Strings live as long as the request. */
typedef struct {
  size_t struct_size;
  const char* name;
  const char* provider;
  const char* driver; /* that moved the bytes; "eager": the message did */
  uint64_t version;
  uint64_t step; /* of checkpoints; of weights the number that the publisher gave */
  uint64_t size_bytes;
  uint64_t stored_at_ns; /* wall clock */
  int32_t durable;       /* on a medium that keeps it: survives kill -9, and power loss where the
                            medium does. 0 for memory, tmpfs included, though a pool there is found
                            again when its service is killed */
  int32_t verified;      /* checksums were stored with a put, or matched those stored */
  int32_t complete;      /* every shard of the step is done */
  int32_t reserved;
} millrace_receipt;

/* One line of a listing. Strings live as long as the request. */
typedef struct {
  size_t struct_size;
  const char* name;
  const char* provider;
  uint64_t version;
  uint64_t size_bytes;
  uint64_t tensors;
  uint64_t stored_at_ns;
  int32_t pinned;
  int32_t reserved;
} millrace_model;

/* One line of a listing of checkpoints. Strings live as long as the request. */
typedef struct {
  size_t struct_size;
  const char* name;
  const char* provider;
  int64_t newest_step; /* the one that all shards have and that was saved last; -1: none */
  uint64_t size_bytes; /* of one version of all shards */
  uint32_t world_size;
  uint32_t shards;         /* those registered so far */
  uint32_t complete_steps; /* how many steps all shards have */
  int32_t in_use;          /* nonzero: a job is registered */
} millrace_run;

/* A step that all shards of a run have. */
typedef struct {
  size_t struct_size;
  uint64_t step;
  uint64_t size_bytes;  /* of all shards */
  uint64_t saved_at_ns; /* wall clock, of the shard that was saved last */
} millrace_step;

/* Numbers are -1 where the launcher does not say. Names that do not fit are cut. */
typedef struct {
  size_t struct_size;
  int64_t rank;
  int64_t world_size;
  int64_t local_rank;
  int64_t local_world_size;
  int64_t restart_count;
  uint64_t life; /* for `millrace_checkpoint_options` */
  char launcher[32];
  char run_id[256];
} millrace_job_info;

/* The library's version. Compare it with MILLRACE_VERSION_NUMBER, that of the header. */
MILLRACE_API const char* millrace_version(void);
MILLRACE_API uint32_t millrace_version_number(void);

/* Returns "not_found: ..." for this thread's last failure, "" before the first. The text is valid
 * until this thread's next failure, and cut after 2,047 bytes. */
MILLRACE_API const char* millrace_error(void);
/* Returns "not_found" for MILLRACE_NOT_FOUND, "unknown" for a number that is no code. */
MILLRACE_API const char* millrace_code_name(millrace_code code);

/* ---- Clients and nodes ---- */

/* Connects to a node, and learns from it where the others are. Waits `connect_timeout_ms` for a
 * node that is silent or starts, `timeout_ms` at most in all; fails at once where none listens.
 * `address` is "unix:/PATH" or "tls://HOST:PORT"; NULL: MILLRACE_ADDRESS of the environment, or
 * else the address of a service without configuration.
 * Errors: MILLRACE_UNSUPPORTED_VERSION; MILLRACE_NOT_FOUND and MILLRACE_CORRUPT_DATA: the files
 * that the options name. */
MILLRACE_API millrace_code millrace_connect(
  const char* address, const millrace_client_options* options, millrace_client** client);
/* Begins to connect. Take the client from the request when it is over, before it is freed: then a
 * client that was not taken ends.
 * Errors: MILLRACE_BUSY before the request is over; MILLRACE_NOT_FOUND when it was taken already;
 * the failure of the request, which may be MILLRACE_BUSY, too: `millrace_request_wait` then returns
 * it at once; MILLRACE_INVALID_ARGUMENT for a request that makes something else. */
MILLRACE_API millrace_code millrace_connect_begin(
  const char* address, const millrace_client_options* options, millrace_request** request);
MILLRACE_API millrace_code
millrace_request_client(millrace_request* request, millrace_client** client);
/* Makes a client of all nodes of a configuration file. It connects when first needed.
 * Errors: MILLRACE_NOT_FOUND, MILLRACE_IO_ERROR: the file. */
MILLRACE_API millrace_code millrace_open(const char* config_file, millrace_client** client);
/* What is in flight goes on, or ends with MILLRACE_CANCELLED. Its tensors stay in use until its
 * request is over: wait for it, or cancel it. */
MILLRACE_API void millrace_release(millrace_client* client);

/* Starts a node in this process, and waits until it serves. `name` picks one of several nodes in
 * the file; NULL: the host decides, as for `millrace serve`.
 * Errors: those of the part that did not start, named: MILLRACE_ALREADY_EXISTS for an address in
 * use, MILLRACE_NO_SPACE, MILLRACE_CORRUPT_DATA, MILLRACE_NOT_FOUND, MILLRACE_IO_ERROR. */
MILLRACE_API millrace_code
millrace_embed(const char* config_file, const char* name, millrace_node** node);
/* Begins to start a node, and gives it, as `millrace_connect_begin` does for clients. There is no
 * deadline. A node whose request is cancelled, or freed, starts all the same, and then stops: its
 * address is in use until then. */
MILLRACE_API millrace_code
millrace_embed_begin(const char* config_file, const char* name, millrace_request** request);
MILLRACE_API millrace_code millrace_request_node(millrace_request* request, millrace_node** node);
/* Makes a client that asks this node's providers directly. */
MILLRACE_API millrace_code millrace_node_client(millrace_node* node, millrace_client** client);
/* Returns the address for clients on this host, valid until the release. NULL for NULL. */
MILLRACE_API const char* millrace_node_address(const millrace_node* node);
/* Lets running operations finish within `limits.shutdown_timeout`, and closes. The request is over
 * when all of it is closed, that of a second call, too. It has no deadline. */
MILLRACE_API millrace_code millrace_node_stop(millrace_node* node, millrace_request** request);
/* Stops the node if it was not stopped, on another thread. */
MILLRACE_API void millrace_node_release(millrace_node* node);

/* ---- Models ---- */

/* Stores a model whole or not at all, as a new version. The receipt has its number, which is larger
 * than those of the model before, with gaps: a provider counts the versions of all its models. When
 * a provider in memory starts anew, so do its numbers.
 * Each tensor belongs to the layer with the longest label that its name begins with.
 * Errors: MILLRACE_NO_SPACE; MILLRACE_BUSY, also from this library, which lets 1,280 requests of a
 * connection wait; MILLRACE_NOT_FOUND for a group without providers; MILLRACE_ALREADY_EXISTS when
 * the provider has a model of that name in another group; MILLRACE_UNSUPPORTED for memory that the
 * provider cannot read. */
MILLRACE_API millrace_code millrace_put(
  millrace_client* client, const char* model, const millrace_tensor* tensors, size_t count,
  const millrace_put_options* options, millrace_request** request);
/* Loads tensors, or boxes of them, into the memory of `tensors`. A tensor may be named several
 * times, for several boxes. After an error the memory has any bytes.
 * Errors: MILLRACE_NOT_FOUND; MILLRACE_INVALID_ARGUMENT for another dtype, shape or box, before any
 * byte moves; MILLRACE_CORRUPT_DATA when a checksum does not match. */
MILLRACE_API millrace_code millrace_get(
  millrace_client* client, const char* model, const millrace_tensor* tensors, size_t count,
  const millrace_get_options* options, millrace_request** request);
/* Is over when the model has a version after `newer_than`, or with MILLRACE_DEADLINE_EXCEEDED.
 * `timeout_ms` is at most a day; 0: the client's. The receipt has the version. The model need not
 * exist. When the provider starts anew, the call ends with MILLRACE_PEER_LOST or
 * MILLRACE_UNAVAILABLE; where it keeps models in memory, go on with `newer_than` 0.
 * Errors: MILLRACE_NOT_FOUND for a group without providers; MILLRACE_UNSUPPORTED for a provider of
 * an older build. */
MILLRACE_API millrace_code millrace_await(
  millrace_client* client, const char* group, const char* model, uint64_t newer_than,
  int64_t timeout_ms, millrace_request** request);
/* Describes a model: `millrace_request_tensor` gives its tensors, `millrace_request_layer` its
 * architecture, `millrace_request_metadata` what `millrace_put_options` had. `version` 0: the
 * newest.
 * Errors: MILLRACE_NOT_FOUND. */
MILLRACE_API millrace_code millrace_describe(
  millrace_client* client, const char* group, const char* model, uint64_t version,
  millrace_request** request);
/* Writes the identities of layers to `ids`, 16 bytes for each. Equal structures have equal ones,
 * whatever the labels and the order of the layers (DStore, section 4); so what two models share is
 * known without a tensor being moved. The data of `tensors` are not read. It asks no service.
 * Errors: MILLRACE_INVALID_ARGUMENT naming a tensor without a layer, an input that is no layer, or
 * the layers of a cycle. */
MILLRACE_API millrace_code millrace_identify_layers(
  const millrace_layer* layers, size_t layers_count, const millrace_tensor* tensors, size_t count,
  unsigned char* ids);
/* Lists the models whose names start with `prefix`; NULL: all. `millrace_request_model` gives
 * them, and `millrace_request_silent` the providers that did not answer.
 * Errors: MILLRACE_NOT_FOUND for a group without providers. */
MILLRACE_API millrace_code millrace_list(
  millrace_client* client, const char* group, const char* prefix, millrace_request** request);
/* Removes a model. Loads of it that have begun can finish.
 * Errors: MILLRACE_NOT_FOUND. */
MILLRACE_API millrace_code millrace_erase(
  millrace_client* client, const char* group, const char* model, millrace_request** request);
/* Excludes a model from eviction, or with `pinned` 0 allows it again.
 * Errors: MILLRACE_NOT_FOUND. */
MILLRACE_API millrace_code millrace_pin(
  millrace_client* client, const char* group, const char* model, int32_t pinned,
  millrace_request** request);

/* ---- Checkpoints ---- */

/* Registers one shard of a job, and waits for it. A tensor that is a part of a larger one has
 * `global_shape` and `offsets`, so that a job of another world size finds it.
 * Errors: MILLRACE_INVALID_ARGUMENT, for another layout or world size under the name, too;
 * MILLRACE_NO_SPACE; MILLRACE_BUSY when another job has this shard, after some seconds in which it
 * may prove to be gone; MILLRACE_NOT_FOUND when no provider keeps checkpoints. */
MILLRACE_API millrace_code millrace_register(
  millrace_client* client, const millrace_checkpoint_options* options,
  const millrace_tensor* tensors, size_t count, millrace_checkpointer** checkpointer);
/* Begins to register, and gives the checkpointer, as `millrace_connect_begin` does for clients. A
 * registration whose request is cancelled, or freed, is given up; it may be made all the same, and
 * then ends. */
MILLRACE_API millrace_code millrace_register_begin(
  millrace_client* client, const millrace_checkpoint_options* options,
  const millrace_tensor* tensors, size_t count, millrace_request** request);
MILLRACE_API millrace_code
millrace_request_checkpointer(millrace_request* request, millrace_checkpointer** checkpointer);

enum {
  MILLRACE_SAVE_DIRECT = 0,  /* the tensors must not change before `staged` is over */
  MILLRACE_SAVE_SNAPSHOT = 1 /* they are copied first; `staged` is over after the copy */
};
/* Begins a save, and returns at once. `staged` is over when the tensors may change, `durable` when
 * the version is done; either may be NULL, and then the call does not wait: a failure that comes
 * later is returned by the next call of `millrace_save`, which then does not begin, and by the next
 * `millrace_fence` or `millrace_close`. `extra` are bytes of the program that are kept with the
 * version; they are copied.
 * Errors: MILLRACE_BUSY with MILLRACE_BUSY_REFUSE while another save is in flight, which only the
 * service knows, and with MILLRACE_BUSY_WAIT when `checkpoints.saves_queued_max` of the service
 * wait; MILLRACE_NO_SPACE; MILLRACE_INVALID_ARGUMENT for more `extra` than `checkpoints.extra_max`
 * of the service, and MILLRACE_UNSUPPORTED for any where that is 0. */
MILLRACE_API millrace_code millrace_save(
  millrace_checkpointer* checkpointer, uint64_t step, uint32_t flags, const void* extra,
  size_t extra_bytes, millrace_request** staged, millrace_request** durable);
/* Does what `millrace_save` does, for tensors that a GPU computes: they are read when it has done
 * all work that is in the stream now. `cuda_stream` is a cudaStream_t or CUstream, NULL the default
 * stream.
 * Errors: those; MILLRACE_UNSUPPORTED in a build without CUDA, or with a driver that is too old;
 * MILLRACE_INVALID_ARGUMENT for a stream that cannot be used, as in a process that does not use
 * CUDA; MILLRACE_IO_ERROR of the driver. */
MILLRACE_API millrace_code millrace_save_after(
  millrace_checkpointer* checkpointer, void* cuda_stream, uint64_t step, uint32_t flags,
  const void* extra, size_t extra_bytes, millrace_request** staged, millrace_request** durable);
/* Is over when the tensors may change, also when the outcome is the failure of an earlier save.
 * That is given once. MILLRACE_DEADLINE_EXCEEDED that names no save: they may not change yet. */
MILLRACE_API millrace_code
millrace_fence(millrace_checkpointer* checkpointer, millrace_request** request);
/* Lets the work that is put into the stream after this call wait until the tensors may change, and
 * returns. While four streams of the process wait, the call itself waits, as `millrace_fence` does
 * without a request, until the tensors may change. Returns the failure of an earlier save; that of
 * the save which the stream waits for is returned by the next call.
 * Errors: those of `millrace_save_after`. */
MILLRACE_API millrace_code
millrace_fence_stream(millrace_checkpointer* checkpointer, void* cuda_stream);
/* Takes the addresses of tensors that have moved; their descriptions must be those registered.
 * Errors: MILLRACE_BUSY while a save reads the tensors, see `millrace_fence`. */
MILLRACE_API millrace_code
millrace_rebind(millrace_checkpointer* checkpointer, const millrace_tensor* tensors, size_t count);
/* Writes a version into the registered tensors. `step` -1: the newest that all ranks have. It waits
 * for no stream: a GPU must have done its work with the tensors before. After an error the tensors
 * have any bytes.
 * Errors: MILLRACE_NOT_FOUND naming the steps; MILLRACE_CORRUPT_DATA; MILLRACE_BUSY while a save
 * reads the tensors, or when the version was replaced meanwhile. */
MILLRACE_API millrace_code
millrace_restore(millrace_checkpointer* checkpointer, int64_t step, millrace_request** request);
/* Ends the registration after the save in flight. `finished` nonzero: the job is over. The outcome
 * is the failure of an earlier save, once. No save begins afterwards; a restore can. A second call
 * is over with the first one, without a failure. */
MILLRACE_API millrace_code
millrace_close(millrace_checkpointer* checkpointer, int32_t finished, millrace_request** request);
/* Closes without a report, on another thread. The tensors must stay until the save in flight has
 * read them: `millrace_fence` waits for that. */
MILLRACE_API void millrace_checkpointer_release(millrace_checkpointer* checkpointer);

/* Is over when the run has a complete step after `newer_than`, -1: any. The receipt has the step.
 * `timeout_ms` and errors: as for `millrace_await`. `group` NULL: any provider that keeps
 * checkpoints. */
MILLRACE_API millrace_code millrace_await_step(
  millrace_client* client, const char* group, const char* model, int64_t newer_than,
  int64_t timeout_ms, millrace_request** request);
/* Loads tensors, or boxes of them, of one shard of a run that this program need not take part in.
 * `step` -1: the newest that all ranks have.
 * Errors: those of `millrace_get`. */
MILLRACE_API millrace_code millrace_get_shard(
  millrace_client* client, const char* model, uint32_t rank, int64_t step,
  const millrace_tensor* tensors, size_t count, const millrace_get_options* options,
  millrace_request** request);

/* Loads tensors of a run, or boxes of them, wherever its shards have them, in the indices of the
 * whole tensors. `step`: as above.
 * Errors: those of `millrace_get`; MILLRACE_UNAVAILABLE when the step was overwritten meanwhile;
 * MILLRACE_UNSUPPORTED where shards say nothing of the places of their tensors. */
MILLRACE_API millrace_code millrace_get_global(
  millrace_client* client, const char* model, int64_t step, const millrace_tensor* tensors,
  size_t count, const millrace_get_options* options, millrace_request** request);
/* Lists the runs whose names start with `prefix`; NULL: all. `millrace_request_run` gives them. */
MILLRACE_API millrace_code millrace_list_runs(
  millrace_client* client, const char* group, const char* prefix, millrace_request** request);
/* Lists the steps that all shards of a run have, ascending. `millrace_request_step` gives them.
 * Errors: MILLRACE_NOT_FOUND. */
MILLRACE_API millrace_code millrace_list_steps(
  millrace_client* client, const char* group, const char* model, millrace_request** request);
/* Describes what one rank has registered: `millrace_request_tensor` gives its tensors, with
 * `offsets` and `global_shape` where they are parts, `millrace_request_metadata` and
 * `millrace_request_axis` what `millrace_checkpoint_options` had. `step` picks the provider, if
 * several have the run; -1: the one with the latest save.
 * Errors: MILLRACE_NOT_FOUND. */
MILLRACE_API millrace_code millrace_describe_shard(
  millrace_client* client, const char* group, const char* model, uint32_t rank, int64_t step,
  millrace_request** request);
/* Remove all checkpoints of a run, or one step of them.
 * Errors: MILLRACE_NOT_FOUND; MILLRACE_BUSY while a job is registered. */
MILLRACE_API millrace_code millrace_erase_run(
  millrace_client* client, const char* group, const char* model, millrace_request** request);
MILLRACE_API millrace_code millrace_erase_step(
  millrace_client* client, const char* group, const char* model, uint64_t step,
  millrace_request** request);

/* ---- Requests ---- */

#define MILLRACE_FOREVER INT64_C(-1)

/* Waits, frees the request, makes it NULL, and returns the outcome. When time is up first, the
 * request stays, and the result is MILLRACE_DEADLINE_EXCEEDED. A request that is NULL already is
 * over: MILLRACE_OK. A negative timeout waits without end. */
MILLRACE_API millrace_code millrace_wait(millrace_request** request, int64_t timeout_ms);
/* Does what `millrace_wait` does if the request is over, and sets `over` to 1; else sets it to 0
 * and returns MILLRACE_OK. */
MILLRACE_API millrace_code millrace_test(millrace_request** request, int* over);
/* Waits for all; none may be there twice. Frees those that are over, and writes the outcome of each
 * to `each`, unless that is NULL. Returns the first failure in their order. */
MILLRACE_API millrace_code millrace_waitall(
  size_t count, millrace_request** requests, int64_t timeout_ms, millrace_code* each);
/* Waits for one, frees it as `millrace_wait` does, and writes its place to `index`. `index` is
 * `count` when time is up, or when all are NULL. */
MILLRACE_API millrace_code
millrace_waitany(size_t count, millrace_request** requests, int64_t timeout_ms, size_t* index);
/* Gives the operation up. When it returns, nothing touches the tensors any more, and the request is
 * over. A change may have happened all the same, or still happen: that of a small model, an erase
 * or a pin was in the message. It must still be waited for or detached. Another thread may be
 * waiting for it, but must not free it until this call has returned: it waits by
 * `millrace_request_wait`. */
MILLRACE_API millrace_code millrace_cancel(millrace_request* request);
/* Frees the request and makes it NULL. The operation goes on. */
MILLRACE_API void millrace_detach(millrace_request** request);

/* Waits, and returns the outcome, as `millrace_wait`, but keeps the request, so that the functions
 * below can read it. They give MILLRACE_BUSY before it is over, which also tells whether
 * MILLRACE_DEADLINE_EXCEEDED was that of the wait, and the failure of one that has failed. */
MILLRACE_API millrace_code millrace_request_wait(millrace_request* request, int64_t timeout_ms);
MILLRACE_API millrace_code
millrace_request_receipt(millrace_request* request, millrace_receipt* receipt);
/* Gives the extra bytes of the version that was restored, or loaded by `millrace_get_shard`, valid
 * as long as the request. */
MILLRACE_API millrace_code
millrace_request_extra(millrace_request* request, const void** extra, size_t* extra_bytes);
/* Returns the number of models, runs, steps or sets that were listed, or of tensors that were
 * described, of a set its fields; for `millrace_await` and `millrace_await_step` that of tensors and
 * of steps; 0 otherwise. */
MILLRACE_API size_t millrace_request_count(millrace_request* request);
MILLRACE_API millrace_code
millrace_request_model(millrace_request* request, size_t index, millrace_model* model);
MILLRACE_API millrace_code
millrace_request_run(millrace_request* request, size_t index, millrace_run* run);
MILLRACE_API millrace_code
millrace_request_step(millrace_request* request, size_t index, millrace_step* step);
MILLRACE_API millrace_code
millrace_request_tensor(millrace_request* request, size_t index, millrace_tensor* tensor);
/* Gives a layer of the model that was described. A layer without tensors has no label.
 * MILLRACE_NOT_FOUND: behind the last layer. */
MILLRACE_API millrace_code
millrace_request_layer(millrace_request* request, size_t index, millrace_layer* layer);
/* Gives the index of the layer that a described tensor belongs to. MILLRACE_NOT_FOUND: the model
 * was stored without an architecture. */
MILLRACE_API millrace_code
millrace_request_tensor_layer(millrace_request* request, size_t index, uint32_t* layer);
/* Give the metadata, and the axes, of what was described. MILLRACE_NOT_FOUND: behind the last
 * pair. */
MILLRACE_API millrace_code
millrace_request_metadata(millrace_request* request, size_t index, millrace_pair* pair);
MILLRACE_API millrace_code
millrace_request_axis(millrace_request* request, size_t index, millrace_pair* pair);
/* Returns which provider did not answer a listing, and why; NULL behind the last one. */
MILLRACE_API const char* millrace_request_silent(millrace_request* request, size_t index);

/* ---- Queues: requests in an event loop ---- */

/* Makes a queue of at most so many tokens that are promised or not yet taken; 0: 65,536. */
MILLRACE_API millrace_code millrace_queue_create(uint32_t tokens_max, millrace_queue** queue);
/* Returns a descriptor that is readable while there are tokens. Do not read or close it. -1 for
 * NULL. */
MILLRACE_API int millrace_queue_fd(const millrace_queue* queue);
/* Puts `token` into the queue when the request is over, also if it is detached before. The request
 * must still be waited for or detached. Each call puts one token.
 * Errors: MILLRACE_BUSY when the queue has promised all its tokens. */
MILLRACE_API millrace_code
millrace_queue_add(millrace_queue* queue, const millrace_request* request, uint64_t token);
/* Takes at most `count` tokens, and writes their number to `taken`. Waits for the first one until
 * the timeout; 0: does not wait; negative: without end. When time is up, the result is MILLRACE_OK
 * and `taken` is 0. */
MILLRACE_API millrace_code millrace_queue_poll(
  millrace_queue* queue, uint64_t* tokens, size_t count, int64_t timeout_ms, size_t* taken);
MILLRACE_API void millrace_queue_release(millrace_queue* queue);

/* Fills in what the launcher says of this process. MILLRACE_NOT_FOUND: none has started it.
 * MILLRACE_INVALID_ARGUMENT: what it has set is no number, or is incomplete, as PMIX_RANK alone. */
MILLRACE_API millrace_code millrace_job(millrace_job_info* job);

#ifdef __cplusplus
}
#endif

/* Working sets and loaders; groups; streaming sets; weights by version. */
#include "millrace_data.h"
#include "millrace_group.h"
#include "millrace_stream.h"
#include "millrace_weights.h"

#endif

/* Training data in C: working sets and loaders. A part of millrace.h, which includes it and has the
 * rules; docs/c-api.md is the guide to both. */
#ifndef MILLRACE_DATA_H
#define MILLRACE_DATA_H

#include "millrace.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct millrace_set_reader millrace_set_reader;
typedef struct millrace_loader millrace_loader;
typedef struct millrace_batch millrace_batch;

/* Is told bytes of samples that are loaded, and of all of them, 0 where that is not known, now and
 * then, by a thread of Millrace, one call at a time. It must not wait. 0 ends the preload with
 * MILLRACE_CANCELLED. */
typedef int32_t (*millrace_progress)(void* context, uint64_t done_bytes, uint64_t total_bytes);

typedef struct {
  size_t struct_size;
  int64_t timeout_ms; /* of each request to the data server; the files take as long as they take */
  millrace_progress progress; /* NULL: nobody is told */
  void* context;              /* its first argument; it must stay until the request is over */
  const char* kind; /* of the files: "automatic", by their names; "arrays"; "files", each is a
                       sample; NULL: "automatic" */
  const char* const* fields; /* names of those to take, in this order; NULL: all */
  size_t fields_count;
  const char* labels;   /* of files: "folders", or the path of a CSV file; NULL: none */
  const char* on_error; /* of a file that is damaged or cannot be read: "fail"; "skip", it is left
                           out, see `millrace_request_skipped`; NULL: "fail" */
  int32_t while_used;   /* not 0: the set goes when every client that has preloaded it so, or has it
                           open, is gone; 0: it stays until it is unloaded */
  int32_t servers; /* data servers among which the samples are divided; 0: 1; -1: all there are */
  const char* const* decode; /* fields that are images, and as what they are decoded: "x=rgb:224",
                                "jpg=gray:28x28", "x=rgb", see docs/data.md; NULL: none */
  size_t decode_count;
  uint64_t image_pixels_max; /* an image with more is damaged; 0: 67108864 */
  uint64_t window_bytes; /* not 0: so many bytes of memory keep some of the samples, and the rest
                            is read from the files; every client that reads the set calls
                            `millrace_preload` first. 0: the memory has all samples */
} millrace_preload_options;

/* How a set is opened. */
typedef struct millrace_open_set_options {
  size_t struct_size;
  /* The files that the set was preloaded from. When a data server is lost, the samples that it has
   * are read from them, by a thread of this process with its rights, until it has them again. The
   * paths are copied, and the files opened for the first such read: they must be those that were
   * preloaded, unchanged. NULL: reads of those samples fail. */
  const char* const* files;
  size_t files_count;
  /* What the preload was given for them: kind, fields, labels, on_error, decode, image_pixels_max;
   * nothing else of it is looked at. NULL: the defaults. */
  const millrace_preload_options* preloaded;
  /* The same for each append to the set, in their order: `files` and `preloaded` of each are looked
   * at. NULL: reads of samples that were appended fail when their server is lost. */
  const struct millrace_open_set_options* const* appended;
  size_t appended_count;
} millrace_open_set_options;

/* A file that a preload has left out. Strings live as long as the request. */
typedef struct {
  size_t struct_size;
  const char* path;
  const char* why;
  millrace_code code;
  int32_t reserved;
} millrace_skipped_file;

/* A working set. Strings live as long as the request, or the reader. */
typedef struct {
  size_t struct_size;
  const char* name;
  const char* provider; /* the node that keeps it, in a listing; NULL otherwise */
  const char* owner;    /* who has preloaded it */
  uint64_t samples;
  uint64_t fields;
  uint64_t size_bytes;      /* of all samples */
  uint64_t identity;        /* orders depend on it; equal for equal data descriptions */
  uint64_t preloaded_at_ns; /* wall clock */
  int32_t existed;    /* of a preload: it was there already, and at most got back missing parts */
  int32_t while_used; /* it goes with the last client that uses it */
  int32_t servers;    /* data servers among which its samples are divided */
  int32_t appends;    /* whose samples it has, too */
  uint64_t window_bytes; /* the memory keeps so many bytes of samples at a time; 0: all samples */
  /* Paths that the preload has found damaged while it read their samples; who opens the files again
   * leaves them out, too. NULL: none. */
  const char* const* left_out;
  uint64_t left_out_count;
} millrace_set;

/* What a window has, and what has happened to its samples, each field of one counted. */
typedef struct {
  size_t struct_size;
  uint64_t size_bytes; /* of its memory */
  uint64_t kept_bytes; /* of the samples that it has */
  uint64_t kept;       /* samples that readers can have */
  uint64_t given;      /* that were there when a reader asked */
  uint64_t missing;    /* that were not */
  uint64_t written;
  uint64_t refused; /* not kept, since all that were kept are needed earlier */
  uint64_t evicted; /* that made room */
  uint64_t damaged; /* whose bytes were not those that were written */
} millrace_window_info;

/* What a comparison of samples with their digests has found. A sample is damaged if one of its
 * fields is. */
typedef struct {
  size_t struct_size;
  uint64_t samples;      /* that were compared */
  uint64_t damaged;      /* of them */
  const uint64_t* first; /* the numbers of those that were found first, at most 10; NULL: none.
                            Valid as long as the request */
  uint64_t first_count;
} millrace_set_damage;

/* How this process would reach the memory of a set, or of a part of one. Strings live as long as the
 * request. */
typedef struct {
  size_t struct_size;
  const char* node;
  const char* by;     /* "mapped", or the driver of its transfers; NULL: it cannot be read now */
  const char* why;    /* it cannot; NULL: it can */
  millrace_code code; /* of that failure */
  int32_t reserved;
} millrace_part_access;

/* Which order an epoch has. */
typedef struct {
  size_t struct_size;
  uint64_t seed;
  uint64_t epoch;
  const char* shuffle; /* "full", "none", or "block:N"; NULL: "full" */
} millrace_order_options;

typedef struct {
  size_t struct_size;
  uint64_t batch_size; /* samples of this rank's batch; 0: 1 */
  uint64_t rank;
  uint64_t world_size; /* ranks that share the batches, 65,536 at most; 0: 1 */
  uint64_t seed;
  uint64_t epoch;            /* the first one */
  const char* shuffle;       /* "full", "none", or "block:N"; NULL: "full" */
  const char* remainder;     /* "short", "pad" or "drop"; NULL: "short" */
  const char* const* fields; /* names, in the order of `millrace_batch_field`; NULL: all */
  size_t fields_count;
  uint32_t prefetch;  /* batches that are read ahead, 1 to 64; 0: 4 */
  uint32_t reserved;  /* 0 */
  const char* device; /* to whose memory the batches go, such as "cuda:0"; NULL: that of the host */
} millrace_loader_options;

/* What a loader has done since it was made, and where it is. */
typedef struct {
  size_t struct_size;
  uint64_t batches_per_epoch;
  uint64_t batches_left; /* of this epoch */
  uint64_t epoch;        /* of the next batch */
  uint64_t position;     /* in the epoch, of the next batch of all ranks */
  uint64_t batches;      /* given to the program */
  uint64_t samples;
  uint64_t bytes;
  uint64_t ready;     /* batches that wait for the program */
  uint64_t reading;   /* batches that are being read */
  uint64_t held;      /* batches that the program has not released */
  uint64_t waits;     /* for a batch that was not ready */
  uint64_t waited_ns; /* in all of them */
  uint64_t ring_bytes;
  uint64_t samples_from_files; /* by its reader, see `millrace_set_reader_samples_from_files` */
  /* Of all reads of the client from other hosts, which share the network: bytes that may be in
   * flight at once, bytes that are, the stages in which those were asked for, all stages so far. */
  uint64_t remote_limit_bytes;
  uint64_t remote_inflight_bytes;
  uint64_t remote_inflight_stages;
  uint64_t remote_stages;
  uint64_t samples_from_window; /* by its reader, see `millrace_set_reader_samples_from_window` */
} millrace_loader_info;

/* A batch of one rank. The pointers are valid until the batch is released. */
typedef struct {
  size_t struct_size;
  uint64_t epoch;
  uint64_t position;         /* in the epoch, at which the batch of all ranks begins */
  uint64_t rows;             /* places: the samples and, after them, the padding */
  uint64_t ids_count;        /* samples; there may be none at the end of an epoch */
  const uint64_t* ids;       /* of the samples, in their order */
  const unsigned char* mask; /* for each place 1, and 0 for padding */
  uint64_t fields;
} millrace_batch_info;

/* ---- Working sets ---- */

/* Brings the samples of files into the memory of a data server. This process opens the files, with
 * its rights. They are arrays (.npy, .npz, .h5, .hdf5); tar archives (.tar, .tar.gz, .tgz, .tar.zst),
 * in which the files of one name are a sample; or a directory or other files, of which each file is
 * a sample. Several .npy are fields of the same samples if all are given as "NAME=FILE". Names may
 * have braces and patterns, see docs/data.md. A set of the same files that is there already is left
 * as it is, but for parts that are missing. Nobody can open the set until all
 * samples are there. Programs of one user that preload the same files under the name at once share
 * the reading, and `progress` is told what all of them have read; if one fails or dies, others read
 * its part. Other programs wait, until they have heard of no new sample for 24 hours.
 * `millrace_request_set` and `millrace_request_tensor` describe it. After a cancel nothing calls
 * `progress` any more, and no set is left behind; its name and its memory are free a little later.
 * Errors: MILLRACE_NOT_FOUND for a file, or when no node has a data server;
 * MILLRACE_INVALID_ARGUMENT and MILLRACE_CORRUPT_DATA naming the file; MILLRACE_ALREADY_EXISTS when
 * other files were preloaded under the name; MILLRACE_BUSY after 24 hours without a new sample;
 * MILLRACE_NO_SPACE. */
MILLRACE_API millrace_code millrace_preload(
  millrace_client* client, const char* set, const char* const* files, size_t count,
  const millrace_preload_options* options, millrace_request** request);
/* Appends the samples of more files to a set that was preloaded, behind its own: it is then as one
 * that was preloaded from all files at once. Readers that have it open go on with what they have.
 * If it was preloaded from the same list of files, or they were appended together, it is left as it
 * is, but for parts that are missing; some files of such a list are appended again. It waits as
 * `millrace_preload` does. Of the options `servers`, `while_used` and `window_bytes` must be 0.
 * `millrace_request_set` describes the whole set. After a cancel that came too late the samples are
 * there; another append of the files says so.
 * Errors: those of `millrace_preload`; MILLRACE_NOT_FOUND when there is no such set;
 * MILLRACE_INVALID_ARGUMENT for fields other than those of the set, for a window, and for labels of
 * folders, whose numbers depend on all files; MILLRACE_PERMISSION_DENIED naming the owner;
 * MILLRACE_ALREADY_EXISTS when the set has the samples of the files without others that were
 * damaged. */
MILLRACE_API millrace_code millrace_append_to_set(
  millrace_client* client, const char* set, const char* const* files, size_t count,
  const millrace_preload_options* options, millrace_request** request);
/* Describes a set: `millrace_request_set` gives it, `millrace_request_tensor` its fields, with the
 * shape of one sample. Samples of a field can vary in their first dimension, which is then 0 here.
 * Errors: MILLRACE_NOT_FOUND. */
MILLRACE_API millrace_code
millrace_describe_set(millrace_client* client, const char* set, millrace_request** request);
/* Gives what a window has, and what it has done. Waits.
 * Errors: MILLRACE_NOT_FOUND; MILLRACE_INVALID_ARGUMENT for a set that has all samples in memory. */
MILLRACE_API millrace_code
millrace_describe_window(millrace_client* client, const char* set, millrace_window_info* info);
/* Finds how this process would read a set, by a loader for `device`, such as "cuda:0"; NULL: for
 * memory of the host. It opens the set for a moment, without files, which counts as a use.
 * `millrace_request_part` gives its parts, and `millrace_request_processors` where the threads that
 * copy would be kept.
 * Errors: MILLRACE_NOT_FOUND; for a device those of `millrace_loader_create`. */
MILLRACE_API millrace_code millrace_describe_access(
  millrace_client* client, const char* set, const char* device, millrace_request** request);
/* Gives a part, of `millrace_request_count`: those of the preload, one if the set is not divided,
 * and then those of each append. A part that cannot be read is no failure of the request. */
MILLRACE_API millrace_code
millrace_request_part(millrace_request* request, size_t index, millrace_part_access* part);
/* Returns what `millrace_loader_processors` would write, valid as long as the request. NULL: the
 * request has failed, is not over, or is not that of `millrace_describe_access`. */
MILLRACE_API const char* millrace_request_processors(millrace_request* request);
/* Lists the sets whose names start with `prefix`; NULL: all. `millrace_request_set` gives them, and
 * `millrace_request_silent` the nodes that did not answer.
 * Errors: MILLRACE_NOT_FOUND when no node has a data server. */
MILLRACE_API millrace_code
millrace_list_sets(millrace_client* client, const char* prefix, millrace_request** request);
/* Hides a set at once. Its memory is free after the last reader.
 * Errors: MILLRACE_NOT_FOUND; MILLRACE_PERMISSION_DENIED naming the owner. */
MILLRACE_API millrace_code
millrace_unload(millrace_client* client, const char* set, millrace_request** request);
MILLRACE_API millrace_code
millrace_request_set(millrace_request* request, size_t index, millrace_set* set);
/* Gives a file that a preload has left out (`on_error`). If the set was there already: one of those
 * that are seen at once, or that the set names. MILLRACE_NOT_FOUND: behind the last one. */
MILLRACE_API millrace_code
millrace_request_skipped(millrace_request* request, size_t index, millrace_skipped_file* file);

/* Opens a set, and waits for it. On the host of its data server its memory is mapped, and reading
 * it costs no message. From other hosts it is read by transfers.
 * Errors: MILLRACE_NOT_FOUND. */
MILLRACE_API millrace_code
millrace_open_set(millrace_client* client, const char* set, millrace_set_reader** reader);
/* Begins to open a set, and gives the reader, as `millrace_connect_begin` does for clients. */
MILLRACE_API millrace_code
millrace_open_set_begin(millrace_client* client, const char* set, millrace_request** request);
/* Do the same with options; NULL: none. With files, parts after the first one may be missing.
 * Errors: MILLRACE_INVALID_ARGUMENT naming the option. */
MILLRACE_API millrace_code millrace_open_set_with(
  millrace_client* client, const char* set, const millrace_open_set_options* options,
  millrace_set_reader** reader);
MILLRACE_API millrace_code millrace_open_set_with_begin(
  millrace_client* client, const char* set, const millrace_open_set_options* options,
  millrace_request** request);
MILLRACE_API millrace_code
millrace_request_set_reader(millrace_request* request, millrace_set_reader** reader);
MILLRACE_API millrace_code
millrace_set_reader_describe(const millrace_set_reader* reader, millrace_set* set);
/* Gives the name, the type and the shape of one sample of a field, valid as long as the reader. The
 * first dimension is 0 if the samples vary in it. */
MILLRACE_API millrace_code
millrace_set_reader_field(const millrace_set_reader* reader, size_t field, millrace_tensor* tensor);
/* Returns how many samples were read from files since the set was opened, because a data server was
 * lost (`millrace_open_set_options`), or because a window did not have them; each field of a sample
 * counts. 0 for NULL. */
MILLRACE_API uint64_t millrace_set_reader_samples_from_files(const millrace_set_reader* reader);
/* Returns how many came from a window; 0 for a set that has all samples in memory, and for NULL. */
MILLRACE_API uint64_t millrace_set_reader_samples_from_window(const millrace_set_reader* reader);
/* Asks how many bytes samples of one field have, which `millrace_request_sizes` gives, in the order
 * of `ids`. For fields that vary; those of other fields are all equal.
 * Errors: MILLRACE_INVALID_ARGUMENT for a field or a sample that the set does not have;
 * MILLRACE_CORRUPT_DATA naming a sample; otherwise as `millrace_read_batch`. */
MILLRACE_API millrace_code millrace_set_reader_sizes(
  millrace_set_reader* reader, size_t field, const uint64_t* ids, size_t count,
  millrace_request** request);
/* Gives the bytes of the samples that were asked for, valid as long as the request. */
MILLRACE_API millrace_code
millrace_request_sizes(millrace_request* request, const uint64_t** sizes, size_t* count);
/* Looks for samples by a text that they have: those of files by the field "path", those of archives
 * by "key". `millrace_request_samples` gives their ids, in the order of `texts`. A call looks at the
 * texts of all samples, so ask for many at once.
 * Errors: MILLRACE_INVALID_ARGUMENT for a field that has no texts; MILLRACE_NOT_FOUND naming a text
 * that no sample has; otherwise as `millrace_read_batch`. */
MILLRACE_API millrace_code millrace_find_samples(
  millrace_set_reader* reader, size_t field, const char* const* texts, size_t count,
  millrace_request** request);
/* Gives the samples that were found, valid as long as the request. */
MILLRACE_API millrace_code
millrace_request_samples(millrace_request* request, const uint64_t** ids, size_t* count);
/* Copies samples of one field, one after the other without gaps, in the order of `ids`.
 * `into_bytes` is the size of all of them; of a field that varies, the sum of what
 * `millrace_set_reader_sizes` finds. `into` must stay until the request is over.
 * Errors: MILLRACE_INVALID_ARGUMENT for a field or a sample that the set does not have, or for
 * another size than that of the samples; MILLRACE_CORRUPT_DATA naming a sample whose place in a
 * field that varies is damaged; MILLRACE_NOT_FOUND when the memory is not the set's any
 * more; from another host MILLRACE_PEER_LOST, and MILLRACE_NO_SPACE without memory for the
 * transfers. After an error `into` has any bytes. */
MILLRACE_API millrace_code millrace_read_batch(
  millrace_set_reader* reader, size_t field, const uint64_t* ids, size_t count, void* into,
  size_t into_bytes, millrace_request** request);
/* Copies all samples of a field, in the order of their numbers. Otherwise as `millrace_read_batch`.
 */
MILLRACE_API millrace_code millrace_load_field(
  millrace_set_reader* reader, size_t field, void* into, size_t into_bytes,
  millrace_request** request);
/* Compares all samples of all fields with the digests that were taken when they were preloaded.
 * `millrace_request_damage` says what was found. `progress` may be NULL: nobody is told. Else it is
 * told the bytes that are compared, by a thread of Millrace, at the latest after each 64 MiB, and 0
 * of it ends the comparison with MILLRACE_CANCELLED. After a cancel nothing calls it any more.
 * Errors: MILLRACE_UNSUPPORTED for a window, since the files are the original; otherwise as
 * `millrace_read_batch`. A damaged sample is no failure of the request. */
MILLRACE_API millrace_code millrace_verify_samples(
  millrace_set_reader* reader, millrace_progress progress, void* context,
  millrace_request** request);
/* Errors: MILLRACE_INVALID_ARGUMENT for another request than that of `millrace_verify_samples`. */
MILLRACE_API millrace_code
millrace_request_damage(millrace_request* request, millrace_set_damage* damage);
/* Writes the samples that an epoch visits at the positions from `first` on. It computes them from
 * the set, the seed and the epoch alone, in some 60 ns each, and sends no message. `options` may be
 * NULL: the first epoch of the seed 0.
 * Errors: MILLRACE_INVALID_ARGUMENT for positions that the set does not have. */
MILLRACE_API millrace_code millrace_set_reader_order(
  const millrace_set_reader* reader, const millrace_order_options* options, uint64_t first,
  size_t count, uint64_t* ids);
/* Writes at which positions of an epoch samples come, in the order of `ids`. `positions` may be the
 * same memory as `ids`.
 * Errors: MILLRACE_INVALID_ARGUMENT for a sample that the set does not have, before any is written.
 */
MILLRACE_API millrace_code millrace_set_reader_positions(
  const millrace_set_reader* reader, const millrace_order_options* options, const uint64_t* ids,
  size_t count, uint64_t* positions);
MILLRACE_API void millrace_set_reader_release(millrace_set_reader* reader);

/* ---- Loaders ---- */

/* Makes a loader, which reads the batches of one rank ahead of the program, epoch after epoch, into
 * a ring of `prefetch` + 2 batches. All ranks of a job make one with the same options but for
 * `rank`, and get the same number of batches in each epoch.
 * With a device the ring is in its memory, and `prefetch` batches of pinned memory are beside it.
 * The process uses CUDA from then on.
 * Errors: MILLRACE_INVALID_ARGUMENT naming the option; MILLRACE_NO_SPACE without memory for the
 * ring; for a device MILLRACE_NOT_FOUND, MILLRACE_UNAVAILABLE without its driver, and
 * MILLRACE_UNSUPPORTED in a build without it. */
MILLRACE_API millrace_code millrace_loader_create(
  millrace_set_reader* reader, const millrace_loader_options* options, millrace_loader** loader);
/* Waits for the next batch. `batch` is NULL at the end of an epoch, once; the call after that gives
 * the first batch of the next epoch.
 * Errors: MILLRACE_NO_SPACE while the program has all batches of the ring: release one; those of
 * `millrace_read_batch`. The loader then stays where it is. */
MILLRACE_API millrace_code millrace_next(millrace_loader* loader, millrace_batch** batch);
/* Begins to wait for the next batch. Requests are answered in their order. One that is cancelled
 * has taken no batch; one that is freed before its batch was taken may have skipped it. */
MILLRACE_API millrace_code millrace_next_begin(millrace_loader* loader, millrace_request** request);
/* Gives the batch, once; NULL at the end of an epoch. */
MILLRACE_API millrace_code
millrace_request_batch(millrace_request* request, millrace_batch** batch);

/* The size that suffices for every state, with the NUL. */
#define MILLRACE_LOADER_STATE_BYTES 512

/* Writes where the training is, at the batch that comes next, as JSON. It is the same on all ranks
 * that have taken as many batches. Keep it with a checkpoint.
 * Errors: MILLRACE_INVALID_ARGUMENT when `text_bytes` is too small. */
MILLRACE_API millrace_code
millrace_loader_state(const millrace_loader* loader, char* text, size_t text_bytes);
/* Goes on at a state. The number of ranks and the batch size may be others than those with which it
 * was made; seed and shuffle become those of the state. Batches that the program has stay valid.
 * Errors: MILLRACE_INVALID_ARGUMENT for a text that is no state, the state of another set, or a
 * position that the set does not have. */
MILLRACE_API millrace_code millrace_loader_seek(millrace_loader* loader, const char* state);
/* Goes to the beginning of an epoch. */
MILLRACE_API millrace_code millrace_loader_set_epoch(millrace_loader* loader, uint64_t epoch);
MILLRACE_API millrace_code
millrace_loader_describe(const millrace_loader* loader, millrace_loader_info* info);
/* Writes where the threads that copy are kept for this loader, and why, such as
 * "processors 0-15, near cuda:0"; an empty text: nowhere, see `client.bind_readers`.
 * Errors: MILLRACE_INVALID_ARGUMENT when `text_bytes` is too small, saying what suffices. */
MILLRACE_API millrace_code
millrace_loader_processors(const millrace_loader* loader, char* text, size_t text_bytes);
/* Batches that the program has stay valid. */
MILLRACE_API void millrace_loader_release(millrace_loader* loader);

MILLRACE_API millrace_code
millrace_batch_describe(const millrace_batch* batch, millrace_batch_info* info);
/* Gives one field of all places, where it lies in the ring: in memory of the device if the loader
 * has one. The program may change it there. Its
 * shape is [rows, the shape of a sample]; of a field whose samples differ in size, [the sum of
 * their first dimensions, the rest of the shape]. Name and shape are valid as long as the batch. */
MILLRACE_API millrace_code
millrace_batch_field(const millrace_batch* batch, size_t field, millrace_tensor* tensor);
/* Gives where in a field each place begins, and where the last one ends, in steps of its first
 * dimension: `rows` + 1 numbers. NULL and 0 for a field whose samples are all of one size. */
MILLRACE_API millrace_code millrace_batch_offsets(
  const millrace_batch* batch, size_t field, const uint64_t** offsets, size_t* count);
/* Names the CUDA stream whose work uses a batch in memory of a device. What is in it when the batch
 * is released is done before a later batch takes the place. The last call counts; without one it is
 * the default stream. The stream must exist until the batch is released.
 * Errors: MILLRACE_INVALID_ARGUMENT for a batch in memory of the host. */
MILLRACE_API millrace_code millrace_batch_follow(const millrace_batch* batch, void* cuda_stream);
/* Gives the place in the ring back. Does not wait for a device. */
MILLRACE_API void millrace_batch_release(millrace_batch* batch);

#ifdef __cplusplus
}
#endif

#endif

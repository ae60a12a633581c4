/* Streaming sets in C: producers append samples while trainings read them. A part of millrace.h,
 * which includes it and has the rules; docs/data.md says what a stream does. */
#ifndef MILLRACE_STREAM_H
#define MILLRACE_STREAM_H

#include "millrace.h"
#include "millrace_data.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct millrace_producer millrace_producer;
typedef struct millrace_stream_reader millrace_stream_reader;

typedef struct {
  size_t struct_size;
  uint64_t capacity;     /* places for samples; 0: 1024 */
  const char* policy;    /* "fifo", "firo" or "reservoir"; NULL: "fifo" */
  const char* when_full; /* "block" or "drop_oldest"; NULL: "block" */
  uint64_t producers;    /* the stream ends when so many have ended; 0: `millrace_stream_end` */
  uint64_t seed;         /* of random choices */
  uint64_t threshold;    /* samples that must be there before firo and reservoir give any */
} millrace_stream_options;

/* A stream now. */
typedef struct {
  size_t struct_size;
  uint64_t capacity;
  uint64_t size_bytes; /* of all places */
  uint64_t producers;  /* that are open */
  uint64_t producers_ended;
  uint64_t readers;
  uint64_t appended;
  uint64_t given;        /* to readers */
  uint64_t repeated;     /* of these, the second and later times of a sample */
  uint64_t dropped;      /* removed for newer ones before any reader got them */
  uint64_t replaced;     /* of a reservoir: removed for newer ones after they were given */
  uint64_t present;      /* can be given now */
  uint64_t writing;      /* places that producers have */
  uint64_t reading;      /* places of samples that readers have */
  uint64_t append_waits; /* requests of producers that found no place */
  uint64_t take_waits;   /* requests of readers that found too few samples */
  int32_t ended;
  int32_t reserved;
  /* Of a request; NULL otherwise. Strings live as long as the request. */
  const char* name;
  const char* provider; /* the node that keeps it, in a listing */
  const char* owner;    /* who has created it */
  const char* policy;
  const char* when_full;
  uint64_t created_at_ns; /* wall clock */
} millrace_stream_info;

typedef struct {
  size_t struct_size;
  uint32_t in_flight; /* samples that are under way at once, 1 to 1024; 0: 16 */
  uint32_t reserved;  /* 0 */
} millrace_producer_options;

typedef struct {
  size_t struct_size;
  uint64_t batch_size; /* samples of a batch at most; 0: 1 */
  uint32_t batches;    /* that the program holds or waits for at once, 1 to 64; 0: 4 */
  uint32_t reserved;   /* 0 */
} millrace_stream_reader_options;

/* Makes a stream, whose samples have these fields: name, type and shape of one sample each, with
 * `data` NULL. One with the same options that is there already is left as it is.
 * Errors: MILLRACE_INVALID_ARGUMENT naming the option or the field; MILLRACE_ALREADY_EXISTS for
 * other options; MILLRACE_NO_SPACE; MILLRACE_NOT_FOUND when no node has a data server. */
MILLRACE_API millrace_code millrace_stream_create(
  millrace_client* client, const char* stream, const millrace_tensor* fields, size_t count,
  const millrace_stream_options* options, millrace_request** request);
/* Waits. Errors: MILLRACE_NOT_FOUND. */
MILLRACE_API millrace_code
millrace_stream_describe(millrace_client* client, const char* stream, millrace_stream_info* info);
/* Lists the streams whose names start with `prefix`; NULL: all. `millrace_request_stream` gives them,
 * and `millrace_request_silent` the nodes that did not answer.
 * Errors: MILLRACE_NOT_FOUND when no node has a data server. */
MILLRACE_API millrace_code
millrace_list_streams(millrace_client* client, const char* prefix, millrace_request** request);
/* Gives a stream of a listing, or the one that was created. */
MILLRACE_API millrace_code
millrace_request_stream(millrace_request* request, size_t index, millrace_stream_info* stream);
/* Ends a stream, whatever its producers do: readers get what is left.
 * Errors: MILLRACE_NOT_FOUND; MILLRACE_PERMISSION_DENIED naming the owner. */
MILLRACE_API millrace_code
millrace_stream_end(millrace_client* client, const char* stream, millrace_request** request);
/* Removes a stream and its samples at once.
 * Errors: MILLRACE_NOT_FOUND; MILLRACE_PERMISSION_DENIED naming the owner. */
MILLRACE_API millrace_code
millrace_stream_remove(millrace_client* client, const char* stream, millrace_request** request);

/* Opens a stream for a producer, and waits for it.
 * Errors: MILLRACE_NOT_FOUND; MILLRACE_INVALID_ARGUMENT after the end; MILLRACE_BUSY when the stream
 * has all its producers; MILLRACE_NO_SPACE. */
MILLRACE_API millrace_code millrace_open_producer(
  millrace_client* client, const char* stream, const millrace_producer_options* options,
  millrace_producer** producer);
/* Returns the number of fields of the stream. */
MILLRACE_API size_t millrace_producer_fields(const millrace_producer* producer);
/* Gives the name, the type and the shape of one sample of a field, valid as long as the producer. */
MILLRACE_API millrace_code
millrace_producer_field(const millrace_producer* producer, size_t field, millrace_tensor* tensor);
/* Appends a sample: a tensor of each field, in their order. The bytes are copied before the call
 * returns. The request is over when the stream has the sample; with "block" that may take as long
 * as readers take. One that is cancelled is not appended, unless it was too late.
 * Errors: MILLRACE_INVALID_ARGUMENT naming the field, or after the end of the stream; MILLRACE_BUSY
 * while `in_flight` samples are under way: wait for one; MILLRACE_NOT_FOUND when the stream was
 * removed or the connection was lost: open another producer; MILLRACE_PEER_LOST. */
MILLRACE_API millrace_code millrace_append(
  millrace_producer* producer, const millrace_tensor* sample, size_t count,
  millrace_request** request);
/* Ends after all appends that are under way. The stream ends with the last of its producers. */
MILLRACE_API millrace_code
millrace_producer_end(millrace_producer* producer, millrace_request** request);
/* Before `millrace_producer_end` was over: gives up what is under way. Then it has not ended. */
MILLRACE_API void millrace_producer_release(millrace_producer* producer);

/* Opens a stream for a reader, and waits for it.
 * Errors: MILLRACE_NOT_FOUND; MILLRACE_INVALID_ARGUMENT naming the option; MILLRACE_NO_SPACE. */
MILLRACE_API millrace_code millrace_open_stream_reader(
  millrace_client* client, const char* stream, const millrace_stream_reader_options* options,
  millrace_stream_reader** reader);
/* Returns the number of fields of the stream. */
MILLRACE_API size_t millrace_stream_reader_fields(const millrace_stream_reader* reader);
/* Gives the name, the type and the shape of one sample of a field, valid as long as the reader. */
MILLRACE_API millrace_code millrace_stream_reader_field(
  const millrace_stream_reader* reader, size_t field, millrace_tensor* tensor);
/* Waits for the next batch, of `samples` different samples; 0: `batch_size`. There are fewer at the
 * end of the stream, and then `batch` is NULL. The ids of the batch are the numbers of the samples
 * in the order in which they were appended. `timeout_ms`: 0 waits as long as the stream lives.
 * Errors: MILLRACE_INVALID_ARGUMENT for more than `batch_size`; MILLRACE_NO_SPACE while the program
 * has all `batches`: release one; MILLRACE_DEADLINE_EXCEEDED; MILLRACE_CORRUPT_DATA when a sample
 * is not as its producer has described it; MILLRACE_NOT_FOUND when the stream was removed or the
 * connection was lost: open another reader; MILLRACE_PEER_LOST. */
MILLRACE_API millrace_code millrace_stream_next(
  millrace_stream_reader* reader, uint64_t samples, int64_t timeout_ms, millrace_batch** batch);
/* Begins to wait; `millrace_request_batch` gives the batch. A request that is cancelled has taken no
 * sample; one that is freed before its batch was taken has lost them. */
MILLRACE_API millrace_code millrace_stream_next_begin(
  millrace_stream_reader* reader, uint64_t samples, int64_t timeout_ms, millrace_request** request);
/* Batches that the program has stay valid. */
MILLRACE_API void millrace_stream_reader_release(millrace_stream_reader* reader);

#ifdef __cplusplus
}
#endif

#endif

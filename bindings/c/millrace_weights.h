/* Weights by version in C: a trainer publishes its tensors, and evaluators and replicas follow
 * them. A part of millrace.h, which includes it and has the rules; docs/weights.md says more. */
#ifndef MILLRACE_WEIGHTS_H
#define MILLRACE_WEIGHTS_H

#include "millrace.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct millrace_publisher millrace_publisher;
typedef struct millrace_follower millrace_follower;

typedef struct {
  size_t struct_size;
  const char* group;             /* the providers that keep the weights; NULL: "default" */
  const millrace_pair* metadata; /* kept with each version */
  size_t metadata_count;
  int64_t timeout_ms; /* of each publication; 0: the client's */
  int32_t checksums;  /* 1: with, -1: without, 0: as the provider is configured */
  int32_t reserved;   /* 0 */
} millrace_publisher_options;

/* Registers tensors to publish as weights of a name. Nothing is sent. Their memory must stay at its
 * addresses while publications read it.
 * Errors: MILLRACE_INVALID_ARGUMENT for what no model can have. */
MILLRACE_API millrace_code millrace_publisher_create(
  millrace_client* client, const char* weights, const millrace_tensor* tensors, size_t count,
  const millrace_publisher_options* options, millrace_publisher** publisher);
/* Publishes the tensors under a number, such as the step, whole or not at all. `staged` is over
 * when the tensors may change, `stored` when followers can load them; either may be NULL, and then
 * the call does not wait for it. Publications are made one after the other; one that waits for
 * another reads the tensors when that one has ended. Cancelling a request that is not over cancels
 * both.
 * Errors: MILLRACE_INVALID_ARGUMENT for a number that is not above those of this publisher;
 * MILLRACE_BUSY while one publication waits already; those of `millrace_put`. */
MILLRACE_API millrace_code millrace_publish(
  millrace_publisher* publisher, uint64_t version, millrace_request** staged,
  millrace_request** stored);
/* Takes the addresses of tensors that have moved; their descriptions must be those registered.
 * Errors: MILLRACE_INVALID_ARGUMENT for others; MILLRACE_BUSY while the tensors of a publication are
 * read or to be read. */
MILLRACE_API millrace_code millrace_publisher_rebind(
  millrace_publisher* publisher, const millrace_tensor* tensors, size_t count);
/* Publications under way go on, and read the tensors. */
MILLRACE_API void millrace_publisher_release(millrace_publisher* publisher);

/* Begins to follow weights, which need not be published yet. `group` NULL: "default". The follower
 * hears of a publication by one message, and asks again by itself when a provider was away.
 * Errors: MILLRACE_INVALID_ARGUMENT for a name that no model can have. */
MILLRACE_API millrace_code millrace_follow(
  millrace_client* client, const char* group, const char* weights, millrace_follower** follower);
/* Waits for a publication after the one that this follower gave or loaded last; the first call gives
 * the newest one, if there is any. In the receipt, `step` is the number of the publication and
 * `version` that of the repository; `millrace_request_metadata` gives the publisher's metadata. The
 * newest is the one that was published last, whatever its number: a trainer that has restarted may
 * begin below. A request that is cancelled has given none.
 * `timeout_ms` is at most a day; 0: the client's.
 * Errors: MILLRACE_DEADLINE_EXCEEDED, with what keeps the follower from asking, if anything does;
 * MILLRACE_INVALID_ARGUMENT for a model that no publisher has stored; MILLRACE_NOT_FOUND for a group
 * without providers. */
MILLRACE_API millrace_code
millrace_follower_next(millrace_follower* follower, int64_t timeout_ms, millrace_request** request);
/* Loads the newest publication into the memory of `tensors`, or boxes of it, as `millrace_get` does.
 * All bytes are of one publication, which the receipt names as above. A program that reads one
 * version while the next one is loaded gives other memory in turns. After an error the memory has
 * any bytes.
 * Errors: MILLRACE_NOT_FOUND when nothing is published; those of `millrace_get`. */
MILLRACE_API millrace_code millrace_follower_load(
  millrace_follower* follower, const millrace_tensor* tensors, size_t count, int64_t timeout_ms,
  millrace_request** request);
/* Ends the requests of `millrace_follower_next` that wait, with MILLRACE_CANCELLED. Loads go on. */
MILLRACE_API void millrace_follower_release(millrace_follower* follower);

#ifdef __cplusplus
}
#endif

#endif

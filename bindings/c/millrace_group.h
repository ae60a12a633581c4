/* Groups in C: processes of one host that broadcast tensors to each other. A part of millrace.h,
 * which includes it and has the rules; docs/groups.md says more. */
#ifndef MILLRACE_GROUP_H
#define MILLRACE_GROUP_H

#include "millrace.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct millrace_group millrace_group;

typedef struct {
  size_t struct_size;
  uint32_t rank;      /* of this process, from 0 on */
  uint32_t size;      /* processes in the whole group; all give the same */
  const char* node;   /* keeps the group, on the host of all members; NULL: that of the client */
  const char* who;    /* how errors call this member; NULL: its process number */
  int64_t timeout_ms; /* of joining; 0: the client's */
} millrace_group_options;

/* Joins a group. The request is over when all of its members have joined; then
 * `millrace_request_group` gives the group.
 * Errors: MILLRACE_INVALID_ARGUMENT for another size than that of the others, and for a rank that
 * there is not; MILLRACE_ALREADY_EXISTS naming the process that has the rank;
 * MILLRACE_PERMISSION_DENIED for a group of another user; MILLRACE_DEADLINE_EXCEEDED naming the ranks
 * that did not come; MILLRACE_BUSY when groups have all of `groups.memory`; MILLRACE_UNSUPPORTED for
 * a node on another host. */
MILLRACE_API millrace_code millrace_join_group(
  millrace_client* client, const char* group, const millrace_group_options* options,
  millrace_request** request);
/* Gives the group of a request that has joined it, once. */
MILLRACE_API millrace_code
millrace_request_group(millrace_request* request, millrace_group** group);

/* Gives the tensors of the rank `root` to all other members, into their tensors, which have the same
 * bytes in all. All members call it equally often and in the same order. At the root the request is
 * over when its tensors may be changed, elsewhere when all bytes are in them. `timeout_ms` is at
 * most a day; 0: the client's. In the receipt, `version` is the number of the broadcast in its
 * epoch.
 * A member whose broadcast has failed, or was cancelled, may go on with the next one. When one has
 * gone, all fail with MILLRACE_PEER_LOST until all others have called `millrace_group_renew`.
 * Errors: MILLRACE_INVALID_ARGUMENT for another size than the root's, two roots, and a root that is
 * no member; MILLRACE_DEADLINE_EXCEEDED naming the ranks that did not come; MILLRACE_PEER_LOST naming
 * the rank that has gone; MILLRACE_UNAVAILABLE when the node is gone: join again;
 * MILLRACE_CANCELLED when the root gave up; MILLRACE_UNSUPPORTED for memory of devices;
 * MILLRACE_BUSY for more than 1,024 that wait. */
MILLRACE_API millrace_code millrace_group_broadcast(
  millrace_group* group, const millrace_tensor* tensors, size_t count, uint32_t root,
  int64_t timeout_ms, millrace_request** request);
/* Goes on in a new epoch with all members that are left, and those that wait to join. All of them
 * call it; until then it waits. Broadcasts of this member that are under way are cancelled.
 * Errors: MILLRACE_DEADLINE_EXCEEDED naming who has not called it; MILLRACE_UNAVAILABLE;
 * MILLRACE_BUSY for a second call at once. */
MILLRACE_API millrace_code
millrace_group_renew(millrace_group* group, int64_t timeout_ms, millrace_request** request);

/* Return the number of the epoch, from 1 on, and how many members it has. 0 for NULL. */
MILLRACE_API uint64_t millrace_group_epoch(const millrace_group* group);
MILLRACE_API size_t millrace_group_size(const millrace_group* group);
/* Gives the rank of member `index` of the epoch, in the order of ranks.
 * Errors: MILLRACE_INVALID_ARGUMENT. */
MILLRACE_API millrace_code
millrace_group_rank(const millrace_group* group, size_t index, uint32_t* rank);
/* Leaves the group: for the others the epoch is over. Broadcasts end with MILLRACE_CANCELLED. */
MILLRACE_API void millrace_group_release(millrace_group* group);

#ifdef __cplusplus
}
#endif

#endif

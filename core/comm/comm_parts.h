/* Shared by the files of the communicator, beside comm.h. */
#pragma once

#include "core/comm/agree.h"
#include "core/comm/comm.h"
#include "core/mkernel.h"
#include "core/base/sentence.h"
#include "core/base/words.h"

#include <string.h>

#define COMM_PAGE 4096u
#define COMM_LONGEST_NS                                                                            \
    2000000000000000ull /* 23 days: more is no number of ms for poll, nor to be added to a clock   \
                         */

/* How far comm_open came, and so how much close has to undo. */
enum stage { STAGE_NONE, STAGE_JOINED, STAGE_EXEC, STAGE_NET, STAGE_OPEN };

/* Letters of the options of a plan, and the 0 behind them. */
#define SPEC_OPTIONS 1024u

/* The object behind the public handle of a plan. */
struct plan_handle {
    struct mk_plan plan; /* first */
    struct mk_comm *comm;
    char options[SPEC_OPTIONS]; /* mk_plan_options */
    int begun; /* a first half was launched and its second was not, with these arguments */
    void *arguments[MK_SPACES - 1];
    uint64_t bytes[MK_SPACES - 1]; /* of each argument on this rank */
    uint32_t outputs;              /* a bit for each */
};

#define COMM_HANDLE(plan) ((const struct plan_handle *)(const void *)(plan))

/* The problem that a user's spec asks for, without what the communicator adds. 0, or -EINVAL with a
 * sentence. */
int spec_to_problem(struct mk_problem *q, const struct mk_spec *spec, char *error, size_t size);

/* The options of a plan as made, in words that its operator takes. 0; -ENOSPC: they are cut. */
int spec_options(const struct mk_plan *plan, char *text, size_t size);

/* mk_plan_create of a problem. Every rank comes here, though its own part has gone wrong already
 * (`result`, with a sentence in comm->error): the others must not wait for it. */
int comm_create_plan(struct mk_plan **out, struct mk_comm *comm, const struct mk_problem *problem,
                     int result);

/* What of a problem must be alike on all ranks. Returns the number of fields, 4 below AGREE_FIELDS
 * at most. */
uint32_t comm_fields(const struct mk_comm *comm, const struct mk_problem *q,
                     struct agree_field fields[AGREE_FIELDS]);

/* The first of them that two problems differ in; NULL: none. */
const char *comm_fields_difference(const struct mk_comm *comm, const struct mk_problem *a,
                                   const struct mk_problem *b);

/* Calls that wait for all ranks to make them. */
enum comm_call {
    COMM_CALL_NONE,
    COMM_CALL_LAUNCH, /* its kernel waits: not for comm_calls */
    COMM_CALL_PLAN,
    COMM_CALL_DESTROY,
    COMM_CALL_TRACE,
    COMM_CALL_CLOSE,
    COMM_CALLS
};

/* From now on this rank waits in such a call, about a plan of `op` (else MK_OPS), and its launches
 * have ended; COMM_CALL_NONE: it does not any more. */
static inline void comm_calls(struct mk_comm *comm, enum comm_call call, uint32_t op)
{
    __atomic_store_n(&comm->calling, (uint32_t)call | op << 8, __ATOMIC_RELEASE);
}

/* comm_watch.c: the communicator's thread. start: 0 or -errno with a sentence. */
int comm_watch_start(struct mk_comm *comm);
void comm_watch_stop(struct mk_comm *comm);

/* Puts a sentence into comm->error; returns `error`. */
#define comm_refuse(comm, code, ...) mk_fail(code, (comm)->error, sizeof(comm)->error, __VA_ARGS__)

/* If the job has failed: takes the sentence, which is the same on every rank; -EIO. Else 0. */
int comm_tell_failure(struct mk_comm *comm);

/* Bytes at an offset of this rank's heap become those at `from`: once no launch of this rank that
 * mk_wait waits for runs any more, and before the next. 0, -EIO with a sentence. */
int comm_store(struct mk_comm *comm, uint64_t offset, const void *from, uint64_t bytes);

/* A part of this rank said no, in comm->error: the others must not wait for it. Returns
 * `result`. */
int comm_give_up(struct mk_comm *comm, int result);

#include "core/base/c_numbers.h"
#include "core/comm/failure.h"
#include "core/cta/cta_route.h"
#include "core/mkernel.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The record may have come from another process: its strings need not be terminated. */
#define FIELD(array) (int)strnlen(array, sizeof(array)), array

static int failure_has(const char *string)
{
    return string[0] != '\0';
}

static void failure_say_rank(char *text, size_t size, const struct mk_failure *f)
{
    if (f->op >= MK_OPS)
        mk_append(text, size, "rank %u", f->rank);
    else if (f->cta == UINT32_MAX)
        mk_append(text, size, "rank %u's proxy", f->rank);
    else
        mk_append(text, size, "rank %u CTA %u (%s)", f->rank, f->cta, plan_role_name(f->role));
}

/* "chunk 3 of rank 5's A in epoch 7 (flag 12 saw 6, wants 7)", as much of it as is known. */
static void failure_say_what(char *text, size_t size, const struct mk_failure *f)
{
    if (failure_has(f->what))
        mk_append(text, size, "%.*s", FIELD(f->what));
    else if (f->chunk != UINT32_MAX)
        mk_append(text, size, "chunk %u of rank %u", f->chunk, f->producer);
    else if (f->flag != UINT32_MAX)
        mk_append(text, size, "flag %u", f->flag);
    else
        mk_append(text, size, "rank %u", f->producer);
    if (f->op < MK_OPS && f->epoch)
        mk_append(text, size, " in epoch %lu", f->epoch);
    if (f->flag != UINT32_MAX)
        mk_append(text, size, " (flag %u saw %lu, wants %lu)", f->flag, f->seen, f->wanted);
}

static void failure_say_detail(char *text, size_t size, const struct mk_failure *f)
{
    if (failure_has(f->detail))
        mk_append(text, size, ": %.*s", FIELD(f->detail));
    if (f->status)
        mk_append(text, size, "%s %d", failure_has(f->detail) ? ", status" : ": status", f->status);
}

static int failure_says_what(const struct mk_failure *f)
{
    return failure_has(f->what) || f->flag != UINT32_MAX || f->chunk != UINT32_MAX;
}

void failure_overflow(struct mk_failure *f, uint32_t over, uint32_t rank, uint64_t count,
                      uint64_t room)
{
    static const char *const what[] = {[MK_OVER_ROWS] = "rows of its experts",
                                       [MK_OVER_LANDED] = "tokens from one rank of its node",
                                       [MK_OVER_RELAYED] = "tokens from one rank of another node"};
    f->kind = MK_FAIL_OVERFLOW;
    f->producer = rank;
    f->flag = f->chunk = f->relay = UINT32_MAX;
    f->seen = count;
    f->wanted = room;
    snprintf(f->what, sizeof f->what, "%s",
             over == MK_OVER_TOKENS                            ? "" /* the rank's own word */
             : over < sizeof what / sizeof *what && what[over] ? what[over]
                                                               : "tokens");
}

void failure_sentence(const struct mk_failure *f, char *text, size_t size)
{
    MK_C_NUMBERS;
    if (size)
        text[0] = '\0';
    if (f->op < MK_OPS)
        mk_append(text, size, "%s: ", plan_op_name(f->op));
    switch (f->kind) {
    case MK_FAIL_NONE:
        mk_append(text, size, "nothing failed");
        break;
    case MK_FAIL_TIMEOUT:
        failure_say_rank(text, size, f);
        mk_append(text, size, " waited %.1f s for ", (double)f->waited_ns / 1e9);
        failure_say_what(text, size, f);
        if (f->op < MK_OPS && f->relay != UINT32_MAX)
            mk_append(text, size, "; rank %u should have handed it on", f->relay);
        else if (f->op < MK_OPS && f->producer != UINT32_MAX && f->producer != f->rank)
            mk_append(text, size, "; rank %u should have produced it", f->producer);
        if (failure_has(f->detail))
            mk_append(text, size, "; %.*s", FIELD(f->detail));
        break;
    case MK_FAIL_PEER_LOST:
        mk_append(text, size, "rank %u is lost", f->producer);
        failure_say_detail(text, size, f);
        if (f->op < MK_OPS && failure_says_what(f)) {
            mk_append(text, size, "; ");
            failure_say_rank(text, size, f);
            mk_append(text, size, " was waiting for ");
            failure_say_what(text, size, f);
        }
        break;
    case MK_FAIL_NETWORK:
        failure_say_rank(text, size, f);
        mk_append(text, size, " could not reach rank %u", f->producer);
        if (failure_says_what(f)) {
            mk_append(text, size, " with ");
            failure_say_what(text, size, f);
        }
        failure_say_detail(text, size, f);
        break;
    case MK_FAIL_DEVICE:
        mk_append(text, size, "the device of rank %u failed", f->rank);
        failure_say_detail(text, size, f);
        break;
    case MK_FAIL_SETUP:
        mk_append(text, size, "rank %u could not go on", f->rank);
        failure_say_detail(text, size, f);
        break;
    case MK_FAIL_OVERFLOW:
        if (!failure_has(f->what)) {
            mk_append(
                text, size,
                "rank %u has %d tokens by its count in epoch %lu, and its plan has room for 0 to "
                "%lu; nothing was computed",
                f->producer, (int32_t)f->seen, f->epoch, f->wanted);
            break;
        }
        mk_append(text, size,
                  "rank %u has room for %lu %.*s, and %lu came in epoch %lu; nothing was computed: "
                  "ask for more (--capacity), or spread tokens over experts",
                  f->producer, f->wanted, FIELD(f->what), f->seen, f->epoch);
        break;
    case MK_FAIL_ORDER:
        mk_append(text, size,
                  "rank %u %.*s where rank %u %.*s: all ranks must make the same calls in the same "
                  "order",
                  f->rank, FIELD(f->what), f->producer, FIELD(f->detail));
        break;
    default:
        failure_say_rank(text, size, f);
        mk_append(text, size, " found an internal error");
        failure_say_detail(text, size, f);
        if (failure_has(f->what))
            mk_append(text, size, " (%.*s)", FIELD(f->what));
    }
}

/* ---- a job's records ---- */

enum { SILENT_NAMED = 8 /* ranks, at most */ };

int failure_case_open(struct failure_case *c, uint32_t world)
{
    *c = (struct failure_case){.ranks = calloc(world, sizeof *c->ranks), .world = world};
    return c->ranks ? 0 : -ENOMEM;
}

void failure_case_close(struct failure_case *c)
{
    free(c->ranks);
    memset(c, 0, sizeof *c);
}

/* How well a record explains why the job stood still when rank `lost` went: a wait for its own
 * chunk is best. */
static uint32_t failure_evidence(const struct mk_failure *f, uint32_t lost)
{
    if (f->op >= MK_OPS || !failure_says_what(f))
        return 0;
    return 1 + (f->chunk != UINT32_MAX) + 2 * (f->producer == lost);
}

static int failure_is_wait(const struct mk_failure *f)
{
    return f->kind == MK_FAIL_TIMEOUT || f->kind == MK_FAIL_NETWORK;
}

/* The rank whose next step a wait is for. */
static uint32_t failure_awaited(const struct mk_failure *f)
{
    return f->kind == MK_FAIL_TIMEOUT && f->relay != UINT32_MAX ? f->relay : f->producer;
}

/* A put that failed proves that its peer is out of reach, also where that peer waits itself and
 * however long the put took. */
static int failure_is_proof(const struct mk_failure *f)
{
    return f->kind == MK_FAIL_NETWORK && f->status;
}

static uint64_t failure_weight(const struct mk_failure *f)
{
    return failure_is_proof(f) ? UINT64_MAX : f->waited_ns;
}

/* Whether the rank that a wait names waited itself, and not only briefly when the end cut it
 * short. */
static int failure_is_explained(const struct failure_case *c, const struct mk_failure *f)
{
    uint32_t rank = failure_awaited(f);
    if (failure_is_proof(f))
        return 0;
    return rank == f->rank || (rank < c->world && c->ranks[rank].waited_ns >= f->waited_ns / 2);
}

/* Notes which rank waited for which. Returns whether that is news. */
static int failure_note_wait(struct failure_case *c, const struct mk_failure *f)
{
    uint32_t rank = failure_awaited(f);
    int news = 0;
    if (!failure_is_wait(f) || f->rank >= c->world)
        return 0;
    if (failure_weight(f) > c->ranks[f->rank].waited_ns) {
        c->ranks[f->rank].waited_ns = failure_weight(f);
        news = 1;
    }
    if (rank < c->world && rank != f->rank &&
        failure_weight(f) > failure_weight(&c->ranks[rank].missed)) {
        c->ranks[rank].missed = *f;
        news = 1;
    }
    return news;
}

/* Whether this wait names a rank that hangs, by the records so far. */
static int failure_names_one(const struct failure_case *c, const struct mk_failure *f)
{
    return failure_awaited(f) < c->world && !failure_is_explained(c, f);
}

/* Where the kept wait names no rank, or a rank that waited too, puts in its place the longest wait
 * for one that did not, if there is one as long. Returns whether it did. */
static int failure_find_cause(struct failure_case *c)
{
    const struct mk_failure *cause = NULL;
    if (c->kept.kind != MK_FAIL_TIMEOUT || failure_names_one(c, &c->kept))
        return 0;
    for (uint32_t i = 0; i < c->world; i++) {
        const struct mk_failure *f = &c->ranks[i].missed;
        if (f->kind == MK_FAIL_NONE || failure_is_explained(c, f) ||
            failure_weight(f) < c->kept.waited_ns / 2)
            continue;
        if (!cause || failure_weight(f) > failure_weight(cause))
            cause = f;
    }
    if (cause)
        c->kept = *cause;
    return cause != NULL;
}

void failure_settle(struct failure_case *c)
{
    struct mk_failure *kept = &c->kept;
    if (kept->kind != MK_FAIL_TIMEOUT || failure_has(kept->detail) || failure_names_one(c, kept))
        return;
    uint32_t silent = 0, named = 0;
    for (uint32_t i = 0; i < c->world; i++)
        silent += !c->ranks[i].waited_ns;
    if (!silent || silent > SILENT_NAMED)
        return;
    for (uint32_t i = 0; i < c->world; i++)
        if (!c->ranks[i].waited_ns)
            mk_append(kept->detail, sizeof kept->detail, "%s%u",
                      !named++          ? silent > 1 ? "ranks " : "rank "
                      : named == silent ? " and "
                                        : ", ",
                      i);
    mk_append(kept->detail, sizeof kept->detail,
              silent > 1 ? " have not said what they wait for" : " has not said what it waits for");
}

int failure_is_final(const struct mk_failure *f)
{
    return f->kind == MK_FAIL_PEER_LOST ? f->evidence == FAILURE_BEST_EVIDENCE
                                        : f->kind != MK_FAIL_NETWORK && f->kind != MK_FAIL_TIMEOUT;
}

/* Adds another rank's wait to the loss of a rank, where it explains more than the record so far. */
static int failure_enrich(struct mk_failure *lost, const struct mk_failure *wait)
{
    uint32_t better = failure_evidence(wait, lost->producer);
    if (better <= lost->evidence)
        return 0;
    struct mk_failure merged = *wait;
    merged.kind = MK_FAIL_PEER_LOST;
    merged.producer = lost->producer;
    merged.evidence = better;
    merged.status = lost->status;
    memcpy(merged.detail, lost->detail, sizeof merged.detail);
    *lost = merged;
    return 1;
}

int failure_merge(struct failure_case *c, const struct mk_failure *later)
{
    struct mk_failure *kept = &c->kept, put;
    int news = failure_note_wait(c, later), changed = 0;
    if (kept->kind == MK_FAIL_NONE) {
        *kept = *later;
        changed = later->kind != MK_FAIL_NONE;
    } else if (kept->kind == MK_FAIL_TIMEOUT &&
               (later->kind == MK_FAIL_OVERFLOW || later->kind == MK_FAIL_ORDER)) {
        *kept = *later; /* why everybody waits */
        changed = 1;
    } else if (kept->kind == MK_FAIL_PEER_LOST && failure_is_wait(later)) {
        changed = failure_enrich(kept, later);
    } else if (kept->kind == MK_FAIL_NETWORK && later->kind == MK_FAIL_PEER_LOST &&
               later->producer == kept->producer) {
        /* The put failed because its peer had gone: that is the news, and the put adds its
         * chunk. */
        put = *kept;
        *kept = *later;
        failure_enrich(kept, &put);
        changed = 1;
    } else {
        changed = failure_find_cause(c);
    }
    return changed ? FAILURE_CHANGED : news ? FAILURE_NOTED : FAILURE_OLD;
}

#include "core/failure.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A sentence under construction: what does not fit is cut, the end is always terminated. */
struct sentence {
    char *text;
    size_t size, used;
};

__attribute__((format(printf, 2, 3))) static void say(struct sentence *s, const char *format, ...)
{
    if (s->used + 1 >= s->size)
        return;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(s->text + s->used, s->size - s->used, format, args);
    va_end(args);
    if (n > 0)
        s->used += (size_t)n < s->size - s->used ? (size_t)n : s->size - s->used - 1;
}

/* The record may have come from another process: its strings need not be terminated. */
#define FIELD(array) (int)strnlen(array, sizeof(array)), array

static int has(const char *string)
{
    return string[0] != '\0';
}

static void say_who(struct sentence *s, const struct mk_failure *f)
{
    if (f->op >= MK_OPS)
        say(s, "rank %u", f->rank);
    else if (f->cta == UINT32_MAX)
        say(s, "rank %u's proxy", f->rank);
    else
        say(s, "rank %u CTA %u (%s)", f->rank, f->cta, plan_role_name((enum mk_role)f->role));
}

/* "chunk 3 of rank 5's A in epoch 7 (flag 12 saw 6, wants 7)", as much of it as is known. */
static void say_what(struct sentence *s, const struct mk_failure *f)
{
    if (has(f->what))
        say(s, "%.*s", FIELD(f->what));
    else if (f->chunk != UINT32_MAX)
        say(s, "chunk %u of rank %u", f->chunk, f->producer);
    else if (f->flag != UINT32_MAX)
        say(s, "flag %u", f->flag);
    else
        say(s, "rank %u", f->producer);
    if (f->op < MK_OPS && f->epoch)
        say(s, " in epoch %llu", (unsigned long long)f->epoch);
    if (f->flag != UINT32_MAX)
        say(s, " (flag %u saw %llu, wants %llu)", f->flag, (unsigned long long)f->seen,
            (unsigned long long)f->wanted);
}

static void say_detail(struct sentence *s, const struct mk_failure *f)
{
    if (has(f->detail))
        say(s, ": %.*s", FIELD(f->detail));
    if (f->status)
        say(s, "%s %d", has(f->detail) ? ", status" : ": status", f->status);
}

static int says_what(const struct mk_failure *f)
{
    return has(f->what) || f->flag != UINT32_MAX || f->chunk != UINT32_MAX;
}

void failure_sentence(const struct mk_failure *f, char *text, size_t size)
{
    struct sentence s = {text, size, 0};
    if (size)
        text[0] = '\0';
    if (f->op < MK_OPS)
        say(&s, "%s: ", plan_op_name((enum mk_op)f->op));
    switch (f->kind) {
    case MK_FAIL_NONE:
        say(&s, "nothing failed");
        break;
    case MK_FAIL_TIMEOUT:
        say_who(&s, f);
        say(&s, " waited %.1f s for ", (double)f->waited_ns / 1e9);
        say_what(&s, f);
        if (f->op < MK_OPS && f->producer != UINT32_MAX && f->producer != f->rank)
            say(&s, "; rank %u should have produced it", f->producer);
        break;
    case MK_FAIL_PEER_LOST:
        say(&s, "rank %u is lost", f->producer);
        say_detail(&s, f);
        if (f->op < MK_OPS && says_what(f)) {
            say(&s, "; ");
            say_who(&s, f);
            say(&s, " was waiting for ");
            say_what(&s, f);
        }
        break;
    case MK_FAIL_NETWORK:
        say_who(&s, f);
        say(&s, " could not reach rank %u", f->producer);
        if (says_what(f)) {
            say(&s, " with ");
            say_what(&s, f);
        }
        say_detail(&s, f);
        break;
    case MK_FAIL_DEVICE:
        say(&s, "the device of rank %u failed", f->rank);
        say_detail(&s, f);
        break;
    case MK_FAIL_SETUP:
        say(&s, "rank %u could not go on", f->rank);
        say_detail(&s, f);
        break;
    default:
        say_who(&s, f);
        say(&s, " met something that nobody should have made");
        say_detail(&s, f);
        if (has(f->what))
            say(&s, " (%.*s)", FIELD(f->what));
    }
}

/* How well a record says what the job stood still for when rank `lost` went: its own chunk is best. */
static uint32_t evidence(const struct mk_failure *f, uint32_t lost)
{
    if (f->op >= MK_OPS || !says_what(f))
        return 0;
    return 1 + (f->chunk != UINT32_MAX) + 2 * (f->producer == lost);
}

/* Whether `later` says why the rank that `kept` blames could not deliver: that rank waited too, about as
 * long, for another. A rank that blames itself (its own puts do not leave) is explained by whoever blames
 * another. */
static int explains(const struct mk_failure *kept, const struct mk_failure *later)
{
    if (kept->kind != MK_FAIL_TIMEOUT || (later->kind != MK_FAIL_TIMEOUT && later->kind != MK_FAIL_NETWORK))
        return 0;
    if (later->producer == UINT32_MAX || later->producer == later->rank || later->producer == kept->producer)
        return 0;
    if (later->rank != kept->producer && kept->producer != kept->rank)
        return 0;
    return (later->kind == MK_FAIL_NETWORK && later->status) || later->waited_ns >= kept->waited_ns / 2;
}

int failure_is_final(const struct mk_failure *f)
{
    return f->kind == MK_FAIL_PEER_LOST ? f->evidence == FAILURE_BEST_EVIDENCE
                                        : f->kind != MK_FAIL_NETWORK && f->kind != MK_FAIL_TIMEOUT;
}

int failure_merge(struct mk_failure *kept, const struct mk_failure *later)
{
    if (kept->kind == MK_FAIL_NONE) {
        *kept = *later;
        return later->kind != MK_FAIL_NONE;
    }
    if (kept->kind == MK_FAIL_NETWORK && later->kind == MK_FAIL_PEER_LOST &&
        later->producer == kept->producer) {
        /* The put failed because its peer had gone: that is the news, and the put says what it was good for.
         */
        struct mk_failure put = *kept;
        *kept = *later;
        failure_merge(kept, &put);
        return 1;
    }
    if (kept->kind == MK_FAIL_PEER_LOST && later->kind == MK_FAIL_PEER_LOST &&
        later->producer == kept->producer && later->evidence > kept->evidence &&
        later->evidence <= FAILURE_BEST_EVIDENCE) {
        *kept = *later; /* enriched elsewhere */
        return 1;
    }
    if (explains(kept, later)) {
        *kept = *later;
        return 1;
    }
    if (kept->kind != MK_FAIL_PEER_LOST || (later->kind != MK_FAIL_TIMEOUT && later->kind != MK_FAIL_NETWORK))
        return 0;
    uint32_t better = evidence(later, kept->producer);
    if (better <= kept->evidence)
        return 0;
    struct mk_failure merged = *later;
    merged.kind = MK_FAIL_PEER_LOST;
    merged.producer = kept->producer;
    merged.evidence = better;
    merged.status = kept->status;
    memcpy(merged.detail, kept->detail, sizeof merged.detail);
    *kept = merged;
    return 1;
}

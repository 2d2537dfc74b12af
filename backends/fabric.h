/* A fabric moves bytes between nodes. Each rank has one. Implementations: verbs RC
 * (backends/verbs), EFA SRD (backends/efa) and, for the deterministic executor, a model (sim/). One
 * thread at a time uses it (the proxy). Only open and connect block, for the timeout of their
 * configuration at most. */
#pragma once

#include "core/comm/comm.h"

struct fabric;

/* A put, as the proxy asks for it: write bytes, then set the flag. Offsets in the symmetric heaps,
 * bytes. Data before flag: the peer sees the flag's new value only after all of the bytes (must).
 * bytes == 0: the flag alone.
 *
 * Puts of one flag to one peer land in the order in which they were made (must), those of different
 * flags in any order. (A CTA that waits for launch e also accepts the flag's value e + 1: if that
 * landed first, the CTA would read before the bytes of e are there, and then the flag would go
 * back.) Schedules drain their puts before a launch ends if nothing else keeps two puts of one flag
 * apart; the explorer checks that with a fabric that orders nothing. */
struct fabric_put {
    uint32_t peer; /* rank */
    uint32_t flag; /* index; it lies at heap offset 8 * flag */
    uint64_t value;
    uint64_t source, destination, bytes;
    uint64_t cookie; /* comes back in the completion */
};

/* Whether a put's bytes lie in the data of both heaps (the peer's is `to`), and its flag in the
 * peer's flags: flags are no data. */
static inline int fabric_put_inside(const struct fabric_put *p, uint64_t flag_bytes, uint64_t bytes,
                                    uint64_t to_flag_bytes, uint64_t to_bytes)
{
    return p->bytes <= bytes && p->source <= bytes - p->bytes && p->bytes <= to_bytes &&
           p->destination <= to_bytes - p->bytes && 8ull * p->flag < to_flag_bytes &&
           (!p->bytes || (p->source >= flag_bytes && p->destination >= to_flag_bytes));
}

struct fabric_completion {
    uint64_t cookie;
    uint32_t peer;   /* of FABRIC_NO_PUT whose status is not 0: the rank that it is about */
    int status;      /* 0, or the provider's completion status */
    char detail[64]; /* its name where status is not 0 */
};

/* The cookie of a completion that belongs to no put. Status 0: arrivals were counted, so more may
 * come and the caller should go on polling. Else the peer's puts can no longer be received or
 * acknowledged, or the NIC has failed. */
#define FABRIC_NO_PUT UINT64_MAX

struct fabric_ops {
    const char *name;

    /* Bytes of the address that a rank hands to its peers; at most 4096. */
    size_t (*address_bytes)(struct fabric *f);
    void (*address)(struct fabric *f, void *out);

    /* Connects to `peers` given every rank's address, world * address_bytes. 0 or -errno with
     * *error. */
    int (*connect)(struct fabric *f, const void *addresses, const uint32_t *peers, uint32_t count,
                   char *error, size_t size);

    /* Warms up: sends every peer one message over all lanes that will carry puts, so that delays
     * and errors of a first message come before a kernel waits for it. After a barrier behind every
     * rank's connect. Called until it returns 0, or -errno other than -EAGAIN with *error. NULL:
     * connecting has done that. */
    int (*warm_up)(struct fabric *f, char *error, size_t size);

    /* Starts a put. 0; -EAGAIN: no room now, poll first; other -errno: the fabric is broken (error
     * text in detail of the completion that follows, or none). Each put that returned 0 gives
     * exactly one completion, when its source may be overwritten and the peer's NIC has
     * acknowledged it. Completions of one peer come in the order of its puts. Flags never go back
     * (-EINVAL, where it is noticed). */
    int (*put)(struct fabric *f, const struct fabric_put *put);

    /* Rings the doorbell for puts collected since the last call, where the fabric batches; may do
     * nothing. 0 or -errno. */
    int (*flush)(struct fabric *f);

    /* Collects up to `max` completions; returns how many. Also does receiving work (SRD: counts
     * arrivals and raises their flags), so a wait for a flag needs a thread that polls. */
    int (*poll)(struct fabric *f, struct fabric_completion *out, int max);

    void (*close)(struct fabric *f);

    /* The devices and limits in use, for people. NULL: nothing to say. */
    void (*describe)(const struct fabric *f, char *text, size_t size);
};

/* The first member of every fabric. */
struct fabric {
    const struct fabric_ops *ops;
};

/* Which warp of a block does what: a table per engine and tile source, from which a kernel's entry
 * tells each warp its role. A row says where its warps wait and arrive, too; how many arrivals an
 * mbarrier is initialised with is counted in these rows, and so is how many registers there are. */
#pragma once

#include "kernels/engine/ptx.cuh"

enum engine_role {
    ENGINE_PRODUCER, /* fills the ring's stages */
    ENGINE_GATHERER, /* fills them, too, with rows of A that lie apart */
    ENGINE_FREE,     /* left to the source, whose auxiliary_warp has a role for it or none */
    ENGINE_CONSUMER, /* multiplies what is in the ring */
    /* of auxiliary warps: which and how many, a launch's plan decides */
    ENGINE_DESCRIBER, /* says what others need to know of a tile */
    ENGINE_SENDER,    /* sends and announces what consumers have stored */
};

/* Everything at which warps of a block wait for others of it, or, in a cluster, of the other CTA. */
enum block_mbarrier {
    MBAR_FULL,
    MBAR_EMPTY, /* a stage of the ring: it is filled; its readers are done */
    MBAR_GIVEN,
    MBAR_TAKEN, /* sums of a CTA that has half of K: they are in the other one; have been added there */
    MBAR_TICKET,
    MBAR_TICKET_READ, /* a tile that the producer took from a table: it is known; all have read it */
    MBAR_WORK,
    MBAR_WORK_READ, /* what is said of a tile: it is there; all are done with it */
    MBAR_STORED,    /* a place of the first consumer's rows of a tile: they are stored */
    MBAR_STORED_SECOND,
    MBAR_SENT, /* the same rows: they have been sent, or what was waited for is here */
    MBAR_SENT_SECOND,
    MBAR_KEYS,
    MBAR_KEYS_READ, /* a stage of attention's K, of V, and the place for queries: as FULL and EMPTY */
    MBAR_VALUES,
    MBAR_VALUES_READ,
    MBAR_QUERIES,
    MBAR_QUERIES_READ,
    MBAR_KINDS
};
static_assert(MBAR_KINDS <= 32, "sets are words");

/* A set of them. */
#define MBAR_SET(barrier) (1u << (barrier))

/* Where the warps of a role wait and, once in each phase, arrive. Sets. */
struct warp_meeting {
    uint32_t waits;
    uint32_t one;  /* one thread of the role arrives */
    uint32_t warp; /* one of each warp */
    uint32_t lane; /* all lanes */
};

/* Both. */
__host__ __device__ constexpr struct warp_meeting warp_also(struct warp_meeting a,
                                                            struct warp_meeting b)
{
    return {a.waits | b.waits, a.one | b.one, a.warp | b.warp, a.lane | b.lane};
}

enum : uint32_t { WARP_CHOSEN = UINT32_MAX };

struct warp_role {
    enum engine_role role;
    uint32_t first, warps; /* of the block. first: WARP_CHOSEN, a launch's plan chooses them */
    uint32_t registers;    /* of a thread, where warpgroups share them out anew; else 0 */
    struct warp_meeting at;
};

/* Rows in the order of their warps, chosen ones last; rows without warps say nothing. */
struct warp_table {
    struct warp_role of[7];

    /* Arrivals in a phase of a barrier: of all rows, and of chosen ones of what each warp does for
     * no warp. */
    __host__ __device__ constexpr uint32_t arrivals(uint32_t barrier) const
    {
        uint32_t sum = 0;
        for (const struct warp_role &r : of) {
            const uint32_t warps = r.first == WARP_CHOSEN ? 0 : r.warps;
            sum += (r.warps && r.at.one >> barrier & 1) + (r.at.warp >> barrier & 1) * warps +
                   (r.at.lane >> barrier & 1) * warps * 32;
        }
        return sum;
    }

    /* And for each chosen warp. */
    __host__ __device__ constexpr uint32_t arrivals_chosen(uint32_t barrier) const
    {
        uint32_t sum = 0;
        for (const struct warp_role &r : of)
            if (r.first == WARP_CHOSEN && r.warps)
                sum += (r.at.warp >> barrier & 1) + (r.at.lane >> barrier & 1) * 32;
        return sum;
    }

    /* Whether the rows have all warps of a block of so many, each once. */
    __host__ __device__ constexpr bool covers(uint32_t warps) const
    {
        uint32_t next = 0;
        for (const struct warp_role &r : of) {
            if (r.first == WARP_CHOSEN || !r.warps)
                continue;
            if (r.first != next)
                return false;
            next += r.warps;
        }
        return next == warps;
    }

    /* The first warp of a role, and the one behind its last. */
    __host__ __device__ constexpr uint32_t first_of(enum engine_role role) const
    {
        for (const struct warp_role &r : of)
            if (r.role == role && r.warps)
                return r.first;
        return 0;
    }
    __host__ __device__ constexpr uint32_t end_of(enum engine_role role) const
    {
        uint32_t end = 0;
        for (const struct warp_role &r : of)
            if (r.role == role && r.warps)
                end = r.first + r.warps;
        return end;
    }

    /* Whether somebody arrives wherever somebody waits, and waits wherever somebody arrives. */
    __host__ __device__ constexpr bool meets() const
    {
        uint32_t waits = 0, arrives = 0;
        for (const struct warp_role &r : of)
            if (r.warps) {
                waits |= r.at.waits;
                arrives |= r.at.one | r.at.warp | r.at.lane;
            }
        return waits == arrives;
    }

    /* Whether there are the registers that the rows want, where a launch gives so many to a thread, and all
     * warps of a warpgroup want the same. */
    __host__ __device__ constexpr bool shares(uint32_t given) const
    {
        uint32_t wanted = 0, all = 0, before = 0;
        for (const struct warp_role &r : of) {
            if (r.first == WARP_CHOSEN || !r.warps)
                continue;
            if (r.first % 4 && r.registers != before)
                return false;
            before = r.registers;
            wanted += r.warps * r.registers;
            all += r.warps * given;
        }
        return wanted <= all;
    }
};

/* Of a type with such a `table`: what an mbarrier of each kind is initialised with. chosen: warps of
 * the role that a launch's plan chooses. */
template <class roles, enum block_mbarrier barrier> PTX_FN uint32_t warp_arrivals(uint32_t chosen)
{
    constexpr uint32_t fixed = roles::table.arrivals(barrier),
                       each = roles::table.arrivals_chosen(barrier);
    return fixed + each * chosen;
}

template <class roles, enum block_mbarrier barrier> PTX_FN constexpr uint32_t warp_arrivals(void)
{
    static_assert(roles::table.arrivals(barrier) > 0 && !roles::table.arrivals_chosen(barrier),
                  "somebody arrives, and the plan does not say how many");
    return roles::table.arrivals(barrier);
}

/* EFA's SRD queue pairs: scalable reliable datagrams. What their files share, beside nic.h.
 *
 * A request names its target itself (address handle, QP number, qkey). It is delivered exactly once
 * or fails, and nothing is delivered in order: a message is held back by a random time up to
 * `reorder`, leaves in fragments whose order is drawn, between fragments of other messages, and
 * completes when all of it has arrived. An error is the request's own; the QP goes on. All of it
 * runs under context->lock but for building a batch, which batch_lock guards. */
#pragma once

#include "nic.h"

enum {
    SRD_MAX_SGE = 2,
    SRD_INLINE = 32,     /* bytes of a SEND; RDMA takes none */
    SRD_MAX_SEND = 8192, /* one packet */
    SRD_NO_AHN = 0xffff, /* the slid of a completion whose sender has no address handle here */
    SRD_SLOT_BITS = 14,  /* a token, which travels as psn, is serial << 14 | slot */
    SRD_BUCKETS = 64,
    SRD_FRAGMENT_BYTES = 4096, /* at least; a shorter message is one */
};

struct softnic_ah {
    struct ibv_ah ibv;
    struct softnic_ah *next; /* in context->ahs */
    int device;              /* of the peer */
    uint16_t number;
};

enum srd_state { SRD_QUEUED, SRD_SENT, SRD_ANSWERED };

struct srd_request {
    struct softnic_wqe wqe;
    int device; /* the target's */
    uint32_t qpn, qkey;
    enum srd_state state;
    uint32_t serial; /* counts the slot's uses, so that a late answer finds no request */
    uint32_t at;     /* place in srd->active */
    uint32_t fragments, fragment_bytes, sent;
    uint32_t first, step; /* the order of its fragments: (first + i * step) mod fragments */
    uint32_t arrived;     /* READ: bytes */
    bool answered;        /* then `status` says how it ends */
    enum ibv_wc_status status;
    struct softnic_link *link;
    uint64_t when,
        /* ns: not before; when an unreachable peer is given up, 0: it is not unreachable */
        give_up;
    unsigned rnr_left;
};

/* A message of which some fragments have arrived. */
struct srd_partial {
    struct srd_partial *next;
    struct softnic_link *link;
    uint32_t qpn, token;
    uint64_t total, arrived;
    enum softnic_nak refused; /* 0: not */
};

struct softnic_srd {
    bool unsolicited;          /* an incoming write-with-immediate takes no receive */
    struct srd_request *slots; /* [sq_size] */
    uint32_t *free, free_count;
    uint32_t *active, active_count; /* slots in use */
    uint32_t *due;                  /* scratch of the pump */
    struct srd_request *batch;      /* [sq_size]; qp->batch_count of them are built */
    struct srd_partial *partials[SRD_BUCKETS];
};

static inline uint32_t softnic_srd_token(const struct softnic_qp *qp, const struct srd_request *r)
{
    return (r->serial << SRD_SLOT_BITS | (uint32_t)(r - qp->srd->slots)) & SOFTNIC_MESSAGE_MASK;
}

static inline uint32_t softnic_srd_below(struct softnic_context *ctx, uint32_t bound)
{
    return (uint32_t)(softnic_random_unit(ctx) * bound);
}

/* srd_qp.c */
int softnic_srd_create(struct softnic_qp *qp, bool unsolicited); /* 0 or ENOMEM */
void softnic_srd_destroy(struct softnic_qp *qp);
void softnic_srd_reset(struct softnic_qp *qp);
void softnic_srd_link_gone(struct softnic_context *ctx, const struct softnic_link *link);
void softnic_srd_forget_partials(struct softnic_qp *qp,
                                 const struct softnic_link *link); /* NULL: of all links */
bool softnic_srd_transition_valid(enum ibv_qp_state from, enum ibv_qp_state to, int mask);
bool softnic_srd_knows(const struct softnic_context *ctx, int device);
uint16_t softnic_srd_ahn(const struct softnic_context *ctx, int device);

/* srd_post.c */
void softnic_srd_post_setup(struct softnic_qp *qp);
/* A request of the batch that wr_start began: its send queue entry, or NULL where there is no room
 * or the batch has failed. */
struct softnic_wqe *softnic_srd_post_begin(struct softnic_qp *qp, enum ibv_wr_opcode opcode);

/* srd_request.c. start_over: not before `when` (ns), as if nothing of it had left; finish: it has
 * been answered, or will not be, and completes when it has left whole and the shaped time has
 * come */
void softnic_srd_commit(struct softnic_qp *qp, const struct srd_request *request);
void softnic_srd_start_over(struct softnic_qp *qp, struct srd_request *r, uint64_t when);
void softnic_srd_finish(struct softnic_qp *qp, struct srd_request *r, uint64_t now);
void softnic_srd_complete(struct softnic_qp *qp, struct srd_request *r, enum ibv_wc_status status);
void softnic_srd_flush(struct softnic_qp *qp); /* the QP is in error: everything ends */

/* srd_send.c */
void softnic_srd_pump(struct softnic_qp *qp);
void softnic_srd_link_lost(struct softnic_qp *qp, struct softnic_link *link);

/* srd_response.c */
void softnic_srd_response(struct softnic_link *link, struct softnic_qp *qp,
                          const struct softnic_message *message);

/* srd_receive.c */
void softnic_srd_request(struct softnic_link *link, struct softnic_qp *qp,
                         const struct softnic_message *message);

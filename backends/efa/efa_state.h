/* Inside the efa fabric: its devices and its bookkeeping. */
#pragma once

#include "backends/efa/efa.h"
#include "backends/efa/efa_count.h"
#include "backends/verbs/verbs_device.h"

#define EFA_MAGIC 0x314146454b4d0001ull /* and version; also shows a peer of other byte order */
/* Messages beyond the window that a peer may have in flight: its credits. */
#define EFA_CREDITS 8u

/* Words of the control region that one peer has: a landing place per number, and one for
 * credits. */
#define EFA_PLACES (EFA_WINDOW + 1)
#define EFA_CREDIT_PLACE EFA_WINDOW

/* A rank's address, for its peers. Little-endian hosts only, like all of RDMA with GPUs; the magic
 * catches others. */
struct efa_address {
    uint64_t magic;
    uint64_t heap_base, heap_bytes, flag_bytes;
    /* uint64_t [peer_count][EFA_PLACES], by the peer's place in this rank's list */
    uint64_t landing;
    uint32_t rank, peer_count, device_count, window;
    uint32_t provider; /* enum verbs_provider */
    uint32_t unsolicited;
    struct efa_address_device {
        uint8_t gid[16];
        uint32_t qpn[2]; /* with receives, unsolicited (0: none) */
        uint32_t qkey, data_rkey, control_rkey, max_rdma;
    } devices[NIC_RAILS_MAX];
};

/* One write with immediate, kept until the device has taken it. */
struct efa_write {
    uint64_t id, from, to;
    struct ibv_ah *ah;
    uint32_t bytes, lkey, rkey, qpn, qkey, imm;
};

/* A sender to this device, as completions name it. */
struct efa_source {
    uint32_t ahn, qpn, peer;
};

struct efa_handle {
    union ibv_gid gid;
    struct ibv_ah *ah;
    uint32_t ahn;
};

struct efa_device {
    struct verbs_device verbs;
    uint32_t max_sq, max_rq, max_rdma, caps;
    struct mr_set mr;
    struct ibv_mr *control;
    struct ibv_cq *send_cq, *recv_cq;
    struct ibv_qp *qps[2]; /* as in efa_address; connecting leaves one */
    struct ibv_qp *qp;
    struct ibv_qp_ex *ex;
    uint32_t qkey;
    struct efa_handle *handles; /* one per device of peers */
    uint32_t handle_count;
    struct efa_source *sources; /* [peer_count], sorted */
    struct efa_write *writes;   /* ring of `depth` */
    uint64_t queued, posted, completed;
    uint32_t depth;
    uint32_t batch;    /* writes handed over at once; fewer when the device has said ENOMEM */
    int held;          /* it has, and nothing has completed since */
    uint32_t receives; /* to be posted */
};

/* A put on its way, by its number modulo EFA_WINDOW. */
struct efa_flight {
    uint64_t cookie;
    uint32_t flag;
    uint32_t parts, left; /* messages; those not acknowledged yet */
    int32_t status;       /* of the first that failed */
};

/* How device i of this rank reaches the peer. */
struct efa_lane {
    struct ibv_ah *ah;
    uint32_t qpn, qkey, data_rkey, control_rkey, max_rdma;
};

struct efa_peer {
    uint32_t rank;
    struct efa_lane lanes[NIC_RAILS_MAX];
    uint32_t lane_count, turn;
    uint64_t heap_base, heap_bytes, flag_bytes, landing;
    uint32_t window; /* messages that the peer grants */

    struct efa_flight flights[EFA_WINDOW];
    uint64_t started, reported; /* puts; reported: completions handed out */
    uint64_t counted;           /* puts that the peer has acknowledged as whole */
    uint32_t outstanding;       /* messages of the puts beyond those */
    /* [flags of the peer]: last value put << 1 | 1 while not acknowledged */
    uint64_t *sent;

    struct efa_counter arrivals;
    int credit_flying;
    int broken;
    int32_t status;
    char detail[64]; /* why it broke */
};

enum { EFA_RAISES = 32 };

/* Flags on their way into memory that the CPU does not write: made, copies of them started,
 * ended. */
struct efa_raises {
    const struct mr_memory_ops *owner; /* NULL: the CPU writes them */
    /* [EFA_RAISES], pinned: the values to copy, by number modulo EFA_RAISES */
    uint64_t *words;
    uint32_t flags[EFA_RAISES];
    int64_t tickets[EFA_RAISES];
    uint64_t made, started, ended;
};

struct efa {
    struct fabric fabric; /* first */
    struct efa_api api;
    struct mr_heap heap;
    struct efa_options options;
    uint32_t rank, world, peer_count, device_count;
    uint32_t window; /* messages granted to each peer */
    struct efa_device devices[NIC_RAILS_MAX];
    struct efa_peer *peers;
    uint32_t *peer_of_rank; /* [world], NIC_NO_PEER */
    uint64_t flags;         /* that this heap has */
    struct efa_raises raises;
    /* landing [peer_count][EFA_PLACES], then the words to be written to the peers', in the same
     * form */
    uint64_t *control;
    size_t control_bytes;
    int unsolicited, connected;
    /* lanes of all peers: with a warm-up message sent; not acknowledged yet */
    uint32_t warm_up_sent, warm_up_left;
    uint32_t next; /* peer with the first turn to hand out completions */
    uint32_t idle_polls;
    int useless;     /* a device or queue has failed for good */
    char event[128]; /* which, and how */
    uint32_t alarm;  /* peer that a completion of no put is to report; NIC_NO_PEER: none */
    int32_t alarm_status;
    char alarm_detail[64];
};

static inline struct efa *efa_of(struct fabric *fabric)
{
    return (struct efa *)(void *)fabric;
}

static inline uint64_t *efa_outgoing(struct efa *e, uint32_t peer, uint32_t place)
{
    return e->control + (uint64_t)(e->peer_count + peer) * EFA_PLACES + place;
}

/* efa_device.c: opens, makes queues, finds the sender of a message. 0 or -errno with a sentence. */
int efa_device_open(struct efa *e, struct efa_device *d, const char *name, char *error,
                    size_t size);
int efa_device_queues(struct efa *e, struct efa_device *d, char *error, size_t size);
int efa_device_connect(struct efa *e, struct efa_device *d, char *error, size_t size);
int efa_device_handle(struct efa *e, struct efa_device *d, const uint8_t *gid,
                      struct efa_handle *out, char *error, size_t size);
uint32_t efa_device_source(const struct efa_device *d, uint32_t count, uint32_t ahn, uint32_t qpn);
void efa_device_close(struct efa *e, struct efa_device *d);

/* efa_put.c: the sending side. */
int efa_put(struct fabric *fabric, const struct fabric_put *put);
int efa_flush(struct fabric *fabric);
int efa_warm_up(struct fabric *fabric, char *error, size_t size);
void efa_send_credits(struct efa *e);
void efa_collect(struct efa *e, struct efa_device *d);
/* Ends a peer where no put of this rank says that it failed: a completion of no put does. */
void efa_alarm(struct efa *e, struct efa_peer *peer, int32_t status, const char *detail);
void efa_break_all(struct efa *e, const char *detail);

/* efa_receive.c: the receiving side, and the poll of the whole fabric. */
int efa_poll(struct fabric *fabric, struct fabric_completion *out, int max);
void efa_post_receives(struct efa *e, struct efa_device *d);

/* efa_raise.c: raises flags, each one's in the order of the calls, at most `room` of them before
 * the next advance, which says whether some are still on their way. open: 0, -ENOMEM, or
 * -EOPNOTSUPP with a sentence. */
int efa_raise_open(struct efa *e, char *error, size_t size);
void efa_raise_close(struct efa *e);
uint32_t efa_raise_room(const struct efa *e);
void efa_raise(struct efa *e, const struct efa_raise *r);
int efa_raise_advance(struct efa *e);

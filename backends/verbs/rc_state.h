/* Inside the verbs fabric: its devices, its QPs and its bookkeeping. */
#pragma once

#include "backends/verbs/verbs_device.h"
#include "backends/verbs/verbs_rc.h"

#define RC_MAGIC 0x314352524b4d0003ull /* and version; also shows a peer of other byte order */
#define RC_ADDRESS_MAX 4096u
#define RC_MAX_QPS 64u /* to one peer, on all devices */
/* the QP in a wr_id, where it is a control QP; the low half is the peer's index */
#define RC_CONTROL UINT32_C(0xffffff)

enum { RC_CONTROL_WORDS = 2 /* words of a QP */, RC_CONTROL_DEPTH = 2 * RC_MAX_QPS };

/* How one device of a rank is reached. */
struct rc_port {
    uint32_t data_rkey, flag_rkey;
    uint16_t lid;
    uint8_t link_layer, mtu; /* enum ibv_mtu */
    uint8_t gid[16];
};

/* A rank's address, for its peers. Little-endian hosts only, as everywhere RDMA NICs are used with
 * GPUs; the magic catches others. */
struct rc_address {
    uint64_t magic;
    uint64_t heap_base, heap_bytes, flag_bytes;
    uint32_t rank, peer_count, qps; /* qps: QPs to each peer; number i is on port i modulo rails */
    uint32_t psn;
    uint32_t provider; /* enum verbs_provider */
    uint32_t rails;    /* devices */
    /* rc_recover.c: where peers write control words, on the first device; 0: no QP is recovered */
    uint64_t control_base;
    uint32_t control_rkey, unused;
    struct rc_port ports[NIC_RAILS_MAX];
    /* [peer_count][qps], peers in this rank's order; then [peer_count], the control QPs */
    uint32_t qp_numbers[];
};

/* A put on its way, in its peer's order. */
struct rc_flight {
    uint64_t cookie;
    int32_t status;
    uint32_t done;
};

/* One work request's place. Rings of `depth` entries, by sequence modulo depth. */
struct rc_slot {
    struct ibv_send_wr wr;
    struct ibv_sge sge;
    uint64_t value;   /* a flag's new value */
    uint64_t packets; /* of this QP's generation, to its end */
};

struct rc_put {
    uint64_t flight; /* number in the peer's order */
    uint32_t wrs;
};

/* How far the recovery of a QP is (rc_recover.c). */
enum rc_recovery {
    RC_RUNNING,
    RC_WAITING, /* for the port */
    RC_STOPPED, /* this end has sent the packet that it waits for, and waits for the peer's */
    RC_STARTED, /* this end has said that the peer may send, and waits for the same */
};

struct rc_qp {
    struct ibv_qp *qp;
    struct rc_rail *rail;
    uint32_t peer;  /* index */
    uint32_t index; /* in rc->qps */
    /* The other end. */
    struct rc_port port;
    uint32_t remote_number, remote_psn;
    uint32_t mtu;
    /* Recovery. */
    enum rc_recovery recovery;
    uint32_t generation;  /* times recovered */
    uint64_t packets;     /* queued in this generation */
    uint64_t deadline;    /* ns: recovered by then, or broken */
    uint64_t looked;      /* ns: when the port was last asked for */
    uint32_t seen_active; /* looks in a row that found it active */
    struct rc_slot *slots;
    /* the slots, registered, where the device has no inline data; else NULL */
    struct ibv_mr *values;
    uint64_t wr_queued, wr_posted; /* work requests made; handed to the device */
    uint64_t wr_retired;           /* known to be over */
    struct rc_put *puts;           /* ring of `depth` */
    uint64_t put_queued, put_retired;
    uint32_t unsignaled; /* puts since the last signaled one */
    int broken, dirty;
};

struct rc_peer {
    uint32_t rank;
    struct rc_qp *qps;   /* of rc->qps_per_peer */
    uint32_t qps_in_use; /* connected: the smaller number of both ends */
    int broken, ready;   /* ready: stands in rc->ready */
    uint64_t heap_base, heap_bytes, flag_bytes;
    struct rc_flight *flights; /* ring of rc->flight_mask + 1 */
    uint64_t started, reported;
    char detail[64];      /* why it broke */
    int32_t status;       /* the completion status that `detail` belongs to */
    struct rc_qp control; /* only its QP and its path; qp NULL: there is none */
    /* address of this rank's control words at the peer; 0: the peer recovers no QP */
    uint64_t control_to;
    uint32_t control_rkey;
    int control_broken;
};

/* A device, with the heap registered, and one CQ for all QPs on it. */
struct rc_rail {
    struct verbs_device device;
    struct mr_set mr;
    struct ibv_cq *cq;
    uint32_t max_inline;
};

struct rc {
    struct fabric fabric; /* first */
    const struct verbs_api *api;
    struct verbs_api loaded; /* where none was given */
    struct rc_rail rails[NIC_RAILS_MAX];
    uint32_t rail_count;
    struct mr_heap heap;
    struct verbs_options options;
    uint32_t rank, world, peer_count;
    uint32_t qps_per_peer; /* made; number i on rail i modulo rail_count */
    uint32_t depth, psn;
    uint32_t max_message; /* the least of the devices */
    uint32_t mtu;         /* agreed, bytes; the least */
    uint64_t flight_mask;
    struct rc_peer *peers;
    struct rc_qp *qps;
    uint32_t *peer_of_rank; /* [world], NIC_NO_PEER */
    uint32_t *ready;        /* ring of peer_count: peers with their oldest put over */
    uint64_t ready_head, ready_tail;
    uint32_t *dirty; /* QPs with work requests to hand over */
    uint32_t dirty_count;
    uint32_t idle_polls, polls;
    /* index of the peer that a completion of no put is to report; NIC_NO_PEER: none */
    uint32_t alarm;
    struct ibv_mr *control_mr;
    /* [2][peer_count * qps_per_peer][2]: control words from the peers; those to the peers */
    uint64_t *control;
    uint64_t recovered; /* QPs */
};

/* rc_qp.c: makes a QP, brings it to RTS. 0 or -errno with a sentence. */
int rc_qps_create(struct rc *rc, char *error, size_t size);
struct ibv_qp *rc_qp_make(const struct rc *rc, struct rc_rail *rail, uint32_t depth);
int rc_qp_to_init(const struct verbs_device *d, struct ibv_qp *qp);
int rc_qp_connect(struct rc *rc, struct rc_qp *qp, const struct rc_address *peer,
                  const struct rc_port *port, uint32_t qp_number, char *error, size_t size);
/* from INIT to RTS */
int rc_qp_start(const struct rc *rc, const struct rc_qp *qp, char *error, size_t size);
uint8_t rc_timeout(const struct rc *rc, const struct verbs_device *d);
uint32_t rc_first_psn(uint32_t psn, uint32_t generation);
void rc_qps_destroy(struct rc *rc);

/* rc_put.c: the data path. */
int rc_put(struct fabric *fabric, const struct fabric_put *put);
int rc_flush(struct fabric *fabric);
int rc_poll(struct fabric *fabric, struct fabric_completion *out, int max);
/* the QP's puts before number `until` are over */
void rc_retire(struct rc *rc, struct rc_qp *q, uint64_t until, int status);
void rc_break(struct rc *rc, struct rc_qp *q, uint64_t number, int status, const char *detail);
uint64_t rc_wr_id(const struct rc_qp *q, uint64_t number);
void rc_post(struct rc *rc, struct rc_qp *q); /* the work requests that the QP has collected */

/* rc_recover.c: QPs that their own device has failed. */
int rc_recover_create(struct rc *rc, char *error, size_t size);
void rc_recover_destroy(struct rc *rc);
/* 1: the QP is going to be recovered */
int rc_recover_begin(struct rc *rc, struct rc_qp *q, enum ibv_wc_status why);
void rc_recover_step(struct rc *rc);

/* A softnic device, private to the files of this folder.
 *
 * Each ibv_open_device makes a `struct softnic_context`, which has its QPs, MRs, links to other
 * contexts and a progress thread. Locks: context->lock guards all of the context except the
 * contents of CQs; cq->lock guards these and is taken last. The progress thread releases
 * context->lock only to sleep and to copy bulk data. QPs and MRs that such a copy uses are pinned
 * by their `busy` counts; destroying one waits on context->idle until its count is 0. */
#pragma once

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* process_vm_readv, accept4, struct ucred */
#endif

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/uio.h>

#include <infiniband/verbs.h>

#include "cuda.h"
#include "frame.h"
#include "options.h"
#include "softnic.h"

/* verbs.h wraps these in macros of the same name; here they are defined. */
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_get_device_list

enum {
    /* a QP number is context id << 12 | index: unique on the host for one device */
    SOFTNIC_QP_BITS = 12,
    SOFTNIC_MAX_QP = 1 << SOFTNIC_QP_BITS,
    SOFTNIC_MAX_CONTEXT = 1 << (24 - SOFTNIC_QP_BITS),
    SOFTNIC_MAX_WR = 16384,
    SOFTNIC_MAX_SGE = SOFTNIC_MAX_SEGMENTS,
    SOFTNIC_MAX_INLINE = 256,
    SOFTNIC_MAX_CQE = 1 << 20,
    SOFTNIC_MAX_MR = 1 << 20,
    SOFTNIC_MAX_RD_ATOMIC = 16,
    SOFTNIC_GIDS = 2,
    SOFTNIC_MESSAGE_MASK = 0xffffff, /* PSNs are 24 bits */
};

struct softnic_device {
    struct ibv_device ibv;
    /* Vendor libraries (mlx5dv, efadv) look behind ibv_device for their driver's operations to see
     * whether a device is theirs; zeros there say no. */
    void *not_a_known_provider[16];
    int index; /* from SOFTNIC_EFA_FIRST on: softefa0, ... */
    bool efa;  /* SRD queue pairs instead of RC */
};

/* Completion and asynchronous events wait in a pipe, so that an application can poll the file
 * descriptor. */
struct softnic_event {
    uint64_t serial; /* of the QP or CQ: a destroyed one's events are skipped when they are read */
    uint32_t type;   /* enum ibv_event_type; completion channels do not use it */
    uint32_t qp;     /* 1: serial is a QP's */
};

struct softnic_channel {
    struct ibv_comp_channel ibv;
    int write_fd;
};

struct softnic_cqe {
    struct ibv_wc wc;
    struct softnic_qp *qp;
    /* send queue entries before this one are free once this entry is polled; 0: a receive */
    uint64_t sq_release;
    uint64_t time_ns;
    /* its send queue is empty after it: the poller's next wait is for its peer */
    bool last;
    int source;       /* SRD receives: the sender's device */
    bool unsolicited; /* and whether no receive was taken */
};

struct softnic_cq {
    union {
        struct ibv_cq ibv;
        struct ibv_cq_ex ex; /* starts as ibv_cq does */
    };
    struct softnic_cq *next; /* in context->cqs */
    pthread_mutex_t lock;
    uint64_t serial;
    struct softnic_cqe *ring; /* [size] */
    uint32_t size;
    uint64_t head, tail; /* tail: written by the device, head: polled */
    enum { SOFTNIC_DISARMED, SOFTNIC_ARMED_SOLICITED, SOFTNIC_ARMED } armed;
    bool overrun;
    unsigned users;            /* QPs; under context->lock */
    unsigned empty_polls;      /* in a row */
    uint32_t events_delivered; /* under ibv.mutex, as events acknowledged */
    uint32_t async_delivered;
    struct softnic_cqe current; /* the one that the extended calls read */
    void *efadv[4];             /* efadv.c: its view of this CQ */
};

struct softnic_pd {
    struct ibv_pd ibv;
    unsigned users; /* MRs and QPs */
};

/* An allocation of GPU memory with regions of this context, which its peers may map. */
struct softnic_share {
    struct softnic_share *next; /* in context->shares */
    uint64_t base, size;
    struct softnic_cuda_handle handle;
    struct softnic_cuda_uuid gpu;
    uint64_t serial;
    unsigned users; /* regions */
};

/* A peer's allocation, as this process addresses it. */
struct softnic_mapping {
    struct softnic_mapping *next; /* in link->mappings */
    uint64_t base, size, local;
    struct softnic_cuda_uuid gpu;
    bool opened; /* by its handle: to be closed */
};

struct softnic_mr {
    struct ibv_mr ibv;
    uint64_t iova;
    unsigned access;
    unsigned busy; /* copies */
    bool gpu;
    struct softnic_share *share; /* of GPU memory */
};

/* The other end of a socket to another context (or to this one). Requests travel one way, responses
 * the other. */
struct softnic_link {
    struct softnic_link *next;
    struct softnic_context *context;
    int fd;
    bool requester; /* this end connected; it sends requests and receives responses */
    bool ready;     /* introductions are over */
    bool dead;
    bool peer_pulls;               /* the other end can read this process's memory */
    bool pulls;                    /* this end can read the peer's */
    bool watch_write;              /* the socket was full */
    int peer_device, peer_context; /* -1: not known yet */
    pid_t peer_pid;
    uint64_t hello_word; /* a word that the peer reads to prove that it can */
    uint8_t *out;
    size_t out_head, out_tail, out_size;
    uint64_t shares_sent,
        /* requester: of context->shares, by serial; the peer has mapped them */
        shares_taken;
    struct softnic_mapping *mappings; /* responder: the peer's GPU memory */
    struct {
        bool owed;
        uint32_t qpn_to, qpn_from, psn, bytes;
    } ack; /* responder: the last message that was done and has not been acknowledged */
    size_t in_have;
    uint8_t in[128 << 10];
};

/* A work request in the send queue. */
struct softnic_wqe {
    uint64_t wr_id;
    uint8_t opcode; /* enum ibv_wr_opcode */
    uint8_t num_sge;
    bool signaled, solicited, fence, is_inline;
    enum ibv_wc_status status; /* not SUCCESS: it will not be sent, and fails when its turn comes */
    uint32_t imm, rkey, length;
    uint64_t remote, operand[2];
    uint64_t release_ns; /* may leave, by the shaping */
    uint64_t due_ns;     /* may complete, by the shaping */
    bool sent_before;
    union {
        struct ibv_sge sge[SOFTNIC_MAX_SGE];
        uint8_t inline_data[SOFTNIC_MAX_INLINE];
    };
};

struct softnic_rqe {
    uint64_t wr_id;
    uint32_t num_sge, length;
    struct ibv_sge sge[SOFTNIC_MAX_SGE];
};

struct softnic_qp {
    union {
        struct ibv_qp ibv;
        struct ibv_qp_ex ex; /* starts as ibv_qp does */
    };
    bool extended;
    struct softnic_srd *srd; /* an SRD QP (srd.h); NULL: RC */
    uint64_t serial;
    unsigned busy;   /* a bulk copy is using it */
    unsigned copies; /* by the GPU: started, and not known to have ended */
    /* counts resets and errors: a copy that ends in another one is forgotten */
    unsigned generation;
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr; /* as set by ibv_modify_qp */
    int peer_device, peer_context;
    struct softnic_link *link; /* where requests go; NULL: not connected */
    struct softnic_counters counters;
    struct softnic_tally *tallies; /* by peer (tally.c); owned */
    uint32_t events_delivered;     /* under ibv.mutex */

    /* Send queue: polled <= completed <= acked <= cursor <= posted, all counted from the last
     * reset. */
    struct softnic_wqe *sq; /* [sq_size] */
    uint32_t sq_size;
    uint64_t sq_polled; /* entries before it are free; under send_cq's lock and atomic */
    uint64_t sq_completed, sq_acked, sq_cursor, sq_posted;
    uint32_t tx_offset;   /* of the message at the cursor: bytes already in the link's buffer */
    uint32_t read_offset; /* of the READ at sq_acked: bytes that have arrived */
    unsigned reads_open;
    bool waiting;      /* it waits for retry_at */
    bool timed_out;    /* ... because of a timeout, which costs a retry */
    bool drained_told; /* SQD: the event has been raised */
    unsigned retries_left, rnr_left;
    uint64_t timer_ns; /* when the requester must run again; 0: it need not */
    uint64_t retry_at; /* with `waiting` */

    /* Receive queue and responder */
    struct softnic_rqe *rq; /* [rq_size] */
    uint32_t rq_size;
    uint64_t rq_head, rq_tail;
    uint32_t rx_psn, rx_offset, rx_nak_psn;
    uint32_t rx_done; /* messages executed, up to half of the PSN space */
    /* packets that a wire would have needed so far: softnic itself numbers messages */
    uint32_t rx_packets;
    bool rx_nak_sent, rx_established;
    struct {
        uint32_t psn;
        bool valid;
        uint64_t value;
    } atomics[SOFTNIC_MAX_RD_ATOMIC]; /* results, for requests that come again */
    unsigned atomic_next;

    /* ibv_wr_*: what has been built since wr_start, in the send queue behind sq_posted. batch_lock
     * is held meanwhile; it is taken before context->lock. */
    pthread_mutex_t batch_lock;
    unsigned batch_count;
    int batch_error;
    struct softnic_wqe *batch_wqe;
};

struct softnic_context {
    struct softnic_device *device;
    struct softnic_context *next; /* of this process */
    uint32_t id;
    pthread_mutex_t lock;
    pthread_cond_t idle;
    pthread_t thread;
    bool stop;
    struct softnic_options options;
    int listen_fd, epoll_fd, wake_fd, timer_fd, event_write_fd;
    bool short_of_files;   /* it has reported that no file descriptor is left */
    uint64_t timer_set_ns; /* what timer_fd is armed for; 0: nothing */
    struct softnic_link *links;
    struct softnic_cq *cqs;
    struct softnic_ah *ahs;
    uint16_t ah_next;
    struct softnic_qp *qp[SOFTNIC_MAX_QP];
    uint32_t qp_next, qp_top; /* all QPs lie below qp_top */
    struct softnic_mr **mr;   /* [mr_size], slots with NULL are free */
    uint32_t mr_size, mr_next;
    uint8_t mr_tag;
    uint32_t pd_next;
    uint64_t serial;
    uint64_t link_free_ns, in_free_ns; /* shaping: when the wire is free, out and in */
    uint64_t messages, requests;       /* sent; posted: faults count these */
    uint64_t random;
    struct softnic_gpu *gpu; /* once there has been GPU memory */
    struct softnic_share *shares;
    uint64_t share_serial;
    struct softnic_counters past; /* of destroyed QPs */
    struct verbs_context verbs;   /* last: its last field is the ibv_context */
};

/* A call that makes nothing: NULL, and errno says why. */
static inline void *softnic_none(int error)
{
    errno = error;
    return NULL;
}

static inline struct softnic_context *softnic_context_of(struct ibv_context *context)
{
    return (struct softnic_context *)((char *)context -
                                      offsetof(struct softnic_context, verbs.context));
}

static inline struct softnic_qp *softnic_qp_of(struct ibv_qp *qp)
{
    return (struct softnic_qp *)qp;
}

static inline struct softnic_context *softnic_qp_context(const struct softnic_qp *qp)
{
    return softnic_context_of(qp->ibv.context);
}

/* NULL: none of this context's has that number. */
static inline struct softnic_qp *softnic_qp_find(struct softnic_context *ctx, uint32_t qpn)
{
    return qpn >> SOFTNIC_QP_BITS == ctx->id ? ctx->qp[qpn & (SOFTNIC_MAX_QP - 1)] : NULL;
}

static inline struct softnic_cq *softnic_cq_of(struct ibv_cq *cq)
{
    return (struct softnic_cq *)cq;
}

static inline struct softnic_wqe *softnic_wqe_at(struct softnic_qp *qp, uint64_t index)
{
    return &qp->sq[index % qp->sq_size];
}

static inline bool softnic_needs_response(const struct softnic_wqe *wqe)
{
    return wqe->opcode == IBV_WR_RDMA_READ || wqe->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
           wqe->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

/* The functions below are in layers: a file calls files above it in its own layer and files of
 * earlier layers, never later ones (tests/test_house.py). Work for a later layer is left in a
 * structure for the progress thread: a dead link to free, a timer, an answer after a copy.
 *
 * ---- the process and its clock ---- */

/* configure.c */
int softnic_options_current(
    struct softnic_options *options); /* 0, or -EINVAL: the environment's string is wrong */
void softnic_context_register(struct softnic_context *ctx);
void softnic_context_unregister(struct softnic_context *ctx);

/* clock.c: shaping and faults. All under context->lock. */
uint64_t softnic_now(void);
double softnic_random_unit(struct softnic_context *ctx); /* [0, 1) */
void softnic_shape(struct softnic_context *ctx, struct softnic_wqe *wqe);
bool softnic_drops(struct softnic_context *ctx, int device);
void softnic_timer_at(struct softnic_context *ctx, uint64_t when_ns);

/* event.c */
void softnic_event_qp(struct softnic_qp *qp, enum ibv_event_type type);
void softnic_event_cq(struct softnic_cq *cq, enum ibv_event_type type);
/* softnic's own: IBV_EVENT_DEVICE_FATAL */
void softnic_event_device(struct softnic_context *ctx, enum ibv_event_type type);
int softnic_event_pipe(int fds[2]);

/* ---- the wire, under context->lock ---- */

/* link.c: links, and sending over them. reserve: puts a frame's head into the link's buffer and
 * returns the place for its tail. Without memory they kill the link and return NULL or false. kill:
 * from any thread; the progress thread sees the hang-up, tells the QPs and frees the link. */
int softnic_link_listen(struct softnic_context *ctx);
struct softnic_link *softnic_link_to(struct softnic_context *ctx, int device,
                                     int context); /* NULL: no such context */
void softnic_link_accept(struct softnic_context *ctx);
void *softnic_link_reserve(struct softnic_link *link, const struct softnic_frame *head,
                           size_t tail_bytes);
bool softnic_link_send(struct softnic_link *link, const struct softnic_frame *head,
                       const void *tail, size_t tail_bytes);
size_t softnic_link_pending(const struct softnic_link *link);
void softnic_link_flush(struct softnic_link *link);
void softnic_links_flush(struct softnic_context *ctx);
void softnic_link_watch(struct softnic_link *link, bool write); /* for room in the socket */
void softnic_link_kill(struct softnic_link *link);
void softnic_links_drop(struct softnic_context *ctx);
/* Acknowledges a request and all before it: together with later ones, or by flush_acks. */
void softnic_link_acknowledge(struct softnic_link *link, const struct softnic_frame *request);
void softnic_link_flush_acks(struct softnic_link *link);

/* copy.c: bytes that enter or leave registered memory, but a GPU's (gpu.c), and where a peer's GPU
 * memory is in this process: the mapping that overlaps [base, base + size), an address and, where
 * asked for, in which GPU (0: not in memory that it shares) */
void softnic_copy_in(void *to, const void *from, size_t length);
int softnic_pull(struct softnic_link *link, const struct iovec *to, int to_count,
                 const struct softnic_segment *from, int from_count, uint64_t length);
int softnic_pull_pinned(struct softnic_link *link, struct softnic_qp *qp, const struct iovec *to,
                        struct softnic_mr **mr, int count, const struct softnic_segment *from,
                        int from_count, uint64_t length);
struct softnic_mapping *softnic_mapping_at(struct softnic_link *link, uint64_t base, uint64_t size);
uint64_t softnic_mapped_address(struct softnic_link *link, uint64_t address, uint64_t length,
                                struct softnic_cuda_uuid *gpu);

enum {
    /* bytes up to which two copies through a socket cost less than one out of the peer's memory */
    SOFTNIC_COPY_LIMIT = 4096,
    /* bytes that may wait in a link's buffer before more message data joins them */
    SOFTNIC_LINK_LIMIT = 256 << 10,
};

/* ---- memory (beside gpu.c and share.c, in gpu.h), under context->lock ---- */

/* memory.c. An access that a key does not permit gives NULL. wqe_slice, wqe_in_gpu: of the
 * request's bytes, of which inline ones lie nowhere. */
struct softnic_mr *softnic_mr_find(struct softnic_qp *qp, uint32_t key, bool remote,
                                   unsigned access, uint64_t address, uint64_t length);
static inline void *softnic_mr_address(const struct softnic_mr *mr, uint64_t address)
{
    return (char *)mr->ibv.addr + (address - mr->iova);
}
int softnic_sge_slice(struct softnic_qp *qp, const struct ibv_sge *sge, int count, unsigned access,
                      uint64_t offset, uint64_t length, struct iovec *out,
                      struct softnic_mr **pinned);
int softnic_wqe_slice(struct softnic_qp *qp, const struct softnic_wqe *wqe, unsigned access,
                      uint64_t offset, uint64_t length, struct iovec *out,
                      struct softnic_mr **pinned);
bool softnic_wqe_in_gpu(struct softnic_qp *qp, const struct softnic_wqe *wqe, unsigned access);
bool softnic_regions_in_gpu(struct softnic_mr *const *mr, int count);

/* payload.c. carry: head->payload bytes, of `wqe` if inline, else `from`, behind the frame; refer:
 * their addresses. False: the link is dead. land: a request's bytes to `to`, in regions `mr`;
 * copies to and from GPU memory have been started at most (gpu.h); 0, -EFAULT (either side has
 * unmapped them), another where the QP has gone on meanwhile.
 *
 * READs, of RC and SRD alike. answer: bytes [data->offset, end) of what lies at `from`, behind
 * `data`, or referred to for the peer to fetch. arrive: such data to where `wqe` wants it; *arrived
 * bytes are there already. 1: the READ is whole, 0: more is to come, -EPROTO: no softnic sends
 * that, or land's errors, or -EACCES (regions are gone). */
bool softnic_payload_carry(struct softnic_link *link, const struct softnic_frame *head,
                           const struct softnic_wqe *wqe, const struct iovec *from, int count);
bool softnic_payload_refer(struct softnic_link *link, struct softnic_frame *head,
                           const struct iovec *from, int count);
int softnic_payload_land(struct softnic_link *link, struct softnic_qp *qp, const struct iovec *to,
                         struct softnic_mr **mr, int count, const struct softnic_message *message);
void softnic_payload_answer(struct softnic_link *link, struct softnic_frame *data, const char *from,
                            uint32_t end, bool refer);
int softnic_payload_arrive(struct softnic_link *link, struct softnic_qp *qp,
                           const struct softnic_wqe *wqe, const struct softnic_message *message,
                           uint32_t *arrived);

/* ---- queues ---- */

/* completion.c */
bool softnic_wait_acknowledged(pthread_mutex_t *mutex, pthread_cond_t *cond, const uint32_t *done,
                               const uint32_t *delivered);
void softnic_cq_push(struct softnic_cq *cq, struct softnic_cqe *cqe, bool solicited);
void softnic_cq_forget(struct softnic_cq *cq, struct softnic_qp *qp);
int softnic_cq_poll_one(struct softnic_cq *cq, struct softnic_cqe *out);
bool softnic_cq_should_yield(struct softnic_cq *cq, const struct softnic_cqe *newest);
int softnic_poll_cq(struct ibv_cq *cq, int entries, struct ibv_wc *wc);
int softnic_req_notify_cq(struct ibv_cq *cq, int solicited_only);
struct softnic_cq *softnic_cq_create(struct ibv_context *context, int cqe, void *cq_context,
                                     struct ibv_comp_channel *channel, int vector);
struct ibv_cq_ex *softnic_create_cq_ex(struct ibv_context *context,
                                       struct ibv_cq_init_attr_ex *attr);

/* queue.c: under context->lock. complete: of the oldest entry that has not; a frame's kind, flags,
 * immediate and key; flush: of all receives */
void softnic_qp_wake_at(struct softnic_qp *qp, uint64_t when); /* ns */
struct softnic_frame softnic_wqe_frame(const struct softnic_qp *qp, const struct softnic_wqe *wqe);
void softnic_sq_complete(struct softnic_qp *qp, const struct softnic_wqe *wqe,
                         enum ibv_wc_status status);
void softnic_rq_flush(struct softnic_qp *qp);

/* tally.c: under context->lock. `wqe` has been sent to a QP of a device, for the first time; the QP
 * ends */
void softnic_tally_sent(struct softnic_qp *qp, int device, uint32_t qpn,
                        const struct softnic_wqe *wqe);
void softnic_tally_end(struct softnic_qp *qp);

/* ---- the two sides of a QP, under context->lock; SRD's: srd.h ---- */

/* requester.c; requester_response.c: the send side */
void softnic_requester_pump(struct softnic_qp *qp);
void softnic_requester_timer(struct softnic_qp *qp, uint64_t now);
void softnic_requester_response(struct softnic_link *link, const struct softnic_message *message);
void softnic_requester_link_lost(struct softnic_context *ctx, struct softnic_link *link);
void softnic_requester_link_ready(struct softnic_context *ctx, struct softnic_link *link);
void softnic_qp_fail(struct softnic_qp *qp,
                     enum ibv_wc_status first);  /* the oldest send gets `first`, the rest flush */
void softnic_qp_to_error(struct softnic_qp *qp); /* everything flushes */

/* responder.c: the other side */
void softnic_responder_request(struct softnic_link *link, const struct softnic_message *message);

/* progress.c: the thread that calls them */
int softnic_progress_start(struct softnic_context *ctx);
void softnic_progress_stop(struct softnic_context *ctx);
void softnic_progress_forked(struct softnic_context *ctx);

/* ---- the calls of libibverbs and efadv ---- */

/* device.c, query.c */
int softnic_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr,
                       size_t size);
int softnic_query_device_ex(struct ibv_context *context,
                            const struct ibv_query_device_ex_input *input,
                            struct ibv_device_attr_ex *attr, size_t size);
void softnic_device_gid(int device, union ibv_gid *gid); /* the link-local one */
int softnic_gid_device(const union ibv_gid *gid);        /* -1: not one of ours */

/* post.c, post_ex.c */
int softnic_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int softnic_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
/* NULL: the send queue is full */
struct softnic_wqe *softnic_sq_slot(struct softnic_qp *qp, unsigned ahead);
int softnic_sq_check(struct softnic_qp *qp, const struct softnic_wqe *wqe);
void softnic_sq_commit(struct softnic_qp *qp); /* the next slot has been filled */
void softnic_sq_ring(struct softnic_qp *qp);   /* work on the committed requests */
void softnic_post_ex_setup(struct softnic_qp *qp, uint64_t send_ops);

/* qp.c, qp_state.c */
struct ibv_qp *softnic_qp_create(struct ibv_pd *pd, struct ibv_qp_init_attr *init,
                                 const uint64_t *send_ops,
                                 const bool *srd_unsolicited); /* NULL: an RC QP */
struct ibv_qp *softnic_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
bool softnic_qp_transition_valid(enum ibv_qp_state from, enum ibv_qp_state to, int mask);
bool softnic_qp_values_valid(struct softnic_context *ctx, const struct ibv_qp_attr *attr, int mask);

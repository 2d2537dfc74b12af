/* The option `count`: the traffic of each QP to each peer, one line per peer when the QP is
 * destroyed. Flags of 8 bytes and less are told apart from data, so that a test can hold the data
 * against what a schedule must move. */
#include "nic.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define WORD 8 /* bytes: a message no longer than this is a flag */

struct softnic_tally {
    struct softnic_tally *next;
    int device; /* the peer's */
    uint32_t qpn;
    uint64_t messages, bytes, words, word_bytes;
};

/* The one used last is in front: RC has no other, and SRD few. */
static struct softnic_tally *tally_of(struct softnic_qp *qp, int device, uint32_t qpn)
{
    struct softnic_tally **at = &qp->tallies, *t;
    while (*at && ((*at)->device != device || (*at)->qpn != qpn))
        at = &(*at)->next;
    t = *at;
    if (t)
        *at = t->next;
    else if (!(t = calloc(1, sizeof(*t))))
        return NULL;
    t->device = device;
    t->qpn = qpn;
    t->next = qp->tallies;
    qp->tallies = t;
    return t;
}

void softnic_tally_sent(struct softnic_qp *qp, int device, uint32_t qpn,
                        const struct softnic_wqe *wqe)
{
    if (!softnic_qp_context(qp)->options.count[0] || wqe->opcode == IBV_WR_RDMA_READ)
        return;
    struct softnic_tally *t = tally_of(qp, device, qpn);
    if (!t)
        return; /* no memory: then it counts too few */
    t->messages += wqe->length > WORD;
    t->bytes += wqe->length > WORD ? wqe->length : 0;
    t->words += wqe->length <= WORD;
    t->word_bytes += wqe->length <= WORD ? wqe->length : 0;
}

static void tally_name_device(char name[24], int device)
{
    if (device < 0)
        snprintf(name, 24, "-");
    else if (device >= SOFTNIC_EFA_FIRST)
        snprintf(name, 24, "softefa%d", device - SOFTNIC_EFA_FIRST);
    else
        snprintf(name, 24, "soft%d", device);
}

/* A line is written whole or not at all. */
static void tally_write_line(int fd, const struct softnic_qp *qp, const struct softnic_tally *t)
{
    char line[192], from[24], to[24];
    tally_name_device(from, softnic_qp_context(qp)->device->index);
    tally_name_device(to, t->device);
    int length = snprintf(line, sizeof(line), "%s %u %s %u %lu %lu %lu %lu\n", from, qp->ibv.qp_num,
                          to, t->qpn, t->messages, t->bytes, t->words, t->word_bytes);
    if (fd >= 0 && write(fd, line, (size_t)length) != length)
        return; /* a full disk: the reader misses the line */
}

void softnic_tally_end(struct softnic_qp *qp)
{
    struct softnic_context *ctx = softnic_qp_context(qp);
    /* One that has sent nothing is told too, so that every peer of a line has a line. */
    const struct softnic_tally nothing = {.device = qp->peer_device, .qpn = qp->attr.dest_qp_num};
    if (!ctx->options.count[0] && !qp->tallies)
        return;
    int fd = open(ctx->options.count, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (!qp->tallies)
        tally_write_line(fd, qp, &nothing);
    while (qp->tallies) {
        struct softnic_tally *t = qp->tallies;
        tally_write_line(fd, qp, t);
        qp->tallies = t->next;
        free(t);
    }
    if (fd >= 0)
        close(fd);
}

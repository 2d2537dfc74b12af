/* A fabric that the test holds in its hand: puts wait per peer until the test lets them
 * complete. */
#pragma once

#include "backends/fabric.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { FAKE_PEERS = 8, FAKE_QUEUE = 4096 };

struct fake_peer {
    struct fabric_put queue[FAKE_QUEUE];
    int status[FAKE_QUEUE];
    uint64_t posted, completed;
    uint64_t may_complete; /* puts that the test has let go */
};

struct fake_fabric {
    struct fabric fabric;
    struct fake_peer peers[FAKE_PEERS];
    uint32_t room; /* puts under way to one peer; 0: no limit */
    int broken;    /* put returns it */
    int automatic; /* complete by itself at the next poll */
    uint64_t puts, flushes, refused;
    struct fabric_completion news; /* of no put; handed out while news_count is left */
    int news_count;
};

static int fake_put(struct fabric *fabric, const struct fabric_put *put)
{
    struct fake_fabric *f = (struct fake_fabric *)fabric;
    struct fake_peer *p = &f->peers[put->peer % FAKE_PEERS];
    if (f->broken)
        return f->broken;
    if (p->posted - p->completed == (f->room ? f->room : FAKE_QUEUE)) {
        f->refused++;
        return -EAGAIN;
    }
    p->queue[p->posted % FAKE_QUEUE] = *put;
    p->status[p->posted++ % FAKE_QUEUE] = 0;
    f->puts++;
    return 0;
}

static int fake_flush(struct fabric *fabric)
{
    ((struct fake_fabric *)fabric)->flushes++;
    return 0;
}

static int fake_poll(struct fabric *fabric, struct fabric_completion *out, int max)
{
    struct fake_fabric *f = (struct fake_fabric *)fabric;
    int n = 0, automatic = __atomic_load_n(&f->automatic, __ATOMIC_RELAXED);
    for (; n < max && f->news_count; f->news_count--)
        out[n++] = f->news;
    for (int i = 0; i < FAKE_PEERS; i++) {
        struct fake_peer *p = &f->peers[i];
        while (n < max && p->completed < p->posted &&
               (automatic || p->completed < p->may_complete)) {
            uint64_t at = p->completed++ % FAKE_QUEUE;
            out[n].cookie = p->queue[at].cookie;
            out[n].status = p->status[at];
            if (out[n].status)
                snprintf(out[n].detail, sizeof out[n].detail, "transport retry counter exceeded");
            n++;
        }
    }
    return n;
}

static const struct fabric_ops fake_ops = {
    .name = "fake", .put = fake_put, .flush = fake_flush, .poll = fake_poll};

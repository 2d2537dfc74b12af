/* Two ranks of the verbs fabric over softnic, in one process (pair_open) or each in its own
 * (pair_fork). */
#pragma once

#include "backends/verbs/verbs_rc.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAIR_FLAG_BYTES = 4096, PAIR_RANKS = 2 };

static uint32_t pair_devices = 1; /* of each rank */
/* makes another device of softnic; NULL: it stays */
static void (*pair_alter)(struct verbs_api *api);

struct pair_rank {
    struct verbs_api api;
    struct fabric *fabric;
    char *heap;
    uint64_t heap_bytes;
    char error[256];
};

/* Options of softnic, from now on (docs/SOFTNIC.md). 0: it takes them. */
static inline int pair_softnic(const char *options)
{
    char error[256];
    struct verbs_api api;
    if (verbs_api_open(&api, VERBS_SOFT, error, sizeof error))
        return -1;
    void *library = dlopen(api.path, RTLD_NOW | RTLD_NOLOAD);
    int (*configure)(const char *) = NULL;
    void *symbol = library ? dlsym(library, "softnic_configure") : NULL;
    memcpy(&configure, &symbol, sizeof symbol);
    return configure ? configure(options) : -1;
}

static inline uint64_t pair_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static inline uint64_t *pair_flag(struct pair_rank *r, uint32_t flag)
{
    return (uint64_t *)(void *)r->heap + flag;
}

/* Opens rank `rank` of two; not yet connected. 0 or -errno with r->error. */
static inline int pair_rank_open(struct pair_rank *r, uint32_t rank, uint64_t data_bytes,
                                 const char *options)
{
    uint32_t peer = 1 - rank;
    struct verbs_rc_config config = {
        .api = &r->api,
        .end = {.nics = {.devices = {"soft0", "soft1"}, .count = pair_devices},
                .rank = rank,
                .world = PAIR_RANKS,
                .peers = &peer,
                .peer_count = 1}};
    memset(r, 0, sizeof *r);
    verbs_options_default(&config.options);
    int rc = verbs_options_parse(&config.options, options, r->error, sizeof r->error);
    if (!rc)
        rc = verbs_api_open(&r->api, VERBS_SOFT, r->error, sizeof r->error);
    if (rc)
        return rc;
    if (pair_alter)
        pair_alter(&r->api);
    r->heap_bytes = PAIR_FLAG_BYTES + data_bytes;
    r->heap = mmap(NULL, r->heap_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    config.end.heap =
        (struct mr_heap){.base = r->heap, .flag_bytes = PAIR_FLAG_BYTES, .bytes = r->heap_bytes};
    return verbs_rc_open(&r->fabric, &config, r->error, sizeof r->error);
}

static inline void pair_rank_close(struct pair_rank *r)
{
    if (r->fabric)
        r->fabric->ops->close(r->fabric);
    if (r->heap)
        munmap(r->heap, r->heap_bytes);
}

static inline int pair_connect(struct pair_rank *r, uint32_t rank, const void *addresses)
{
    uint32_t peer = 1 - rank;
    return r->fabric->ops->connect(r->fabric, addresses, &peer, 1, r->error, sizeof r->error);
}

/* Both ranks in this process. */
static inline int pair_open(struct pair_rank ranks[2], uint64_t data_bytes, const char *options)
{
    char addresses[2 * 4096];
    int rc = 0;
    for (uint32_t i = 0; i < 2 && !rc; i++)
        rc = pair_rank_open(&ranks[i], i, data_bytes, options);
    for (uint32_t i = 0; i < 2 && !rc; i++)
        ranks[i].fabric->ops->address(
            ranks[i].fabric, addresses + i * ranks[i].fabric->ops->address_bytes(ranks[i].fabric));
    for (uint32_t i = 0; i < 2 && !rc; i++)
        rc = pair_connect(&ranks[i], i, addresses);
    if (rc)
        fprintf(stderr, "%s%s\n", ranks[0].error, ranks[1].error);
    return rc;
}

/* Whole messages over the socket between the two processes, each within 10 s. */
static inline int pair_exchange(int fd, const void *mine, void *theirs, size_t bytes)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (send(fd, mine, bytes, MSG_NOSIGNAL) != (ssize_t)bytes || poll(&p, 1, 10000) != 1)
        return -1;
    return recv(fd, theirs, bytes, MSG_WAITALL) == (ssize_t)bytes ? 0 : -1;
}

/* Opens rank `rank` and connects it with the process at the other end of `fd`. */
static inline int pair_join(struct pair_rank *r, uint32_t rank, int fd, uint64_t data_bytes,
                            const char *options)
{
    char addresses[2 * 4096], byte = 0;
    int rc = pair_rank_open(r, rank, data_bytes, options);
    if (rc) {
        fprintf(stderr, "%s\n", r->error);
        return rc;
    }
    size_t bytes = r->fabric->ops->address_bytes(r->fabric);
    r->fabric->ops->address(r->fabric, addresses + rank * bytes);
    if (pair_exchange(fd, addresses + rank * bytes, addresses + (1 - rank) * bytes, bytes))
        return -EIO;
    if ((rc = pair_connect(r, rank, addresses)))
        fprintf(stderr, "%s\n", r->error);
    return rc ? rc : pair_exchange(fd, &byte, &byte, 1);
}

/* Runs body(rank, fd) in two processes; returns 0 where both returned 0. */
static inline int pair_fork(int (*body)(uint32_t rank, int fd))
{
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds))
        return -1;
    pid_t children[2];
    for (uint32_t i = 0; i < 2; i++)
        if (!(children[i] = fork())) {
            alarm(60);
            close(fds[1 - i]);
            _exit(body(i, fds[i]) ? 1 : 0);
        }
    close(fds[0]);
    close(fds[1]);
    int bad = 0;
    for (int i = 0; i < 2; i++) {
        int status;
        waitpid(children[i], &status, 0);
        bad |= !WIFEXITED(status) || WEXITSTATUS(status);
    }
    return bad;
}

/* Starts a put, waiting for room at most 10 s; completions that arrive meanwhile are counted into
 * *completed. */
static inline int pair_put(struct pair_rank *r, const struct fabric_put *put, uint64_t *completed,
                           int *status)
{
    struct fabric_completion c[16];
    uint64_t end = pair_now() + 10000000000ull;
    int rc;
    while ((rc = r->fabric->ops->put(r->fabric, put)) == -EAGAIN && pair_now() < end) {
        int n = r->fabric->ops->poll(r->fabric, c, 16);
        for (int i = 0; i < n; i++)
            *status |= c[i].status;
        *completed += (uint64_t)n;
        if (!n)
            sched_yield();
    }
    return rc;
}

/* Collects completions until *completed is `target`, at most 20 s. */
static inline int pair_drain(struct pair_rank *r, uint64_t *completed, uint64_t target, int *status)
{
    struct fabric_completion c[16];
    uint64_t end = pair_now() + 20000000000ull;
    r->fabric->ops->flush(r->fabric);
    while (*completed < target && pair_now() < end) {
        int n = r->fabric->ops->poll(r->fabric, c, 16);
        for (int i = 0; i < n; i++)
            *status |= c[i].status;
        *completed += (uint64_t)n;
        if (!n)
            sched_yield();
    }
    return *completed == target ? 0 : -1;
}

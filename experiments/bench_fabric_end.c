/* One end of `mkernel bench fabric`: its NIC, its memory and its fabric. */
#include "experiments/bench_fabric.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

uint64_t fabric_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

int fabric_idle(struct fabric_end *e, uint32_t *spins)
{
    if (++*spins % 64)
        return 0;
    sched_yield(); /* on few cores the other end, or a software device, needs this one */
    return fabric_now() < e->deadline ? 0 : -ETIMEDOUT;
}

int fabric_end_open(struct fabric_end *e, uint32_t rank, const char *nic, uint32_t rails, const char *verbs,
                    uint64_t data_bytes, uint64_t timeout_ns)
{
    struct nic_request request = {.names = nic, .rails = rails, .local_rank = rank, .local_ranks = 2};
    uint32_t peer = 1 - rank;
    struct verbs_rc_config config = {
        .api = &e->api, .rank = rank, .world = 2, .peers = &peer, .peer_count = 1};
    memset(e, 0, sizeof *e);
    e->rank = rank;
    e->timeout_ns = timeout_ns;
    verbs_options_default(&config.options);
    int rc = verbs_options_parse(&config.options, verbs, e->error, sizeof e->error);
    if (!rc)
        rc = nic_choose(&e->choice, &request, e->error, sizeof e->error);
    if (!rc)
        rc = verbs_api_open(&e->api, e->choice.soft ? VERBS_SOFT : VERBS_SYSTEM, e->error, sizeof e->error);
    if (rc)
        return rc;
    config.device_count = e->choice.count;
    for (uint32_t i = 0, used = 0; i < e->choice.count && used < sizeof e->nic; i++) {
        config.devices[i] = e->choice.devices[i];
        used += (uint32_t)snprintf(e->nic + used, sizeof e->nic - used, "%s%s", i ? "+" : "", config.devices[i]);
    }
    e->heap_bytes = FABRIC_FLAG_BYTES + data_bytes;
    e->heap = mmap(NULL, e->heap_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (e->heap == MAP_FAILED) {
        e->heap = NULL;
        snprintf(e->error, sizeof e->error, "no memory for %llu bytes", (unsigned long long)e->heap_bytes);
        return -ENOMEM;
    }
    for (uint64_t i = FABRIC_FLAG_BYTES / 8; i < e->heap_bytes / 8; i++)
        ((uint64_t *)(void *)e->heap)[i] =
            rank ? 0 : i; /* touched, so that no page is first met while time runs */
    config.heap = (struct mr_heap){.base = e->heap, .flag_bytes = FABRIC_FLAG_BYTES, .bytes = e->heap_bytes};
    return verbs_rc_open(&e->fabric, &config, e->error, sizeof e->error);
}

int fabric_end_connect(struct fabric_end *e, struct wire *w, int client)
{
    size_t bytes = e->fabric->ops->address_bytes(e->fabric);
    uint32_t peer = 1 - e->rank;
    char addresses[2 * 4096];
    struct wire_message mine = {.kind = WIRE_ADDRESS}, theirs = {0};
    e->fabric->ops->address(e->fabric, mine.address);
    int rc = wire_send(w, &mine);
    if (!rc)
        rc = wire_receive(w, WIRE_ADDRESS, &theirs);
    if (rc) {
        snprintf(e->error, sizeof e->error, "%s", wire_reason(rc, &theirs));
        return rc;
    }
    memcpy(addresses + e->rank * bytes, mine.address, bytes);
    memcpy(addresses + peer * bytes, theirs.address, bytes);
    rc = e->fabric->ops->connect(e->fabric, addresses, &peer, 1, e->error, sizeof e->error);
    if (rc)
        return rc;
    struct wire_message ready = {.kind = WIRE_DONE}; /* both ends can receive before either sends */
    rc = wire_send(w, &ready);
    if (!rc)
        rc = wire_receive(w, WIRE_DONE, &theirs);
    if (rc)
        snprintf(e->error, sizeof e->error, "%s", wire_reason(rc, &theirs));
    return rc;
}

void fabric_end_close(struct fabric_end *e)
{
    if (e->fabric)
        e->fabric->ops->close(e->fabric);
    if (e->heap)
        munmap(e->heap, e->heap_bytes);
}

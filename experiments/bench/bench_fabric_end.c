/* One end of `mkernel bench fabric`: its NIC, its memory and its fabric. */
#include "experiments/bench/bench_fabric.h"
#include "core/base/clock.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

uint64_t fabric_now(void)
{
    return mk_now_ns();
}

int fabric_idle(struct fabric_end *e, uint32_t *spins)
{
    if (++*spins % 64)
        return 0;
    sched_yield(); /* on few cores the other end, or a software device, needs this one */
    return fabric_now() < e->deadline ? 0 : -ETIMEDOUT;
}

int fabric_end_open(struct fabric_end *e, uint32_t rank, const char *nic,
                    const struct fabric_kind *kind)
{
    struct nic_request request = {
        .names = nic, .efa = kind->efa, .rails = kind->rails, .local_rank = rank, .local_ranks = 2};
    struct nic_choice choice;
    memset(e, 0, sizeof *e);
    e->rank = rank;
    e->efa = kind->efa;
    e->timeout_ns = kind->timeout_ns;
    int rc = nic_choose(&choice, &request, e->error, sizeof e->error);
    if (rc)
        return rc;
    nic_choice_words(&choice, e->nic, sizeof e->nic);
    e->heap_bytes = FABRIC_FLAG_BYTES + kind->data_bytes;
    e->heap = mmap(NULL, e->heap_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (e->heap == MAP_FAILED) {
        e->heap = NULL;
        return mk_fail(-ENOMEM, e->error, sizeof e->error, "no memory for %lu bytes",
                       e->heap_bytes);
    }
    for (uint64_t i = FABRIC_FLAG_BYTES / 8; i < e->heap_bytes / 8; i++)
        ((uint64_t *)(void *)e->heap)[i] =
            rank ? 0 : i; /* touched, so that no page is first met while time runs */
    const uint32_t peer = 1 - rank;
    const struct nic_end end = {
        .nics = choice,
        .heap = {.base = e->heap, .flag_bytes = FABRIC_FLAG_BYTES, .bytes = e->heap_bytes},
        .rank = rank,
        .world = 2,
        .peers = &peer,
        .peer_count = 1};
    return nic_end_open(&e->fabric, &end, kind->efa, kind->options, e->error, sizeof e->error);
}

void fabric_end_describe(const struct fabric_end *e, char *text, size_t size)
{
    e->fabric->ops->describe(e->fabric, text, size);
    mk_append(text, size, "%s", strchr(e->nic, ' ') ? strchr(e->nic, ' ') : "");
}

int fabric_end_connect(struct fabric_end *e, struct wire *w, int client)
{
    size_t bytes = e->fabric->ops->address_bytes(e->fabric);
    uint32_t peer = 1 - e->rank;
    char addresses[2 * 4096];
    struct wire_message mine = {.kind = WIRE_ADDRESS}, theirs = {0};
    e->fabric->ops->address(e->fabric, mine.address);
    int rc = wire_send(w, &mine);
    rc = rc ? rc : wire_receive(w, WIRE_ADDRESS, &theirs);
    if (rc)
        return mk_fail(rc, e->error, sizeof e->error, "%s", wire_reason(rc, &theirs));
    memcpy(addresses + e->rank * bytes, mine.address, bytes);
    memcpy(addresses + peer * bytes, theirs.address, bytes);
    rc = e->fabric->ops->connect(e->fabric, addresses, &peer, 1, e->error, sizeof e->error);
    if (rc)
        return rc;
    struct wire_message ready = {.kind = WIRE_DONE}; /* both ends can receive before either sends */
    rc = wire_send(w, &ready);
    rc = rc ? rc : wire_receive(w, WIRE_DONE, &theirs);
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

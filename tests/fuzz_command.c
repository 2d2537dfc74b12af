/* With any 16 bytes in a ring, the proxy hands the fabric only puts that stay inside the heap and
 * go to a rank of another node, and says at most one failure. */
#include "backends/proxy.h"
#include "core/cta/ring_host.h"
#include "tests/helpers/fake_fabric.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CAPACITY = 8, FLAGS = 1024, HEAP = 1 << 16 };

static const struct mk_topo topo = {.nodes = 3, .gpus = 2, .rank = 3};

static uint64_t now(void *context)
{
    static uint64_t time = 1;
    return time++;
}

static int failed(void *context)
{
    return 0;
}

static void fail_job(void *context, const struct mk_failure *failure)
{
    if ((*(int *)context)++ || failure->kind != MK_FAIL_INTERNAL || !failure->detail[0] ||
        !failure->what[0])
        abort();
}

static int checked_put(struct fabric *fabric, const struct fabric_put *p)
{
    int inside =
        p->source + p->bytes <= HEAP && p->destination + p->bytes <= HEAP && p->flag < FLAGS;
    int elsewhere = p->peer < mk_world(&topo) && p->peer / 2 != 1;
    if (!inside || !elsewhere || !p->value || (p->bytes && p->destination < FLAGS * 8))
        abort();
    return fake_put(fabric, p);
}

static const struct fabric_ops ops = {
    .name = "checked", .put = checked_put, .flush = fake_flush, .poll = fake_poll};

/* The first byte of each 17 bends a random command towards a valid one, so that the checks behind
 * the first are reached. */
static struct mk_command command_of(const uint8_t *data, uint32_t parity)
{
    struct mk_command c;
    memcpy(&c.lo, data + 1, 8);
    memcpy(&c.hi, data + 9, 8);
    if (data[0] & 1)
        c.lo = (c.lo & ~0xeull) | MK_CMD_PUT << 1;
    if (data[0] & 2)
        c.lo = (c.lo & ~0xfff0ull) | (c.lo & 0x70);
    if (data[0] & 4)
        c.lo &= 0xfffffffffffull | 0xfull << 44;
    if (data[0] & 8)
        c.hi &= 0x1ff000001ffull;
    if (data[0] & 16)
        c.lo &= ~0xfc000000ull;
    if (data[0] & 32)
        c = mk_command_begin((uint32_t)(c.lo >> 16 & 0xffffff), c.hi, 0);
    c.lo = (c.lo & ~1ull) | parity;
    return c;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct fake_fabric fabric;
    memset(&fabric, 0, sizeof fabric);
    fabric.fabric.ops = &ops;
    fabric.automatic = 1;
    int failures = 0;
    struct mk_ring *ring = calloc(1, mk_ring_bytes(CAPACITY));
    ring->capacity = CAPACITY;
    struct proxy_config config = {.fabric = &fabric.fabric,
                                  .rings = &ring,
                                  .ring_count = 1,
                                  .timeout_ns = UINT64_MAX,
                                  .topo = topo,
                                  .heap_bytes = HEAP,
                                  .heap_flags = FLAGS,
                                  .now = now,
                                  .failed = failed,
                                  .fail = fail_job,
                                  .context = &failures};
    struct proxy *p;
    if (proxy_create(&p, &config))
        abort();
    mk_ring_post(ring, mk_command_begin(1, 1, mk_ring_parity(CAPACITY, ring->posted)));
    for (size_t at = 0; at + 17 <= size; at += 17) {
        mk_ring_post(ring, command_of(data + at, mk_ring_parity(CAPACITY, ring->posted)));
        proxy_step(p);
    }
    proxy_step(p);
    proxy_step(p);
    if (ring->seen != ring->posted || (!failures && ring->completed != ring->posted))
        abort();
    proxy_destroy(p);
    free(ring);
    return 0;
}

/* A rank of the host executor maps what its peers name only where that is a heap: a sealed memfd of
 * the same user. Where the job's token was guessed, a rank's word is a stranger's. */
#include "core/comm/comm.h"
#include "sim/host_heap.h"
#include "tests/helpers/job.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "tests/helpers/test.h"

#define BYTES (1u << 20)
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* What the ranks exchange, as host_heap.c has it. */
struct where {
    int64_t pid, fd;
    uint64_t inode, bytes;
    int64_t result;
};
struct verdict {
    int64_t result;
    char sentence[256];
};

enum offer { A_HEAP, ANOTHER_INODE, UNSEALED, CAN_SHRINK, A_FILE, ANOTHER_USERS, A_PIPE, OFFERS };

static int make_offer(enum offer offer)
{
    char path[] = "/tmp/mk_heap_XXXXXX";
    int ends[2], fd = offer == A_FILE ? mkstemp(path)
                                      : memfd_create("an offer", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (offer == A_FILE)
        unlink(path);
    if (fd < 0 || ftruncate(fd, BYTES) || (offer == ANOTHER_USERS && fchown(fd, 65534, 65534)))
        return -1;
    if (offer == A_PIPE)
        return pipe(ends) ? -1 : ends[0];
    int seals = offer == CAN_SHRINK ? F_SEAL_GROW | F_SEAL_SEAL : SEALS;
    return offer != UNSEALED && offer != A_FILE && fcntl(fd, F_ADD_SEALS, seals) ? -1 : fd;
}

/* A rank that has shown the token and names what it likes. */
static int offer_something(const struct bootstrap_config *c, char *text, size_t size,
                           void *argument)
{
    struct bootstrap *b;
    enum offer offer = *(const enum offer *)argument;
    struct stat st;
    struct verdict mine = {0, ""}, verdicts[2];
    int fd = make_offer(offer), result = bootstrap_join(&b, c, text, size);
    if (result || fd < 0 || fstat(fd, &st))
        return -1;
    struct where at = {getpid(), fd, st.st_ino + (offer == ANOTHER_INODE), BYTES, 0}, all[2];
    if (offer == A_PIPE)
        at.bytes = BYTES; /* it has none of its own */
    result = bootstrap_allgather(b, &mine, verdicts, sizeof mine);
    result = result ? result : bootstrap_allgather(b, &at, all, sizeof at);
    result = result ? result : bootstrap_allgather(b, &mine, verdicts, sizeof mine);
    bootstrap_leave(b);
    return result;
}

static int open_heap(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    static struct mk_comm comm;
    comm.topo = (struct mk_topo){1, 2, c->rank};
    comm.heap.bytes = BYTES;
    int result = bootstrap_join(&comm.bootstrap, c, comm.error, sizeof comm.error);
    if (!result && !(result = host_heap_open(&comm))) {
        *(volatile uint8_t *)comm.heap.peers[1 - c->rank] = 1;
        host_heap_close(&comm);
    }
    snprintf(text, size, "%s", comm.error);
    bootstrap_leave(comm.bootstrap);
    return result;
}

static struct job_report take(enum offer offer)
{
    struct job j;
    job_init(&j, 2, 30);
    struct bootstrap_config root = job_config(&j, 0), other = job_config(&j, 1);
    job_start(&j, 0, &root, open_heap, NULL);
    job_start(&j, 1, &other, offer_something, &offer);
    job_finish(&j);
    assert_true(j.reports[0].came);
    assert_int_equal(j.reports[1].result, 0);
    return j.reports[0];
}

CASE(only_a_heap_is_mapped)
{
    static const int results[OFFERS] = {0, -ENXIO, -EPERM, -EPERM, -EPERM, -EPERM, -ENXIO};
    for (int offer = 0; offer < OFFERS; offer++) {
        if (offer == ANOTHER_USERS && geteuid())
            continue; /* root alone can make one */
        struct job_report r = take((enum offer)offer);
        if (r.result != results[offer])
            print_message("offer %d: %d, %s\n", offer, r.result, r.text);
        assert_int_equal(r.result, results[offer]);
        if (r.result)
            assert_non_null(strstr(r.text, "rank 0 can't map the heap of rank 1 (process "));
    }
}

/* Both ends real: each writes into the other. */
CASE(two_ranks_share_their_heaps)
{
    struct job j;
    job_init(&j, 2, 30);
    job_start_all(&j, open_heap, NULL);
    job_finish(&j);
    for (int i = 0; i < 2; i++) {
        assert_true(j.reports[i].came);
        assert_int_equal(j.reports[i].result, 0);
    }
}

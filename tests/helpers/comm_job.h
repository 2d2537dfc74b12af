/* For tests: a scene that every rank of a job plays with its communicator, over parts that only
 * note what they are asked. */
#pragma once

#include "tests/helpers/comm_config.h"
#include "tests/helpers/fake_parts.h"
#include "tests/helpers/job.h"

#include <dirent.h>

#include "tests/helpers/test.h"

/* A test's part that runs in each rank once its communicator is open. Returns what the rank
 * reports. */
typedef int (*scene)(struct mk_comm *comm, uint32_t rank, char *text, size_t size);

struct setup {
    scene play;
    uint32_t nodes;
    void (*prepare)(uint32_t rank, struct mk_config *config); /* before opening; NULL: nothing */
    const char *log; /* what the parts were asked, in order; NULL: not checked */
};

static uint32_t entries(const char *path)
{
    DIR *d = opendir(path);
    uint32_t n = 0;
    while (d && readdir(d))
        n++;
    closedir(d);
    return n;
}

/* A thread that was joined may be seen for a moment longer. */
static int threads_stay(uint32_t before)
{
#ifdef __SANITIZE_THREAD__
    before++; /* its own, made with the first of ours */
#endif
    double end = test_seconds() + 1;
    while (entries("/proc/self/task") > before && test_seconds() < end)
        job_sleep(0.001);
    return entries("/proc/self/task") > before;
}

static int run_rank(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    const struct setup *s = argument;
    struct mk_config config = config_of(c, s->nodes ? s->nodes : 1);
    config.exec = MK_EXEC_HOST;
    config.heap_bytes = 1 << 20;
    struct mk_comm *comm;
    uint32_t fds = entries("/proc/self/fd"), threads = entries("/proc/self/task");
    memset(&fake, 0, sizeof fake);
    if (s->prepare)
        s->prepare(c->rank, &config);
    int result = comm_open_with(&comm, &config, &fake_exec, &fake_net);
    if (result)
        snprintf(text, size, "%s", mk_error(comm));
    else
        result = s->play ? s->play(comm, c->rank, text, size) : 0;
    double start = test_seconds();
    int failed = comm_failed(comm);
    mk_comm_close(comm);
    if (failed && test_seconds() - start > 1.0)
        snprintf(text, size, "closing after a failure took %.2f s", test_seconds() - start);
    else if (s->log && strcmp(s->log, fake.log))
        snprintf(text, size, "the parts were asked %s", fake.log);
    else if (entries("/proc/self/fd") + (c->listen_fd >= 0) != fds || threads_stay(threads))
        snprintf(text, size, "descriptors or threads stay behind");
    else
        return result;
    return 1000;
}

/* Runs the scene on `world` ranks; every rank must report `result` and a text that contains
 * `says`. */
__attribute__((unused)) static void all(uint32_t world, struct setup s, int result,
                                        const char *says)
{
    struct job j;
    job_init(&j, world, 20);
    job_start_all(&j, run_rank, &s);
    job_finish(&j);
    for (uint32_t r = 0; r < world; r++) {
        const struct job_report *p = &j.reports[r];
        if (!p->came || p->result != result || !strstr(p->text, says))
            print_message("rank %u: came %d, result %d after %.2f s: %s\n", r, p->came, p->result,
                          p->seconds, p->text);
        assert_true(p->came);
        assert_int_equal(p->result, result);
        assert_non_null(strstr(p->text, says));
        assert_true(job_ended_within(&j, r, 4));
    }
}

static struct mk_problem problem(void)
{
    return (struct mk_problem){.op = MK_OP_AG_GEMM, .m = 96, .n = 64, .k = 64};
}

static uint16_t memory[768 * 64] __attribute__((aligned(16)));
static uint16_t output[768 * 64] __attribute__((aligned(16)));

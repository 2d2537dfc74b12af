/* PyTorch's fused operator beside ours: run by the parent before the ranks start, so that both have
 * the GPUs alone. */
#include "experiments/bench/bench_gpu.h"
#include "core/comm/bootstrap.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"
#include "experiments/bench/bench_gpu_row.h"
#include "experiments/baselines/script.h"
#include "experiments/common/process.h"
#include "experiments/common/ending.h"
#include "experiments/job/op.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LIMIT_NS 240000000000ull

/* A line of what PyTorch measured: the numbers of the problem, a word where there are several
 * times, then ms, least and most:
 *
 *     8192,1024,8192,0.386,0.381,0.402
 *     8192,8192,1024,one_shot,0.702,0.688,0.713
 *     4,12288,16,16,128,in_turn,4.681,4.612,4.787 */
static int bench_torch_read_line(const char *line, const struct mk_problem *q, char word[32],
                                 struct gpu_time *time)
{
    uint64_t numbers[OP_DIMENSIONS];
    uint32_t count = op_numbers(q, numbers);
    word[0] = '\0';
    for (uint32_t i = 0; i < count; i++) {
        char *end;
        if (strtoull(line, &end, 10) != numbers[i] || *end != ',')
            return 0;
        line = end + 1;
    }
    return sscanf(line, "%lf,%lf,%lf", &time->ms, &time->min, &time->max) == 3 ||
           sscanf(line, "%31[a-z_],%lf,%lf,%lf", word, &time->ms, &time->min, &time->max) == 4;
}

void bench_torch_read(struct bench_gpu_row *rows, uint32_t count)
{
    static const struct {
        const char *word;
        enum bench_gpu_what what;
    } words[] = {{"", BENCH_TORCH},
                 {"product", BENCH_PRODUCT},
                 {"comm", BENCH_COMM},
                 {"in_turn", BENCH_TURNS},
                 {"second", BENCH_SECOND},
                 {"back", BENCH_BACK},
                 {"context_parallel", BENCH_TORCH}};
    const char *path = getenv("MKERNEL_BENCH_TORCH");
    MK_CLOSED FILE *f = path ? fopen(path, "re") : NULL;
    char line[256], word[32];
    struct gpu_time time;
    while (f && fgets(line, sizeof line, f))
        for (uint32_t i = 0; i < count; i++)
            if (bench_torch_read_line(line, &rows[i].problem, word, &time))
                for (size_t w = 0; w < sizeof words / sizeof *words; w++)
                    if (!strcmp(word, words[w].word))
                        rows[i].times[words[w].what] = time;
}

/* What the script could not do for a shape it says in lines of its own: "# 4,1536,16,16,128: why".
 */
static void bench_torch_tell(const char *out)
{
    MK_CLOSED FILE *f = fopen(out, "re");
    char line[512];
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "# ", 2))
            fprintf(stderr, "mkernel bench: PyTorch, %s", line + 2);
}

/* A process a rank, as torchrun would start them, but in groups that end with this one. They write
 * to `out`, and what they complain to `said`. 0 or -errno. */
static int bench_torch_start(pid_t *ranks, uint32_t world, char *const *words, int out, int said)
{
    char text[6][40] = {"", "", "", "", "", ""};
    char *environment[] = {text[0], text[1], text[2], text[3], text[4], text[5], NULL, NULL};
    static char threads[] = "OMP_NUM_THREADS=1"; /* as torchrun has it */
    uint16_t port = 0;
    int probe = bootstrap_listen("127.0.0.1", &port); /* one that is free */
    if (probe < 0)
        return probe;
    struct sockaddr_storage at = {.ss_family = AF_INET};
    getsockname(probe, (struct sockaddr *)&at, &(socklen_t){sizeof at});
    close(probe);
    snprintf(text[4], sizeof *text, "MASTER_ADDR=%s",
             at.ss_family == AF_INET ? "127.0.0.1" : "::1");
    snprintf(text[1], sizeof *text, "WORLD_SIZE=%u", world);
    snprintf(text[3], sizeof *text, "LOCAL_WORLD_SIZE=%u", world);
    snprintf(text[5], sizeof *text, "MASTER_PORT=%u", port);
    if (world > 1 && !getenv("OMP_NUM_THREADS"))
        environment[6] = threads;
    for (uint32_t r = 0; r < world; r++) {
        snprintf(text[0], sizeof *text, "RANK=%u", r);
        snprintf(text[2], sizeof *text, "LOCAL_RANK=%u", r);
        const struct process_how how = {.program = "python3",
                                        .words = words,
                                        .environment = environment,
                                        .in = -1,
                                        .out = out,
                                        .err = said,
                                        .death = SIGKILL};
        ranks[r] = process_start(&how);
        if (ranks[r] < 0) {
            int rc = ranks[r];
            while (r--) {
                kill(ranks[r], SIGKILL);
                process_end(ranks[r]);
            }
            return rc;
        }
    }
    return 0;
}

/* Runs them to their end. The signals that end a command end them first. */
static int bench_torch_run(uint32_t world, char *const *words, const char *file, int said,
                           char *error, size_t size)
{
    MK_FREED pid_t *ranks = calloc(world, sizeof *ranks);
    MK_FREED struct process_ended *ended = calloc(1, sizeof *ended);
    int out = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    int rc = !ranks || !ended ? -ENOMEM : out < 0 ? -errno : ending_watch();
    rc = rc ? rc : bench_torch_start(ranks, world, words, out, said);
    if (!rc)
        process_wait(ended, ranks, world, LIMIT_NS, -1);
    ending_ignore();
    if (out >= 0)
        close(out);
    if (rc)
        return mk_fail(rc, error, size, "python3 does not start: %s", strerror(-rc));
    if (ended->stopped) {
        unlink(file);
        ending_die(ended->stopped);
    }
    if (ended->over)
        return mk_fail(-EIO, error, size, "it had not ended after 4 minutes");
    if (ended->status == 127)
        return mk_fail(-EIO, error, size, "there is no python3");
    if (ended->status)
        process_said(said, error, size);
    return ended->status ? -EIO : 0;
}

int bench_torch(const struct run_job *job, const char *out, char *error, size_t size)
{
    char script[4096], name[64], list[RUN_SHAPES][128];
    const char *argv[RUN_SHAPES + 16] = {"python3", script, NULL};
    int argc = 2;
    snprintf(name, sizeof name, "torch_%s.py", plan_op_name(job->problem.op));
    if (script_find(script, sizeof script, name))
        return mk_fail(-ENOENT, error, size, "%s is not there", name);
    uint64_t numbers[OP_DIMENSIONS];
    uint32_t dimensions = op_numbers(&job->problem, numbers);
    if (run_op_of(job->problem.op)->product == RUN_ATTENTION) {
        if (job->options.vs == RUN_VS_TORCH)
            argv[argc++] = "--context-parallel";
        if (job->problem.attention.causal)
            argv[argc++] = "--causal";
    }
    if (job->problem.fp8 && run_op_of(job->problem.op)->product == RUN_GEMM)
        argv[argc++] = "--fp8";
    if (run_op_is_routed(job->problem.op)) {
        argv[argc++] = "--routing";
        argv[argc++] = run_routings[job->options.routing];
        if (job->options.skew) {
            argv[argc++] = "--skew";
            argv[argc++] = job->options.skew;
        }
        if (job->problem.b_transposed)
            argv[argc++] = "--b-nk";
    }
    for (uint32_t i = 0; i < job->shape_count; i++) {
        list[i][0] = '\0';
        for (uint32_t d = 0; d < dimensions; d++)
            mk_append(list[i], sizeof list[i], "%s%lu", d ? "," : "", job->shapes[i][d]);
        argv[argc++] = list[i];
    }
    int said = process_said_open();
    int rc = bench_torch_run(job->identity.world, (char *const *)argv, out, said, error, size);
    if (said >= 0)
        close(said);
    bench_torch_tell(out);
    return rc;
}

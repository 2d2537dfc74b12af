/* PyTorch's fused operator beside ours: run by the parent before the ranks start, so that both have
 * the GPUs alone. */
#include "experiments/bench/bench_gpu.h"
#include "core/scoped.h"
#include "core/sentence.h"
#include "experiments/bench/bench_gpu_row.h"
#include "experiments/baselines/script.h"
#include "experiments/job/op.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

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

int bench_torch(const struct run_job *job, const char *out, char *error, size_t size)
{
    char script[4096], name[64], list[RUN_SHAPES][128], ranks[32];
    const char *argv[RUN_SHAPES + 16] = {
        "timeout",          "240", "python3", "-m", "torch.distributed.run",
        "--nproc-per-node", ranks, script,    NULL};
    int argc = 8, status = 0, said;
    pid_t child;
    snprintf(name, sizeof name, "torch_%s.py", plan_op_name(job->problem.op));
    if (script_find(script, sizeof script, name))
        return mk_fail(-ENOENT, error, size, "%s is not there", name);
    snprintf(ranks, sizeof ranks, "%u", job->identity.world);
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
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, out, O_WRONLY | O_CREAT | O_TRUNC,
                                     0600);
    if ((said = script_said_open()) >= 0)
        posix_spawn_file_actions_adddup2(&files, said, STDERR_FILENO);
    int result = -posix_spawnp(&child, argv[0], &files, NULL, (char *const *)argv, environ);
    posix_spawn_file_actions_destroy(&files);
    while (!result && waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            result = -errno;
    if (!result && !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
        result = -EIO;
    if (result && WIFEXITED(status) && WEXITSTATUS(status) == 124)
        snprintf(error, size, "it had not ended after 4 minutes");
    else if (result)
        script_said(said, error, size);
    if (said >= 0)
        close(said);
    bench_torch_tell(out);
    return result;
}

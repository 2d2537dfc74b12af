/* PyTorch's fused operator beside ours: run by the parent before the ranks start, so that both have
 * the GPUs alone. */
#include "experiments/bench/bench_gpu.h"
#include "experiments/bench/bench_gpu_row.h"
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

/* experiments/baselines beside the build folder that this program lies in. */
static int bench_torch_find_script(char *path, size_t size, const char *op)
{
    char self[3072];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0)
        return -errno;
    self[n] = 0;
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(self, '/');
        if (!slash)
            return -ENOENT;
        *slash = 0;
    }
    snprintf(path, size, "%s/experiments/baselines/torch_%s.py", self, op);
    return access(path, R_OK) ? -errno : 0;
}

/* A line of what PyTorch measured: the numbers of the problem, a word where there are several
 * times, then ms, least and most:
 *
 *     8192,1024,8192,0.386,0.381,0.402
 *     8192,8192,1024,one_shot,0.702,0.688,0.713
 *     4,12288,16,16,128,attention,3.611,3.602,3.634
 */
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
    } words[] = {{"", BENCH_TORCH},          {"attention", BENCH_PRODUCT},
                 {"product", BENCH_PRODUCT}, {"comm", BENCH_COMM},
                 {"in_turn", BENCH_TURNS},   {"context_parallel", BENCH_TORCH}};
    const char *path = getenv("MKERNEL_BENCH_TORCH");
    FILE *f = path ? fopen(path, "re") : NULL;
    char line[256], word[32];
    struct gpu_time time;
    while (f && fgets(line, sizeof line, f))
        for (uint32_t i = 0; i < count; i++)
            if (bench_torch_read_line(line, &rows[i].problem, word, &time))
                for (size_t w = 0; w < sizeof words / sizeof *words; w++)
                    if (!strcmp(word, words[w].word))
                        rows[i].times[words[w].what] = time;
    if (f)
        fclose(f);
}

int bench_torch(const struct run_job *job, const char *out)
{
    char script[4096], list[RUN_SHAPES][128], ranks[32];
    const char *argv[RUN_SHAPES + 16] = {
        "timeout",          "240", "python3", "-m", "torch.distributed.run",
        "--nproc-per-node", ranks, script,    NULL};
    int argc = 8, status = 0;
    pid_t child;
    if (bench_torch_find_script(script, sizeof script, plan_op_name(job->problem.op)))
        return -ENOENT;
    snprintf(ranks, sizeof ranks, "%u", job->identity.world);
    uint64_t numbers[OP_DIMENSIONS];
    uint32_t dimensions = op_numbers(&job->problem, numbers);
    if (run_op_of(job->problem.op)->product == RUN_ATTENTION) {
        if (job->options.vs == RUN_VS_TORCH)
            argv[argc++] = "--context-parallel";
        if (job->problem.attention.causal)
            argv[argc++] = "--causal";
    }
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
        size_t used = 0;
        for (uint32_t d = 0; d < dimensions; d++)
            used += (size_t)snprintf(list[i] + used, sizeof list[i] - used, "%s%llu", d ? "," : "",
                                     (unsigned long long)job->shapes[i][d]);
        argv[argc++] = list[i];
    }
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, out, O_WRONLY | O_CREAT | O_TRUNC,
                                     0600);
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    int result = -posix_spawnp(&child, argv[0], &files, NULL, (char *const *)argv, environ);
    posix_spawn_file_actions_destroy(&files);
    while (!result && waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            result = -errno;
    if (result)
        return result;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EIO;
}

/* PyTorch's fused operator beside ours: run by the parent before the ranks start, so that both have
 * the GPUs alone. */
#include "experiments/bench/bench_gpu.h"

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

int bench_torch(const struct run_job *job, const char *shapes, const char *out)
{
    char script[4096], list[1024], ranks[32];
    const char *argv[32 + 8] = {"timeout",          "240", "python3", "-m", "torch.distributed.run",
                                "--nproc-per-node", ranks, script};
    int argc = 8, status = 0;
    pid_t child;
    if (bench_torch_find_script(script, sizeof script, plan_op_name(job->problem.op)))
        return -ENOENT;
    snprintf(ranks, sizeof ranks, "%u", job->identity.world);
    snprintf(list, sizeof list, "%s", shapes);
    for (char *save, *p = strtok_r(list, ":", &save); p && argc < 39;
         p = strtok_r(NULL, ":", &save))
        argv[argc++] = p;
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

/* cuDNN's attention, through PyTorch in a process of its own: it answers when asked, so that its
 * launches take turns with ours. */
#include "experiments/baselines/baselines.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"
#include "experiments/baselines/script.h"
#include "experiments/common/process.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct baseline_cudnn {
    pid_t child;
    int socket, said; /* said: what it wrote to standard error */
    FILE *answers;
};

int baseline_cudnn_open(struct baseline_cudnn **out, int gpu, char *error, size_t size)
{
    struct baseline_cudnn *b = calloc(1, sizeof *b);
    int ends[2], result;
    char script[4096], number[16];
    *out = b;
    if (!b)
        return -ENOMEM;
    b->socket = b->said = -1;
    result = script_find(script, sizeof script, "torch_attention.py");
    if (result)
        return mk_fail(result, error, size, "%s is not there", script);
    b->said = process_said_open();
    if (b->said < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
        return mk_fail(-EIO, error, size, "no way to speak with python3: %s", strerror(errno));
    snprintf(number, sizeof number, "%d", gpu);
    char *const words[] = {"python3", script, number, NULL};
    const struct process_how how = {.program = "python3",
                                    .words = words,
                                    .in = ends[1],
                                    .out = ends[1],
                                    .err = b->said,
                                    .death = SIGKILL};
    const pid_t child = process_start(&how);
    close(ends[1]);
    b->socket = ends[0];
    if (child < 0)
        return mk_fail(child, error, size, "python3 does not start: %s", strerror(-child));
    b->child = child;
    b->answers = fdopen(ends[0], "r");
    return b->answers ? 0 : -ENOMEM;
}

/* A line of its answers; NULL where none comes within `seconds`. */
static char *cudnn_read(struct baseline_cudnn *b, char **line, size_t *room, int seconds)
{
    struct pollfd p = {.fd = b->socket, .events = POLLIN};
    return poll(&p, 1, seconds * 1000) == 1 && getline(line, room, b->answers) > 0 ? *line : NULL;
}

int baseline_cudnn_version(struct baseline_cudnn *b, char *error, size_t size)
{
    MK_FREED char *line = NULL;
    size_t room = 0;
    int there = b->answers && cudnn_read(b, &line, &room, 60) != NULL;
    if (!there)
        process_said(b->said, error, size);
    return there ? 0 : -EIO;
}

int baseline_cudnn_attention(struct baseline_cudnn *b, const struct baseline_attention *shape,
                             uint32_t launches, float *ms, char *error, size_t size)
{
    char request[256], *at, *end;
    MK_FREED char *line = NULL;
    size_t room = 0;
    uint32_t count = 0;
    int n = snprintf(request, sizeof request, "%lu %lu %lu %lu %lu %lu %d %u\n", shape->batch,
                     shape->heads, shape->kv_heads, shape->queries, shape->keys, shape->dim,
                     shape->causal, launches);
    if (send(b->socket, request, (size_t)n, MSG_NOSIGNAL) == n && cudnn_read(b, &line, &room, 60))
        for (at = line; count < launches; at = end, count++) {
            ms[count] = strtof(at, &end);
            if (end == at)
                break;
        }
    if (count < launches)
        process_said(b->said, error, size);
    return count < launches ? -EIO : 0;
}

void baseline_cudnn_close(struct baseline_cudnn *b)
{
    if (!b)
        return;
    if (b->child) {
        kill(-b->child, SIGKILL); /* nothing of it is needed any more */
        process_end(b->child);
    }
    if (b->answers)
        fclose(b->answers);
    else if (b->socket >= 0)
        close(b->socket);
    if (b->said >= 0)
        close(b->said);
    free(b);
}

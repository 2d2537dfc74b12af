/* Ranks as processes: the test program starts itself again once per rank, so that each begins with
 * no threads (OpenBLAS has some in the parent) and the sanitizers follow. */
#pragma once

#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS_MAX 16

struct ranks_identity {
    char scene[32];
    uint32_t rank, nodes, gpus;
    int listen_fd; /* rank 0's; -1 elsewhere */
    uint16_t port;
    char token[32];
};

/* In a started process: 1, and its rank. */
static int ranks_identity(int argc, char **argv, struct ranks_identity *id)
{
    if (argc != 8 || strcmp(argv[1], "--rank"))
        return 0;
    memset(id, 0, sizeof *id);
    snprintf(id->scene, sizeof id->scene, "%s", argv[2]);
    id->rank = (uint32_t)atoi(argv[3]);
    id->nodes = (uint32_t)atoi(argv[4]);
    id->gpus = (uint32_t)atoi(argv[5]);
    id->port = (uint16_t)atoi(argv[6]);
    id->listen_fd = id->rank ? -1 : 3;
    snprintf(id->token, sizeof id->token, "%s", argv[7]);
    return 1;
}

/* What a rank's process does, under a name; main's way in. A rank of its scene: its status. -1: this
 * is no rank. */
struct ranks_scene {
    const char *name;
    int (*run)(const struct ranks_identity *id);
};

static int ranks_play(int argc, char **argv, const struct ranks_scene *scenes, size_t count)
{
    struct ranks_identity id;
    if (!ranks_identity(argc, argv, &id))
        return -1;
    for (size_t i = 0; i < count; i++)
        if (!strcmp(scenes[i].name, id.scene))
            return scenes[i].run(&id);
    return 1;
}

/* Ends a rank, which has `id` and `comm`, with a sentence. */
#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "rank %u, line %d: not so: %s (%s)\n", id->rank, __LINE__, #condition, \
                    comm ? mk_error(comm) : "");                                                   \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static void ranks_exec(const char *scene, uint32_t rank, uint32_t nodes, uint32_t gpus, int fd,
                       uint16_t port, const char *token)
{
    char words[4][16];
    snprintf(words[0], sizeof words[0], "%u", rank);
    snprintf(words[1], sizeof words[1], "%u", nodes);
    snprintf(words[2], sizeof words[2], "%u", gpus);
    snprintf(words[3], sizeof words[3], "%u", port);
    char *argv[] = {(char *)"rank", (char *)"--rank", (char *)scene, words[0], words[1],
                    words[2],       words[3],         (char *)token, NULL};
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    if (rank == 0)
        dup2(fd, 3);
    else
        close(fd);
    execv("/proc/self/exe", argv);
    _exit(127);
}

/* Whether nodes of this host can be joined: by softnic, which lies beside the tests where it was
 * built. */
__attribute__((unused)) static int ranks_have_softnic(void)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 32);
    path[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(path, '/');
    if (slash)
        snprintf(slash, 32, "/../libsoftnic.so");
    return !access(path, R_OK);
}

/* Runs all ranks of `scene`; statuses as of waitpid, in rank order. Ranks still there after
 * `seconds` are killed. Returns the seconds that the slowest took. */
static double ranks_run(const char *scene, uint32_t nodes, uint32_t gpus, double seconds,
                        int *statuses)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    pid_t pids[RANKS_MAX];
    char token[32];
    struct timespec start, now;
    uint32_t left = nodes * gpus;
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, RANKS_MAX) ||
        getsockname(fd, (struct sockaddr *)&address, &length))
        return -1;
    snprintf(token, sizeof token, "test-%d-%u", (int)getpid(), ntohs(address.sin_port));
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (uint32_t rank = 0; rank < left; rank++) {
        pids[rank] = fork();
        if (!pids[rank])
            ranks_exec(scene, rank, nodes, gpus, fd, ntohs(address.sin_port), token);
    }
    close(fd);
    double elapsed = 0;
    for (int killed = 0; left;) {
        for (uint32_t rank = 0; rank < nodes * gpus; rank++)
            if (pids[rank] > 0 && waitpid(pids[rank], &statuses[rank], WNOHANG) == pids[rank]) {
                pids[rank] = 0;
                left--;
            }
        clock_gettime(CLOCK_MONOTONIC, &now);
        elapsed =
            (double)(now.tv_sec - start.tv_sec) + 1e-9 * (double)(now.tv_nsec - start.tv_nsec);
        if (elapsed > seconds && !killed++)
            for (uint32_t rank = 0; rank < nodes * gpus; rank++)
                if (pids[rank] > 0)
                    kill(pids[rank], SIGKILL);
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
    return elapsed;
}

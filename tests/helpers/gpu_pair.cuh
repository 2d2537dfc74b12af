/* Two ranks of one host with a GPU each, as two processes: for tests of the library on GPUs. */
#pragma once

#include <cuda_runtime.h>

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/mkernel.h"

enum { GPUS = 2 };

/* A rank's communicator, of a job with this token. 0, or what mk_comm_open returned. */
static int pair_open(struct mk_comm **out, uint32_t rank, int listener, unsigned port,
                     const char *token)
{
    struct mk_config config = {};
    config.version = MK_VERSION_NUMBER;
    config.rank = rank;
    config.nodes = 1;
    config.gpus = GPUS;
    config.exec = MK_EXEC_CUDA;
    config.port = (uint16_t)port;
    config.listen_fd = rank ? 0 : listener;
    strcpy(config.token, token);
    return mk_comm_open(out, &config);
}

/* In a process of its own: this one must not start CUDA, as its children do. */
static int too_few_gpus(int wanted)
{
    int status;
    pid_t child = fork();
    if (!child) {
        int n = 0, major = 0;
        _exit(cudaGetDeviceCount(&n) != cudaSuccess || n < wanted ||
              cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess ||
              major != 9);
    }
    return waitpid(child, &status, 0) < 0 || status;
}

/* A socket where rank 0 of a job listens, or -1. */
static int pair_listen(unsigned *port)
{
    struct sockaddr_in address = {};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) ||
        listen(listener, GPUS) || getsockname(listener, (struct sockaddr *)&address, &length))
        return -1;
    *port = ntohs(address.sin_port);
    return listener;
}

/* Both ranks; returns an exit status. */
static int pair_run(int (*rank_main)(int rank, int listener, unsigned port))
{
    unsigned port = 0;
    int listener = pair_listen(&port), failed = 0, status;
    if (listener < 0)
        return 1;
    fflush(NULL);
    for (int rank = 0; rank < GPUS; rank++)
        if (!fork())
            _exit(rank_main(rank, listener, port));
    close(listener);
    for (int rank = 0; rank < GPUS; rank++)
        failed |= wait(&status) < 0 || status;
    printf("check: %s\n", failed ? "FAILED" : "ok");
    return failed;
}

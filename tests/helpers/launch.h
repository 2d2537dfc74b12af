/* Starts the ranks of a job one by one, as torchrun would, so that each may have an environment and
 * a fate of its own. */
#pragma once

#include "tests/helpers/command.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#define LAUNCH_MOST 8

struct launch {
    struct command_run ranks[LAUNCH_MOST];
    int world, port;
    int held; /* a socket that keeps the port from other jobs, and does not listen */
};

/* A new job of `world` ranks of one host; none is started. *l is zeroed before its first job. */
static void launch_open(struct launch *l, int world)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof a;
    int one = 1;
    if (l->port)
        close(l->held);
    l->held = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (setsockopt(l->held, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) ||
        bind(l->held, (struct sockaddr *)&a, sizeof a) ||
        getsockname(l->held, (struct sockaddr *)&a, &length))
        abort();
    l->world = world;
    l->port = ntohs(a.sin_port);
}

/* Starts `mkernel LINE` as rank `rank`; `own`: an environment entry of this rank's, NULL for
 * none. */
static void launch_rank(struct launch *l, int rank, const char *line, const char *own)
{
    char text[7][64];
    snprintf(text[0], 64, "RANK=%d", rank);
    snprintf(text[1], 64, "LOCAL_RANK=%d", rank);
    snprintf(text[2], 64, "WORLD_SIZE=%d", l->world);
    snprintf(text[3], 64, "LOCAL_WORLD_SIZE=%d", l->world);
    snprintf(text[4], 64, "MASTER_PORT=%d", l->port - 1);
    snprintf(text[5], 64, "MKERNEL_PORT=%d", l->port);
    snprintf(text[6], 64, "MKERNEL_TOKEN=%d-%d", (int)getpid(), l->port);
    command_start(&l->ranks[rank], line, "MASTER_ADDR=127.0.0.1", text[6], text[0], text[1],
                  text[2], text[3], text[4], text[5], own, NULL);
}

/* A TCP port for a job whose ranks are told its number. It and the 63 after it are this process's
 * until it ends, among the tests that run beside it, and the kernel gives them to no connection. */
#pragma once

#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/helpers/test.h"

#define FREE_PORT_RUN 64u
#define FREE_PORT_FIRST 8192u

/* Nobody listens there, and no other test has taken it: a name that one process can have. */
static inline int free_port_take(unsigned port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int unused = !bind(fd, (struct sockaddr *)&a, sizeof a);
    close(fd);
    int length = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "mkernel-port-%u", port);
    fd = unused ? socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
    if (fd < 0 || !bind(fd, (struct sockaddr *)&name,
                        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)))
        return fd >= 0; /* open until the process ends */
    close(fd);
    return 0;
}

static inline int free_port(void)
{
    unsigned low = 32768; /* the first that connections get */
    FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
    assert_true(!f || fscanf(f, "%u", &low) == 1);
    if (f)
        fclose(f);
    if (low < 2 * FREE_PORT_FIRST) /* connections may get nearly all of them */
        low = 65536;
    unsigned count = (low - FREE_PORT_FIRST) / FREE_PORT_RUN, any = 0;
    assert_int_equal(getrandom(&any, sizeof any, 0), sizeof any);
    for (unsigned i = 0; i < count; i++) {
        unsigned port = FREE_PORT_FIRST + (any % count + i) % count * FREE_PORT_RUN;
        if (free_port_take(port))
            return (int)port;
    }
    fail_msg("no port is free from %u to %u", FREE_PORT_FIRST, low);
    return -1;
}

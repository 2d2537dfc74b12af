/* A job over hosts for people who have no launcher: this program again, once a rank, by ssh. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define HOSTS_MOST 256
#define HOSTS_PORT_TAKEN 4 /* exit status of a rank 0 whose port another program has */

struct host_list {
    char names[HOSTS_MOST][256];
    uint32_t count, slots; /* slots: ranks of each */
};

/* Reads a file with a line a host: "node1 slots=8", # begins a comment; slots is 1 where it is not
 * said, and the same for all. 0, or -EINVAL with a sentence. */
int hosts_read(struct host_list *out, const char *path, char *error, size_t size);

/* Starts this program with `argv` once a rank, node by node, in this folder, under the environment
 * of a launcher (RANK, WORLD_SIZE, ...; the first host is rank 0's); variables of mkernel's are
 * passed on, the job's token by standard input, where `ps` does not show it. Ends all where one is
 * lost, or this process gets SIGINT, SIGTERM or SIGHUP; and starts them again at another port where
 * rank 0 ends with HOSTS_PORT_TAKEN. Returns the highest exit status; *stopped:
 * the signal that came. `error`: a sentence where the job did not end by itself, else empty. */
int hosts_run(const struct host_list *hosts, char *const *argv, int *stopped, char *error,
              size_t size);

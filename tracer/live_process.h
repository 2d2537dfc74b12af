/* What both sides of a live job share; for tracer/live_*.c alone. */
#pragma once

#include "tracer/live.h"

#include <sys/stat.h>

#define LIVE_MAGIC "mklive\r\n"

uint64_t live_now(void); /* ns, CLOCK_MONOTONIC */

/* A process's state letter and start as /proc/PID/stat has them. 0, or -errno: there is none (a
 * zombie is none). */
int live_process(int pid, char *state, uint64_t *start);

/* Whether this user owns a folder or file, and no other user may write to it. */
int live_is_own(const struct stat *s);

/* The folders that may hold jobs, the preferred one first. Returns how many; 0: publishing is
 * off. */
int live_bases(char out[2][200]);

/* Commands that are not a job of ranks, under a launcher that started several processes of them. */
#pragma once

#include "core/comm/launcher.h"

/* As launcher_read, of this process's environment. */
int launched(struct launcher *out, char *error, size_t size);

/* For a command of one process: 1 in every rank but rank 0, which then has nothing to do and has
 * said so on stderr. */
int launched_leaves(const char *command);

/* Rank 0 says on stderr where the job's token follows from ids that others may know. */
void launched_warn(const char *command, const char *launcher, uint32_t rank, uint16_t port,
                   int guessable);

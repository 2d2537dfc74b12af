/* Commands that are not a job of ranks, under a launcher that started several processes of them. */
#pragma once

#include "core/launcher.h"

/* As launcher_read, of this process's environment. */
int launched(struct launcher *out, char *error, size_t error_size);

/* For a command that is one process: 1 where this is a rank behind rank 0, which has nothing to do;
 * it has said so on stderr. */
int launched_leaves(const char *command);

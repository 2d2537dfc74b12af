/* What subcommands say of their arguments, and how they end where these are not usable. */
#pragma once

#include "experiments/common/commands.h"
#include "experiments/common/options.h"

/* "mkernel NAME: SENTENCE" on stderr. Returns `status`. */
__attribute__((format(printf, 3, 4))) int command_say(const char *name, int status,
                                                      const char *format, ...);

/* "mkernel NAME: SENTENCE; `mkernel NAME --help` tells more" on stderr. STATUS_USAGE. */
#define command_refuse(name, format, ...)                                                          \
    command_say(name, STATUS_USAGE, format "; `mkernel %s --help` tells more", ##__VA_ARGS__, name)

/* Parses argv into `values` and `found`, of which at most `most` words. -1: the command goes on;
 * else it ends with this status: its help was asked for and has been printed, or an argument is not
 * usable, which has been said. */
int command_options(const char *name, const struct option_table *table, int most, int argc,
                    char **argv, void *values, struct options_found *found);

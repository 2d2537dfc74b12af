#include "experiments/common/command_says.h"

#include <stdarg.h>

int command_say(const char *name, int status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "mkernel %s: ", name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return status;
}

int command_options(const char *name, const struct option_table *table, int most, int argc,
                    char **argv, void *values, struct options_found *found)
{
    char error[1024];
    if (options_parse(table, argc, argv, values, found, error, sizeof error))
        return command_refuse(name, "%s", error);
    if (found->help) {
        options_help(table, stdout);
        return STATUS_DONE;
    }
    if (found->word_count > most)
        return command_refuse(name, "%s is one argument too many", found->words[most]);
    return -1;
}

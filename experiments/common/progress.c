#include "experiments/common/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECOND 1000000000ull

void progress_begin(struct progress *p, int terminal, const char *setting, uint64_t now)
{
    unsigned long every = setting ? strtoul(setting, NULL, 10) : 0;
    *p = (struct progress){.terminal = terminal && !every, .start = now};
    if (setting && !strcmp(setting, "off"))
        return;
    p->step = every ? every * SECOND : terminal ? SECOND / 5 : 60 * SECOND;
    p->next = now + (every ? p->step : terminal ? SECOND / 2 : 30 * SECOND);
}

int progress_due(struct progress *p, uint64_t now)
{
    if (!p->step || now < p->next)
        return 0;
    p->next = now + p->step;
    return 1;
}

const char *progress_line(const struct progress *p, const char *name, const char *says,
                          uint64_t done, uint64_t all, uint64_t now, char *text, size_t size)
{
    char share[32] = "";
    if (all)
        snprintf(share, sizeof share, ", %llu %%",
                 (unsigned long long)(done < all ? (double)done * 100 / (double)all : 100));
    snprintf(text, size, "%s%s: %s%s, %llu s%s", p->terminal ? "\r\033[K" : "", name, says, share,
             (unsigned long long)((now - p->start) / SECOND), p->terminal ? "" : "\n");
    return text;
}

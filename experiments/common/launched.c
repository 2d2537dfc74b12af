#include "experiments/common/launched.h"

#include <stdio.h>
#include <unistd.h>

int launched(struct launcher *out, char *error, size_t size)
{
    return launcher_read(out, (const char *const *)environ, error, size);
}

int launched_leaves(const char *command)
{
    struct launcher l;
    /* an environment that contradicts itself is no launcher's, to whom it is all the same */
    char unused[8];
    if (launched(&l, unused, sizeof unused) <= 0 || l.rank == 0)
        return 0;
    fprintf(stderr,
            "mkernel %s: one process does it all, rank 0 of the %u that %s started; rank %u has "
            "nothing to do\n",
            command, l.world, l.name, l.rank);
    return 1;
}

void launched_warn(const char *command, const char *launcher, uint32_t rank, uint16_t port,
                   int guessable)
{
    if (!rank && guessable)
        fprintf(stderr,
                "mkernel %s: warning: %s gives the job no secret, so its token at port %u is made "
                "from ids that others may guess; export MKERNEL_TOKEN=$(openssl rand -hex 16), "
                "the same for every rank, before %s keeps them out\n",
                command, launcher, port, launcher);
}

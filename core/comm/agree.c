#include "core/comm/agree.h"
#include "core/base/digest.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ballot {
    char verb[24]; /* ranks may have made different calls */
    uint64_t values[AGREE_FIELDS];
    int64_t result;
    char error[256];
};

uint64_t agree_hash(const char *text)
{
    return mk_digest(MK_DIGEST, text, strlen(text));
}

static int agree_differs(const struct ballot *all, uint32_t world, const char *verb,
                         const struct agree_field *fields, uint32_t count, char *error, size_t size)
{
    int refused = 0;
    for (uint32_t r = 1; r < world; r++)
        if (strncmp(all[r].verb, all[0].verb, sizeof all[r].verb - 1))
            return mk_fail(
                -EINVAL, error, size,
                "rank %u %.23s where rank 0 %.23s: all ranks must make the same calls in "
                "the same order",
                r, all[r].verb, all[0].verb);
    for (uint32_t r = 0; r < world; r++)
        refused |= all[r].result != 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t odd = 0, others = 0;
        for (uint32_t r = 1; r < world; r++)
            if (all[r].values[i] != all[0].values[i]) {
                odd = odd ? odd : r;
                others++;
            }
        if (!odd || (refused && fields[i].kind == AGREE_MADE))
            continue;
        char more[48] = "";
        if (others > 1)
            snprintf(more, sizeof more, " (and %u more ranks differ)", others - 1);
        if (fields[i].kind == AGREE_GIVEN)
            snprintf(error, size,
                     all[odd].values[i] ? "rank %u has %s, which rank 0 has not%s"
                                        : "rank %u has no %s, which rank 0 has%s",
                     odd, fields[i].name, more);
        else if (fields[i].kind == AGREE_OPAQUE || fields[i].kind == AGREE_MADE)
            snprintf(error, size, "rank %u %s another %s than rank 0%s", odd, verb, fields[i].name,
                     more);
        else
            snprintf(error, size, "rank %u %s %s = %lu where rank 0 has %lu%s", odd, verb,
                     fields[i].name, all[odd].values[i], all[0].values[i], more);
        return -EINVAL;
    }
    return 0;
}

int agree(struct bootstrap *b, uint32_t rank, uint32_t world, const char *verb,
          const struct agree_field *fields, uint32_t count, int result, char *error, size_t size)
{
    struct ballot *all = calloc(world + 1, sizeof *all), *mine = all + world;
    if (!all) { /* the others would wait for this rank */
        struct mk_failure f;
        memset(&f, 0, sizeof f);
        f.kind = MK_FAIL_SETUP;
        f.rank = f.producer = rank;
        f.op = f.cta = f.role = f.flag = f.chunk = UINT32_MAX;
        snprintf(f.detail, sizeof f.detail, "out of memory");
        bootstrap_fail(b, &f);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < count && i < AGREE_FIELDS; i++)
        mine->values[i] = fields[i].value;
    mine->result = result;
    snprintf(mine->verb, sizeof mine->verb, "%s", verb);
    if (result)
        snprintf(mine->error, sizeof mine->error, "%s", error);
    int sent = bootstrap_allgather(b, mine, all, sizeof *all);
    if (!sent)
        sent = agree_differs(all, world, verb, fields, count, error, size);
    for (uint32_t r = 0; !sent && r < world; r++) {
        if (!all[r].result)
            continue;
        sent = (int)all[r].result;
        all[r].error[sizeof all[r].error - 1] = '\0';
        if (result)
            sent = result; /* its own words, unabridged, are in `error` */
        else
            snprintf(error, size, "rank %u: %s", r, all[r].error);
    }
    free(all);
    return sent;
}

#include "experiments/sim/sim_case.h"
#include "core/base/grow.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"
#include "core/base/words.h"
#include "experiments/common/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A number alone in `text`, least .. most. */
static int sim_case_number(const char *option, const char *text, double least, double most,
                           double *out, char *error, size_t size)
{
    char *end;
    *out = strtod(text, &end);
    if (end != text && !*end && *out >= least && *out <= most)
        return 0;
    return mk_fail(-EINVAL, error, size, "--%s %s: it is a number from %g to %g", option, text,
                   least, most);
}

int sim_case_network(struct sim_case *c, char *error, size_t size)
{
    char *end;
    double rate = strtod(c->options.network, &end);
    if (end == c->options.network || strcmp(end, "GB/s") || rate < 0.001 || rate > 1e6)
        return mk_fail(-EINVAL, error, size, "--network %s: a rate of each rank is written 100GB/s",
                       c->options.network);
    c->machine.nic_rate = rate;
    return 0;
}

void sim_case_differs(struct sim_case *c)
{
    if (c->options.staged)
        c->machine.staged = 1;
    if (c->options.rested)
        c->machine = machine_rested(&c->machine);
    if (c->options.graph)
        c->machine.between = -c->machine.early;
}

/* uint32_t numbers, or text with blanks or commas between them. */
static int sim_case_ids(struct sim_case *c, char *error, size_t size)
{
    MK_CLOSED FILE *f = fopen(c->options.ids, "re");
    long number; /* one that has more bits is at an end of these */
    int rc = f ? 0 : -errno, got = 0;
    while (!rc && (got = fscanf(f, " %ld%*[, \t\r\n]", &number)) == 1) {
        rc = mk_grow(&c->ids, c->id_count, sizeof *c->ids);
        if (!rc)
            c->ids[c->id_count++] =
                number < 0 || number > UINT32_MAX ? UINT32_MAX : (uint32_t)number;
    }
    if (!rc && ferror(f))
        rc = -errno;
    if (rc)
        snprintf(error, size, "--ids %s: %s", c->options.ids, strerror(-rc));
    else if (got != EOF)
        snprintf(error, size,
                 "--ids %s: behind number %lu there is something that is no expert's number",
                 c->options.ids, c->id_count);
    return rc ? rc : got != EOF ? -EINVAL : 0;
}

int sim_case_open(struct sim_case *c, const struct sim_case_options *o, char *error, size_t size)
{
    memset(c, 0, sizeof *c);
    c->options = *o;
    c->machine = *machine_default();
    int rc = o->machine ? machine_find(&c->machine, o->machine, error, size) : 0;
    sim_case_differs(c);
    if (!rc && o->network)
        rc = sim_case_network(c, error, size);
    if (!rc && o->jitter)
        rc = sim_case_number("jitter", o->jitter, 0, 1, &c->jitter, error, size);
    if (!rc && o->skew && !strcmp(o->skew, "one"))
        c->skew = INFINITY;
    else if (!rc && o->skew)
        rc = sim_case_number("skew", o->skew + (strncmp(o->skew, "zipf:", 5) ? 0 : 5), 0, 10,
                             &c->skew, error, size);
    if (!rc && o->ids)
        rc = sim_case_ids(c, error, size);
    return rc ? rc : tuning_open(&c->tuning, o->tuning ? o->tuning : "", 0, error, size);
}

void sim_case_close(struct sim_case *c)
{
    free(c->ids);
    tuning_close(&c->tuning);
}

int sim_case_plan(const struct sim_case *c, struct mk_plan *plan, struct mk_problem *q, char *error,
                  size_t size)
{
    q->exec = c->options.host ? MK_EXEC_HOST : MK_EXEC_CUDA;
    q->sms = c->options.host ? 0 : (uint32_t)c->machine.sms;
    q->topo.rank = 0;
    q->c_in_heap = c->options.c_in_heap && q->topo.nodes == 1; /* what bench places */
    return c->options.host
               ? plan_build(plan, q, 0, 0, error, size)
               : tuning_build(plan, &c->tuning, q, c->machine.device, 0, 0, error, size);
}

/* One of --slow, "rank=0.7@3". */
static int sim_case_slow_one(const char *word, size_t length, struct timed_slow *slow,
                             uint32_t ranks, char *error, size_t size)
{
    static const char *const names[] = {"rank", "link", "nic"};
    char one[64], name[8];
    uint64_t rank;
    double factor;
    int used = 0;
    snprintf(one, sizeof one, "%.*s", (int)length, word);
    if (sscanf(one, "%7[a-z]=%lf@%n", name, &factor, &used) != 2 || !used ||
        options_whole(one + used, 0, UINT64_MAX, &rank) == -EINVAL ||
        !(factor >= 0.001 && factor <= 1000))
        return mk_fail(-EINVAL, error, size,
                       "--slow %s: it is written rank=0.7@3, link=0.5@3 (its NVLink) or nic=0.5@3",
                       one);
    if (rank >= ranks)
        return mk_fail(-EINVAL, error, size, "--slow %s: the cluster's ranks are 0 to %u", one,
                       ranks - 1);
    int part = mk_word(name, names, 3);
    if (part < 0)
        return mk_fail(-EINVAL, error, size, "--slow %s: what can be slow are rank, link and nic",
                       one);
    *(part == 0 ? &slow[rank].gpu : part == 1 ? &slow[rank].nvlink : &slow[rank].nic) = factor;
    return 0;
}

static int sim_case_slow(const struct sim_case *c, uint32_t ranks, const struct timed_slow **out,
                         char *error, size_t size)
{
    struct timed_slow *slow = malloc(ranks * sizeof *slow);
    int rc = slow ? 0 : -ENOMEM;
    for (uint32_t i = 0; i < ranks && slow; i++)
        slow[i] = (struct timed_slow){1, 1, 1};
    for (const char *at = c->options.slow; !rc && *at;) {
        size_t length = strcspn(at, ",");
        rc = sim_case_slow_one(at, length, slow, ranks, error, size);
        at += length + (at[length] == ',');
    }
    if (rc)
        free(slow);
    *out = rc ? NULL : slow;
    return rc;
}

void sim_case_work(const struct sim_case *c, const struct mk_plan *plan, double *flop,
                   uint64_t *nvlink_bytes, uint64_t *network_bytes)
{
    plan_work(plan, flop, nvlink_bytes, network_bytes);
    if (isinf(c->skew))
        *flop /= (double)plan->problem.moe.k;
}

int sim_case_config(const struct sim_case *c, const struct mk_plan *plan,
                    struct timed_config *config, char *error, size_t size)
{
    const struct mk_problem *q = &plan->problem;
    uint64_t ids = mk_world(&q->topo) * q->moe.tokens * q->moe.k;
    config->plan = plan;
    config->machine = &c->machine;
    config->jitter = c->jitter;
    config->skew = c->skew;
    config->ids = c->ids;
    config->slow = NULL;
    if (c->ids && c->id_count != ids)
        return mk_fail(
            -EINVAL, error, size,
            "--ids %s has %lu numbers: %u ranks of %lu tokens with %lu experts each have "
            "%lu",
            c->options.ids, c->id_count, mk_world(&q->topo), q->moe.tokens, q->moe.k, ids);
    int rc = timed_memory_check(plan, error, size);
    if (!rc && c->options.slow)
        rc = sim_case_slow(c, mk_world(&q->topo), &config->slow, error, size);
    if (rc == -ENOMEM)
        snprintf(error, size, "no memory for %u ranks", mk_world(&q->topo));
    return rc;
}

int sim_case_cluster(const char *text, uint64_t *nodes, uint64_t *gpus, char *error, size_t size)
{
    unsigned n, g;
    char more;
    if (strspn(text, "0123456789x") == strlen(text) &&
        sscanf(text, "%5ux%5u%c", &n, &g, &more) == 2 && n && g && n <= MK_MAX_RANKS &&
        g <= MK_MAX_LOCAL) {
        *nodes = n;
        *gpus = g;
        return 0;
    }
    return mk_fail(-EINVAL, error, size,
                   "--cluster %s: 4 nodes of 8 ranks are written 4x8; at most %u ranks a node",
                   text, MK_MAX_LOCAL);
}

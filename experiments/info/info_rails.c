#include "experiments/info/info_rails.h"

#include <string.h>

enum { RANKS = 16, DISTANCES = TOPOLOGY_UNKNOWN + 1 };

static int info_rails_taken(const struct nic_choice *c, const char *name)
{
    for (uint32_t i = 0; i < c->count; i++)
        if (!strcmp(c->devices[i], name))
            return 1;
    return 0;
}

/* "others 3 NODE, 4 SYS": devices of the same kind that this rank leaves to others. */
static void info_rails_show_others(FILE *out, const struct nic_survey *s,
                                   const struct nic_request *r, const struct nic_choice *c)
{
    uint32_t counts[DISTANCES] = {0}, shown = 0;
    struct topology_place gpu, nic;
    if (topology_pci(r->sysfs, r->places[r->local_rank].gpu, &gpu))
        return;
    for (uint32_t i = 0; i < s->count; i++) {
        const struct nic_info *n = &s->nics[i];
        if (n->soft != c->soft || !(r->efa ? n->efa : n->reliable) || n->problem[0] ||
            info_rails_taken(c, n->name))
            continue;
        topology_rdma(r->sysfs, n->name, &nic);
        counts[topology_distance(&gpu, &nic)]++;
    }
    for (uint32_t d = 0; d < DISTANCES; d++)
        if (counts[d])
            fprintf(out, "%s%u %s", shown++ ? ", " : "; others: ", counts[d],
                    topology_name((enum topology_distance)d));
}

static void info_rails_show_devices(FILE *out, const struct nic_choice *c, int distances)
{
    for (uint32_t i = 0; i < c->count; i++) {
        fprintf(out, "%s%s", i ? " + " : "", c->devices[i]);
        if (distances)
            fprintf(out, " (%s)", topology_name(c->distances[i]));
    }
}

static void info_rails_show_gpus(FILE *out, const char *title, const struct nic_survey *s,
                                 struct nic_request *r)
{
    for (r->local_rank = 0; r->local_rank < r->local_ranks; r->local_rank++) {
        struct nic_choice c;
        char error[256];
        fprintf(out, "%-9s ", r->local_rank ? "" : title);
        if (nic_choose(&c, r, error, sizeof error)) {
            fprintf(out, "none: %s\n", error);
            return;
        }
        fprintf(out, "GPU %u at %s on ", r->local_rank, r->places[r->local_rank].gpu);
        info_rails_show_devices(out, &c, 1);
        info_rails_show_others(out, s, r, &c);
        fprintf(out, "\n");
    }
}

static void info_rails_show_ranks(FILE *out, const char *title, struct nic_request *r)
{
    fprintf(out, "%-9s ", title);
    for (r->local_rank = 0; r->local_rank < r->local_ranks; r->local_rank++) {
        struct nic_choice c;
        char error[256];
        if (nic_choose(&c, r, error, sizeof error)) {
            fprintf(out, "none: %s", error);
            break;
        }
        fprintf(out, "%slocal rank %u on ", r->local_rank ? ", " : "", r->local_rank);
        info_rails_show_devices(out, &c, 0);
    }
    fprintf(out, "\n");
}

void info_rails(FILE *out, const char *sysfs, const struct nic_survey *survey,
                const char *const *buses, uint32_t gpus)
{
    struct nic_place places[RANKS];
    struct nic_request r = {.names = "", .sysfs = sysfs, .places = places};
    /* kernel devices with RC, and EFA's */
    uint32_t real[2] = {0}, ranks = gpus < RANKS ? gpus : RANKS;
    for (uint32_t i = 0; i < survey->count; i++)
        real[survey->nics[i].efa != 0] += !survey->nics[i].soft;
    r.local_ranks = ranks ? ranks : 2;
    for (uint32_t i = 0; i < r.local_ranks; i++)
        nic_own_place(&places[i], ranks ? buses[i] : "");
    for (r.efa = 0; r.efa < 2; r.efa++) {
        if (!real[r.efa] && (r.efa || real[1]))
            continue;
        const char *title = r.efa ? "EFA rails" : "rails";
        if (ranks)
            info_rails_show_gpus(out, title, survey, &r);
        else
            info_rails_show_ranks(out, title, &r);
    }
}

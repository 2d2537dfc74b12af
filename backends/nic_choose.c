#include "backends/nic.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The devices that a request allows, in the order in which their library lists them. */
struct candidates {
    const struct nic_info *nics[NIC_MAX];
    uint32_t count;
};

static int nic_choose_usable(const struct nic_info *n, int efa)
{
    return !n->problem[0] && (efa ? n->efa : n->reliable);
}

static void nic_choose_all_of(struct candidates *c, const struct nic_survey *s, int soft, int efa)
{
    c->count = 0;
    for (uint32_t i = 0; i < s->count; i++)
        if (s->nics[i].soft == soft && nic_choose_usable(&s->nics[i], efa))
            c->nics[c->count++] = &s->nics[i];
}

static int nic_choose_add_name(struct candidates *c, const struct nic_survey *s, const char *name,
                               int efa, char *error, size_t size)
{
    const struct nic_info *n = NULL;
    for (uint32_t i = 0; i < s->count && !n; i++)
        n = strcmp(s->nics[i].name, name) ? NULL : &s->nics[i];
    if (!n && !strcmp(name, "soft"))
        snprintf(
            error, size,
            "soft is all of softnic's devices and stands alone; name them (soft0,soft1) in a list");
    else if (!n && s->soft_problem[0] && !strncmp(name, "soft", 4))
        snprintf(error, size, "there is no NIC %s: %s", name, s->soft_problem);
    else if (!n)
        snprintf(error, size,
                 "there is no NIC %s; `mkernel info` lists them, and soft is always there", name);
    else if (!nic_choose_usable(n, efa))
        snprintf(error, size, "NIC %s: %s", name,
                 n->problem[0] ? n->problem
                 : efa         ? "is not an EFA device: the efa fabric cannot use it"
                               : "has SRD queue pairs and no RC: the verbs fabric cannot use it");
    if (!n || !nic_choose_usable(n, efa))
        return -ENODEV;
    for (uint32_t i = 0; i < c->count; i++)
        if (c->nics[i] == n || c->nics[i]->soft != n->soft)
            return mk_fail(-EINVAL, error, size,
                           c->nics[i] == n ? "NIC %s is named twice"
                                           : "NIC %s: softnic's devices and others do not mix",
                           name);
    c->nics[c->count++] = n;
    return 0;
}

static int nic_choose_by_names(struct candidates *c, const struct nic_survey *s, const char *names,
                               int efa, char *error, size_t size)
{
    for (const char *at = names; *at;) {
        char name[64];
        size_t length = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", (int)length, at);
        int rc = length && c->count < NIC_MAX ? nic_choose_add_name(c, s, name, efa, error, size)
                                              : -EINVAL;
        if (rc == -EINVAL && !error[0])
            snprintf(error, size,
                     "'%s' is not a list of NICs: give device names with commas between them",
                     names);
        if (rc)
            return rc;
        at += length + (at[length] == ',');
    }
    return 0;
}

/* Why no device is usable, not even softnic's. */
static void nic_choose_explain_none(const struct nic_survey *s, int efa, char *error, size_t size)
{
    const struct nic_info *n = NULL;
    for (uint32_t i = 0; i < s->count && !n; i++)
        n = s->nics[i].soft && (efa ? s->nics[i].efa : s->nics[i].reliable) ? &s->nics[i] : NULL;
    if (n && !s->soft_problem[0])
        snprintf(error, size, "no NIC is usable, not even softnic: %s %s", n->name, n->problem);
    else
        snprintf(error, size, "no NIC is usable, not even softnic: %s",
                 s->soft_problem[0] ? s->soft_problem
                 : efa              ? "it has no EFA device"
                                    : "it has no device");
}

/* Lists only the devices of libraries that the request allows, because opening devices takes
 * time. */
static int nic_choose_find_candidates(struct candidates *c, struct nic_survey *s,
                                      const struct nic_request *r, char *error, size_t size)
{
    int soft = !strcmp(r->names, "soft");
    if (r->names[0] && !soft) {
        int named_soft = !strncmp(r->names, "soft", 4) || strstr(r->names, ",soft");
        if (named_soft)
            nic_survey_add(s, 1);
        if (!named_soft || strchr(r->names, ','))
            nic_survey_add(s, 0);
        return nic_choose_by_names(c, s, r->names, r->efa, error, size);
    }
    if (!soft) {
        nic_survey_add(s, 0);
        nic_choose_all_of(c, s, 0, r->efa);
    }
    if (!c->count) {
        nic_survey_add(s, 1);
        nic_choose_all_of(c, s, 1, r->efa);
    }
    if (c->count)
        return 0;
    nic_choose_explain_none(s, r->efa, error, size);
    return -ENODEV;
}

static struct topology_place nic_choose_place_of(const char *sysfs, const struct nic_place *p)
{
    struct topology_place place;
    if (!p->gpu[0] || topology_pci(sysfs, p->gpu, &place)) {
        place = TOPOLOGY_NOWHERE;
        place.numa = p->numa;
    }
    return place;
}

static int nic_choose_all(struct nic_choice *out, const struct candidates *c,
                          const struct nic_request *r)
{
    const char *sysfs = r->sysfs ? r->sysfs : nic_sysfs();
    struct topology_nic nics[NIC_MAX];
    MK_FREED struct topology_place *ranks = calloc(r->local_ranks, sizeof *ranks);
    MK_FREED struct topology_choice *choices = calloc(r->local_ranks, sizeof *choices);
    struct topology_choice *own = &choices[r->local_rank];
    int rc = ranks && choices ? 0 : -ENOMEM;
    for (uint32_t i = 0; i < c->count && !rc; i++) {
        nics[i].gbit = c->nics[i]->gbit;
        topology_rdma(sysfs, c->nics[i]->name, &nics[i].place);
    }
    for (uint32_t i = 0; i < r->local_ranks && !rc; i++)
        ranks[i] = r->places ? nic_choose_place_of(sysfs, &r->places[i]) : TOPOLOGY_NOWHERE;
    rc = rc ? rc : topology_choose(ranks, r->local_ranks, nics, c->count, r->rails, choices);
    for (uint32_t i = 0; !rc && i < own->count; i++) {
        const struct nic_info *n = c->nics[own->nics[i]];
        out->soft = n->soft;
        memcpy(out->devices[out->count], n->name, sizeof n->name);
        out->gbit += n->gbit;
        out->distances[out->count++] =
            topology_distance(&ranks[r->local_rank], &nics[own->nics[i]].place);
    }
    return rc;
}

const char *nic_sysfs(void)
{
    const char *own = getenv("MK_SYSFS");
    return own && *own ? own : "/sys";
}

void nic_own_place(struct nic_place *out, const char *gpu)
{
    memset(out, 0, sizeof *out); /* it goes over the wire */
    snprintf(out->gpu, sizeof out->gpu, "%s", gpu);
    out->numa = topology_own_numa(nic_sysfs());
}

int nic_choose(struct nic_choice *out, const struct nic_request *request, char *error, size_t size)
{
    MK_FREED struct nic_survey *s = calloc(1, sizeof *s);
    struct candidates c = {.count = 0};
    memset(out, 0, sizeof *out);
    error[0] = '\0';
    int rc = !s ? -ENOMEM
             : request->local_rank < request->local_ranks
                 ? nic_choose_find_candidates(&c, s, request, error, size)
                 : -EINVAL;
    if (!rc && request->rails > c.count)
        rc = mk_fail(-EINVAL, error, size,
                     "%u NICs for each rank were asked for, and only %u may be used",
                     request->rails, c.count);
    rc = rc ? rc : nic_choose_all(out, &c, request);
    if (rc && !error[0])
        snprintf(error, size, "cannot choose a NIC: %s", strerror(-rc));
    return rc;
}

void nic_choice_words(const struct nic_choice *choice, char *text, size_t size)
{
    const char *network = choice->soft ? getenv("SOFTNIC") : NULL;
    text[0] = '\0';
    for (uint32_t i = 0; i < choice->count; i++)
        mk_append(text, size, "%s%s", i ? "+" : "", choice->devices[i]);
    if (network && *network)
        mk_append(text, size, " (SOFTNIC=%s)", network);
}

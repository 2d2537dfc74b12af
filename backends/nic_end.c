#ifdef MK_HAVE_VERBS
#include "backends/nic_end.h"
#include "backends/verbs/verbs_rc.h"
#include "core/base/sentence.h"
#ifdef MK_HAVE_EFA
#include "backends/efa/efa.h"
#endif

#ifdef MK_HAVE_EFA
static int nic_end_open_efa(struct fabric **out, const struct nic_end *end, const char *options,
                            char *error, size_t size)
{
    struct efa_config c = {.end = *end};
    efa_options_default(&c.options);
    int rc = efa_options_parse(&c.options, options, error, size);
    return rc ? rc : efa_open(out, &c, error, size);
}
#else
static int nic_end_open_efa(struct fabric **out, const struct nic_end *end, const char *options,
                            char *error, size_t size)
{
    return mk_fail(-ENODEV, error, size,
                   "--fabric efa is not in this build (it takes <infiniband/efadv.h>)");
}
#endif

int nic_end_open(struct fabric **out, const struct nic_end *end, int efa, const char *options,
                 char *error, size_t size)
{
    if (efa)
        return nic_end_open_efa(out, end, options, error, size);
    struct verbs_rc_config c = {.end = *end};
    verbs_options_default(&c.options);
    int rc = verbs_options_parse(&c.options, options, error, size);
    return rc ? rc : verbs_rc_open(out, &c, error, size);
}
#endif

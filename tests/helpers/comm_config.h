/* For tests whose ranks open communicators: what a rank's configuration has of its job. */
#pragma once

#include "core/comm/bootstrap.h"
#include "core/mkernel.h"

#include <string.h>

/* On `nodes` nodes; the executor and the rest are the caller's. */
static struct mk_config config_of(const struct bootstrap_config *c, uint32_t nodes)
{
    struct mk_config m = {.rank = c->rank, .nodes = nodes, .gpus = c->world / nodes};
    m.port = c->port;
    m.listen_fd = c->listen_fd;
    m.timeout_ns = c->timeout_ns;
    memcpy(m.host, c->host, sizeof m.host);
    memcpy(m.token, c->token, sizeof m.token);
    return m;
}

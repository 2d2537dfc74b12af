/* Two ends on softnic's first device, connected. */
#pragma once

#include "tests/softnic_load.h"

static struct ibv_context *context;
__attribute__((unused)) static struct end a, b;
__attribute__((unused)) static struct address to_b;

static int setup(void **state)
{
    nic_load();
    context = nic_open(0);
    return 0;
}

static int teardown(void **state)
{
    return nic.ibv_close_device(context);
}

__attribute__((unused)) static int pair_connect(void **state)
{
    a = end_new(context, 1 << 20);
    b = end_new(context, 1 << 20);
    ends_connect(&a, &b);
    to_b = end_address(&b);
    return 0;
}

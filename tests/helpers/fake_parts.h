/* For tests of the communicator: an executor and a network that do nothing but note what was asked
 * of them. */
#pragma once

#include "core/comm/comm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fake {
    char log[256]; /* one letter a call: o p u l w c of the executor, O C of the network */
    int open_result, plan_result, wait_result, net_result;
    void *arguments[MK_SPACES - 1];
    uint64_t posted;                       /* commands of ring 0 beside what the ring says */
    void *waited_for;                      /* the stream that was last waited for alone */
    void (*on_wait)(struct mk_comm *comm); /* what happens in the launch */
};

static struct fake fake;

static void fake_note(char letter)
{
    size_t n = strlen(fake.log);
    if (n + 1 < sizeof fake.log)
        fake.log[n] = letter;
}

static int fake_says(struct mk_comm *comm, int result, const char *text)
{
    if (result)
        snprintf(comm->error, sizeof comm->error, "%s", text);
    return result;
}

static uint32_t fake_sms(struct mk_comm *comm)
{
    return 0;
}

static int fake_open(struct mk_comm *comm)
{
    fake_note('o');
    comm->heap.base = aligned_alloc(4096, comm->heap.bytes);
    return fake_says(comm, fake.open_result, "no GPU number 7");
}

static int fake_plan(struct mk_comm *comm, struct mk_plan *plan)
{
    fake_note('p');
    return fake_says(comm, fake.plan_result, "the GPU has no room for the plan");
}

static int fake_unplan(struct mk_comm *comm, struct mk_plan *plan)
{
    fake_note('u');
    return 0;
}

static int fake_launch(struct mk_comm *comm, struct mk_plan *plan, enum mk_half half,
                       void *const arguments[MK_SPACES - 1], void *stream)
{
    fake_note('l');
    memcpy(fake.arguments, arguments, sizeof fake.arguments);
    return 0;
}

static int fake_wait(struct mk_comm *comm)
{
    fake_note('w');
    if (fake.on_wait)
        fake.on_wait(comm);
    return fake_says(comm, fake.wait_result, "an illegal address");
}

static int fake_wait_stream(struct mk_comm *comm, void *stream)
{
    fake.waited_for = stream;
    return fake_wait(comm);
}

static int fake_posted(struct mk_comm *comm, uint64_t posted[MK_MAX_RINGS])
{
    posted[0] += fake.posted;
    return 0;
}

static void fake_close(struct mk_comm *comm)
{
    fake_note('c');
    free(comm->heap.base);
    comm->heap.base = NULL;
}

static int fake_net_open(struct mk_comm *comm)
{
    fake_note('O');
    return fake_says(comm, fake.net_result, "no NIC is up");
}

static void fake_net_close(struct mk_comm *comm)
{
    fake_note('C');
}

static const struct mk_exec_ops fake_exec = {.name = "fake",
                                             .sms = fake_sms,
                                             .open = fake_open,
                                             .plan = fake_plan,
                                             .unplan = fake_unplan,
                                             .launch = fake_launch,
                                             .wait = fake_wait,
                                             .wait_stream = fake_wait_stream,
                                             .posted = fake_posted,
                                             .close = fake_close};
static const struct mk_net_ops fake_net = {fake_net_open, fake_net_close};

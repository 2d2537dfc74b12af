/* Any part of a communicator may fail on one rank: every rank ends with the same sentence and
 * closes at once. */
/* WAITS */
#include "tests/helpers/comm_job.h"

static void no_gpu(uint32_t rank, struct mk_config *config)
{
    fake.open_result = rank == 2 ? -ENODEV : 0;
}

static void no_nic(uint32_t rank, struct mk_config *config)
{
    fake.net_result = rank == 1 ? -ENODEV : 0;
}

/* The rank itself returns its own error; the others learn its words. */
CASE(a_part_that_cannot_open_ends_every_rank)
{
    struct setup gpu = {NULL, 1, no_gpu, "oc"}, nic = {NULL, 2, no_nic, "oOCc"};
    for (int net = 0; net < 2; net++) {
        struct job j;
        uint32_t guilty = net ? 1 : 2;
        job_init(&j, 4, 20);
        job_start_all(&j, run_rank, net ? &nic : &gpu);
        job_finish(&j);
        for (uint32_t r = 0; r < 4; r++) {
            const struct job_report *p = &j.reports[r];
            char says[80];
            snprintf(says, sizeof says, "rank %u could not go on: %s", guilty,
                     net ? "no NIC is up" : "no GPU number 7");
            if (r == guilty)
                snprintf(says, sizeof says, "%s", net ? "no NIC is up" : "no GPU number 7");
            if (!strstr(p->text, says) || !p->result)
                print_message("rank %u: result %d: %s\n", r, p->result, p->text);
            assert_true(job_ended_within(&j, r, 3));
            assert_non_null(strstr(p->text, says));
            assert_int_equal(p->result, r == guilty ? -ENODEV : -EIO);
        }
    }
}

static int plan_fails_on_one(struct mk_comm *comm, uint32_t rank, char *text, size_t size)
{
    struct mk_problem q = problem();
    struct mk_plan *p;
    fake.plan_result = rank == 1 ? -ENOMEM : 0;
    int result = comm_make_plan(&p, comm, &q);
    snprintf(text, size, "%s", mk_error(comm));
    fake.plan_result = 0;
    return comm_make_plan(&p, comm, &q) ? -1
                                        : result; /* no rank has the plan, and nothing is lost */
}

static void timeout_in_launch(struct mk_comm *comm)
{
    struct mk_failure f = {.kind = MK_FAIL_TIMEOUT,
                           .op = MK_OP_AG_GEMM,
                           .rank = comm->topo.rank,
                           .cta = 3,
                           .role = MK_INTRA_COMM};
    f.flag = 1, f.chunk = 0, f.producer = 1, f.relay = UINT32_MAX, f.wanted = f.epoch = 2,
    f.seen = 1;
    f.waited_ns = 5000000000;
    snprintf(f.what, sizeof f.what, "chunk 0 of rank 1's A");
    if (comm->topo.rank == 2)
        comm_fail(comm, &f);
    while (!comm_failed(comm))
        job_sleep(0.001);
}

static int fail_in_launch(struct mk_comm *comm, uint32_t rank, char *text, size_t size)
{
    struct mk_problem q = problem();
    struct mk_plan *p;
    fake.on_wait = timeout_in_launch;
    int result = comm_make_plan(&p, comm, &q);
    if (!result)
        result = mk_ag_gemm(p, memory, memory, output, NULL);
    if (result || bootstrap_barrier(comm->bootstrap)) /* no rank fails before all have launched */
        return -1;
    result = mk_wait(comm);
    snprintf(text, size, "%s", mk_error(comm));
    if (comm->failure.kind != MK_FAIL_TIMEOUT || comm->failure.rank != 2)
        return -2;
    /* From now on every call says the same. */
    if (mk_ag_gemm(p, memory, memory, output, NULL) != -EIO ||
        comm_make_plan(&p, comm, &q) != -EIO || strcmp(text, mk_error(comm)))
        return -3;
    return result;
}

static int device_fails(struct mk_comm *comm, uint32_t rank, char *text, size_t size)
{
    fake.wait_result = rank == 1 ? -EFAULT : 0;
    int result = mk_wait(comm);
    if (rank != 1 && !result) { /* they had nothing to wait for; the next call tells them */
        while (!comm_failed(comm))
            job_sleep(0.001);
        result = mk_wait(comm);
    }
    snprintf(text, size, "%s", mk_error(comm));
    return result;
}

CASE(a_failure_has_one_sentence_on_every_rank)
{
    all(4, (struct setup){fail_in_launch, 1, NULL, "oplwc"}, -EIO,
        "ag_gemm: rank 2 CTA 3 (intra_comm) waited 5.0 s for chunk 0 of rank 1's A in epoch 2 "
        "(flag 1 saw 1, "
        "wants 2); "
        "rank 1 should have produced it");
    all(3, (struct setup){plan_fails_on_one, 1, NULL, NULL}, -ENOMEM,
        "the GPU has no room for the plan");
    all(3, (struct setup){device_fails, 1, NULL, NULL}, -EIO,
        "rank 1 could not go on: an illegal address");
}

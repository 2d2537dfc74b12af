/* `mkernel bench fabric`: put bandwidth, message rate and latency by size, over any device, between
 * two processes here or on two machines. */
#include "experiments/bench/bench_fabric.h"
#include "backends/verbs/verbs_options.h"
#ifdef MK_HAVE_EFA
#include "backends/efa/efa_options.h"
#endif
#include "core/base/sentence.h"
#include "experiments/bench/bench.h"
#include "experiments/common/launched.h"
#include "experiments/common/command_says.h"
#include "experiments/common/options.h"
#include "experiments/common/output_file.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum test { TEST_ALL, TEST_BANDWIDTH, TEST_LATENCY, TEST_BIDIRECTIONAL };

static const char *const fabric_words[] = {"verbs", "efa"};
static const char *const test_words[] = {"all", "bw", "lat", "bibw"};

struct arguments {
    struct launcher launcher; /* world 0: none, or none that matters */
    const char *nic, *peer_nic, *verbs, *efa, *client, *csv, *json;
    int test, server, fabric, quiet, append;
    uint64_t rails, size, min, max, factor, iterations, depth, port, timeout_ns;
};

/* Headings of the help. */
#define ENDS "the two ends"
#define PUTS "what is measured"
#define RESULTS "results"

#define AT(field) .offset = offsetof(struct arguments, field)
static const struct option_spec specs[] = {
    {"nic", OPTION_TEXT, AT(nic), "soft|NAME,...",
     "NICs that may be used. Default: real ones that are up, else soft", .max = 255, .group = ENDS},
    {"peer-nic", OPTION_TEXT, AT(peer_nic), "NAME,...",
     "the other process's NICs on this machine. Default: as --nic", .max = 255},
    {"rails", OPTION_NUMBERS, AT(rails), "N",
     "NICs of each end, over which puts are spread. Default 1", 1, NIC_RAILS_MAX},
    {"fabric", OPTION_WORD, AT(fabric), "verbs|efa", "RC, or EFA's SRD. Default verbs",
     .words = fabric_words, .word_count = 2},
    {"efa", OPTION_TEXT, AT(efa), "K=V,...",
     "options of the efa fabric, as in MK_EFA: stripe, window, depth, ...", .max = 255},
    {"verbs", OPTION_TEXT, AT(verbs), "K=V,...",
     "options of the verbs fabric, as in MK_VERBS: qps, depth, mtu, ...", .max = 255},
    {"server", OPTION_FLAG, AT(server), NULL,
     "wait for a client on --port instead of starting both ends here"},
    {"client", OPTION_TEXT, AT(client), "HOST", "measure against the server on HOST", .max = 255},
    {"port", OPTION_NUMBERS, AT(port), "N",
     "TCP port of the server. Default 18515, under a launcher the job's", 1, 65535},
    {"timeout", OPTION_SECONDS, AT(timeout_ns), "SECONDS", "of every wait. Default 10", 1000000,
     86400000000000ull},
    {"test", OPTION_WORD, AT(test), "all|bw|lat|bibw",
     "what to measure: bw and lat are all; bibw is the bandwidth of both ways at once, their sum. "
     "Default all",
     .words = test_words, .word_count = 4, .group = PUTS},
    {"size", OPTION_BYTES, AT(size), "BYTES",
     "one size of put, a multiple of 16 (-s). Default: powers of two", 16, 256 << 20},
    {"min", OPTION_BYTES, AT(min), "BYTES", "smallest of several sizes (-b). Default 16", 16,
     256 << 20},
    {"max", OPTION_BYTES, AT(max), "BYTES", "largest of several sizes (-e). Default 8MiB", 16,
     256 << 20},
    {"factor", OPTION_NUMBERS, AT(factor), "F", "from a size to the next (-f). Default 2", 2, 1024},
    {"iters", OPTION_NUMBERS, AT(iterations), "N",
     "puts of each size (-n). Default: as many as move 512 MiB, 50 to 5000; for latency 20 to 1000",
     1, 10000000},
    {"depth", OPTION_NUMBERS, AT(depth), "N", "puts under way at once. Default 64", 1, 4096},
    {"csv", OPTION_TEXT, AT(csv), "FILE", "also write a CSV table", .max = 4095, .group = RESULTS},
    {"append", OPTION_FLAG, AT(append), NULL,
     "add the rows to the CSV that is there, whose columns must be the same"},
    {"json", OPTION_TEXT, AT(json), "FILE", "also write JSON", .max = 4095},
    {"quiet", OPTION_FLAG, AT(quiet), NULL, OPTION_QUIET},
};

static const struct option_table table = {
    "bench fabric [OPTIONS]",
    "Put bandwidth, message rate and latency by size, in the columns of perftest's ib_write_bw and "
    "ib_write_lat.\n"
    "-s, -b, -e, -f and -n are --size, --min, --max, --factor and --iters. Without --server and "
    "--client both ends are here; under torchrun, srun or mpirun with two ranks rank 0 measures "
    "against rank 1.\n"
    "A put is its data and the flag behind it. perftest calls 2^20 bytes MB; a put's flag is not "
    "counted.",
    specs, sizeof specs / sizeof *specs,
    "  mkernel bench fabric --nic soft --size 256KB\n"
    "  mkernel bench fabric --fabric efa --nic soft --rails 2\n"
    "  mpirun -np 2 --map-by ppr:1:node mkernel bench fabric --json fabric.json\n"
    "  mkernel bench fabric --server --nic mlx5_0              on one machine, and on the other\n"
    "  mkernel bench fabric --client HOST --nic mlx5_0 --json fabric.json\n"};

static struct fabric_report bench_fabric_report_of(const struct arguments *a)
{
    return (struct fabric_report){.csv = a->csv,
                                  .json = a->json,
                                  .append = a->append,
                                  .efa = a->fabric,
                                  .rails = a->rails,
                                  .depth = a->depth,
                                  .options = a->fabric ? a->efa : a->verbs};
}

/* The files, where all was measured: what failed leaves them as they were. */
static int bench_fabric_report_end(struct fabric_report *r, int status)
{
    const char *path;
    int rc = fabric_report_end(r, status == STATUS_DONE, &path);
    if (!rc || status != STATUS_DONE)
        return status;
    return command_say("bench fabric", STATUS_FAILED, "%s could not be written: %s", path,
                       strerror(-rc));
}

/* ---- the ends ---- */

static uint64_t bench_fabric_clamp(uint64_t v, uint64_t low, uint64_t high)
{
    return v < low ? low : v > high ? high : v;
}

static uint64_t bench_fabric_region_of(const struct arguments *a)
{
    uint64_t longest = a->size ? a->size : a->max;
    uint64_t ways = a->test == TEST_BIDIRECTIONAL ? 2 : 1;
    return mk_round_up(longest > (4 << 20) ? longest : 4 << 20, 4096) * ways;
}

static struct fabric_kind bench_fabric_kind_of(const struct arguments *a, uint64_t region)
{
    return (struct fabric_kind){.efa = a->fabric,
                                .options = a->fabric ? a->efa : a->verbs,
                                .rails = (uint32_t)a->rails,
                                .data_bytes = region,
                                .timeout_ns = a->timeout_ns};
}

/* Asks the server for one test, takes part, and hears whether what should have arrived did. */
static int bench_fabric_one_test(struct fabric_end *e, struct wire *w, struct wire_message *t,
                                 const struct arguments *a, struct fabric_report *r, int head)
{
    struct wire_message answer = {0};
    struct bandwidth_result b;
    struct latency_result l;
    int rc = wire_send(w, t);
    if (!rc && t->kind == WIRE_BIDIRECTIONAL) {
        rc = measure_bidirectional(e, w, t, &b);
    } else if (!rc && t->kind == WIRE_BANDWIDTH) {
        rc = measure_bandwidth(e, t, (uint32_t)a->depth, &b);
        struct wire_message done = {.kind = WIRE_DONE, .status = rc};
        rc = rc ? rc : wire_send(w, &done);
    } else if (!rc) {
        rc = measure_latency(e, t, &l);
    }
    if (rc && e->error[0])
        return rc;
    rc = rc ? rc : wire_receive(w, WIRE_DONE, &answer);
    if (rc)
        return mk_fail(rc, e->error, sizeof e->error, "%s", wire_reason(rc, &answer));
    if (t->kind != WIRE_LATENCY)
        fabric_report_bandwidth(r, t->kind == WIRE_BANDWIDTH ? "bw" : "bibw", &b, head);
    else
        fabric_report_latency(r, &l, head);
    return 0;
}

static int bench_fabric_all_tests(struct fabric_end *e, struct wire *w, const struct arguments *a,
                                  struct fabric_report *r)
{
    uint64_t low = a->size ? a->size : a->min, high = a->size ? a->size : a->max, value = 1;
    static const struct {
        enum wire_kind kind;
        enum test test;
        int all; /* TEST_ALL has it, too */
    } kinds[] = {{WIRE_BANDWIDTH, TEST_BANDWIDTH, 1},
                 {WIRE_LATENCY, TEST_LATENCY, 1},
                 {WIRE_BIDIRECTIONAL, TEST_BIDIRECTIONAL, 0}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        uint32_t kind = kinds[k].kind;
        if ((int)kinds[k].test != a->test && !(a->test == TEST_ALL && kinds[k].all))
            continue;
        for (uint64_t bytes = low; bytes <= high; bytes *= a->factor) {
            uint64_t budget = kind != WIRE_LATENCY
                                  ? bench_fabric_clamp((512u << 20) / bytes, 50, 5000)
                                  : bench_fabric_clamp((64u << 20) / bytes, 20, 1000);
            struct wire_message t = {.kind = kind,
                                     .bytes = bytes,
                                     .region = bench_fabric_region_of(a),
                                     .first = value,
                                     .depth = a->depth,
                                     .iterations = a->iterations ? a->iterations : budget};
            value += t.iterations / FABRIC_FLAGS + 1;
            int rc = bench_fabric_one_test(e, w, &t, a, r, bytes == low);
            if (rc)
                return rc;
        }
    }
    struct wire_message end = {.kind = WIRE_END};
    return wire_send(w, &end);
}

static int bench_fabric_run_client(const struct arguments *a, int fd)
{
    struct wire w = {.fd = fd, .timeout_ns = a->timeout_ns};
    struct fabric_report r = bench_fabric_report_of(a);
    struct fabric_end e = {0};
    char text[896];
    int status = STATUS_DONE;
    r.table = output_table(a->quiet, a->csv, a->json);
    struct wire_message hello = {.kind = WIRE_HELLO, .region = bench_fabric_region_of(a)},
                        answer = {0};
    int rc = wire_send(&w, &hello);
    struct fabric_kind kind = bench_fabric_kind_of(a, bench_fabric_region_of(a));
    if (!rc && !(rc = fabric_end_open(&e, 0, a->nic, &kind)))
        rc = wire_receive(&w, WIRE_HELLO, &answer);
    if (rc && !e.error[0])
        snprintf(e.error, sizeof e.error, "%s", wire_reason(rc, &answer));
    if (!rc && !(rc = fabric_end_connect(&e, &w, 1))) {
        fabric_end_describe(&e, text, sizeof text);
        rc = fabric_report_begin(&r, e.nic, text);
        rc = rc ? rc : bench_fabric_all_tests(&e, &w, a, &r);
    }
    if (rc)
        status =
            command_say("bench fabric", STATUS_FAILED, "%s", e.error[0] ? e.error : strerror(-rc));
    status = bench_fabric_report_end(&r, status);
    fabric_end_close(&e);
    return status;
}

/* Does what the client asks until it ends. Its failures go to the client, which prints them. */
static int bench_fabric_serve(const struct arguments *a, const char *nic, int fd, char *error,
                              size_t size)
{
    struct wire w = {.fd = fd, .timeout_ns = a->timeout_ns};
    struct fabric_end e = {0};
    struct wire_message m = {0};
    int rc = wire_receive(&w, WIRE_HELLO, &m);
    if (!rc && m.region > (1ull << 32))
        rc = -EPROTO;
    if (rc)
        return mk_fail(rc, error, size, "%s", wire_reason(rc, &m));
    uint64_t region = m.region;
    struct fabric_kind kind = bench_fabric_kind_of(a, region);
    rc = fabric_end_open(&e, 1, nic, &kind);
    struct wire_message answer = {.kind = WIRE_HELLO, .status = rc};
    snprintf(answer.text, sizeof answer.text, "the other end: %.200s", e.error);
    wire_send(&w, &answer);
    rc = rc ? rc : fabric_end_connect(&e, &w, 0);
    while (!rc) {
        uint64_t usual = w.timeout_ns;
        if ((rc = wire_receive(&w, 0, &m)) || m.kind == WIRE_END)
            break;
        int fits = m.bytes && m.bytes <= m.region && m.region <= region && m.iterations;
        int known = m.kind == WIRE_BANDWIDTH || m.kind == WIRE_LATENCY ||
                    (m.kind == WIRE_BIDIRECTIONAL && m.bytes <= m.region / 2 / 4096 * 4096 &&
                     m.depth && m.depth <= 4096);
        if (!fits || !known) {
            rc = -EPROTO;
            break;
        }
        struct wire_message done = {0};
        struct latency_result unused;
        struct bandwidth_result its;
        if (m.kind == WIRE_BIDIRECTIONAL) {
            rc = measure_bidirectional(&e, &w, &m, &its);
        } else if (m.kind == WIRE_BANDWIDTH) {
            if ((rc = receive_until_told(&e, &w)))
                break;
            /* as long as the client lives: its own waits are bounded */
            w.timeout_ns = UINT64_MAX / 4;
            rc = wire_receive(&w, WIRE_DONE, &done);
            w.timeout_ns = usual;
            rc = rc ? rc : check_bandwidth(&e, &m);
        } else {
            rc = measure_latency(&e, &m, &unused);
        }
        answer = (struct wire_message){.kind = WIRE_DONE, .status = rc};
        snprintf(answer.text, sizeof answer.text, "the other end: %.200s", e.error);
        wire_send(&w, &answer);
    }
    if (rc)
        snprintf(error, size, "%s", e.error[0] ? e.error : wire_reason(rc, &m));
    fabric_end_close(&e);
    return rc;
}

static int bench_fabric_run_both(const struct arguments *a)
{
    int fds[2], status = 0;
    char error[320] = "";
    fflush(NULL);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
        return command_say("bench fabric", STATUS_FAILED, "%s", strerror(errno));
    pid_t child = fork();
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fds[0]);
        _exit(bench_fabric_serve(a, a->peer_nic ? a->peer_nic : a->nic, fds[1], error, sizeof error)
                  ? 1
                  : 0);
    }
    close(fds[1]);
    if (child < 0) {
        close(fds[0]);
        return command_say("bench fabric", STATUS_FAILED, "%s", "cannot start a second process");
    }
    status = bench_fabric_run_client(a, fds[0]);
    close(fds[0]); /* a server that still waits sees the end */
    waitpid(child, NULL, 0);
    return status;
}

/* One end here, the other on another machine, or beside this one under a launcher, where rank 0,
 * whose output the launcher's user reads, measures and reports. */
static int bench_fabric_run_remote(const struct arguments *a)
{
    const struct launcher *l = a->launcher.world ? &a->launcher : NULL;
    const char *server = l ? l->host : a->client;
    uint16_t port = l && !a->port ? l->port : (uint16_t)a->port;
    int serves = l ? l->rank != 0 : a->server, listens = l ? !serves : serves;
    uint64_t timeout_ns = a->timeout_ns;
    char error[320];
    int fd = -1;
    if (a->server) {
        printf("waiting for a client on port %u\n", port);
        timeout_ns = timeout_ns > 600000000000ull ? timeout_ns : 600000000000ull;
    }
    fflush(stdout);
    int rc = listens ? wire_listen(port, timeout_ns, &fd, error, sizeof error)
                     : wire_dial(server, port, timeout_ns, &fd, error, sizeof error);
    if (rc)
        return command_say("bench fabric", STATUS_FAILED, "%s", error);
    int status = STATUS_DONE;
    if (!serves)
        status = bench_fabric_run_client(a, fd);
    else if (bench_fabric_serve(a, a->peer_nic ? a->peer_nic : a->nic, fd, error, sizeof error))
        status = command_say("bench fabric", STATUS_FAILED, "%s", error);
    close(fd);
    return status;
}

/* Whether the ends on this machine have NICs, told before either begins. */
static int bench_fabric_check_nics(const struct arguments *a, char *error, size_t size)
{
    const char *names[] = {a->nic, a->peer_nic ? a->peer_nic : a->nic};
    struct nic_choice choice;
    for (uint32_t i = 0; i < (a->peer_nic ? 2 : 1); i++) {
        if (a->launcher.world && i != a->launcher.rank && a->peer_nic)
            continue; /* the other rank's, perhaps on another machine */
        struct nic_request request = {.names = names[i],
                                      .efa = a->fabric,
                                      .rails = (uint32_t)a->rails,
                                      .local_rank = i,
                                      .local_ranks = 2};
        int rc = nic_choose(&choice, &request, error, size);
        if (rc)
            return rc;
    }
    return 0;
}

static int bench_fabric_check_files(const struct arguments *a, char *error, size_t size)
{
    if (output_same(a->csv, a->json))
        return mk_fail(-EINVAL, error, size, "--csv and --json name the same file %s", a->csv);
    struct fabric_report r = bench_fabric_report_of(a);
    int rc = output_check("--csv", a->csv, OUTPUT_WRITTEN, error, size);
    rc = rc ? rc : output_check("--json", a->json, OUTPUT_WRITTEN, error, size);
    if (!rc && a->append && !a->csv)
        rc =
            mk_fail(-EINVAL, error, size, "--append adds to the file of --csv, which is not given");
    return rc || !a->append ? rc : fabric_report_check_append(&r, error, size);
}

static int bench_fabric_check_fabric(const struct arguments *a, char *error, size_t size)
{
    struct verbs_options verbs;
    verbs_options_default(&verbs);
    int rc = verbs_options_parse(&verbs, a->verbs, error, size);
#ifdef MK_HAVE_EFA
    struct efa_options efa;
    efa_options_default(&efa);
    rc = rc ? rc : efa_options_parse(&efa, a->efa, error, size);
#else
    if (a->fabric && !rc)
        rc = mk_fail(-EINVAL, error, size,
                     "--fabric efa is not in this build (it takes <infiniband/efadv.h>)");
#endif
    rc = rc ? rc : bench_fabric_check_nics(a, error, size);
    return rc || a->launcher.rank ? rc : bench_fabric_check_files(a, error, size);
}

/* What was given and would be ignored; NULL: nothing. */
static const char *bench_fabric_ignored(const struct arguments *a,
                                        const struct options_found *found)
{
    for (size_t i = 0; a->server && i < table.count; i++)
        if (found->given >> i & 1 && strcmp(options_group(&table, i), ENDS))
            return specs[i].name;
    const char *other = a->fabric ? "verbs" : "efa";
    return options_given(&table, found, other) ? other : NULL;
}

static int bench_fabric_check(const struct arguments *a, const struct options_found *found,
                              char *error, size_t size)
{
    const char *unused = bench_fabric_ignored(a, found);
    if (a->size % 16 || a->min % 16 || a->max % 16)
        snprintf(error, size, "--size, --min and --max take multiples of 16 bytes");
    else if (a->size &&
             (options_given(&table, found, "min") || options_given(&table, found, "max") ||
              options_given(&table, found, "factor")))
        snprintf(
            error, size,
            "--size is one size, --min, --max and --factor are a range: give one or the other");
    else if (a->min > a->max)
        snprintf(error, size, "--min %lu is more than --max %lu", a->min, a->max);
    else if (a->server && a->client)
        snprintf(error, size, "--server and --client are the two ends: give one");
    else if ((a->server || a->client) && a->peer_nic)
        snprintf(error, size,
                 "--peer-nic is for both ends on this machine; the other end has its own --nic");
    else if (unused && (!strcmp(unused, "verbs") || !strcmp(unused, "efa")))
        snprintf(error, size, "--%s is of --fabric %s", unused, unused);
    else if (unused)
        snprintf(error, size, "--%s is the client's to say, and this is the server", unused);
    else if (options_given(&table, found, "port") && !a->server && !a->client && !a->launcher.world)
        snprintf(error, size, "--port goes with --server or --client, or a launcher");
    else
        return bench_fabric_check_fabric(a, error, size);
    return -EINVAL;
}

static int bench_fabric_refuse_ranks(const struct launcher *l)
{
    if (l->rank == 0)
        command_refuse("bench fabric",
                       "%s started %u ranks, and a fabric is measured between two ends: start 2",
                       l->name, l->world);
    return STATUS_USAGE;
}

int bench_fabric(int argc, char **argv)
{
    struct arguments a = {.nic = "",
                          .rails = 1,
                          .verbs = getenv("MK_VERBS"),
                          .efa = getenv("MK_EFA"),
                          .min = 16,
                          .max = 8 << 20,
                          .factor = 2,
                          .depth = 64,
                          .timeout_ns = MK_TIMEOUT_NS};
    struct options_found found;
    char error[512];
    static const char *const brief[] = {"-s", "--size",   "-b", "--min",   "-e", "--max",
                                        "-f", "--factor", "-n", "--iters", NULL};
    options_expand(argc, argv, brief);
    int ends = command_options("bench fabric", &table, 0, argc, argv, &a, &found);
    if (ends >= 0)
        return ends;
    int launch = !a.server && !a.client ? launched(&a.launcher, error, sizeof error) : 0;
    if (launch > 0 && a.launcher.world == 1)
        a.launcher.world = 0;
    else if (launch > 0 && a.launcher.world > 2)
        return bench_fabric_refuse_ranks(&a.launcher);
    if (!a.port && !a.launcher.world)
        a.port = 18515;
    if (launch < 0 || bench_fabric_check(&a, &found, error, sizeof error))
        return command_refuse("bench fabric", "%s", error);
    return a.server || a.client || a.launcher.world ? bench_fabric_run_remote(&a)
                                                    : bench_fabric_run_both(&a);
}

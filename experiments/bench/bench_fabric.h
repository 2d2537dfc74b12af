/* `mkernel bench fabric`, inside: one fabric between two ranks, the wire by which they agree, the
 * measurements, the report. */
#pragma once

#include "backends/nic_end.h"
#include "experiments/common/csv_table.h"
#include "experiments/common/result_file.h"

#include <stddef.h>
#include <stdint.h>

enum { FABRIC_FLAG_BYTES = 65536, FABRIC_FLAGS = FABRIC_FLAG_BYTES / 8, FABRIC_SIZES = 64 };

/* ---- the wire (bench_fabric_wire.c): fixed-size messages over a socket, each waited for at most
 * `timeout_ns` ---- */

struct wire {
    int fd;
    uint64_t timeout_ns;
};

enum wire_kind {
    WIRE_HELLO = 1,
    WIRE_ADDRESS,
    WIRE_BANDWIDTH,
    WIRE_LATENCY,
    WIRE_DONE,
    WIRE_END,
    WIRE_BIDIRECTIONAL
};

struct wire_message {
    uint64_t magic;
    uint32_t kind;
    int32_t status; /* 0, or -errno with `text` */
    uint64_t bytes, iterations,
        region;     /* of a test; HELLO: bytes is the longest put, region the data of a heap */
    uint64_t first; /* value of the test's first flag */
    uint64_t depth; /* BIDIRECTIONAL: puts under way at once */
    uint64_t base;  /* where in the heap's data the region begins */
    char text[256];
    char address[4096];
};

int wire_send(struct wire *w, const struct wire_message *m);
/* 0; -ETIMEDOUT; -ECONNRESET (the other end is gone); -EPROTO (it does not speak this); -EBADMSG:
 * not `kind`. A message with a status is returned as that status. */
int wire_receive(struct wire *w, uint32_t kind, struct wire_message *m);
/* The end of a sentence about an error: the other end's message in `m`, or the text of errno. */
const char *wire_reason(int result, const struct wire_message *m);
int wire_listen(uint16_t port, uint64_t timeout_ns, int *fd, char *error, size_t size);
int wire_dial(const char *host, uint16_t port, uint64_t timeout_ns, int *fd, char *error,
              size_t size);

/* ---- one end (bench_fabric_end.c) ---- */

struct fabric_end {
    struct fabric *fabric;
    char *heap;
    uint64_t heap_bytes; /* flags and data */
    uint64_t timeout_ns;
    uint32_t rank;
    int efa;
    char nic[512];     /* nic_choice_words */
    uint64_t deadline; /* of the wait in progress */
    uint64_t started, completed;
    char error[320];
};

/* What both ends are opened with, but for their NICs. */
struct fabric_kind {
    int efa;             /* else verbs */
    const char *options; /* as in MK_VERBS or MK_EFA; NULL: none */
    uint32_t rails;
    uint64_t data_bytes, timeout_ns;
};

int fabric_end_open(struct fabric_end *e, uint32_t rank, const char *nic,
                    const struct fabric_kind *kind);
/* Describes the NICs and options of this end. */
void fabric_end_describe(const struct fabric_end *e, char *text, size_t size);
int fabric_end_connect(struct fabric_end *e, struct wire *w, int client);
void fabric_end_close(struct fabric_end *e);
uint64_t fabric_now(void);
/* To be called in loops that wait: yields the core to the other end now and then. 0, or -ETIMEDOUT
 * after e->deadline. */
int fabric_idle(struct fabric_end *e, uint32_t *spins);

/* ---- the measurements (bench_fabric_measure.c). 0 or -errno with e->error. ---- */

struct bandwidth_result {
    uint64_t bytes, iterations;
    double peak, average; /* bytes/s */
    double rate;          /* puts/s */
};

struct latency_result {
    uint64_t bytes, iterations;
    double min, max, typical, average, deviation, p95, p99, p999; /* us, one way */
};

int measure_bandwidth(struct fabric_end *e, const struct wire_message *test, uint32_t depth,
                      struct bandwidth_result *out);
/* Both ends call it: each puts into the other at once, and checks what it got. Of the data the
 * first half goes from rank 0 to rank 1. *out is the sum of both. */
int measure_bidirectional(struct fabric_end *e, struct wire *w, const struct wire_message *test,
                          struct bandwidth_result *out);
/* Polls the fabric, which EFA's flags need, until a message or the end of the other process comes
 * over the wire. */
int receive_until_told(struct fabric_end *e, const struct wire *w);
/* The receiver's part: after the sender is done, the last flags and the last bytes must have
 * arrived. */
int check_bandwidth(struct fabric_end *e, const struct wire_message *test);
int measure_latency(struct fabric_end *e, const struct wire_message *test,
                    struct latency_result *out);

/* ---- the report (bench_fabric_report.c) ---- */

struct fabric_report {
    FILE *table;            /* NULL: none */
    const char *csv, *json; /* files; NULL: none */
    const char *options;    /* of the fabric, as they were given; NULL: none */
    int append, efa;
    uint64_t rails, depth;
    /* what follows is its own */
    const char *device;
    struct result_file json_file;
    struct csv_table rows;
    uint32_t measured;
};

/* Before the first measurement: `device` (which must stay) is measured; `sentence` says what was
 * found. 0 or -ENOMEM. */
int fabric_report_begin(struct fabric_report *r, const char *device, const char *sentence);
/* head: the first of its kind; `test`: "bw" or "bibw". */
void fabric_report_bandwidth(struct fabric_report *r, const char *test,
                             const struct bandwidth_result *b, int head);
void fabric_report_latency(struct fabric_report *r, const struct latency_result *l, int head);
/* Writes the files, where the measurements are `whole`. 0, or -errno and the path. */
int fabric_report_end(struct fabric_report *r, int whole, const char **path);
/* Whether the CSV can be added to the file that is there. 0, or -EINVAL with a sentence. */
int fabric_report_check_append(const struct fabric_report *r, char *error, size_t size);

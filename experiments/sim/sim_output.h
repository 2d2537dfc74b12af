/* What a simulated run leaves: its trace, and the lines about it, whether data was multiplied
 * (sim_predict.c) or not (sim_timed.c). */
#ifndef MK_SIM_OUTPUT_H
#define MK_SIM_OUTPUT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct mk_comm;
struct mk_plan;

struct sim_output {
    const char *trace, *json; /* paths; NULL: none is wanted */
    const char *command, *shape, *device;
    int64_t seed;
    double flop, nvlink, network; /* a rank's rates, per ns */
    uint32_t launches, ranks;
    const char *verdict; /* behind "done": ", all right" or "" */
    char lost[400];      /* why there is no trace; empty: there is */
};

/* Stores the trace, or says in o->lost why it could not: what was computed stands without it, so
 * that it is told in the end. */
void sim_output_store(struct sim_output *o, struct mk_comm *const *comms, uint32_t count);

/* "time      12.345 us", in ms from a millisecond on. */
void sim_output_time(FILE *out, const char *name, double ns);

/* Where the trace is, or that it is lost; nothing where none was wanted. */
void sim_output_tell_trace(FILE *out, const struct sim_output *o);

/* What a simulated launch took beside what it could and what its products alone take: ns, and bytes
 * into each rank. */
struct sim_figures {
    double launch, ideal, products, nvlink, network;
};

/* The lines "ideal" and "moved"; o's rates are the machine's. */
void sim_output_tell_figures(FILE *out, const struct sim_output *o, const struct mk_plan *plan,
                             const struct sim_figures *f);

/* The same as JSON's last members: bytes and times. */
void sim_output_json_bytes(FILE *out, const struct sim_figures *f);
void sim_output_json_times(FILE *out, const struct sim_figures *f);

/* A progress line for a run of the plan's launches on all ranks: *done counts flop, of all of them.
 * sim_output_over: there is none any more. */
void sim_output_begins(const struct sim_output *o, const struct mk_plan *plan, uint64_t *done);
void sim_output_over(void);

/* STATUS_DONE; STATUS_FAILED with a sentence where the trace is lost or the JSON, whose writing
 * ended with `written`, 0 or -errno, is. */
int sim_output_end(const struct sim_output *o, int written, char *error, size_t error_size);

#endif

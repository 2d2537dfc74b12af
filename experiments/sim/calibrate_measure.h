/* `mkernel calibrate --exec cuda`: the measurements that a machine file is fitted to. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct calibrate_measure {
    const char *program;   /* what is run as mkernel; NULL: this program */
    const char *simulated; /* a machine that stands for this host's GPUs; NULL: these */
    uint32_t gpus, sms;    /* ranks; SMs of each */
    int fp8;               /* of e4m3, too */
    const char *folder;    /* where tables go; it is there */
    uint64_t budget_ns;    /* for all of it */
    /* found */
    char list[4096];   /* the tables' names, with commas */
    uint32_t left_out; /* measurements for which there was no time left */
};

/* Runs `mkernel tune` several times, on one GPU and on all of them: tiles alone, then
 * communication almost without products, then both; of e4m3 tiles and sums. Each job's own
 * sentences go to stderr. When the time is up, the running job is ended; the results suffice if
 * there are some of tiles and of communication. 0, or -errno with a sentence. */
int calibrate_measure(struct calibrate_measure *m, char *error, size_t size);

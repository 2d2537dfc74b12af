/* What a machine is like: how long its GPUs take for a tile, a copy, a sum, a flag, and its network
 * for a put. Read from a file (experiments/machines/), fitted to measurements by `mkernel
 * calibrate`; the simulator's costs and the formula of plans (core/model/model.h) come from it.
 *
 * Units, unless a field says otherwise: ns, bytes, bytes/ns (1 byte/ns is 1 GB/s), MHz, W. Every
 * number is a double; 0 where a machine has no such thing (a rate of 0: it costs nothing). */
#pragma once

#include "core/base.h"

/* What moves or adds: a warp beside the GEMM engine by 16-byte stores, one thread of a thread block
 * of its own by TMA, all threads of such a block. */
enum machine_mover { MACHINE_WARP, MACHINE_TMA, MACHINE_BLOCK, MACHINE_MOVERS };

#define MACHINE_TILES 8 /* kinds of tiles that a file may describe */

/* A tile of the GEMM engine at full clock, one CTA: begin + stages * stage + end, where a stage is
 * 64 elements of K. `end` is what of a tile's store the next tile does not hide. */
struct machine_tile {
    double tile_m, tile_n; /* as a plan has them: tile_m counts the rows of a whole cluster */
    double begin, stage, end;
};

/* One way of moving or adding, of one warp or thread block. */
struct machine_rate {
    double start;    /* ns before the first byte of a piece */
    double own;      /* bytes/ns, within its own GPU's memory */
    double peer;     /* bytes/ns, to a peer over NVLink */
    double add;      /* bytes/ns of sources, summing */
    double room;     /* bytes/ns of all of a GPU together, copying in its own memory */
    double add_room; /* ... adding */
};

struct mk_machine {
    char name[64];   /* "8xH200, 400 Gb/s" */
    char device[64]; /* as the device calls itself, blanks as _ : "NVIDIA_H200" */

    /* of a GPU */
    double sms;
    double clock;     /* MHz that tile times are for: without a load on the power supply */
    double clock_low; /* MHz that it falls to at most */
    double hbm_rate;
    double launch;   /* of a launch: from its start to the first loads, and behind the last store */
    double flag;     /* from a store on one GPU to a polling CTA of another that has seen it */
    double flag_own; /* ... of the same GPU */
    double settle;   /* from a mover's last store to the release of the flag behind it */
    double wait;     /* a wait whose flag is there already */
    double between;  /* between two launches of a stream, back to back */
    double early;    /* ns by which those of one CUDA graph begin before the one before has left */
    /* of the attention engine on one SM, flop/ns at full clock, heads of 64 and of 128; ns of a
     * query tile beside its products */
    double attention64, attention128, attention_tile;
    struct machine_tile tiles[MACHINE_TILES]; /* those without rows end them */
    double stage_kn;  /* factor of a stage where B is [K, N] (1: as [N, K]) */
    double stage_fp8; /* ... of e4m3, 128 of K, with scales of blocks; 0: 1 */
    double
        /* ... where products are added over ranks: with one set of raw sums; 0: stage_fp8 */
        stage_fp8_sums;
    double fp8_narrow; /* ... in tiles of 128 columns, of either, where that is more; 0: no other */
    double promote_moe; /* ns more a stage of several groups' e4m3, 128 of K, for sums by scales; 0:
                         * it takes stage_fp8 */
    double end_fp32;    /* factor of a tile's end where partial sums are fp32 */
    /* Of making a MoE's tables: ns of counting, of placing, of laying out what has come (or handing
     * it on), of the order of tiles, and in each step but the last of each id that a block has */
    double route_count, route_place, route_lay, route_order, route_id;
    double beside; /* share by which a stage grows for each warp that shares its SM and works */
    double beside_peer;  /* ... while warps push far more than NVLink takes */
    double l2;           /* bytes of the cache that all SMs load through */
    double grouped_rate; /* bytes/ns of all SMs from it, where A and B are of several groups */
    double fill;         /* ... of which a byte that comes from HBM takes so many bytes' share */
    double spill; /* share by which that grows where what is pushed and read does not fit into l2 */
    double under; /* share by which a warp is slower beside an engine that multiplies */
    double outbox;  /* ns that a tile takes more where C leaves by the outbox */
    double paced;   /* ns that a copy to a peer takes more where a pace is kept */
    double deliver; /* ns that a warp takes to work out where a unit of C lies that it delivers */
    double send;    /* bytes/ns of a warp that takes tiles from an outbox to a peer while the
                     * engine beside it works */
    struct machine_rate movers[MACHINE_MOVERS];

    /* power: a launch that draws more than `watts` at full clock lowers the clock, the more the
     * longer it is. 0 watts: the clock stays. */
    double watts, watts_idle;
    double joule_flop;  /* pJ of one floating-point operation at full clock */
    double joule_byte;  /* pJ of one byte moved between L2 and an SM */
    double joule_hbm;   /* ... between HBM and L2 */
    double joule_link;  /* ... pushed to a peer, with what reads and writes it */
    double heat;        /* ns after which a launch is half as slow as one without an end, */
    double heat_rested; /* ... and where a GPU has rested between turns, as in `mkernel bench` */

    /* NVLink, of one GPU, all peers together */
    double nvlink_out, nvlink_in;
    double
        nvlink_joint; /* share of nvlink_in that is lost where very many peers push at once; where
                          * n do, (n - 1) / n of it */

    /* the network, of one rank */
    double nic_rate;    /* bytes/ns each way */
    double nic_latency; /* from the last byte's start to the far side's memory */
    double nic_message; /* ns that the NIC is busy with a message at least */
    double nic_flag;    /* from the data's arrival to a polling CTA that has seen the flag */
    double command;     /* from a CTA's store of a command to the proxy that has seen it */
    double proxy_command, proxy_completion; /* ns of the proxy for one */
    double receive;   /* of the receiving proxy, for each put; 0: the NIC raises the flag */
    double in_flight; /* puts of a proxy that have not completed */
    double put;       /* ns for each put on top, one after the other (softnic's copy engine) */
    /* 1: puts are staged in host memory, on both sides. bytes/ns of a GPU's way there and of its
     * way back, and ns of either */
    double staged, pcie, pcie_latency;
    double jitter; /* share by which times of tiles and puts scatter, for simulations that ask */
};

/* The machine that is compiled in, experiments/machines/8xH200-cx7. Never NULL; lives as long as
 * the process. */
const struct mk_machine *machine_default(void);

/* Reads lines "name = value unit" over what *m has; # begins a comment. Names are those of
 * machine_number. A line "like = 8xH200-cx7" before them takes all numbers of a machine that is
 * compiled in, so that a file says only what is different. 0, or -EINVAL or -errno of the file with
 * one sentence that names the line. */
int machine_read(struct mk_machine *m, const char *path, char *error, size_t size);

/* A machine by the name of a file of experiments/machines/ ("8xH200-cx7"; those are compiled in),
 * or by a path, which has a / or names a file that is there. Returns as machine_read does. */
int machine_find(struct mk_machine *m, const char *name_or_path, char *error, size_t size);

/* The same of a text; `file` is its name in sentences. */
int machine_parse(struct mk_machine *m, const char *text, const char *file, char *error,
                  size_t size);

/* All of it as such a text. Returns the length that it has or would have, as snprintf. */
size_t machine_write(const struct mk_machine *m, char *text, size_t size);

/* Number `i` of a machine: where it lies, its name ("hbm_rate", "tile.256x128.stage", "warp.peer"),
 * its unit in files and that unit's factor to what lies there; NULL behind the last. For reports
 * and fits. */
#define MACHINE_NAME 48
double *machine_number(struct mk_machine *m, uint32_t i, char name[MACHINE_NAME], const char **unit,
                       double *factor);

/* ---- what things take, at a clock that is `slower` times as slow as m->clock (1: full) ---- */

/* What a tile's time depends on beside its shape. */
struct machine_load {
    uint32_t sms;       /* that compute */
    double slower;      /* machine_slower, 1 for none */
    double beside;      /* warps beside the engine that work, on average, 0 .. 3 */
    double beside_peer; /* of them, those that push to peers without a pace */
    int fp8, summed;    /* A and B are e4m3; products are added over ranks */
    int b_kn, fp32;     /* B is [K, N]; C leaves as fp32 partial sums */
    int grouped;        /* neighbours multiply different groups, and share no loads */
    double rows;        /* that a grouped tile has; 0: all */
    double engines;     /* grouped: SMs that multiply now; 0: all */
    double stored;      /* ... bytes of C that a stage of a tile stands for */
};

#define MACHINE_STAGE_BYTES 128 /* of a row of A or a column of B, in a stage of wgmma */

/* The description of a tile of a cluster of CTAs. Where the file has none: that of a tile with as
 * many rows and columns per CTA, or with the nearest number of elements. (A CTA takes 128 rows at
 * most.) */
const struct machine_tile *machine_tile_of(const struct mk_machine *m, uint32_t tile_m,
                                           uint32_t tile_n, uint32_t cluster);

/* One stage, 64 elements of K. `fetched`: bytes that all SMs together load from HBM in it (two SMs
 * that multiply tiles side by side load what they share once). */
double machine_stage_ns(const struct mk_machine *m, const struct machine_tile *t,
                        const struct machine_load *load, double fetched);

/* A whole tile: begin, the stages of `k` elements, end. */
double machine_tile_ns(const struct mk_machine *m, const struct machine_tile *t,
                       const struct machine_load *load, uint64_t k, double fetched);

/* `bytes` by one mover of `movers` that work at the same time, to its own GPU or to a peer; pace:
 * as plans have it, ns for 512 bytes, or MK_PACE_NONE. */
double machine_copy_ns(const struct mk_machine *m, enum machine_mover mover, uint32_t movers,
                       int to_peer, uint32_t pace, double bytes);

/* `bytes` of a tile by a warp that takes it from an outbox to a peer, `beside` an engine that works
 * or not, where nothing else limits it. */
double machine_send_ns(const struct mk_machine *m, int beside, double bytes);

/* Sum of `bytes` of sources in all by one mover of `movers`. */
double machine_add_ns(const struct mk_machine *m, enum machine_mover mover, uint32_t movers,
                      double bytes);

/* Share of `bytes` that does not fit into l2, 0 to 1: what warps push and tiles read goes to memory
 * and back for it. */
double machine_spilled(const struct mk_machine *m, double bytes);

/* How far `movers` warps that push to peers want more than NVLink takes: 0, not at all, to 1, far
 * more. What it does not take stands in the SMs' way to memory. */
double machine_wanted(const struct mk_machine *m, uint32_t movers, uint32_t pace);

/* How much slower the clock makes tiles in a launch that would take `ns` at full clock, does `flop`
 * and moves `bytes` between L2 and SMs: 1 or more. */
double machine_slower(const struct mk_machine *m, double ns, double flop, double bytes);

/* The machine as it is for GPUs that rest between turns: `heat` is heat_rested. */
struct mk_machine machine_rested(const struct mk_machine *m);

/* How long a put of `bytes` holds the slowest of what all puts of a rank share: its NIC and, where
 * they are staged, its way to host memory. */
double machine_wire_ns(const struct mk_machine *m, double bytes);

/* What a put takes longer for its ways into host memory and out of it; 0 where it is not staged. */
double machine_through_host_ns(const struct mk_machine *m, double bytes);

/* Inside core: what an op gives to the plan. */
#ifndef MK_PLAN_OPS_H
#define MK_PLAN_OPS_H

#include "core/plan.h"

struct plan_op {
    int (*build)(struct mk_plan *p, char *error, size_t error_size);
    void (*describe_flag)(const struct mk_plan *p, uint32_t flag, struct mk_flag_meaning *out);
    void (*describe_tile)(const struct mk_plan *p, uint32_t id, struct mk_tile *out);
    void (*describe_chunk)(const struct mk_plan *p, uint32_t id, uint32_t *rank, uint32_t *number, uint64_t *bytes);
    void (*work)(const struct mk_plan *p, double *flop, uint64_t *nvlink_bytes, uint64_t *network_bytes);
};

extern const struct plan_op plan_op_ag_gemm, plan_op_gemm_ar, plan_op_gemm_rs, plan_op_moe_dispatch_gemm,
    plan_op_moe_ffn, plan_op_ring_attention;

/* Writes the sentence of a refusal. Returns -EINVAL. */
__attribute__((format(printf, 3, 4))) int plan_refuse(char *error, size_t size, const char *format, ...);

/* M,N,K that every GEMM takes: M divides by the ranks, rows of A, B and C are 16-byte multiples. 0, or -EINVAL. */
int plan_check_gemm(const struct mk_problem *q, char *error, size_t size);

/* How long an H200 takes to multiply M,N,K, in ns, and what its NIC (400 Gb/s) moves, in bytes a ns. Defaults on a GPU weigh them against
 * what moves; that they are about right is enough (docs/FIGURES.md). */
double plan_multiply_ns(const struct mk_problem *q);
#define PLAN_NETWORK_RATE 50.0

/* Far above what anybody runs: sizes that are made of these do not overflow. */
#define PLAN_MOST_CTAS 65535u /* of a role */
#define PLAN_MOST_TILE (1u << 24)

/* Tiles, chunks, clusters and numbers of CTAs that any executor can run; the op has checked which roles it has. */
int plan_check_tuning(const struct mk_problem *q, char *error, size_t size);

/* Whether flags, heap and the largest put fit what a command can name; sets p->flags and p->heap_bytes. */
int plan_take(struct mk_plan *p, uint64_t tiles, uint64_t flags, uint64_t heap_bytes, uint64_t put_bytes, char *error,
              size_t size);

/* The parts of gemm_rs's plan that gemm_ar shares: fills *r, chooses tuning. *flags and *bytes: what it takes, from
 * p->flag_base and p->heap_base on. 0, or -EINVAL. */
int plan_build_gemm_rs(struct mk_plan *p, struct gemm_rs_plan *r, uint64_t *flags, uint64_t *bytes, char *error,
                       size_t size);
void plan_describe_gemm_rs_tile(const struct gemm_rs_plan *r, uint32_t id, struct mk_tile *out);
int plan_describe_gemm_rs_flag(const struct gemm_rs_plan *r, uint32_t flag, struct mk_flag_meaning *out); /* 1: its */

/* What the MoE operators share (plan_moe.c). plan_choose_moe: what tuning leaves open, `tile_n` and `reducers` CTAs
 * (inter_reduce) on a GPU. plan_check_moe, plan_check_moe_tuning: 0, or -EINVAL. plan_size_moe, once tuning is chosen: numbers of
 * tokens, rows and chunks; returns the flags that dispatch takes, and how many tiles of rows there must be room for; the
 * caller refuses what does not fit and sets row_tiles and route.wanted, then plan_lay_out_moe sets the rest, in the heap from
 * *next on. plan_take_moe: `bytes` more there. */
void plan_choose_moe(struct mk_problem *q, uint32_t tile_n, uint32_t reducers);
int plan_check_moe_tuning(struct mk_problem *q, int reduces, char *error, size_t size);
int plan_check_moe(const struct mk_problem *q, char *error, size_t size);
uint64_t plan_size_moe(struct moe_dispatch_plan *m, const struct mk_problem *q, uint64_t *row_tiles);
uint64_t plan_take_moe(uint64_t *next, uint64_t bytes);
void plan_lay_out_moe(struct moe_dispatch_plan *m, uint32_t flag_base, int weights, uint64_t *next);
uint64_t plan_moe_put_bytes(const struct moe_dispatch_plan *m); /* the largest put of dispatch */
int plan_describe_moe_flag(const struct moe_dispatch_plan *m, uint32_t flag, struct mk_flag_meaning *out); /* 1: its */
void plan_moe_dispatch_work(const struct moe_dispatch_plan *m, uint64_t *nvlink_bytes, uint64_t *network_bytes);

#endif

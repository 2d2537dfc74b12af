/* The CTA interface, routes: for roles that send tokens to their experts. sim/cta.c and sim/route.c
 * implement it; a GPU does not yet. Asynchronous, as core/cta.h says. */
#ifndef MK_CTA_ROUTE_H
#define MK_CTA_ROUTE_H

#include "core/cta.h"

/* Where the tokens of all ranks go. Each token of each rank names k experts; expert e is on rank e
 * / rank_experts. On the rank of an expert its rows begin at a multiple of tile_rows, behind those
 * of the expert before, in the order of source rank, token, place among the k; with chunk_rows, of
 * source node, chunk, rank, token, place. Everything but ids and wanted is made by mk_cta_route;
 * offsets in this rank's heap. */
struct mk_route {
    struct mk_topo topo;
    uint32_t tokens, k, experts, rank_experts, tile_rows;
    uint64_t ids; /* uint32_t [W][ids_pitch bytes: tokens, k]; `experts` or more: none */
    uint64_t ids_pitch;
    /* uint32_t [W][tokens][k]: row on the rank of its expert; UINT32_MAX: none */
    uint64_t position;
    uint64_t first; /* uint32_t [experts]: first row */
    uint64_t rows;  /* uint32_t [experts]: how many */
    /* uint32_t [nodes][tokens]: tokens of this rank that have experts on that other node, in
     * order */
    uint64_t sent;
    uint64_t sent_count; /* uint32_t [nodes] */
    /* uint32_t [nodes][tokens]: tokens of this rail's rank of that node that have experts here */
    uint64_t came;
    uint64_t came_count; /* uint32_t [nodes] */
    uint64_t node_rows;  /* uint32_t [rank_experts][nodes + 1]: how many rows of each of this rank's
                          * experts come from the  nodes before; last, all of them */
    /* uint64_t per tile of rows of this rank, kept from launch to launch: += its rows */
    uint64_t wanted;
    uint64_t summary; /* uint32_t [rank_experts][2] in `summary_space`: first row and rows of this
                       * rank's experts; not made where that is the heap */
    uint32_t summary_space;
    /* For an op whose rows go back to where their tokens came from; 0: these are not made. Chunks
     * are of chunk_rows tokens. */
    uint32_t chunk_rows;
    /* uint32_t per row of this rank's experts: (rank * tokens + token) * k + place */
    uint64_t origin;
    /* uint32_t [nodes][tokens + 1]: how many tokens of `sent` come before this token */
    uint64_t sent_before;
    uint64_t came_before; /* uint32_t [nodes][tokens + 1]: the same of `came` */
    uint64_t due; /* uint64_t [nodes][chunks], kept from launch to launch: += how often the tokens
                   * of a chunk of this rail's rank of that node name an expert on this node */
};

#ifndef __CUDACC__
/* Starts making the tables of `route` from its ids, which have come. */
void mk_cta_route(struct mk_cta *cta, const struct mk_route *route);

/* Reads a table: a word of this rank's heap, 4- or 8-byte aligned, that a wait has acquired. */
uint32_t mk_cta_load(struct mk_cta *cta, uint64_t offset);
uint64_t mk_cta_load64(struct mk_cta *cta, uint64_t offset);
#endif

#endif

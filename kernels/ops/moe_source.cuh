/* The tile source of MoE operators on the Hopper engine (kernels/ops/moe_take.cuh): warps gather its
 * rows of A. */
#pragma once

#include "kernels/ops/gemm_tickets.cuh"
#include "kernels/ops/moe_take.cuh"

template <class derived> struct moe_source : moe_taking<derived, ticket_source<derived>> {
    static constexpr bool gathers = true;
};

/* The memory of an emulated GPU as one that no NIC reaches, which is what a GeForce card's is
 * (MKERNEL_P2P=off): puts between nodes are staged (backends/stage.h), and copies here are its copy
 * engine's. */
#pragma once

#include "backends/memory.h"

/* Copies are made where they are started, by the thread that calls; a word of flags is written at
 * once, behind what was copied before. Any number of heaps may be of it. */
extern const struct mr_memory_ops emulated_copy_ops;

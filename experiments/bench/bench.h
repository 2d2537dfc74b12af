/* What `mkernel bench` measures: an operator, or what lies below one. argv[0] is what was named.
 * Each returns an exit status and has printed its sentence. */
#pragma once

#include "experiments/common/commands.h"

int bench_op(int argc, char **argv);
int bench_fabric(int argc, char **argv) MK_WEAK;
int bench_ring(int argc, char **argv) MK_WEAK;
int bench_trace(int argc, char **argv) MK_WEAK;

/* What `mkernel bench NAME` can measure: an operator, or one of the layers below. argv[0] is NAME.
 * Each function returns an exit status and has printed its sentence. */
#pragma once

#include "experiments/common/commands.h"

int bench_op(int argc, char **argv);
int bench_fabric(int argc, char **argv) MK_WEAK;
int bench_ring(int argc, char **argv) MK_WEAK;
int bench_trace(int argc, char **argv) MK_WEAK;

/* `mkernel calibrate --exec cuda`: the measurements that a machine file is fitted to. */
#ifndef MK_SIM_CALIBRATE_MEASURE_H
#define MK_SIM_CALIBRATE_MEASURE_H

#include <stddef.h>
#include <stdint.h>

/* Runs `program` (NULL: this one) as `mkernel tune` some times, on one GPU and on `gpus` (1: only
 * that), each of which has `sms` SMs: tiles alone, then what moves, with next to no products and
 * with them. Tables go to `folder`, which is there; *list, of `size` bytes, gets their names with
 * commas. Each job's own sentences go to stderr. 0, or -errno with a sentence. */
int calibrate_measure(const char *program, uint32_t gpus, uint32_t sms, const char *folder,
                      char *list, size_t size, char *error, size_t error_size);

#endif

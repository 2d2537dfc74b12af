/* Which settings mean something to which executor. */
#pragma once

/* Whether the command that measures with `exec` ("host") takes setting `name`: `sim` has no network
 * of softnic's and no --iters, `bench` no --machine. A point of another executor is without it, so
 * that one file can set a measurement beside its simulation. */
int result_exec_takes(const char *exec, const char *name);

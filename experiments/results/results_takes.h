/* Which settings mean something to which executor. */
#pragma once

/* Whether the command that measures with `exec` ("host") takes setting `name`: `sim` has no --nic
 * and no --iters, `bench` no --machine. A point does not get settings that its executor does not
 * take, so that one sweep can have a measurement and its simulation. */
int result_exec_takes(const char *exec, const char *name);

/* Removes a half-written trace when a signal ends the command. */
#pragma once

/* From now on SIGINT, SIGTERM and SIGHUP, unless they are ignored, first remove the file that
 * trace_unfinished names and then end the process as usual. To be called once, from main. Children
 * that exec another program do not inherit it. */
void unfinished_watch(void);

/* What a command that is ended by a signal takes away with it: a trace that is half written. */
#pragma once

/* From now on SIGINT, SIGTERM and SIGHUP, where they are not ignored, first remove the file that
 * trace_unfinished names, then end the process as they would have. Once, from main. Children that
 * exec another program do not inherit it. */
void unfinished_watch(void);

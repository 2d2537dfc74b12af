/* The signals that end a command: SIGINT, SIGTERM and SIGHUP, except those that this process was
 * started to ignore (nohup). */
#pragma once

#include <signal.h>

/* The set of them. */
void ending_signals(sigset_t *set);

/* From now on ending_came reports them, and they do not end the process. To be called before there
 * are threads, once until ending_ignore. 0 or -errno. */
int ending_watch(void);
void ending_ignore(void); /* they end the process again */

/* The one that came while they are watched; 0: none. Any thread. */
int ending_came(void);

/* What poll wakes up for; -1: they are not watched. */
int ending_fd(void);

/* Ends the process by such a signal, so that a shell that runs it in a loop sees that. To be called
 * last. 0: does nothing. */
void ending_die(int signal);

/* From now on these signals first remove a file that is not finished (new_file.h) and then end the
 * process as usual. To be called once, from main. Children that exec another program do not inherit
 * it. */
void ending_remove_unfinished(void);

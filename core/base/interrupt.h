/* Whether the program wants a wait of the library's to end (mk_set_interrupt). */
#pragma once

/* For every loop that waits on a thread of the program's: asks at most ten times a second. The
 * caller holds no lock, since the program's signal handlers may run in it. */
int mk_interrupted(void);

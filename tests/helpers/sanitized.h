/* How many times as slow a build with a sanitizer may be, for limits of time in tests: 1 in a build
 * without. */
#pragma once

/* Seconds that other work of the machine may add to what ends by itself. What does not is ended by
 * command_finish, after a minute. */
#define BUSY (20.0 * SLOWDOWN)

#if defined __SANITIZE_THREAD__
#define SLOWDOWN 10
#elif defined __SANITIZE_ADDRESS__
#define SLOWDOWN 4
#else
#define SLOWDOWN 1
#endif

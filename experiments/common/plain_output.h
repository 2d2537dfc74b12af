/* Makes standard output and standard error safe for a terminal: text from a file, such as an
 * operator's name in a trace of somebody else, must not contain escape sequences that move the
 * cursor, set the window's title or type for the user. */
#pragma once

/* From now on stdio prints `?` in place of each control character (C0 but ends of line and tabs,
 * DEL, C1) and each byte that is not valid UTF-8, to terminals and pipes alike. What is written to
 * the file descriptors directly stays as it is: a compressed trace, the line of progress, the
 * viewer's screen. Replaces `stdout` and `stderr`, each only if there is memory. Call it once,
 * before anything is printed. */
void plain_output_begin(void);

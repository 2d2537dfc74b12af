/* Standard output and standard error as a terminal may be shown them: a text of a file, such as an
 * operator's name in a stranger's trace, must not move the cursor, set the window's title or type
 * for the user. */
#pragma once

/* From now on `?` stands for each control character that the process prints by stdio (C0 but line
 * ends and tabs, DEL, C1), be that to a terminal or to a pipe that ends in one, and for each byte
 * that is no UTF-8 by its place. What is written to the descriptors themselves is left as it is: a
 * compressed trace, the line of progress, the viewer's screen. Replaces `stdout` and `stderr`; a
 * stream stays as it was where there is no memory. Call it once, before anything is printed. */
void plain_output_begin(void);

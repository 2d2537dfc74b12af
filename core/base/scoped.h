/* Locals that own what they point to: memory, a stream, a folder. It is given back where their
 * block ends, on every way out of it, after what is returned has been computed. NULL is nothing;
 * what is to outlive the block leaves by setting the local to NULL. Of a declaration with several
 * names all own. */
#pragma once

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MK_FREED __attribute__((cleanup(mk_scoped_free)))
#define MK_CLOSED __attribute__((cleanup(mk_scoped_fclose)))
#define MK_CLOSED_DIR __attribute__((cleanup(mk_scoped_closedir)))

static inline void mk_scoped_free(void *local)
{
    void *memory; /* the local is a pointer to whatever type: its bytes are read */
    memcpy(&memory, local, sizeof memory);
    free(memory);
}

static inline void mk_scoped_fclose(FILE **local)
{
    if (*local)
        fclose(*local);
}

static inline void mk_scoped_closedir(DIR **local)
{
    if (*local)
        closedir(*local);
}

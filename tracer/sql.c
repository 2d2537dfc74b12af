/* The schema, its indexes and its views, embedded from the .sql files of this folder so that the
 * binary needs no other file. */
#include "tracer/sql.h"

#define EMBED(name, file)                                                                          \
    __asm__(".section .rodata\n.global " #name "\n" #name ":\n.incbin \"" file                     \
            "\"\n.byte 0\n.size " #name ", . - " #name "\n.type " #name ", @object\n.previous\n")

EMBED(trace_sql_schema, "tracer/schema.sql");
EMBED(trace_sql_index, "tracer/index.sql");
EMBED(trace_sql_views, "tracer/views.sql");

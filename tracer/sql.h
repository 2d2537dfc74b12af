/* The text of schema.sql, index.sql and views.sql, ended by a 0. */
#ifndef MK_TRACER_SQL_H
#define MK_TRACER_SQL_H

extern const char trace_sql_schema[];
extern const char trace_sql_index[];
extern const char trace_sql_views[];

#endif

/* The text of schema.sql, index.sql and views.sql, ended by a 0. */
#pragma once

extern const char trace_sql_schema[];
extern const char trace_sql_index[];
extern const char trace_sql_views[];

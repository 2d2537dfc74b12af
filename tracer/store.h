/* Writes a merged run into one SQLite file: one transaction, indexed after the load, renamed into
 * place. */
#pragma once

#include "tracer/data.h"
#include "tracer/insert.h"

/* Stores d at `path`, over what was there. The file is written in the same folder under a temporary
 * name, flushed, and renamed: readers see the old file or the whole new one. On any error the
 * temporary is removed and `path` is as it was. Blocks for as long as the disk takes. Returns 0, or
 * -errno with one sentence: -ENOSPC, -EFBIG, -EACCES, -EROFS, -ENOENT, -EIO, -ENOMEM. */
int store_write(const struct trace_data *d, const char *path, char *error, size_t size);

/* All of it: merges the parts of `ranks` ranks, joins them and stores the run. Returns as
 * store_write and data_merge do. */
int store_parts(const struct trace_part *parts, uint32_t ranks, const struct trace_run *run,
                const char *path, char *error, size_t size);

/* Inside the store: the tables, each group by one function. */
/* run, rank, plan, work, tile, chunk, flag, clock, drop, metric */
void store_run(struct insert *in, const struct trace_data *d);
void store_tracks(struct insert *in, const struct trace_data *d); /* track, event, total, longest */
/* launch, launch_rank, message, stage, edge, critical */
void store_joins(struct insert *in, const struct trace_data *d);
void store_levels(struct insert *in,
                  const struct trace_data *d); /* zoom, level, link, flow, traffic */

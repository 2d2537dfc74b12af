/* What `mkernel bench fabric` has to show: a table while it measures, files once all is
 * measured. */
#include "core/mkernel.h"
#include "experiments/bench/bench_fabric.h"
#include "experiments/job/bench_row.h"
#include "experiments/common/json_write.h"

#include <math.h>

/* How CSV and JSON call the numbers of a measurement. */
static const struct {
    const char *name, *format;
} columns[] = {
    {"bytes", "%.0f"},
    {"iterations", "%.0f"},
    {"peak_bytes_per_s", "%.0f"},
    {"average_bytes_per_s", "%.0f"},
    {"messages_per_s", "%.3f"},
    {"min_us", "%.3f"},
    {"max_us", "%.3f"},
    {"typical_us", "%.3f"},
    {"average_us", "%.3f"},
    {"stdev_us", "%.3f"},
    {"p95_us", "%.3f"},
    {"p99_us", "%.3f"},
    {"p999_us", "%.3f"},
};
enum { COLUMNS = sizeof columns / sizeof *columns };

/* One measurement; what the other kind of test measures is NaN. */
struct cells {
    const char *test;
    double of[COLUMNS];
};

static void bench_fabric_report_fill_row(struct csv_table *row, const struct fabric_report *r,
                                         const struct cells *c)
{
    struct bench_when when;
    bench_when(&when);
    csv_row(row);
    csv_text(row, "test", c->test);
    for (int i = 0; i < COLUMNS; i++)
        csv_number(row, columns[i].name, columns[i].format, c->of[i]);
    csv_text(row, "fabric", r->efa ? "efa" : "verbs");
    csv_text(row, "device", r->device);
    csv_whole(row, "rails", r->rails);
    csv_whole(row, "depth", r->depth);
    csv_text(row, "options", r->options);
    csv_text(row, "date", when.date);
    csv_text(row, "host", when.host);
    csv_text(row, "mkernel", MK_VERSION);
}

/* To the files. */
static void bench_fabric_report_add(struct fabric_report *r, const struct cells *c)
{
    FILE *f = r->json_file.out;
    if (r->csv)
        bench_fabric_report_fill_row(&r->rows, r, c);
    if (f)
        fprintf(f, "%s\n  {\"test\":\"%s\"", r->measured ? "," : "", c->test);
    for (int i = 0; i < COLUMNS && f; i++) {
        if (isnan(c->of[i]))
            continue;
        fprintf(f, ",\"%s\":", columns[i].name);
        fprintf(f, columns[i].format, c->of[i]);
    }
    if (f)
        fprintf(f, "}");
    r->measured++;
}

void fabric_report_bandwidth(struct fabric_report *r, const char *test,
                             const struct bandwidth_result *b, int head)
{
    if (r->table) {
        if (head)
            fprintf(r->table, " #bytes     #iterations    BW peak[MiB/sec]   BW average[MiB/sec]  "
                              "MsgRate[Mpps]\n");
        fprintf(r->table, " %-10lu %-14lu %-18.2f %-20.2f %.6f\n", b->bytes, b->iterations,
                b->peak / (1 << 20), b->average / (1 << 20), b->rate / 1e6);
        fflush(r->table);
    }
    bench_fabric_report_add(
        r, &(struct cells){test,
                           {(double)b->bytes, (double)b->iterations, b->peak, b->average, b->rate,
                            NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN}});
}

void fabric_report_latency(struct fabric_report *r, const struct latency_result *l, int head)
{
    if (r->table) {
        if (head)
            fprintf(r->table,
                    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    "
                    "t_avg[usec]    t_stdev[usec]   99%% percentile[usec]   99.9%% "
                    "percentile[usec]   95%% percentile[usec]\n");
        fprintf(r->table,
                " %-7lu %-10lu %-14.2f %-12.2f %-18.2f %-14.2f %-15.2f %-22.2f %-24.2f %.2f\n",
                l->bytes, l->iterations, l->min, l->max, l->typical, l->average, l->deviation,
                l->p99, l->p999, l->p95);
        fflush(r->table);
    }
    bench_fabric_report_add(
        r, &(struct cells){"lat",
                           {(double)l->bytes, (double)l->iterations, NAN, NAN, NAN, l->min, l->max,
                            l->typical, l->average, l->deviation, l->p95, l->p99, l->p999}});
}

int fabric_report_begin(struct fabric_report *r, const char *device, const char *sentence)
{
    struct bench_when when;
    bench_when(&when);
    r->device = device;
    if (r->table)
        fprintf(r->table, "%s; %lu puts under way\n", sentence, r->depth);
    if (!r->json)
        return 0;
    int rc = result_open(&r->json_file);
    if (rc)
        return rc;
    FILE *f = r->json_file.out;
    fprintf(f, "{\n");
    json_text(f, "bench", "fabric");
    json_text(f, "mkernel", MK_VERSION);
    json_text(f, "date", when.date);
    json_text(f, "host", when.host);
    json_text(f, "fabric", r->efa ? "efa" : "verbs");
    json_text(f, "device", device);
    json_text(f, "options", r->options ? r->options : "");
    fprintf(f, "  \"rails\": %lu,\n  \"depth\": %lu,\n  \"results\": [", r->rails, r->depth);
    return 0;
}

int fabric_report_end(struct fabric_report *r, int whole, const char **path)
{
    int json = 0, csv = 0;
    if (r->json_file.out && whole) {
        fprintf(r->json_file.out, "\n]}\n");
        json = result_close(&r->json_file, r->json);
    } else if (r->json_file.out) {
        result_drop(&r->json_file);
    }
    if (r->rows.count && whole)
        csv = csv_end(&r->rows, r->csv, r->append);
    csv_free(&r->rows);
    *path = csv ? r->csv : r->json;
    return csv ? csv : json;
}

int fabric_report_check_append(const struct fabric_report *r, char *error, size_t size)
{
    struct csv_table csv = {.count = 0};
    bench_fabric_report_fill_row(&csv, r, &(struct cells){.test = "bw"});
    return csv_check_append(&csv, r->csv, error, size);
}

/* What `mkernel bench fabric` has to show: a table while it measures, files once all is
 * measured. */
#include "experiments/bench/bench_fabric.h"
#include "experiments/job/bench_row.h"
#include "experiments/common/commands.h"
#include "experiments/common/json_write.h"
#include "experiments/common/output_file.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* One measurement; what the other kind of test measures is NaN. */
struct cells {
    const char *test;
    uint64_t bytes, iterations;
    double peak, average, rate, min, max, typical, mean, deviation, p95, p99, p999;
};

static void bench_fabric_report_fill_row(struct csv_row *row, const struct fabric_report *r,
                                         const struct cells *c)
{
    struct bench_when when;
    bench_when(&when);
    csv_text(row, "test", c->test);
    csv_whole(row, "bytes", c->bytes);
    csv_whole(row, "iterations", c->iterations);
    csv_number(row, "peak_bytes_per_s", "%.0f", c->peak);
    csv_number(row, "average_bytes_per_s", "%.0f", c->average);
    csv_number(row, "messages_per_s", "%.3f", c->rate);
    csv_number(row, "min_us", "%.3f", c->min);
    csv_number(row, "max_us", "%.3f", c->max);
    csv_number(row, "typical_us", "%.3f", c->typical);
    csv_number(row, "average_us", "%.3f", c->mean);
    csv_number(row, "stdev_us", "%.3f", c->deviation);
    csv_number(row, "p95_us", "%.3f", c->p95);
    csv_number(row, "p99_us", "%.3f", c->p99);
    csv_number(row, "p999_us", "%.3f", c->p999);
    csv_text(row, "fabric", r->efa ? "efa" : "verbs");
    csv_text(row, "device", r->device);
    csv_whole(row, "rails", r->rails);
    csv_whole(row, "depth", r->depth);
    csv_text(row, "options", r->options);
    csv_text(row, "date", when.date);
    csv_text(row, "host", when.host);
    csv_text(row, "mkernel", MK_VERSION);
}

static void bench_fabric_report_add_row(struct fabric_report *r, const struct cells *c)
{
    if (!r->csv || r->failed)
        return;
    if (r->count == FABRIC_ROWS || csv_row_open(&r->rows[r->count])) {
        r->failed = -ENOMEM;
        return;
    }
    bench_fabric_report_fill_row(&r->rows[r->count], r, c);
    r->failed = csv_row_close(&r->rows[r->count++]);
}

void fabric_report_bandwidth(struct fabric_report *r, const char *test,
                             const struct bandwidth_result *b, int head)
{
    if (r->table) {
        if (head)
            fprintf(r->table, " #bytes     #iterations    BW peak[MiB/sec]   BW average[MiB/sec]  "
                              "MsgRate[Mpps]\n");
        fprintf(r->table, " %-10llu %-14llu %-18.2f %-20.2f %.6f\n", (unsigned long long)b->bytes,
                (unsigned long long)b->iterations, b->peak / (1 << 20), b->average / (1 << 20),
                b->rate / 1e6);
        fflush(r->table);
    }
    bench_fabric_report_add_row(r,
                                &(struct cells){test, b->bytes, b->iterations, b->peak, b->average,
                                                b->rate, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN});
    if (r->json_file.out)
        fprintf(
            r->json_file.out,
            "%s\n  {\"test\":\"%s\",\"bytes\":%llu,\"iterations\":%llu,\"peak_bytes_per_s\":%.0f,"
            "\"average_bytes_per_s\":%.0f,\"messages_per_s\":%.3f}",
            r->measured ? "," : "", test, (unsigned long long)b->bytes,
            (unsigned long long)b->iterations, b->peak, b->average, b->rate);
    r->measured++;
}

void fabric_report_latency(struct fabric_report *r, const struct latency_result *l, int head)
{
    if (r->table) {
        if (head)
            fprintf(r->table,
                    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]  "
                    "  t_avg[usec]    "
                    "t_stdev[usec]   99%% "
                    "percentile[usec]   99.9%% percentile[usec]   95%% percentile[usec]\n");
        fprintf(r->table,
                " %-7llu %-10llu %-14.2f %-12.2f %-18.2f %-14.2f %-15.2f %-22.2f %-24.2f %.2f\n",
                (unsigned long long)l->bytes, (unsigned long long)l->iterations, l->min, l->max,
                l->typical, l->average, l->deviation, l->p99, l->p999, l->p95);
        fflush(r->table);
    }
    bench_fabric_report_add_row(r, &(struct cells){"lat", l->bytes, l->iterations, NAN, NAN, NAN,
                                                   l->min, l->max, l->typical, l->average,
                                                   l->deviation, l->p95, l->p99, l->p999});
    if (r->json_file.out)
        fprintf(
            r->json_file.out,
            "%s\n  "
            "{\"test\":\"lat\",\"bytes\":%llu,\"iterations\":%llu,\"min_us\":%.3f,\"max_us\":%.3f,"
            "\"typical_us\":%.3f,\"average_us\":%.3f,\"stdev_us\":%.3f,\"p95_us\":%.3f,\"p99_us\":%"
            ".3f,\"p999_us\":"
            "%.3f}",
            r->measured ? "," : "", (unsigned long long)l->bytes, (unsigned long long)l->iterations,
            l->min, l->max, l->typical, l->average, l->deviation, l->p95, l->p99, l->p999);
    r->measured++;
}

int fabric_report_begin(struct fabric_report *r, const char *device, const char *sentence)
{
    struct bench_when when;
    bench_when(&when);
    r->device = device;
    if (r->table)
        fprintf(r->table, "%s; %llu puts under way\n", sentence, (unsigned long long)r->depth);
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
    fprintf(f, "  \"rails\": %llu,\n  \"depth\": %llu,\n  \"results\": [",
            (unsigned long long)r->rails, (unsigned long long)r->depth);
    return 0;
}

int fabric_report_end(struct fabric_report *r, int whole, const char **path)
{
    int json = 0, csv = r->failed;
    if (r->json_file.out && whole) {
        fprintf(r->json_file.out, "\n]}\n");
        json = result_close(&r->json_file, r->json);
    } else if (r->json_file.out) {
        result_drop(&r->json_file);
    }
    if (!csv && whole && r->csv)
        csv = csv_write(r->csv, r->rows, r->count, r->append);
    while (r->count)
        csv_row_free(&r->rows[--r->count]);
    *path = csv ? r->csv : r->json;
    return csv ? csv : json;
}

int fabric_report_check_append(const struct fabric_report *r, char *error, size_t size)
{
    struct csv_row row;
    if (csv_row_open(&row))
        return -ENOMEM;
    bench_fabric_report_fill_row(&row, r, &(struct cells){.test = "bw"});
    int rc = csv_row_close(&row);
    rc = rc ? rc : csv_check_append(r->csv, row.header, error, size);
    csv_row_free(&row);
    return rc;
}

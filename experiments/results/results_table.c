#include "experiments/results/results_table.h"
#include "experiments/common/csv_table.h"
#include "experiments/common/json_write.h"
#include "experiments/common/result_file.h"
#include "experiments/results/results_diff.h"

#include <math.h>
#include <string.h>

#define MOST_COMPARED 1000u /* points, each with each */

/* A number as wide as its column, with as many digits as say something; "-" where there is none. */
static void results_table_cell(FILE *out, int width, double value)
{
    char text[32] = "-";
    if (value >= 1000)
        snprintf(text, sizeof text, "%.0f", value);
    else if (!isnan(value))
        snprintf(text, sizeof text, "%.4g", value);
    fprintf(out, "  %*s", width, text);
}

static void results_table_size(FILE *out, int width, double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    char text[32] = "-";
    int unit = 0;
    for (; bytes >= 1024 && unit < 4; unit++)
        bytes /= 1024;
    if (!isnan(bytes))
        snprintf(text, sizeof text, bytes == floor(bytes) ? "%.0f %s" : "%.1f %s", bytes,
                 units[unit]);
    fprintf(out, "  %*s", width, text);
}

static uint32_t results_table_of(const struct result_point *p, const char *verdict)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->job_count; i++)
        count += !strcmp(p->jobs[i].verdict, verdict);
    return count;
}

/* Columns of the settings that vary. */
static int results_table_width(const struct results *r, uint32_t column)
{
    size_t width = strlen(r->varied[column]);
    for (uint32_t i = 0; i < r->count; i++) {
        size_t length = strlen(result_value(&r->points[i], r->varied[column]));
        width = length > width ? length : width;
    }
    return (int)width;
}

static void results_table_head(const struct results *r, FILE *out)
{
    if (*r->title)
        fprintf(out, "%s%s%s\n", r->title, *r->question ? ": " : "", r->question);
    fprintf(out, "%s\n\n", r->machine);
    for (uint32_t i = 0; i < r->varied_count; i++)
        fprintf(out, "%-*s  ", results_table_width(r, i), r->varied[i]);
    fprintf(out, "%4s %9s  %4s  %8s  %19s  %8s  %8s  %8s  %7s  %7s  %8s  %6s\n", "jobs", "size",
            "type", "ms", "95 % interval", "p50", "p95", "p99", "algbw", "busbw", "TFLOP/s",
            "effic.");
}

static void results_table_row(const struct results *r, const struct result_point *p, FILE *out)
{
    char interval[48] = "-";
    for (uint32_t i = 0; i < r->varied_count; i++)
        fprintf(out, "%-*s  ", results_table_width(r, i), result_value(p, r->varied[i]));
    fprintf(out, "%4u", p->good);
    results_table_size(out, 8, result_size(p));
    fprintf(out, "  %s", plan_dtypes[result_dtype(p)]);
    results_table_cell(out, 8, p->ms.median);
    if (p->good)
        snprintf(interval, sizeof interval, "%.4g .. %.4g", p->ms.low, p->ms.high);
    fprintf(out, "  %19s", interval);
    results_table_cell(out, 8, p->p50);
    results_table_cell(out, 8, p->p95);
    results_table_cell(out, 8, p->p99);
    results_table_cell(out, 7, result_algbw(p));
    results_table_cell(out, 7, result_busbw(p));
    results_table_cell(out, 8, result_flops(p) / 1e12);
    results_table_cell(out, 6, result_efficiency(p));
    fprintf(out, "\n");
}

static void results_table_ranks(const struct result_point *p, FILE *out)
{
    for (uint32_t i = 0; i < p->job_count; i++) {
        const struct result_job *j = &p->jobs[i];
        if (!j->ranks)
            continue;
        fprintf(out, "  repeat %u, medians of ranks 0 to %u:", j->repeat, j->ranks - 1);
        for (uint32_t k = 0; k < j->ranks; k++)
            fprintf(out, " %.4g", j->of_rank[k]);
        fprintf(out, " ms\n");
    }
}

/* What did not go well, each sentence once. */
static void results_table_failures(const struct result_point *p, FILE *out)
{
    for (uint32_t k = 0; k < p->job_count; k++) {
        const struct result_job *j = &p->jobs[k];
        uint32_t same = 0, before = 0;
        if (!strcmp(j->verdict, "right") || !strcmp(j->verdict, "unchecked"))
            continue;
        for (uint32_t i = 0; i < p->job_count; i++) {
            int alike = !strcmp(p->jobs[i].sentence, j->sentence);
            same += alike;
            before += alike && i < k;
        }
        if (before)
            continue;
        fprintf(out, "%-9s  %s: %s", j->verdict, p->label, j->sentence);
        fprintf(out, same > 1 ? " (%u jobs)\n" : "\n", same);
    }
}

/* Whether simulated points of `op` that differ in setting `name` alone have the same time, all of
 * them, and there are some. */
static int results_table_is_ignored(const struct results *r, const char *op, const char *name)
{
    int pairs = 0;
    for (uint32_t i = 0; i < r->count; i++)
        for (uint32_t k = 0; k < i; k++) {
            const struct result_point *a = &r->points[i], *b = &r->points[k];
            if (!a->good || !b->good || strcmp(result_value(a, "op"), op) ||
                strcmp(result_value(a, "exec"), "sim") || strcmp(result_value(b, "exec"), "sim") ||
                !strcmp(result_value(a, name), result_value(b, name)) ||
                !result_same(a, b, &name, 1))
                continue;
            if (a->ms.median != b->ms.median)
                return 0;
            pairs++;
        }
    return pairs > 0;
}

/* A simulation says the same each time: where a setting changes nothing at all, it was not looked
 * at. */
static void results_table_ignored(const struct results *r, FILE *out)
{
    if (r->count > MOST_COMPARED)
        return;
    for (uint32_t v = 0; v < r->varied_count; v++)
        for (uint32_t i = 0; i < r->count; i++) {
            const char *op = result_value(&r->points[i], "op");
            int before = 0;
            for (uint32_t k = 0; k < i && !before; k++)
                before = !strcmp(result_value(&r->points[k], "op"), op);
            if (!before && strcmp(r->varied[v], "op") && strcmp(r->varied[v], "exec") &&
                results_table_is_ignored(r, op, r->varied[v]))
                fprintf(out,
                        "ignored    %s: simulated times of %s are the same whatever it is, as "
                        "nothing there looks at it\n",
                        r->varied[v], op);
        }
}

/* What the numbers do not say. */
static void results_table_notes(const struct results *r, FILE *out)
{
    int alone = 0, simulated = 0;
    fprintf(out, "\nms: median over jobs of the median of the slowest rank; p50 to p99: over all "
                 "launches of that rank; algbw, busbw: GB/s as nccl-tests count them\n");
    for (uint32_t i = 0; i < r->count; i++) {
        const struct result_point *p = &r->points[i];
        int is_sim = !strcmp(result_value(p, "exec"), "sim");
        simulated |= is_sim;
        alone |= p->good == 1 && !is_sim;
        if (p->outliers && !is_sim)
            fprintf(out,
                    "outliers  %s: %u of %u launches took much longer, the longest %.4g ms: "
                    "launch %u of rank %u in repeat %u\n",
                    p->label, p->outliers, p->launches, p->worst, p->worst_number, p->worst_rank,
                    p->worst_repeat);
    }
    for (uint32_t i = 0; i < r->count; i++)
        if (!r->points[i].good && results_table_of(&r->points[i], "right"))
            fprintf(out,
                    "right      %s: %u jobs, which have no time: an emulated GPU has no speed\n",
                    r->points[i].label, results_table_of(&r->points[i], "right"));
    if (alone)
        fprintf(out,
                "one job    a point with one job has the interval of its launches alone, which "
                "does not know how jobs differ\n");
    if (simulated)
        fprintf(out, "simulated  exec=sim has one time, the same each time: its interval says "
                     "nothing of how true it is\n");
    results_table_ignored(r, out);
    for (uint32_t i = 0; i < r->count; i++)
        for (uint32_t k = 0; k < r->points[i].published_count; k++) {
            const struct result_published *p = &r->points[i].published[k];
            double flops = result_flops(&r->points[i]);
            fprintf(out, "published  %s: %.4g TFLOP/s by %s", r->points[i].label, p->flops / 1e12,
                    p->who);
            if (!isnan(flops))
                fprintf(out, "; here %.4g, which is %.2f of it", flops / 1e12, flops / p->flops);
            fprintf(out, "\n");
        }
    for (uint32_t i = 0; i < r->count; i++)
        results_table_failures(&r->points[i], out);
}

void results_table_print(const struct results *r, int ranks, FILE *out)
{
    results_table_head(r, out);
    for (uint32_t i = 0; i < r->count; i++) {
        results_table_row(r, &r->points[i], out);
        if (ranks)
            results_table_ranks(&r->points[i], out);
    }
    results_table_notes(r, out);
}

/* ---- for programs ---- */

static void results_table_fill(struct csv_table *row, const struct results *r,
                               const struct result_point *p)
{
    csv_row(row);
    csv_text(row, "key", p->key);
    csv_text(row, "op", p->figures.op);
    csv_text(row, "shape", p->figures.shape);
    csv_text(row, "exec", p->figures.exec);
    csv_whole(row, "nodes", p->figures.nodes);
    csv_whole(row, "gpus", p->figures.gpus);
    csv_text(row, "fabric", p->figures.fabric);
    for (uint32_t i = 0; i < r->varied_count; i++) {
        char name[80];
        snprintf(name, sizeof name, "set_%s", r->varied[i]);
        csv_text(row, name, result_value(p, r->varied[i]));
    }
    csv_whole(row, "jobs", p->good);
    csv_whole(row, "failed", results_table_of(p, "failed") + results_table_of(p, "impossible"));
    csv_whole(row, "wrong", results_table_of(p, "wrong"));
    csv_whole(row, "launches", p->launches);
    csv_number(row, "ms", "%.9g", p->ms.median);
    csv_number(row, "ms_low", "%.9g", p->ms.low);
    csv_number(row, "ms_high", "%.9g", p->ms.high);
    csv_number(row, "p50_ms", "%.9g", p->p50);
    csv_number(row, "p95_ms", "%.9g", p->p95);
    csv_number(row, "p99_ms", "%.9g", p->p99);
    csv_number(row, "max_ms", "%.9g", p->worst);
    csv_whole(row, "outliers", p->outliers);
    csv_number(row, "size_bytes", "%.0f", result_size(p));
    csv_number(row, "algbw_gb_s", "%.6g", result_algbw(p));
    csv_number(row, "busbw_gb_s", "%.6g", result_busbw(p));
    csv_number(row, "gflops_per_rank", "%.6g", result_flops(p) / 1e9);
    csv_number(row, "ideal_ms", "%.9g", p->figures.ideal_ms);
    csv_number(row, "efficiency", "%.6g", result_efficiency(p));
    csv_number(row, "exposed", "%.6g", p->exposed_share);
}

int results_table_csv(const struct results *r, const char *path)
{
    struct csv_table csv = {.count = 0};
    for (uint32_t i = 0; i < r->count; i++)
        results_table_fill(&csv, r, &r->points[i]);
    return csv_end(&csv, path, 0);
}

static void results_table_json_job(FILE *f, const struct result_job *j)
{
    fprintf(f, "{\n");
    fprintf(f, "  \"repeat\": %u,\n  \"slowest_rank\": %u,\n", j->repeat, j->slowest);
    json_text(f, "verdict", j->verdict);
    json_text(f, "sentence", j->sentence);
    fprintf(f, "  \"rank_medians_ms\": [");
    for (uint32_t i = 0; i < j->ranks; i++)
        fprintf(f, "%s%.9g", i ? ", " : "", j->of_rank[i]);
    fprintf(f, "],\n  \"sorted_ms\": [");
    for (uint32_t i = 0; i < j->times.count; i++)
        fprintf(f, "%s%.9g", i ? ", " : "", j->times.ms[i]);
    fprintf(f, "]\n}");
}

/* What labels are made of, and what others have published. */
static void results_table_json_named(FILE *f, const struct results *r, const struct result_point *p)
{
    char word[RESULT_LABEL];
    const char *between = "";
    fprintf(f, "  \"varied\": {");
    for (uint32_t i = 0; i < r->varied_count; i++) {
        if (!result_word(r, p, i, word))
            continue;
        fputs(between, f);
        json_string(f, r->varied[i]);
        fputs(": ", f);
        json_string(f, word);
        between = ", ";
    }
    fprintf(f, "},\n  \"published\": [");
    for (uint32_t i = 0; i < p->published_count; i++) {
        fprintf(f, i ? ",\n{" : "\n{");
        json_text(f, "who", p->published[i].who);
        fprintf(f, "  \"flop_per_s\": %.9g}", p->published[i].flops);
    }
    fprintf(f, "],\n");
}

static void results_table_json_point(FILE *f, const struct results *r, const struct result_point *p)
{
    const struct result_point *simulation = result_simulation(r, p);
    fprintf(f, "{\n");
    json_text(f, "key", p->key);
    results_table_json_named(f, r, p);
    fprintf(f, "  \"settings\": {\n");
    for (uint32_t i = 0; i < p->setting_count; i++)
        json_text(f, p->settings[i].name, p->settings[i].value);
    fprintf(f, "  \"settings\": %u\n},\n", p->setting_count);
    json_text(f, "shape", p->figures.shape);
    json_number(f, "ms", p->ms.median);
    json_number(f, "ms_low", p->ms.low);
    json_number(f, "ms_high", p->ms.high);
    json_number(f, "p50_ms", p->p50);
    json_number(f, "p95_ms", p->p95);
    json_number(f, "p99_ms", p->p99);
    json_number(f, "size_bytes", result_size(p));
    json_number(f, "algbw_gb_s", result_algbw(p));
    json_number(f, "busbw_gb_s", result_busbw(p));
    json_number(f, "gflops_per_rank", result_flops(p) / 1e9);
    json_number(f, "efficiency", result_efficiency(p));
    json_number(f, "flop", p->figures.flop);
    json_number(f, "nvlink_bytes", p->figures.nvlink_bytes);
    json_number(f, "network_bytes", p->figures.network_bytes);
    json_number(f, "simulated_ms", simulation ? simulation->ms.median : NAN);
    fprintf(f, "  \"jobs\": [");
    for (uint32_t i = 0; i < p->job_count; i++) {
        fprintf(f, i ? ",\n" : "\n");
        results_table_json_job(f, &p->jobs[i]);
    }
    fprintf(f, "]\n}");
}

void results_table_members(FILE *f, const struct results *r)
{
    json_text(f, "title", r->title);
    json_text(f, "question", r->question);
    json_text(f, "machine", r->machine);
    fprintf(f, "  \"points\": [");
    for (uint32_t i = 0; i < r->count; i++) {
        fprintf(f, i ? ",\n" : "\n");
        results_table_json_point(f, r, &r->points[i]);
    }
    fprintf(f, "]");
}

int results_table_json(const struct results *r, const char *path)
{
    struct result_file f;
    int rc = result_open(&f);
    if (rc)
        return rc;
    fprintf(f.out, "{\n");
    results_table_members(f.out, r);
    fprintf(f.out, "\n}\n");
    return result_close(&f, path);
}

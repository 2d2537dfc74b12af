/* The viewer of a running job: what every CTA does now, and which rank each wait leads to. Like the
 * viewer of traces it has a pure model (snapshot, keys -> state), a pure layout (state -> cells)
 * and a thin drawing (tui/screen.h). */
#pragma once

#include "tracer/live.h"
#include "tui/cells.h"
#include "tui/model.h"
#include "tui/show.h"

/* waits longer than this are reported; launches are much shorter */
#define LIVE_LONG_NS 500000000u

/* ---- chains of waits ---- */

/* A line of a chain: a CTA of a rank, or (cta -1) the rank as a whole. */
struct live_step {
    int rank, cta;
    int alarm; /* 1: the last step, at what does not go on */
    char text[200];
};

#define LIVE_STEPS 24
struct live_chain {
    int count;
    struct live_step step[LIVE_STEPS];
    int root; /* the rank at which it ends; -1: the CTA does not wait */
};

/* The chain of waits from a CTA: what it waits for, the rank that should send that, what this
 * rank's CTAs wait for, and so on, up to a rank that does not run, a CTA that works, or a cycle. */
void live_chain(const struct live_job *job, uint32_t rank, uint32_t cta, struct live_chain *out);

/* One sentence about all waits of LIVE_LONG_NS and more: how many, and which rank most lead to. */
struct live_verdict {
    int waiting, ctas; /* CTAs that wait for long; CTAs of ranks that are seen */
    uint64_t longest;  /* ns */
    int rank, cta;     /* of the longest wait; -1: no CTA waits */
    int root, at_root; /* the rank at which most chains end, and how many do; -1 */
    int halted;        /* ranks that are stopped, silent or gone */
    char text[240];    /* the sentence */
};
void live_diagnose(const struct live_job *job, struct live_verdict *out);

/* "is stopped (process 1234)" */
const char *live_state_text(const struct live_job *job, uint32_t rank, char *out, size_t size);
int live_halted(const struct live_rank *rank);

/* ---- model ---- */

struct live_row {
    enum row_kind kind;  /* ROW_RANK, ROW_ROLE or ROW_CTA */
    int rank, role, cta; /* cta: of the grid */
};

struct live_model {
    const struct live_job *job; /* not owned; NULL before the first snapshot */
    int width, height, ascii;
    unsigned char *rank_open, *role_open; /* by rank; by rank * MK_ROLES + role */
    uint32_t ranks;
    struct live_row *rows;
    int row_count, top, row;
    int frozen, help, redraw, suspend, quit;
    struct live_row back[MODEL_BACK];
    int back_count;
    struct live_chain chain; /* of what lies under the cursor */
    struct live_verdict verdict;
    char message[240];
};

/* 0 or -ENOMEM. */
int live_model_open(struct live_model *m, const struct live_job *job, int width, int height);
void live_model_close(struct live_model *m);

/* Takes in a snapshot: rows, verdict and chain are found anew, the cursor stays on its row. 0 or
 * -ENOMEM. */
int live_model_take(struct live_model *m, const struct live_job *job);
void live_model_key(struct live_model *m, struct key key);

struct live_geometry {
    int too_small, label, rows_top, rows_height, legend, panel, panel_height, status;
};
struct live_geometry live_geometry(const struct live_model *m);

/* The whole screen. 0 or -ENOMEM. */
int live_draw(struct cells *c, const struct live_model *m);

/* What a snapshot's CTA does, as a class of the timeline's. */
int live_class(const struct live_doing *d);

/* An exit status; its sentence is on stderr. */
int live_show(const struct tui_options *o);

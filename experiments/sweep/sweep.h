/* Private to `mkernel sweep`: a file that describes a sweep, its points, and the jobs that measure
 * them.
 *
 *   sweep.c          the command and its options
 *   sweep_file.c     reads the file (YAML), sweep_vary.c the same on the command line
 *   sweep_points.c   the points, and the commands that measure them
 *   sweep_order.c    the order of the jobs
 *   sweep_job.c      one command in a process of its own
 *   sweep_machine.c  describes this machine
 *   sweep_power.c    samples clocks and power during a job
 *   sweep_crew.c     runs a command on all ranks that a launcher started
 *   sweep_spread.c   the points of this task, if Slurm runs several
 *   sweep_run.c      the loop: a job, its row, the next
 *   sweep_collective.c  `mkernel bench collective`, a sweep of its own making */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define SWEEP_SETTINGS 40u
#define SWEEP_POINTS 10000u
#define SWEEP_OWNED 4000000u /* pieces of memory: no file of a person's needs more */
#define SWEEP_JOBS 1024u     /* at once */

struct sweep_setting {
    const char *name, *value;
};

/* A point: one combination of settings. */
struct sweep_point {
    struct sweep_setting settings[SWEEP_SETTINGS];
    uint32_t count;
    const char *key;        /* "exec=host gpus=2 op=ag_gemm": names in order of the alphabet */
    const char *label;      /* the part of the key that differs between points */
    int traced;             /* a launch of it is traced, too */
    const char *impossible; /* why there is no plan for it; NULL: there is one */
};

/* A name and all its values. */
struct sweep_axis {
    const char *name;
    const char **values;
    uint32_t count;
};

/* Several axes: all their combinations, or a pattern that a point matches on all of them. */
struct sweep_block {
    struct sweep_axis axes[SWEEP_SETTINGS];
    uint32_t count;
};

struct sweep_blocks {
    struct sweep_block *list;
    uint32_t count;
};

struct sweep {
    const char *name, *question;
    const char *text;              /* as it was read */
    struct sweep_block set;        /* one value each, of all points */
    struct sweep_blocks vary;      /* their combinations are the points */
    struct sweep_blocks exclude;   /* points that match one of them are none */
    struct sweep_blocks published; /* who has reached how many tflops at points that match */
    struct sweep_blocks trace;     /* points that match one of them are recorded */
    uint64_t repeats, seed;        /* jobs a point */
    uint64_t budget_ns, limit_ns;  /* of all jobs, 0: no bound; of one */
    uint64_t jobs;                 /* at once, 1 to SWEEP_JOBS */
    int skip; /* a point without a plan is recorded with its sentence, and does not end the sweep */
    struct sweep_point *points;
    uint32_t point_count;
    void **owned; /* all that the pointers above lead to */
    uint32_t owned_count;
};

void sweep_begin(struct sweep *s); /* defaults */
void sweep_end(struct sweep *s);

/* Memory that sweep_end frees, zeroed. NULL: none. */
void *sweep_take(struct sweep *s, size_t bytes);
/* An array of `count` with room for one more; it may be another than before. NULL: no memory. */
void *sweep_grow(struct sweep *s, void *array, uint32_t count, size_t bytes);
const char *sweep_keep(struct sweep *s, const char *text, size_t length);

/* Adds a block, or an axis to one. NULL: no memory, or too many of them. A value "2..8" stands for
 * each number from 2 to 8, "2..8..3" for every third of them, "2..8*2" for each the double of the
 * last. -EINVAL: a range of no number, or of too many. */
#define SWEEP_RANGE                                                                                \
    " is no range: FIRST..LAST, FIRST..LAST..STEP or FIRST..LAST*FACTOR, of 1000 numbers at most"
struct sweep_block *sweep_add_block(struct sweep *s, struct sweep_blocks *to);
struct sweep_axis *sweep_add_axis(struct sweep_block *b, const char *name);
int sweep_add_value(struct sweep *s, struct sweep_axis *a, const char *value);

/* Reads `path`. 0, or -EINVAL with a sentence that names the line. */
int sweep_read(struct sweep *s, const char *path, char *error, size_t size);

/* --vary: "op=ag_gemm;shape=256,128,256:512,128,256". Its axes take the place of the file's of the
 * same name. */
int sweep_vary(struct sweep *s, const char *text, char *error, size_t size);

/* Makes s->points. */
int sweep_make_points(struct sweep *s, char *error, size_t size);

/* Whether the point has a time that other jobs on this machine would change. */
int sweep_is_measured(const struct sweep_point *p);

/* The value that a point has for `name`; "default" where it has none. */
const char *sweep_value(const struct sweep_point *p, const char *name);

/* Whether block `b` of s->published is about the point, and what it says. */
int sweep_is_published(const struct sweep_point *p, const struct sweep_block *b, const char **who,
                       double *flops);

/* The words of the command that measures a point once, ended by NULL, and entries of the
 * environment ("SOFTNIC=bw=5GB/s"). `mode`: what is added. */
enum sweep_mode { SWEEP_MEASURE, SWEEP_ASK, SWEEP_TRACE };
#define SWEEP_WORDS (3 * SWEEP_SETTINGS)
struct sweep_command {
    char *words[SWEEP_WORDS];
    char *environment[SWEEP_SETTINGS + 2]; /* the crew adds a port */
    uint32_t count, entries;
    char text[16384];
    size_t used;
};
int sweep_make_command(struct sweep_command *c, const struct sweep_point *p, enum sweep_mode mode,
                       uint64_t seed, const char *result);
/* The same as a person would type it. */
void sweep_say_command(const struct sweep_command *c, char *text, size_t size);

/* One job: a point's repeat. */
struct sweep_job {
    uint32_t point, repeat;
};

/* Orders all jobs, repeats * points of them: repeat by repeat, with the points of each in a random
 * order, so that drift (clocks, temperature, neighbours) is spread over all points. */
void sweep_order(const struct sweep *s, struct sweep_job *jobs);

/* --spread: which share of the points this process has. */
enum sweep_over { SWEEP_OVER_ARRAY, SWEEP_OVER_STEP };
struct sweep_spread {
    uint32_t index, count;
    int crowded;   /* several tasks may be on a node at once */
    char part[80]; /* what its part of the results is called; no other task's is */
};

/* Reads Slurm's variables of an array's task, or of srun's task; the latter it removes from the
 * environment. 0, or -EINVAL with a sentence. */
int sweep_spread_read(struct sweep_spread *out, enum sweep_over over, char *error, size_t size);

/* Keeps only the points of this share: every count-th in the order of the first repeat, so that the
 * values of a setting are spread over the hosts. 0 or -ENOMEM. */
int sweep_spread_take(struct sweep *s, const struct sweep_spread *spread);

/* How a job's process ended. */
struct sweep_ended {
    int status;  /* exit status; -1: it was killed */
    int signal;  /* that ended it */
    int over;    /* 1: it was killed, as its time was over */
    int stopped; /* the signal that this process got meanwhile; 0: none */
    double seconds;
    char sentence[1000]; /* its last line of stderr, or why it could not start */
};

/* Runs `words` in a process group of its own, for at most limit_ns, and ends it where a watched
 * signal comes. Any thread. 0 or -errno. */
int sweep_run_job(struct sweep_ended *out, char *const *words, char *const *environment,
                  uint64_t limit_ns);

/* Describes this machine as members of a JSON object; malloc'd. NULL: no memory. */
char *sweep_machine(void);

/* Clocks, power and temperature of the GPUs by NVML from now on, twice a second, and the load of
 * the host. */
struct sweep_power_sample {
    double seconds; /* since sweep_power_begin */
    int gpu;
    double sm_mhz, memory_mhz, watts, celsius;
};
struct sweep_power;
struct sweep_power *sweep_power_begin(void); /* NULL: no NVML or no GPU here */
/* Ends it; *samples is malloc'd. */
uint32_t sweep_power_end(struct sweep_power *p, struct sweep_power_sample **samples);

/* Runs the sweep's jobs and stores them in the results file `out`. Returns an exit status, and has
 * printed its sentence. */
struct sweep_how {
    const char *out, *command;
    const char *whole; /* what `out` is a part of: jobs in it are done; NULL: `out` is all */
    int retry;         /* jobs that failed are done again */
    int mix;           /* results of another machine or build may be in the file */
    int quiet;
    int silent;   /* not even the sentence in the end */
    int *stopped; /* the signal that ended it; 0: none */
};
int sweep_run(struct sweep *s, const struct sweep_how *how);

/* Under a launcher: joins the other processes of the job, which have to have the same points. *rank:
 * which one this is; 0 where there is no launcher. 0, -EINVAL (the environment, or another rank's
 * points) or -errno, with a sentence. */
int sweep_crew_join(const struct sweep *s, int *rank, char *error, size_t size);

/* Ranks that take part in a job; 0: there is no launcher. */
uint32_t sweep_crew_size(void);

/* sweep_run_job of `c`, the command of job `j` in this mode, by all ranks, each its own part, one
 * job at a time; without a launcher the same. Rank 0 calls it. */
int sweep_crew_run(struct sweep_ended *out, const struct sweep *s, const struct sweep_job *j,
                   enum sweep_mode mode, struct sweep_command *c);

/* Runs the jobs that rank 0 names in the other ranks, until there are no more. 0, the signal that
 * came, or -errno with a sentence. */
int sweep_crew_work(const struct sweep *s, char *error, size_t size);

/* Leaves the job of ranks, if one was joined. Every rank calls it at the end. */
void sweep_crew_leave(void);

/* Asks the command of every point whether it can run (--dry-run), and notes the sentence of one
 * that cannot in `impossible`. 0; -EINVAL with a sentence: the sweep must not begin; -EINTR: a
 * signal. */
int sweep_ask(struct sweep *s, char *error, size_t size);

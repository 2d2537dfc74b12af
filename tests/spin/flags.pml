/* Flags and epochs of AllGather+GEMM (core/roles/ag_gemm.h): all launches of three ranks, node 0 = {0, 1}, node 1 = {2}.
 *
 *   shard 0   pushed to rank 1, put to rank 2
 *   shard 1   pushed to rank 0, put to rank 2
 *   shard 2   put to rank 0, which forwards it to rank 1
 *
 * Two gathered buffers by epoch & 1, nobody asks for leave to write. A buffer's content is the epoch of the input that it
 * came from. Nothing that is sent arrives at once: a push's data and its flag, a put's read of its source, its data and its
 * flag are steps of their own, as late as can be, while the sender goes on, into later launches too. A rank's next launch
 * begins when all of its roles have ended, with an input written anew.
 *
 * Holds: compute in launch e finds every rank's input of launch e; every launch of every rank ends.
 *
 * -D IN_HEAP: puts leave from the input itself, not from a copy staged in the gathered buffer.
 * -D SRD: two parts per put, in no order, each with an immediate that the receiving proxy counts; it publishes the flag.
 * -D TURNS: a rank has two queue pairs and takes them in turn, so that one launch's put may overtake the last one's; without,
 * each flag has its queue pair for good.
 * -D TWO_BY_TWO: four ranks, each forwards. -D EPOCHS=n: launches (4).
 * -D of one of these breaks it: FLAG_BEFORE_DATA (a push's) PUT_FLAG_BEFORE_DATA PUT_BEFORE_STAGING COMPUTE_DOES_NOT_WAIT
 * FORWARDER_DOES_NOT_WAIT FORWARD_NOT_SENT ONE_BUFFER EPOCH_REUSED; with IN_HEAP, SRD or TURNS: NO_DRAIN;
 * with SRD: FIRST_PART_PUBLISHES */

#ifndef EPOCHS
#define EPOCHS 4
#endif
#ifdef SRD
#define PARTS 2
#else
#define PARTS 1
#endif

#ifdef TURNS
#define QPS 2
#define QP(rank, epoch) ((rank) * QPS + ((epoch) & 1))
#else
#define QPS PARTS
#define QP(rank, epoch) ((rank) * QPS)
#endif

#ifdef TWO_BY_TWO
#define RANKS 4
#define PUSHES(rank) true
#define FORWARDS(rank) true
#define PUT_TO(rank) ((rank) ^ 2)
#else
#define RANKS 3
#define PUSHES(rank) ((rank) < 2)
#define FORWARDS(rank) ((rank) == 0)
#define PUT_TO(rank) ((rank) == 2 -> 0 : 2)
#endif
#define PARTNER(rank) ((rank) ^ 1) /* the other rank of the node */
#define FORWARDED(rank) ((rank) ^ 2)

#ifdef ONE_BUFFER
#define HALF(epoch) 0
#else
#define HALF(epoch) ((epoch) & 1)
#endif
#ifdef EPOCH_REUSED
#define TARGET(epoch) 1
#else
#define TARGET(epoch) (epoch)
#endif

/* Part `part` of shard `shard` in the gathered buffer of launch `epoch` on `rank`. */
#define GATHERED(rank, shard, epoch, part) gathered[(((rank) * RANKS + (shard)) * 2 + HALF(epoch)) * PARTS + (part)]
#define FLAG(rank, shard) flag[(rank) * RANKS + (shard)]
byte gathered[RANKS * RANKS * 2 * PARTS];
byte flag[RANKS * RANKS];
byte input[RANKS] = 1; /* content of A_r: the launch that it is for */
byte completed[RANKS]; /* parts of puts whose source may be written again */

/* One wire per rank and kind, so that pushes and forwards overtake each other; one queue pair per rank and part. */
chan pushes[RANKS] = [2] of { byte, byte }; /* epoch, content */
chan forwards[RANKS] = [2] of { byte, byte };
chan puts[RANKS * QPS] = [2] of { byte }; /* epoch */

/* What who reads a shard finds: an epoch, or 0 where its parts differ. */
#ifdef SRD
#define CONTENT(rank, shard, epoch)                                                                                    \
    (GATHERED(rank, shard, epoch, 0) == GATHERED(rank, shard, epoch, 1) -> GATHERED(rank, shard, epoch, 0) : 0)
#else
#define CONTENT(rank, shard, epoch) GATHERED(rank, shard, epoch, 0)
#endif
#ifdef IN_HEAP
#define SOURCE(rank, epoch, part) input[rank]
#else
#define SOURCE(rank, epoch, part) GATHERED(rank, rank, epoch, part)
#endif

#define ARRIVED(rank, shard, epoch) (shard == rank || FLAG(rank, shard) >= TARGET(epoch))
#ifdef COMPUTE_DOES_NOT_WAIT
#define MAY_COMPUTE(rank, shard, epoch) true
#else
#define MAY_COMPUTE(rank, shard, epoch) ARRIVED(rank, shard, epoch)
#endif
#define MAY_COMPUTE_3(rank, epoch)                                                                                     \
    (MAY_COMPUTE(rank, 0, epoch) && MAY_COMPUTE(rank, 1, epoch) && MAY_COMPUTE(rank, 2, epoch))
#ifdef TWO_BY_TWO
#define MAY_COMPUTE_ALL(rank, epoch) (MAY_COMPUTE_3(rank, epoch) && MAY_COMPUTE(rank, 3, epoch))
#else
#define MAY_COMPUTE_ALL(rank, epoch) MAY_COMPUTE_3(rank, epoch)
#endif
#ifdef FORWARDER_DOES_NOT_WAIT
#define MAY_FORWARD(rank, epoch) true
#else
#define MAY_FORWARD(rank, epoch) (FLAG(rank, FORWARDED(rank)) >= TARGET(epoch))
#endif
#ifdef NO_DRAIN
#define DRAINED(rank, epoch) true
#else
#define DRAINED(rank, epoch) (completed[rank] == (epoch) * PARTS)
#endif

inline write(to, shard, epoch, content)
{
    GATHERED(to, shard, epoch, 0) = content;
#ifdef SRD
    GATHERED(to, shard, epoch, 1) = content
#endif
}

inline stage()
{
#ifndef IN_HEAP
    write(rank, rank, epoch, input[rank])
#else
    skip
#endif
}

inline post()
{
    assert(nfull(puts[QP(rank, epoch)])); /* the model's queues hold nobody back */
    puts[QP(rank, epoch)]!epoch;
#ifdef SRD
    assert(nfull(puts[rank * PARTS + 1]));
    puts[rank * PARTS + 1]!epoch
#endif
}

/* A rank's launches. In one launch each role has one thing to do here, so that roles side by side are steps in any order. A
 * flag never goes back: a wait and the read that follows it at some time are one step at that time. */
proctype launches(byte rank)
{
    byte epoch = 1, shard;
    bool pushed, forwarded, staged, posted;
    do
    /* intra_comm: its own shard, and the one that the rail brings (several CTAs: neither waits for the other) */
    :: atomic {
            PUSHES(rank) && !pushed ->
            assert(nfull(pushes[rank]));
            pushes[rank]!epoch, input[rank];
            pushed = true
        }
    :: atomic {
            FORWARDS(rank) && !forwarded && MAY_FORWARD(rank, epoch) ->
            assert(nfull(forwards[rank]));
#ifdef FORWARD_NOT_SENT
            if
            :: epoch < EPOCHS -> forwards[rank]!epoch, CONTENT(rank, FORWARDED(rank), epoch)
            :: else
            fi;
#else
            forwards[rank]!epoch, CONTENT(rank, FORWARDED(rank), epoch);
#endif
            forwarded = true
        }
    /* inter_send */
#ifdef PUT_BEFORE_STAGING
    :: atomic { !posted -> post(); posted = true }
    :: atomic { posted && !staged -> stage(); staged = true }
#else
    :: atomic { !posted -> stage(); post(); posted = true; staged = true }
#endif
    /* compute: whatever it reads, whenever it reads */
    :: atomic {
            MAY_COMPUTE(rank, 0, epoch) && (rank == 0 -> input[0] : CONTENT(rank, 0, epoch)) != epoch -> assert(false)
        }
    :: atomic {
            MAY_COMPUTE(rank, 1, epoch) && (rank == 1 -> input[1] : CONTENT(rank, 1, epoch)) != epoch -> assert(false)
        }
    :: atomic {
            MAY_COMPUTE(rank, 2, epoch) && (rank == 2 -> input[2] : CONTENT(rank, 2, epoch)) != epoch -> assert(false)
        }
#ifdef TWO_BY_TWO
    :: atomic {
            MAY_COMPUTE(rank, 3, epoch) && (rank == 3 -> input[3] : CONTENT(rank, 3, epoch)) != epoch -> assert(false)
        }
#endif
    /* all roles have ended */
    :: atomic {
            (pushed || !PUSHES(rank)) && (forwarded || !FORWARDS(rank)) && staged && DRAINED(rank, epoch) &&
            MAY_COMPUTE_ALL(rank, epoch) ->
            pushed = false;
            forwarded = false;
            staged = false;
            posted = false;
            input[rank]++;
            epoch++;
            if
            :: epoch > EPOCHS -> break
            :: else
            fi
        }
    od
}

/* A wire between two GPUs of a node: data, then one more on the flag. */
proctype wire(chan pushed; byte to, shard)
{
    byte epoch, content;
end:
    do
#ifdef FLAG_BEFORE_DATA
    :: atomic { pushed?epoch, content -> FLAG(to, shard)++ };
        atomic { write(to, shard, epoch, content); epoch = 0; content = 0 }
#else
    :: atomic { pushed?epoch, content -> write(to, shard, epoch, content); epoch = 0; content = 0 };
        FLAG(to, shard)++
#endif
    od
}

#ifndef SRD
/* A queue pair: the data's write, then the flag's, in order. The completion comes with the flag: later would only be the
 * launch's end later, which it may be anyway. */
proctype queue_pair(chan way; byte from, to)
{
    byte epoch, content;
end:
    do
    :: atomic { way?epoch -> content = SOURCE(from, epoch, 0) };
#ifdef PUT_FLAG_BEFORE_DATA
        FLAG(to, from) = epoch;
        atomic { GATHERED(to, from, epoch, 0) = content; content = 0; epoch = 0; completed[from]++ }
#else
        atomic { GATHERED(to, from, epoch, 0) = content; content = 0 };
        atomic { FLAG(to, from) = epoch; epoch = 0; completed[from]++ }
#endif
    od
}
#else
/* One part's way over SRD: read, then placed and completed. Its immediate is counted whenever the peer's proxy comes to it,
 * even after the sender has gone on. */
byte uncounted[RANKS], counted[RANKS]; /* by sender */

proctype part_of_puts(byte from, to, part)
{
    byte epoch, content;
end:
    do
    :: atomic { puts[from * PARTS + part]?epoch -> content = SOURCE(from, epoch, part) };
        atomic {
            GATHERED(to, from, epoch, part) = content;
            content = 0;
            epoch = 0;
            uncounted[from]++;
            completed[from]++
        }
    od
}

proctype counting_proxy(byte from, to)
{
end:
    do
    :: atomic {
            uncounted[from] ->
            uncounted[from]--;
            counted[from]++;
#ifdef FIRST_PART_PUBLISHES
            FLAG(to, from) = (counted[from] + PARTS - 1) / PARTS
#else
            FLAG(to, from) = counted[from] / PARTS
#endif
        }
    od
}
#endif

init
{
    byte rank;
    atomic {
        for (rank : 0 .. RANKS - 1) {
            run launches(rank);
            if
            :: PUSHES(rank) -> run wire(pushes[rank], PARTNER(rank), rank)
            :: else
            fi;
            if
            :: FORWARDS(rank) -> run wire(forwards[rank], PARTNER(rank), FORWARDED(rank))
            :: else
            fi;
#ifdef SRD
            run part_of_puts(rank, PUT_TO(rank), 0);
            run part_of_puts(rank, PUT_TO(rank), 1);
            run counting_proxy(rank, PUT_TO(rank))
#else
            run queue_pair(puts[QP(rank, 0)], rank, PUT_TO(rank));
#ifdef TURNS
            run queue_pair(puts[QP(rank, 1)], rank, PUT_TO(rank))
#endif
#endif
        }
    }
}

/* What each rank says to all others when a launch of a MoE operator begins (core/roles/moe_dispatch.h, moe_ffn.h) is all that
 * keeps its launches apart. Three ranks of three nodes; in each launch ranks 0 and 2, or one of them, or none, whichever, have a token
 * for an expert on rank 1.
 *
 *   ids      what a rank says (counts, and records of its tokens: experts and weights), from every rank to every other; two
 *            buffers, by epoch & 1; read until the launch ends
 *   tokens   packed, put to rank 1, where one flag counts them over all launches; one buffer of everything
 *   sums     with -D RETURNS (moe_ffn): put back by rank 1, each with a flag that is set to the epoch; one buffer; not drained
 *
 *            With -D HALVES (moe_dispatch in two halves) put as soon as a rank has told, to two buffers by epoch & 1, each
 *            with a flag that is set to the epoch; a launch drains what the one before has put, before it puts anything
 *
 * A content is the epoch that it came from. A put is under way as long as can be, into later launches too, in any order among
 * all others, as over SRD; it reads its source when it lands, data and flag at once (that data comes before its flag is
 * flags.pml's matter).
 *
 * Holds: who routes reads what every rank says of this launch, as long as it runs; what is counted or waited for is of this
 * launch; every launch of every rank ends.
 *
 * -D of one of these breaks it: NO_DRAIN (of ids and tokens) ONE_IDS_BUFFER MOVES_BEFORE_IDS ROUTES_WITHOUT_ONE
 * ROWS_NOT_AWAITED ONE_ROW_TOO_FEW; with HALVES: NO_DRAIN ONE_ROW_BUFFER ROUTES_WITHOUT_ONE; with RETURNS: SUMS_NOT_AWAITED EPOCH_REUSED SUM_NOT_SENT */

#ifndef EPOCHS
#define EPOCHS 4
#endif
#define RANKS 3
#define HOME 1 /* where the expert is */

#ifdef ONE_IDS_BUFFER
#define HALF(epoch) 0
#else
#define HALF(epoch) ((epoch) & 1)
#endif
#define IDS(rank, from, epoch) ids[((rank) * RANKS + (from)) * 2 + HALF(epoch)]
#define FLAG(rank, from) flag[(rank) * RANKS + (from)]
#define BIT(epoch) (1 << (epoch))

byte ids[RANKS * RANKS * 2], flag[RANKS * RANKS];
byte ids_out[RANKS * RANKS]; /* [from, to]: a bit for each launch whose put is under way */
byte packed[RANKS], tokens_out[RANKS], rows[RANKS * 2]; /* rows: on HOME, by source */
byte counted, wanted, row_flag[RANKS];                  /* on HOME; the last with HALVES */
byte sums[RANKS], sums_out[RANKS];                  /* on HOME, by where they go */
byte whole[RANKS], whole_flag[RANKS];
bool names[RANKS * (EPOCHS + 1)]; /* a rank has a token for HOME in a launch */
#define NAMES(rank, epoch) names[(rank) * (EPOCHS + 1) + (epoch)]

#ifdef ROUTES_WITHOUT_ONE
#define HAS_IDS(rank, epoch) (FLAG(rank, (rank + 1) % RANKS) >= epoch)
#else
#define HAS_IDS(rank, epoch)                                                                                           \
    (FLAG(rank, (rank + 1) % RANKS) >= epoch && FLAG(rank, (rank + 2) % RANKS) >= epoch)
#endif
#define IDS_ARE_RIGHT(rank, epoch)                                                                                     \
    (IDS(rank, 0, epoch) == epoch && IDS(rank, 1, epoch) == epoch && IDS(rank, 2, epoch) == epoch)
#if defined(MOVES_BEFORE_IDS) || defined(HALVES)
#define MAY_MOVE told
#else
#define MAY_MOVE routed
#endif
#define HAS_MOVED(rank, epoch) (moved || rank == HOME || !NAMES(rank, epoch))
#ifdef HALVES /* the first half is over, and HOME's second takes rows; the next first half drains */
#define MAY_TELL(rank) DRAINED(rank)
#define MAY_ROUTE(rank, epoch) HAS_MOVED(rank, epoch)
#define MAY_END(rank) true
#else
#define MAY_TELL(rank) true
#define MAY_ROUTE(rank, epoch) true
#define MAY_END(rank) DRAINED(rank)
#endif
#if defined(HALVES) && !defined(ONE_ROW_BUFFER)
#define ROW(from, epoch) rows[(from) * 2 + ((epoch) & 1)]
#else
#define ROW(from, epoch) rows[(from) * 2]
#endif
#ifdef HALVES
#define ROW_IS_HERE(from) (row_flag[from] >= epoch || !NAMES(from, epoch))
#define ROWS_ARE_HERE (ROW_IS_HERE(0) && ROW_IS_HERE(2))
#else
#ifdef ROWS_NOT_AWAITED
#define ROWS_ARE_HERE true
#else
#ifdef ONE_ROW_TOO_FEW
#define ROWS_ARE_HERE (counted + 1 >= wanted)
#else
#define ROWS_ARE_HERE (counted >= wanted)
#endif
#endif
#endif
#ifdef SUMS_NOT_AWAITED
#define SUM_IS_HERE(rank, epoch) true
#else
#ifdef EPOCH_REUSED
#define SUM_IS_HERE(rank, epoch) (whole_flag[rank] >= 1)
#else
#define SUM_IS_HERE(rank, epoch) (whole_flag[rank] >= epoch)
#endif
#endif
#ifdef NO_DRAIN
#define DRAINED(rank) true
#else
#define DRAINED(rank)                                                                                                  \
    (!ids_out[rank * RANKS + (rank + 1) % RANKS] && !ids_out[rank * RANKS + (rank + 2) % RANKS] && !tokens_out[rank])
#endif
#ifdef RETURNS
#define GETS(rank, epoch) (rank != HOME && NAMES(rank, epoch))
#else
#define GETS(rank, epoch) false
#endif

/* HOME has the rows of `rank` and, with RETURNS, sends their sum. */
inline answer(from)
{
    if
    :: NAMES(from, epoch) ->
        assert(ROW(from, epoch) == epoch);
#ifdef RETURNS
        sums[from] = epoch;
#ifdef SUM_NOT_SENT
        if
        :: epoch < EPOCHS -> sums_out[from] = sums_out[from] | BIT(epoch)
        :: else
        fi
#else
        sums_out[from] = sums_out[from] | BIT(epoch)
#endif
#endif
    :: else
    fi
}

/* A rank's launches; its roles, which have one thing to do each, are steps in any order. */
proctype launches(byte rank)
{
    byte epoch = 1;
    bool told, routed, moved, added, got;
    do
    :: atomic {
            !told && MAY_TELL(rank) ->
            IDS(rank, rank, epoch) = epoch;
            ids_out[rank * RANKS + (rank + 1) % RANKS] = ids_out[rank * RANKS + (rank + 1) % RANKS] | BIT(epoch);
            ids_out[rank * RANKS + (rank + 2) % RANKS] = ids_out[rank * RANKS + (rank + 2) % RANKS] | BIT(epoch);
            told = true
        }
    :: atomic {
            told && !routed && MAY_ROUTE(rank, epoch) && HAS_IDS(rank, epoch) ->
            assert(IDS_ARE_RIGHT(rank, epoch));
            if
            :: rank == HOME -> wanted = wanted + NAMES(0, epoch) + NAMES(2, epoch)
            :: else
            fi;
            routed = true
        }
    :: atomic {
            rank != HOME && MAY_MOVE && !moved && NAMES(rank, epoch) ->
            packed[rank] = epoch;
            tokens_out[rank] = tokens_out[rank] | BIT(epoch);
            moved = true
        }
    :: atomic {
            rank == HOME && routed && !added && ROWS_ARE_HERE ->
            answer(0);
            answer(2);
            added = true
        }
    :: atomic {
            routed && !got && GETS(rank, epoch) && SUM_IS_HERE(rank, epoch) ->
            assert(whole[rank] == epoch);
            got = true
        }
    :: atomic {
            routed && HAS_MOVED(rank, epoch) && (added || rank != HOME) &&
            (got || !GETS(rank, epoch)) && MAY_END(rank) ->
            assert(IDS_ARE_RIGHT(rank, epoch));
            told = false;
            routed = false;
            moved = false;
            added = false;
            got = false;
            epoch++;
            if
            :: epoch > EPOCHS -> break
            :: else
            fi
        }
    od
}

/* The puts that are under way land, in any order. A flag never goes back. */
#define LAND_IDS(epoch)                                                                                                \
    atomic {                                                                                                           \
        ids_out[from * RANKS + to] & BIT(epoch) ->                                                                     \
        ids_out[from * RANKS + to] = ids_out[from * RANKS + to] & ~BIT(epoch);                                         \
        IDS(to, from, epoch) = IDS(from, from, epoch);                                                                 \
        FLAG(to, from) = (FLAG(to, from) > epoch -> FLAG(to, from) : epoch)                                            \
    }
#define LAND_TOKEN(epoch)                                                                                              \
    atomic {                                                                                                           \
        tokens_out[from] & BIT(epoch) ->                                                                               \
        tokens_out[from] = tokens_out[from] & ~BIT(epoch);                                                             \
        ROW(from, epoch) = packed[from];                                                                               \
        row_flag[from] = (row_flag[from] > epoch -> row_flag[from] : epoch);                                           \
        counted++                                                                                                      \
    }
#define LAND_SUM(epoch)                                                                                                \
    atomic {                                                                                                           \
        sums_out[to] & BIT(epoch) ->                                                                                   \
        sums_out[to] = sums_out[to] & ~BIT(epoch);                                                                     \
        whole[to] = sums[to];                                                                                          \
        whole_flag[to] = (whole_flag[to] > epoch -> whole_flag[to] : epoch)                                            \
    }

proctype ids_way(byte from, to)
{
end:
    do
    :: LAND_IDS(1)
    :: LAND_IDS(2)
    :: LAND_IDS(3)
    :: LAND_IDS(4)
    od
}

proctype tokens_way(byte from)
{
end:
    do
    :: LAND_TOKEN(1)
    :: LAND_TOKEN(2)
    :: LAND_TOKEN(3)
    :: LAND_TOKEN(4)
    od
}

proctype sums_way(byte to)
{
end:
    do
    :: LAND_SUM(1)
    :: LAND_SUM(2)
    :: LAND_SUM(3)
    :: LAND_SUM(4)
    od
}

init
{
    byte rank, epoch;
    atomic {
        for (epoch : 1 .. EPOCHS) {
            if
            :: NAMES(0, epoch) = true
            :: skip
            fi;
            if
            :: NAMES(2, epoch) = true
            :: skip
            fi
        }
        epoch = 0;
        for (rank : 0 .. RANKS - 1) {
            run launches(rank);
            run ids_way(rank, (rank + 1) % RANKS);
            run ids_way(rank, (rank + 2) % RANKS)
        }
        run tokens_way(0);
        run tokens_way(2);
#ifdef RETURNS
        run sums_way(0);
        run sums_way(2)
#endif
    }
}

/* The command ring (core/cta/command.h, backends/proxy.c): one producer, one proxy, two slots, twelve commands.
 *
 * Each launch posts BEGIN and three PUTs, then drains and writes its source anew. Stores are made
 * visible by `memory`, each on its own and late: a slot's halves in any order but for the release of `lo`, slots in any
 * order. `sequence + 1` stands for a command's content in both halves, so that a torn or a stale one shows.
 *
 * Holds: the proxy reads every command once, in order and whole; nothing that it has not read is written over; a put
 * leaves with its own launch's bytes and epoch; `completed` counts only what has left its source; nobody waits for ever.
 *
 * -D of one of these breaks it: LO_BEFORE_HI HI_READ_FIRST PARITY_STUCK SEEN_IGNORED SEEN_TOO_EARLY NO_FENCE NO_DRAIN
 * COMPLETED_WHEN_POSTED COMPLETED_OUT_OF_ORDER WINDOW_IGNORED */

#define CAPACITY 2
#define WINDOW 2    /* commands between `completed` and the next one read: how many `done` bits there are */
#define IN_FLIGHT 2 /* puts under way */
#define PER_LAUNCH 4
#define LAUNCHES 3
#define COMMANDS (LAUNCHES * PER_LAUNCH)
#define LAUNCH_OF(sequence) ((sequence) / PER_LAUNCH + 1)
#define IS_BEGIN(sequence) ((sequence) % PER_LAUNCH == 0)
#define PEER(sequence) ((sequence) / 2 % 2) /* of a launch's three puts, the first goes to one, the others to the other */
#ifdef PARITY_STUCK
#define PARITY(sequence) 1
#else
#define PARITY(sequence) (((sequence) / CAPACITY & 1) ^ 1)
#endif

/* What the proxy and the NIC can see. */
byte lo[CAPACITY], hi[CAPACITY]; /* lo: content * 2 + parity */
byte seen, completed;
byte source;                     /* number of the launch whose bytes it holds */
/* The producer's stores that are not visible yet; 0: none. */
byte late_lo[CAPACITY], late_hi[CAPACITY], late_source;

short gone; /* bit per command: its source has been read (nothing to read: taken) */
byte under_way;
chan send_queue[2] = [IN_FLIGHT] of { byte, byte }; /* sequence, flag value */
chan completions = [IN_FLIGHT] of { byte };

active proctype producer()
{
    byte posted, launch = 1;
    do
    :: launch <= LAUNCHES ->
        late_source = launch;
#ifndef NO_FENCE
        late_source == 0; /* cta_settle, then the system-wide fence before a command */
#endif
        do
        :: posted < launch * PER_LAUNCH ->
#ifndef SEEN_IGNORED
            posted - seen < CAPACITY;
#endif
            atomic {
                late_hi[posted % CAPACITY] = posted + 1;
                late_lo[posted % CAPACITY] = (posted + 1) * 2 + PARITY(posted);
                posted++
            }
        :: else -> break
        od;
#ifndef NO_DRAIN
        completed == posted;
#endif
        launch++
    :: else -> break
    od
}

/* Makes the producer's stores visible. */
active proctype memory()
{
    byte i;
end:
    do
    :: d_step { late_source -> source = late_source; late_source = 0 }
    :: d_step { late_hi[0] -> hi[0] = late_hi[0]; late_hi[0] = 0 }
    :: d_step { late_hi[1] -> hi[1] = late_hi[1]; late_hi[1] = 0 }
#ifdef LO_BEFORE_HI
#define RELEASED(slot) true
#else
#define RELEASED(slot) late_hi[slot] == 0
#endif
    :: d_step { late_lo[0] && RELEASED(0) -> lo[0] = late_lo[0]; late_lo[0] = 0 }
    :: d_step { late_lo[1] && RELEASED(1) -> lo[1] = late_lo[1]; late_lo[1] = 0 }
    od
}

/* publish_completed */
inline publish()
{
    do
    :: completed < next && done[completed % WINDOW] ->
        done[completed % WINDOW] = false;
        completed++
    :: else -> break
    od;
    assert((gone & (1 << completed) - 1) == (1 << completed) - 1)
}

#define VALID(sequence) (lo[(sequence) % CAPACITY] & 1) == PARITY(sequence)
#ifdef WINDOW_IGNORED
#define WINDOW_OPEN true
#else
#define WINDOW_OPEN (next - completed < WINDOW)
#endif

active proctype proxy()
{
    byte next, low, high, epoch, sequence;
    bool done[WINDOW];
end:
    do
#ifdef HI_READ_FIRST /* no acquire: `hi` may be older than the `lo` that is looked at next */
    :: next < COMMANDS && high != hi[next % CAPACITY] -> high = hi[next % CAPACITY]
#endif
    :: atomic { next < COMMANDS && under_way < IN_FLIGHT && WINDOW_OPEN && VALID(next) -> low = lo[next % CAPACITY] }
#ifdef SEEN_TOO_EARLY
        seen = next + 1;
#endif
#ifndef HI_READ_FIRST
        high = hi[next % CAPACITY];
#endif
        d_step {
            assert(low / 2 == next + 1 && high == next + 1);
            if
            :: IS_BEGIN(next) ->
                epoch = LAUNCH_OF(high - 1);
                gone = gone | 1 << next;
                done[next % WINDOW] = true
            :: else ->
                under_way++;
                send_queue[PEER(next)]!next, epoch
#ifdef COMPLETED_WHEN_POSTED
                ;
                done[next % WINDOW] = true
#endif
            fi;
            next++;
            low = 0;
            high = 0;
            publish()
        }
    :: atomic { seen != next -> seen = next }
    :: d_step {
            completions?sequence ->
            under_way--;
#ifdef COMPLETED_OUT_OF_ORDER
            completed++;
#else
#ifndef COMPLETED_WHEN_POSTED
            done[sequence % WINDOW] = true;
#endif
#endif
            sequence = 0;
            publish()
        }
    od
}

/* The NIC towards one peer: in order, but peers do not keep step. */
active [2] proctype nic()
{
    byte sequence, value;
end:
    do
    :: d_step {
            send_queue[_pid % 2]?sequence, value ->
            assert(source == LAUNCH_OF(sequence) && value == LAUNCH_OF(sequence));
            gone = gone | 1 << sequence;
            value = 0
        }
        atomic { completions!sequence; sequence = 0 }
    od
}

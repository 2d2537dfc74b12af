/* The efa fabric's counting (backends/efa): one sender's puts to two flags of one receiver, over SRD. A put is one or two
 * messages on two devices; bytes are placed, the receiver is told (a completion with the immediate) and the sender is told
 * (the acknowledgement) as steps of their own, of all messages in any order; the receiver's proxy takes the completions of
 * either device whenever it comes to it. Numbers go modulo W; a credit tells the sender how many puts are whole.
 *
 * Holds: a flag's value speaks only for puts whose bytes are all there, and ends at the last one's; no completion queue
 * has more than W entries to hold, however long the receiver is away; a put's source is not read after its completion;
 * every put ends.
 *
 * -D PUTS=n: puts (5).
 * -D of one of these breaks it: HEAD_PUBLISHES NUMBER_IGNORED NO_HOLD_BACK WINDOW_IGNORED GAPS_TOLD ONE_ACK_COMPLETES
 * GROWTH_IGNORED NEVER_TOLD CREDIT_TOO_LATE */

#ifndef PUTS
#define PUTS 5
#endif
#define W 3 /* messages that may be uncounted */
#ifdef CREDIT_TOO_LATE
#define ENOUGH (W + 1)
#else
#define ENOUGH 2 /* messages to tell about; a put of W - ENOUGH + 1 always fits some time */
#endif
#define SLOT(number) ((number) % W)

/* The sender's flights, by number modulo W. */
byte flag_of[W], parts_of[W], growth_of[W], order_of[W], left[W];
byte started, reported, told, outstanding;
bool busy[2];  /* a put to the flag is not acknowledged */
byte puts_to[2];
byte total[2]; /* value of the last put */

/* Messages: SLOT * 2 + device. */
#define NONE 0
#define POSTED 1
#define PLACED 2
#define TOLD 3
byte message[W * 2];

/* What the application knows: bytes of put `order` to the flag that are missing, the value that it raises. */
#define PUT(flag, order) ((flag) * PUTS + (order))
byte missing[2 * PUTS], value_of[2 * PUTS];

/* The receiver. */
chan completions[2] = [W + 1] of { byte, byte, byte, byte, bool }; /* number, flag, growth, parts, head */
bool head[W], whole[W];
byte got[W], parts[W], flag_at[W], growth_at[W];
byte counted, untold, flag[2];
chan credits = [1] of { byte };

inline post(device)
{
    assert(message[SLOT(started) * 2 + device] == NONE);
    message[SLOT(started) * 2 + device] = POSTED
}

#ifdef WINDOW_IGNORED
#define GRANTED(parts) true
#else
#define GRANTED(parts) (outstanding + (parts) <= W)
#endif
#ifdef NO_HOLD_BACK
#define FREE(f) true
#else
#define FREE(f) (!busy[f])
#endif

proctype sender()
{
    byte f, k, g, n;
    do
    :: started < PUTS ->
        atomic {
            if
            :: f = 0
            :: f = 1
            fi;
            if
            :: k = 1
            :: k = 2
            fi;
            g = 1 + (started & 1)
        }
        atomic {
            GRANTED(k) && FREE(f) && started - reported < W ->
            flag_of[SLOT(started)] = f;
            parts_of[SLOT(started)] = k;
            growth_of[SLOT(started)] = g;
            order_of[SLOT(started)] = puts_to[f];
            left[SLOT(started)] = k;
            total[f] = total[f] + g;
            missing[PUT(f, puts_to[f])] = k;
            value_of[PUT(f, puts_to[f])] = total[f];
            puts_to[f]++;
            busy[f] = true;
            outstanding = outstanding + k;
            if
            :: k == 2 -> post(0); post(1)
            :: else -> post((started & 1))
            fi;
            started++
        }
    :: else -> break
    od;
    (reported == PUTS && flag[0] == total[0] && flag[1] == total[1])
}

/* The sender's poll: credits, and completions in the order of puts. */
proctype collector()
{
    byte n;
end:
    do
    :: atomic {
            credits?n ->
            do
            :: told < n -> outstanding = outstanding - parts_of[SLOT(told)]; told++
            :: else -> break
            od;
            n = 0
        }
    :: atomic { reported < started && left[SLOT(reported)] == 0 -> reported++ }
    od
}

inline place(s, device)
{
    /* Its source is still the put's: the completion has not been handed out. */
    assert(s == SLOT(reported) || (reported + 1 < started && s == SLOT(reported + 1)) ||
           (reported + 2 < started && s == SLOT(reported + 2)));
    missing[PUT(flag_of[s], order_of[s])] = missing[PUT(flag_of[s], order_of[s])] - 1;
    message[s * 2 + device] = PLACED
}

/* The first device's message is the head; of two, the second is the tail; one alone is head and whole. */
inline tell(s, device)
{
    assert(nfull(completions[0]) && nfull(completions[1]) && len(completions[0]) + len(completions[1]) < W);
    completions[device]!s, flag_of[s], growth_of[s], parts_of[s], (parts_of[s] == 1 || device == 0);
    message[s * 2 + device] = TOLD
}

inline acknowledge(s, device)
{
    message[s * 2 + device] = NONE;
    if
    :: left[s] > 0 ->
#ifdef ONE_ACK_COMPLETES
        left[s] = 0;
#else
        left[s] = left[s] - 1;
#endif
        if
        :: left[s] == 0 -> busy[flag_of[s]] = false
        :: else
        fi
    :: else
    fi
}

proctype network(byte s, device)
{
end:
    do
    :: atomic { message[s * 2 + device] == POSTED -> place(s, device) }
    :: atomic { message[s * 2 + device] == PLACED -> tell(s, device) }
    :: atomic { message[s * 2 + device] == TOLD -> acknowledge(s, device) }
    od
}

#define SPEAKS(f, i) (i >= puts_to[f] || value_of[PUT(f, i)] > flag[f] || missing[PUT(f, i)] == 0)

inline publish(s)
{
    whole[s] = true;
#ifdef GROWTH_IGNORED
    flag[flag_at[s]]++;
#else
    flag[flag_at[s]] = flag[flag_at[s]] + growth_at[s];
#endif
    assert(flag[flag_at[s]] <= total[flag_at[s]]);
    i = 0;
    do
    :: i < PUTS -> assert(SPEAKS(flag_at[s], i)); i++
    :: else -> break
    od;
    i = 0;
#ifdef GAPS_TOLD
    counted++;
    untold = untold + parts[s];
    whole[s] = false; head[s] = false; got[s] = 0; parts[s] = 0
#else
    do
    :: whole[SLOT(counted)] ->
        untold = untold + parts[SLOT(counted)];
        whole[SLOT(counted)] = false; head[SLOT(counted)] = false; got[SLOT(counted)] = 0; parts[SLOT(counted)] = 0;
        counted++
    :: else -> break
    od
#endif
}

inline take(device)
{
    completions[device]?s, f, g, k, h;
#ifdef NUMBER_IGNORED
    s = 0;
#endif
    assert(!whole[s] && (parts[s] == 0 || parts[s] == k || h));
    got[s]++;
    if
    :: h -> assert(!head[s]); head[s] = true; flag_at[s] = f; growth_at[s] = g
    :: else
    fi;
    parts[s] = k;
    if
#ifdef HEAD_PUBLISHES
    :: h -> publish(s)
#else
    :: head[s] && got[s] == parts[s] -> publish(s)
#endif
    :: else
    fi;
    s = 0; f = 0; g = 0; k = 0; h = false
}

proctype receiver()
{
    byte s, f, g, k, i;
    bool h;
end:
    do
    :: atomic { nempty(completions[0]) -> take(0) }
    :: atomic { nempty(completions[1]) -> take(1) }
#ifndef NEVER_TOLD
    :: atomic { untold >= ENOUGH && empty(credits) -> credits!counted; untold = 0 }
#endif
    od
}

init
{
    byte s;
    atomic {
        run sender();
        run collector();
        run receiver();
        for (s : 0 .. W - 1) {
            run network(s, 0);
            run network(s, 1)
        }
    }
}

/* Why a wait ended when it did: its chunk traced backwards, from the wait to the flag, the stages
 * of the network, the command, and what the sender did before. */
#pragma once

#include "tui/source.h"

#define CHAIN_MAX 16

enum chain_where { CHAIN_NOWHERE, CHAIN_TRACK, CHAIN_NIC, CHAIN_NVLINK };

struct chain_step {
    char name[12];          /* "wait", "flag", "arrived", "posted", ... */
    char text[112];         /* the CTA or rank, and what it did */
    enum chain_where where; /* which row shows it */
    int rank, track;
    double time; /* file time of the step; NAN: not known */
    double ns;   /* from the step before it in time to this one; NAN: not known */
    /* the length crosses two clocks and is below what they may disagree by */
    int uncertain;
    struct source_event event; /* of CHAIN_TRACK steps; event.id 0: none */
};

struct chain {
    int count;
    struct chain_step step[CHAIN_MAX];
    char verdict[128]; /* one sentence: where most of the time went */
};

/* Follows `event` of `s` back. An event that is not a wait gives a chain, too: the event, what
 * released it and what it released. Never fails; a step says what the file does not have. */
void chain_follow(struct source *s, const struct source_event *event, struct chain *out);

/* The same from the message that a rank had on its NIC at `time`, or the last one before it. */
void chain_follow_message(struct source *s, int rank, double time, struct chain *out);

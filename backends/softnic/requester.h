/* What the files of the send side of a QP share, beside nic.h. Under context->lock. */
#pragma once

#include "nic.h"

/* Of one entry: it has left; it goes on when there is room, or data; its buffers may not be read,
 * or written. */
enum softnic_sent { SOFTNIC_SENT, SOFTNIC_BLOCKED, SOFTNIC_REFUSED };

/* requester_send.c: as much of the entry at the cursor as the link takes */
enum softnic_sent softnic_requester_send(struct softnic_qp *qp, struct softnic_wqe *wqe,
                                         struct softnic_link *link);

/* requester.c: from the first entry on that is not acknowledged, after a while */
void softnic_requester_resend(struct softnic_qp *qp, uint64_t delay_ns, bool timeout);
void softnic_requester_unreachable(struct softnic_qp *qp);

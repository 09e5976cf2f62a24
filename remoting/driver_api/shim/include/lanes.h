// Lanes: further connections of a session, over which large bulk bytes go side by side.
//
// One connection is encrypted by one thread, which is slower than the network. So the bytes of a
// large copy, a stripe, are cut into chunks; each lane has a thread, which takes the next chunk
// whenever it is free. A set of lanes goes one way. The line says which stripe is next, and its
// size; both ends number the stripes alike. Both ends of a session use this file: the library, and
// the worker by native/lanes.c.
//
//   the receiver    | a chunk comes of this stripe | of a later one          | else
//   ----------------+------------------------------+-------------------------+------------------
//   has a window    | its bytes go into the window | it waits, or is kept    | the set is lost
//   has none        | it waits, or is kept         | it waits, or is kept    | the set is lost
//
// Kept are chunks that have waited for PATIENCE_NS, up to `ahead_max` bytes of memory: what the line
// has behind them may have to get past a worker that stands still.
//
// A set is lost for good when one of its connections breaks or says what it may not. Then nothing
// touches the memory of a stripe any more once the call that waits has returned.
#ifndef GP_LANES_H
#define GP_LANES_H

#include "link.h"

#include <stddef.h>

#define GP_LANES_MAX 8  // one way
#define GP_LANE_CHUNK (256u << 10)
#define GP_SMALL_CHUNK (64u << 10)   // of stripes below GP_SMALL_STRIPE
#define GP_SMALL_STRIPE (1u << 20)
#define GP_STRIPE_MIN (256u << 10)  // what is smaller goes by the line
// A thread that wakes up for a chunk or two costs more than they do, so stripes that are not wide go
// by some lanes alone.
#define GP_NARROW_LANES 4
#define GP_WIDE_STRIPE (4u << 20)

struct gp_lanes;

// A set of lanes that sends, or receives; NULL without memory. It is never freed.
struct gp_lanes *gp_lanes_new(bool sends, int most, uint64_t ahead_max);
// Add a connection, which is the set's from then on; at most as many as it was made for.
bool gp_lanes_add(struct gp_lanes *lanes, const struct gp_link *link);
void gp_lanes_end(struct gp_lanes *lanes);  // for good; NULL is allowed
void gp_lanes_forked(struct gp_lanes *lanes);  // let go of them, in a process without their threads

// Begin with the next stripe to send: its bytes stay until gp_lanes_wait says that it is over.
void gp_lanes_send(struct gp_lanes *lanes, const void *bytes, uint64_t size);
// Begin to receive a part of a stripe; a new one begins with offset 0. Parts are multiples of a
// chunk, but for the last.
void gp_lanes_receive(struct gp_lanes *lanes, void *target, uint64_t offset, uint64_t size);
// Wait for what was begun: 1 when it is over, 0 when not yet, -1 when the set is lost.
int gp_lanes_wait(struct gp_lanes *lanes, int milliseconds);
// Whether the other end of one of them has not answered for too long.
bool gp_lanes_are_dead(struct gp_lanes *lanes);

bool gp_peer_is_dead(const struct gp_link *link);  // has not answered for too long

#endif

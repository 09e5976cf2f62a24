// A capture of a stream's work into a graph.
#ifndef GP_CAPTURES_H
#define GP_CAPTURES_H

#include "runtime.h"

struct gp_edge_data;

// Its number is written last, so that a number that is found belongs to its graph.
struct gp_capture {
    uint64_t id;
    struct gp_handle *graph;
    bool given;    // the graph was there before
    bool spoiled;  // by a call that may not be made meanwhile
    bool ended_elsewhere;  // on a stream where it had not begun; if its end fails too, it is invalid
    const struct gp_handle *origin;  // where it began, and has to end
    struct gp_handle **front;        // as last told to the program
    struct gp_edge_data *data;
};

struct gp_capture *gp_find_capture(const struct gp_handle *handle);  // of a stream or an event
// False where there is no room for one more.
bool gp_begin_capture(struct gp_handle *stream, struct gp_handle *graph, bool given);
bool gp_blocking_capture(int device);  // whether a stream is captured that waits for the legacy one
void gp_end_capture(struct gp_capture *capture);

#endif

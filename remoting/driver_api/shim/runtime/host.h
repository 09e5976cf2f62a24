// Host functions that are pending, as runtime/host.c and runtime/host_wait.c share them.
#ifndef GP_HOST_H
#define GP_HOST_H

#include "runtime.h"

#include <time.h>

struct gp_host_call {
    uint64_t id;
    void (*function)(void *);                       // cuLaunchHostFunc
    void (*callback)(void *stream, int status, void *);  // cuStreamAddCallback
    void *data, *stream;
    bool tells;  // the stream does not wait for it
    unsigned follows;  // how many before it, of which the worker knows the first: it runs behind these
    bool closed;   // none can follow any more
    const struct gp_handle *in;  // its stream, by its number
    uint64_t stream_id, position;  // of its record on the line; of one that follows, of the first's
    uint64_t mark, size_mark;  // of sent and sent_size, when it was posted
    struct gp_host_call *next;
};

struct gp_host_arrival {
    uint64_t id, ticket;
    int status;
    struct gp_host_arrival *next;
};

// The functions of one server's streams.
struct gp_host_queue {
    struct gp_host_call *pending, **pending_end;  // in the order of their ids
    struct gp_host_arrival *arrivals, **arrivals_end;
    unsigned arrival_count;
    uint64_t sent;            // weight of what was sent while functions were pending
    uint64_t sent_size;       // its bytes
    uint64_t executed_size;   // so many of these are known to have been executed
    uint64_t slow;            // a function that was waited for in vain
    int64_t runs_since;       // the function that runs; zero: none
    uint64_t blocking_after;  // the last function in any stream that waits for the legacy one
    int server;
    bool started;
};

extern pthread_mutex_t gp_host_lock;
extern pthread_cond_t gp_host_changed;
extern struct gp_host_queue gp_host_queues[GP_SERVERS_MAX];

static inline int64_t gp_host_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static inline struct gp_host_queue *gp_host_queue_here(void) { return &gp_host_queues[gp_here()]; }

static inline struct gp_host_queue *gp_host_queue_of(const struct gp_handle *handle) {
    return &gp_host_queues[gp_server_of(handle->device)];
}

// What is added to a stream from now on comes behind a function; with or without gp_host_lock.
void gp_host_set_after(struct gp_handle *stream, uint64_t id);

#endif

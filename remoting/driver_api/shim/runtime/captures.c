// The captures that are going on, as launches, copies and streams ask for them. Capture itself is in
// graph/capture.c.
#include "captures.h"

#include <stdlib.h>

#define CAPTURES_MAX 64
#define NON_BLOCKING 1  // of the flags of a stream

static uint64_t next_capture = 1;
static unsigned captures;  // that are going on, in all threads
static struct gp_capture active[CAPTURES_MAX];
static pthread_mutex_t capture_lock = PTHREAD_MUTEX_INITIALIZER;

struct gp_capture *gp_find_capture(const struct gp_handle *handle) {
    uint64_t capture = __atomic_load_n(&handle->capture, __ATOMIC_RELAXED);
    for (int at = 0; capture != 0 && at < CAPTURES_MAX; at++) {
        if (__atomic_load_n(&active[at].id, __ATOMIC_ACQUIRE) == capture) return &active[at];
    }
    return NULL;
}

// Streams and events keep the number of a capture after its end, so the number is looked up.
uint64_t gp_capture_of_handle(const struct gp_handle *handle) {
    if (handle == NULL || __atomic_load_n(&captures, __ATOMIC_RELAXED) == 0) return 0;
    const struct gp_capture *found = gp_find_capture(handle);
    return found == NULL ? 0 : found->id;
}

uint64_t gp_capture_of(void *stream) {
    if (__atomic_load_n(&captures, __ATOMIC_RELAXED) == 0) return 0;
    return gp_capture_of_handle(gp_stream_handle(stream));
}

bool gp_captures_any(void) { return __atomic_load_n(&captures, __ATOMIC_RELAXED) != 0; }

struct gp_handle *gp_captured_graph(void *stream) {
    if (__atomic_load_n(&captures, __ATOMIC_RELAXED) == 0) return NULL;
    const struct gp_handle *handle = gp_stream_handle(stream);
    const struct gp_capture *found = handle == NULL ? NULL : gp_find_capture(handle);
    return found == NULL ? NULL : found->graph;
}

int gp_spoil_capture(const struct gp_handle *stream, int status) {
    struct gp_capture *found = gp_find_capture(stream);
    if (found != NULL && status != GP_SUCCESS) found->spoiled = true;
    return status;
}

bool gp_begin_capture(struct gp_handle *stream, struct gp_handle *graph, bool given) {
    pthread_mutex_lock(&capture_lock);
    int slot = 0;
    while (slot < CAPTURES_MAX && active[slot].id != 0) slot++;
    if (slot < CAPTURES_MAX) {
        uint64_t capture = next_capture++;
        active[slot] = (struct gp_capture){.graph = graph, .given = given, .origin = stream};
        __atomic_store_n(&active[slot].id, capture, __ATOMIC_RELEASE);
        __atomic_fetch_add(&captures, 1, __ATOMIC_RELAXED);
        __atomic_store_n(&stream->capture, capture, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&capture_lock);
    return slot < CAPTURES_MAX;
}

bool gp_blocking_capture(int device) {
    if (__atomic_load_n(&captures, __ATOMIC_RELAXED) == 0) return false;
    bool found = false;
    pthread_mutex_lock(&capture_lock);
    for (int at = 0; at < CAPTURES_MAX; at++) {
        const struct gp_handle *origin = active[at].id ? active[at].origin : NULL;
        found |= origin != NULL && !(origin->flags & NON_BLOCKING) && origin->device == device;
    }
    pthread_mutex_unlock(&capture_lock);
    return found;
}

void gp_end_capture(struct gp_capture *capture) {
    pthread_mutex_lock(&capture_lock);
    __atomic_store_n(&capture->id, 0, __ATOMIC_RELEASE);
    __atomic_fetch_sub(&captures, 1, __ATOMIC_RELAXED);
    free(capture->front);
    free(capture->data);
    capture->front = NULL;
    capture->data = NULL;
    pthread_mutex_unlock(&capture_lock);
}

// The stream that a program means: one that it made, the legacy one, or the thread's own.
#include "runtime.h"

static __thread struct gp_handle *thread_streams[GP_DEVICES_MAX];
static __thread int per_thread;
static struct gp_handle legacy_streams[GP_DEVICES_MAX];

void *gp_thread_stream(void *stream) { return stream == NULL ? (void *)2 : stream; }

void gp_per_thread(int on) { per_thread = on; }

// A thread's own streams end with it. Another destructor of the thread's may make one again; then
// this is called once more.
static void end_thread_streams(void *unused) {
    (void)unused;
    for (int device = 0; device < gp.device_count; device++) {
        struct gp_handle *stream = thread_streams[device];
        if (stream == NULL) continue;
        thread_streams[device] = NULL;
        GP_ROUTE(device);
        // Not in a fork, where it is the parent's.
        if (gp_ready() == GP_SUCCESS && !gp_is_lost()) gp_post_cuStreamDestroy_v2(stream->id);
        gp_end(stream);
    }
}

static pthread_key_t thread_key;
static bool has_thread_key;

static void make_thread_key(void) {
    has_thread_key = pthread_key_create(&thread_key, end_thread_streams) == 0;
}

static struct gp_handle *thread_stream(int device) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (thread_streams[device] == NULL) {
        struct gp_handle *made = gp_enter() == GP_SUCCESS ? gp_make(GP_STREAM) : NULL;
        if (made == NULL) return NULL;
        if (gp_post_cuStreamCreate(made->id, 0) != GP_SUCCESS) return NULL;
        thread_streams[device] = made;
        pthread_once(&once, make_thread_key);
        if (has_thread_key) pthread_setspecific(thread_key, thread_streams);
    }
    return thread_streams[device];
}

struct gp_handle *gp_stream_handle(void *stream) {
    uintptr_t value = (uintptr_t)stream;
    int device = gp_current_device();
    if (device < 0) return NULL;
    if (value <= 2 && gp_routed < 0 && gp_current()->legacy != NULL) {
        return gp_current()->legacy;  // a green context has one for all threads
    }
    if (value == 2 || (value == 0 && per_thread)) return thread_stream(device);
    if (value <= 1) {
        struct gp_handle *legacy = &legacy_streams[device];
        legacy->id = GP_LEGACY_STREAM;
        legacy->device = device;
        return legacy;
    }
    return gp_check(stream, GP_STREAM) == GP_SUCCESS ? stream : NULL;
}

int gp_stream_id(void *stream, uint64_t *id) {
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    *id = handle->id;
    return GP_SUCCESS;
}

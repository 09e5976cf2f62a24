// Streams, events, and waits for them.
#include "runtime.h"
#include "ipc.h"

#include <stdlib.h>

int gp_synchronize_stream(void *stream) {
    GP_ENTER_ON(stream);
    GP_ON(stream);
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    if (gp_capture_of(stream)) {
        return gp_spoil_capture(handle, gp_synchronize(GP_QUERY_STREAM, handle->id));
    }
    // Known idle, and nothing was sent since: there is nothing to wait for.
    uint64_t clean = __atomic_load_n(&handle->clean, __ATOMIC_RELAXED);
    if (clean != 0 && clean == gp_position()) return GP_SUCCESS;
    uint64_t before = gp_position();
    GP_CHECK(gp_synchronize(GP_SYNC_STREAM, handle->id));
    // The synchronisation itself is one call; anything beyond it came from another thread.
    if (gp_position() == before + 1) {
        __atomic_store_n(&handle->clean, before + 1, __ATOMIC_RELAXED);
    }
    return GP_SUCCESS;
}

GP_EXPORT int cuStreamQuery(void *stream) {
    GP_ENTER_ON(stream);
    GP_ON(stream);
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    int status = gp_synchronize(GP_QUERY_STREAM, handle->id);
    return gp_capture_of_handle(handle) ? gp_spoil_capture(handle, status) : status;
}

GP_EXPORT int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    GP_ENTER_ON(stream);
    GP_CHECK(gp_check(event, GP_EVENT));
    GP_ON(stream);
    struct gp_handle *to = gp_stream_handle(stream), *from = event;
    if (to == NULL) return GP_INVALID_HANDLE;
    if (gp_several && !gp_reaches(from->device)) {
        // The servers know nothing of each other's events, so this thread waits for both.
        bool captured = gp_capture_of_handle(to) || gp_capture_of_handle(from);
        return captured ? GP_CAPTURE_UNSUPPORTED : gp_await_event(event);
    }
    // A stream that waits for an event of a capture joins the capture.
    uint64_t capture = gp_capture_of_handle(from);
    if (capture) __atomic_store_n(&to->capture, capture, __ATOMIC_RELAXED);
    if (__atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED)) gp_host_waits(to, from);
    return gp_post_wait_event(to->id, from->id, flags);
}

// An event that has ended stays ended until it is recorded again, so nobody needs to ask twice.
// priority counts its records; clean is the record, counted from one, that is known to be over.

// Behind the record itself on the line: else a thread that asks in between would take the end of the
// former record for that of this one.
static void forget_end(struct gp_handle *event) {
    __atomic_fetch_add(&event->priority, 1, __ATOMIC_RELAXED);
}

void gp_recorded_elsewhere(void *event) {
    __atomic_store_n(&((struct gp_handle *)event)->detail, event, __ATOMIC_RELAXED);
    forget_end(event);
}

static int ask_event(struct gp_handle *event, int op) {
    uint64_t record = (uint64_t)__atomic_load_n(&event->priority, __ATOMIC_RELAXED) + 1;
    if (__atomic_load_n(&event->clean, __ATOMIC_RELAXED) == record) return GP_SUCCESS;
    GP_CHECK(gp_synchronize(op, event->id));
    bool known = __atomic_load_n(&event->detail, __ATOMIC_RELAXED) == NULL;
    if (known) __atomic_store_n(&event->clean, record, __ATOMIC_RELAXED);
    return GP_SUCCESS;
}

static int record(void *event, void *stream, unsigned flags) {
    GP_ENTER_ON(stream);
    GP_CHECK(gp_check(event, GP_EVENT));
    GP_ON(stream);
    GP_REACH(event);
    struct gp_handle *of = gp_stream_handle(stream);
    if (of == NULL) return GP_INVALID_HANDLE;
    __atomic_store_n(&((struct gp_handle *)event)->capture, gp_capture_of(stream),
                     __ATOMIC_RELAXED);
    if (flags != 0) gp_recorded_elsewhere(event);  // CU_EVENT_RECORD_EXTERNAL: by graphs
    if (__atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED)) gp_host_recorded(event, of);
    int status = gp_post_record_event(((struct gp_handle *)event)->id, of->id, flags);
    forget_end(event);
    GP_CHECK(status);
    // Another process may hear of the record from this one, and must find it on the server.
    bool shared = ((struct gp_handle *)event)->flags & GP_INTERPROCESS;
    return shared ? gp_call_settle() : GP_SUCCESS;
}

int gp_await_event(void *event) {
    GP_ENTER_ON(event);
    GP_CHECK(gp_check(event, GP_EVENT));
    GP_ON(event);
    return ask_event(event, GP_SYNC_EVENT);
}

GP_EXPORT int cuEventQuery(void *event) {
    GP_ENTER_ON(event);
    GP_CHECK(gp_check(event, GP_EVENT));
    GP_ON(event);
    return ask_event(event, GP_QUERY_EVENT);
}

// --- what a stream is -----------------------------------------------------------------------------

GP_EXPORT int cuStreamGetPriority(void *stream, int *priority) {
    GP_ENTER_ON(stream);
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    if (priority == NULL) return GP_INVALID_VALUE;
    *priority = handle->priority;
    return GP_SUCCESS;
}

GP_EXPORT int cuStreamGetFlags(void *stream, unsigned *flags) {
    GP_ENTER_ON(stream);
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    if (flags == NULL) return GP_INVALID_VALUE;
    *flags = handle->flags;
    return GP_SUCCESS;
}

GP_EXPORT int cuStreamGetId(void *stream, unsigned long long *id) {
    GP_ENTER_ON(stream);
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    if (id == NULL) return GP_INVALID_VALUE;
    *id = handle->id;
    return GP_SUCCESS;
}

int gp_context_of_stream(void *stream, void **context) {
    GP_ENTER_ON(stream);
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    if (context == NULL) return GP_INVALID_VALUE;
    *context = gp_check(handle->context, GP_CONTEXT) == GP_SUCCESS ? (void *)(uintptr_t)handle->context
                                                                   : &gp.primaries[handle->device];
    if (handle == stream) return GP_SUCCESS;
    *context = gp_current();  // streams with a meaning of their own are those of any context
    return GP_SUCCESS;
}

GP_EXPORT int cuStreamGetDevice(void *stream, int *device) {
    GP_ENTER_ON(stream);
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    if (device == NULL) return GP_INVALID_VALUE;
    *device = handle->device;
    return GP_SUCCESS;
}

// Hints for the cache, for how the CPU waits and for the scheduler: without effect on any result, so they
// are kept here and told again.
#define ATTRIBUTE_SIZE 64  // of CUlaunchAttributeValue
enum { CACHE = 1, WAITING = 3, PRIORITY = 8, DOMAINS = 9, DOMAIN = 10, ATTRIBUTES };

static pthread_mutex_t attribute_lock = PTHREAD_MUTEX_INITIALIZER;

static bool is_hint(int attribute) {
    return attribute == CACHE || attribute == WAITING ||
           (attribute >= PRIORITY && attribute < ATTRIBUTES);
}

// With attribute_lock held; NULL where there is no memory.
static unsigned char *attributes_of(struct gp_handle *stream) {
    if (stream->detail != NULL) return stream->detail;
    unsigned char *made = calloc(ATTRIBUTES, ATTRIBUTE_SIZE);
    if (made == NULL) return NULL;
    const int automatic = 1;  // CU_SYNC_POLICY_AUTO
    const unsigned char domains[2] = {0, 1};
    memcpy(made + WAITING * ATTRIBUTE_SIZE, &automatic, sizeof automatic);
    memcpy(made + PRIORITY * ATTRIBUTE_SIZE, &stream->priority, sizeof stream->priority);
    memcpy(made + DOMAINS * ATTRIBUTE_SIZE, domains, sizeof domains);
    stream->detail = made;
    return made;
}

GP_EXPORT int cuStreamGetAttribute(void *stream, int attribute, void *value) {
    GP_ENTER_ON(stream);
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    if (value == NULL || !is_hint(attribute)) return GP_INVALID_VALUE;
    pthread_mutex_lock(&attribute_lock);
    const unsigned char *known = attributes_of(handle);
    if (known != NULL) memcpy(value, known + attribute * ATTRIBUTE_SIZE, ATTRIBUTE_SIZE);
    pthread_mutex_unlock(&attribute_lock);
    return known != NULL ? GP_SUCCESS : GP_OUT_OF_MEMORY;
}

GP_EXPORT int cuStreamSetAttribute(void *stream, int attribute, const void *value) {
    GP_ENTER_ON(stream);
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    if (value == NULL || !is_hint(attribute)) return GP_INVALID_VALUE;
    pthread_mutex_lock(&attribute_lock);
    unsigned char *known = attributes_of(handle);
    if (known != NULL) memcpy(known + attribute * ATTRIBUTE_SIZE, value, ATTRIBUTE_SIZE);
    if (attribute == PRIORITY) memcpy(&handle->priority, value, sizeof handle->priority);
    pthread_mutex_unlock(&attribute_lock);
    return known != NULL ? GP_SUCCESS : GP_OUT_OF_MEMORY;
}

GP_EXPORT int cuStreamCopyAttributes(void *target, void *source) {
    GP_ENTER_ON(target);
    struct gp_handle *to = gp_stream_handle(target), *from = gp_stream_handle(source);
    if (to == NULL || from == NULL) return GP_INVALID_HANDLE;
    pthread_mutex_lock(&attribute_lock);
    unsigned char *new = attributes_of(to);
    const unsigned char *known = attributes_of(from);
    bool there = new != NULL && known != NULL;
    if (there && new != known) memcpy(new, known, ATTRIBUTES * ATTRIBUTE_SIZE);
    if (there) to->priority = from->priority;
    pthread_mutex_unlock(&attribute_lock);
    return there ? GP_SUCCESS : GP_OUT_OF_MEMORY;
}

#define GP_FORWARDS_STREAM
#include "generated_forwards.h"

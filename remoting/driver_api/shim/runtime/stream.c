// Streams, events, and waits for them.
#include "runtime.h"
#include "ipc.h"

#include <stdlib.h>

// Note that all that a stream had got at a position of the line is over.
static void note_over(struct gp_handle *stream, uint64_t position) {
    uint64_t known = __atomic_load_n(&stream->place, __ATOMIC_RELAXED);
    while (position > known && !__atomic_compare_exchange_n(&stream->place, &known, position, true,
                                                            __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

// The same of all streams of a device.
static uint64_t device_clean[GP_DEVICES_MAX], device_place[GP_DEVICES_MAX];

static bool is_clean(const uint64_t *clean, uint64_t position) {
    return position != 0 && position == __atomic_load_n(clean, __ATOMIC_RELAXED);
}

static bool is_known_idle(const struct gp_handle *stream) {
    uint64_t position = gp_position();
    return is_clean(&stream->clean, position) || is_clean(&device_clean[stream->device], position);
}

bool gp_is_device_idle(int device) {
    // Programs may wait for the loss of a server by this, so a connection that has ended says no.
    return is_clean(&device_clean[device], gp_position()) && !gp_has_hung_up();
}

void gp_note_device_idle(int device, uint64_t before) {
    __atomic_store_n(&device_place[device], before, __ATOMIC_RELAXED);
    if (gp_position() != before + 1) return;
    __atomic_store_n(&device_clean[device], before + 1, __ATOMIC_RELAXED);
}

// A stream that was idle has nothing to do since but to take over bytes of the program's pageable memory,
// which were read when it was called. Then nothing here can show whether that is over: what comes next
// finds it so, as the worker waits for the stream before it goes on. Other processes could tell. What
// kernels wrote to mapped memory came with the answer that the stream was idle.
static bool may_copy_ahead(void) {
    return !gp_several && !__atomic_load_n(&gp_shares, __ATOMIC_RELAXED) &&
           !__atomic_load_n(&gp_managed_count, __ATOMIC_RELAXED) &&
           !__atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED) && gp_knows(GP_AWAIT_STREAM);
}

bool gp_only_copies(const struct gp_handle *stream) {
    uint64_t position = gp_position();
    return may_copy_ahead() &&
           (is_known_idle(stream) ||
            (position != 0 && position == __atomic_load_n(&stream->copied, __ATOMIC_RELAXED)));
}

void gp_note_copied(struct gp_handle *stream, uint64_t before) {
    if (gp_position() == before + 1) __atomic_store_n(&stream->copied, before + 1, __ATOMIC_RELAXED);
}

bool gp_await_copies(struct gp_handle *stream) {
    if (__atomic_load_n(&stream->copied, __ATOMIC_RELAXED) == 0 || !gp_only_copies(stream)) return false;
    uint64_t before = gp_position();
    if (gp_post_await_stream(stream->id) != GP_SUCCESS) return false;
    gp_note_idle(stream, before);
    return true;
}

void gp_note_idle(struct gp_handle *stream, uint64_t before) {
    note_over(stream, before);
    // The call that said so is one; anything beyond it came from another thread.
    if (gp_position() == before + 1) __atomic_store_n(&stream->clean, before + 1, __ATOMIC_RELAXED);
}

int gp_synchronize_stream(void *stream) {
    GP_ENTER_ON(stream);
    GP_ON_STREAM(stream);
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    if (gp_capture_of(stream)) {
        return gp_spoil_capture(handle, gp_synchronize(GP_QUERY_STREAM, handle->id));
    }
    // Known idle, and nothing was sent since: there is nothing to wait for.
    if (!is_known_idle(handle) && !gp_await_copies(handle)) {
        uint64_t before = gp_position();
        GP_CHECK(gp_synchronize(GP_SYNC_STREAM, handle->id));
        gp_note_idle(handle, before);
    }
    gp_host_told(handle, true);
    return GP_SUCCESS;
}

GP_EXPORT int cuStreamQuery(void *stream) {
    GP_ENTER_ON(stream);
    GP_ON_STREAM(stream);
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    if (gp_capture_of_handle(handle)) {
        return gp_spoil_capture(handle, gp_synchronize(GP_QUERY_STREAM, handle->id));
    }
    if (!is_known_idle(handle)) {
        uint64_t before = gp_position();
        GP_CHECK(gp_synchronize(GP_QUERY_STREAM, handle->id));
        gp_note_idle(handle, before);
    }
    return gp_host_told(handle, false) ? GP_SUCCESS : GP_NOT_READY;
}

GP_EXPORT int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    GP_ENTER_ON(stream);
    GP_CHECK(gp_check(event, GP_EVENT));
    if (flags > 1) return GP_INVALID_VALUE;
    GP_ON(stream);
    struct gp_handle *to = gp_stream_handle(stream), *from = event;
    if (to == NULL) return GP_INVALID_HANDLE;
    if (flags != 0 && !gp_capture_of_handle(to)) return GP_ILLEGAL_STATE;
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

// An event that has ended stays ended until it is recorded again, so nobody needs to ask twice, nor
// for an event behind which its stream is known to have come.
// priority counts its records; clean is the record, counted from one, that is known to be over.

// Behind the record itself on the line: else a thread that asks in between would take the end of the
// former record for that of this one.
static void forget_end(struct gp_handle *event) {
    __atomic_fetch_add(&event->priority, 1, __ATOMIC_RELAXED);
}

void gp_recorded_elsewhere(void *event) {
    __atomic_store_n(&((struct gp_handle *)event)->detail, event, __ATOMIC_RELAXED);
    __atomic_fetch_add(&((struct gp_handle *)event)->begun, 1, __ATOMIC_RELAXED);
    forget_end(event);
}

static bool is_elsewhere(const struct gp_handle *event) {
    return __atomic_load_n(&event->detail, __ATOMIC_RELAXED) != NULL;
}

static pthread_mutex_t mark_lock = PTHREAD_MUTEX_INITIALIZER;  // marks, and the places of events

static struct gp_mark mark_of(struct gp_handle *handle) {
    return (struct gp_mark){handle, handle->id, __atomic_load_n(&handle->begun, __ATOMIC_RELAXED)};
}

static bool is_same(const struct gp_mark *mark, enum gp_kind kind) {
    if (mark->handle == NULL || mark->handle->id != mark->id) return false;
    if (mark->id == GP_LEGACY_STREAM) return true;
    return gp_check(mark->handle, kind) == GP_SUCCESS &&
           __atomic_load_n(&mark->handle->begun, __ATOMIC_RELAXED) == mark->begun;
}

// Whether the stream of an event's record is known to have come by it.
static bool is_passed(const struct gp_handle *event) {
    bool passed = false;
    pthread_mutex_lock(&mark_lock);
    const struct gp_mark *on = &event->on;
    if (event->place != 0 && is_same(on, GP_STREAM)) {
        passed = __atomic_load_n(&on->handle->place, __ATOMIC_RELAXED) >= event->place ||
                 __atomic_load_n(&device_place[on->handle->device], __ATOMIC_RELAXED) >= event->place;
    }
    pthread_mutex_unlock(&mark_lock);
    return passed;
}

// Wait for an event, and learn the time since the one before it in its stream: programs take times
// between two events and ask for them next.
static int end_event(struct gp_handle *event) {
    pthread_mutex_lock(&mark_lock);
    struct gp_mark first = event->before, own = mark_of(event);
    bool timed = event->place != 0 && is_same(&first, GP_EVENT);
    pthread_mutex_unlock(&mark_lock);
    if (!timed || !gp_knows(GP_END_EVENT)) return gp_synchronize(GP_SYNC_EVENT, event->id);
    if (__atomic_load_n(&gp_mapped_count, __ATOMIC_RELAXED)) gp_push_mapped();
    uint64_t reply[2] = {0};
    GP_CHECK(gp_call_end_event(event->id, first.id, reply));
    gp_open_wanted();
    pthread_mutex_lock(&mark_lock);
    // Neither was recorded again: the time is that of these records.
    if (reply[0] == GP_SUCCESS && is_same(&first, GP_EVENT) && is_same(&own, GP_EVENT)) {
        event->elapsed = (uint32_t)reply[1];
        event->timed = own.begun;
    }
    pthread_mutex_unlock(&mark_lock);
    return GP_SUCCESS;
}

bool gp_known_elapsed(float *elapsed, const void *start, const void *end) {
    const struct gp_handle *event = end;
    pthread_mutex_lock(&mark_lock);
    bool known = event->timed != 0 && event->timed == __atomic_load_n(&event->begun, __ATOMIC_RELAXED) &&
                 event->before.handle == start && is_same(&event->before, GP_EVENT);
    if (known) memcpy(elapsed, &event->elapsed, sizeof *elapsed);
    pthread_mutex_unlock(&mark_lock);
    return known;
}

static int ask_event(struct gp_handle *event, int op) {
    uint64_t record = (uint64_t)__atomic_load_n(&event->priority, __ATOMIC_RELAXED) + 1;
    uint64_t begun = __atomic_load_n(&event->begun, __ATOMIC_RELAXED);
    bool known = !is_elsewhere(event) && !gp_capture_of_handle(event);
    if (__atomic_load_n(&event->clean, __ATOMIC_RELAXED) != record && !(known && is_passed(event))) {
        GP_CHECK(op == GP_SYNC_EVENT ? end_event(event) : gp_synchronize(op, event->id));
        if (is_elsewhere(event)) known = false;
        if (known) __atomic_store_n(&event->clean, record, __ATOMIC_RELAXED);
        pthread_mutex_lock(&mark_lock);
        if (known && event->begun == begun && event->place != 0 && is_same(&event->on, GP_STREAM)) {
            note_over(event->on.handle, event->place);
        }
        pthread_mutex_unlock(&mark_lock);
    }
    return gp_host_told_before(event, op == GP_SYNC_EVENT) ? GP_SUCCESS : GP_NOT_READY;
}
// With the line's lock, so that marks of several threads' records are in the order of the line.
static void note_record(struct gp_handle *event, struct gp_handle *stream, bool plain) {
    bool timed = plain && !(event->flags & GP_DISABLE_TIMING);
    pthread_mutex_lock(&mark_lock);
    __atomic_fetch_add(&event->begun, 1, __ATOMIC_RELAXED);
    event->place = plain ? gp_opened_position() : 0;
    event->on = mark_of(stream);
    event->before = timed ? stream->before : (struct gp_mark){0};
    if (timed) stream->before = mark_of(event);
    pthread_mutex_unlock(&mark_lock);
}

int gp_record_event(void *event, void *stream, unsigned flags) {
    GP_ENTER_ON(stream);
    GP_CHECK(gp_check(event, GP_EVENT));
    GP_ON(stream);
    GP_REACH(event);
    struct gp_handle *of = gp_stream_handle(stream);
    if (of == NULL) return GP_INVALID_HANDLE;
    if (flags != 0 && !gp_capture_of(stream)) return flags > 1 ? GP_INVALID_VALUE : GP_ILLEGAL_STATE;
    __atomic_store_n(&((struct gp_handle *)event)->capture, gp_capture_of(stream),
                     __ATOMIC_RELAXED);
    if (flags != 0) gp_recorded_elsewhere(event);  // CU_EVENT_RECORD_EXTERNAL: by graphs
    if (__atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED)) gp_host_recorded(event, of);
    if (__atomic_load_n(&gp_mapped_count, __ATOMIC_RELAXED)) gp_push_mapped();
    unsigned char *at = gp_open_record_event();
    gp_fill_record_event(at, ((struct gp_handle *)event)->id, of->id, flags);
    note_record(event, of, flags == 0 && !gp_capture_of_handle(of));
    gp_close();
    forget_end(event);
    int status = gp_several && gp_is_lost() ? GP_DEVICE_UNAVAILABLE : GP_SUCCESS;
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

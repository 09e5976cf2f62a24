// Host functions: what a stream calls on this machine, between two of its operations.
//
// The server's driver comes to a function's place in its stream, waits there, and the worker says
// so. One thread here runs the functions, in the order in which they are announced, and answers
// with HOST_DONE; then the stream goes on. HOST_DONE travels behind whatever was sent before, so the
// worker must get through that without waiting for the GPU: while functions are pending, callers
// wait here before they send more than a stream's queue holds, or a call that may wait for the GPU.
#define _GNU_SOURCE
#include "core.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>

// Entries of a stream's queue behind the oldest pending function. An H200's driver (580) blocks its
// caller at 1,021 launches, copies or events, and at 56 rounds of a host function and 5 launches: a
// function between others takes 13.2.
#define AHEAD_MAX 400
#define HOST_CALL_WEIGHT 16
#define STAGING_SIZE (4u << 20)  // of the worker's 64 buffers, one or more for each upload
#define ALONE UINT64_MAX

struct call {
    uint64_t id;
    void (*function)(void *);                       // cuLaunchHostFunc
    void (*callback)(void *stream, int status, void *);  // cuStreamAddCallback
    void *data, *stream;
    uint64_t mark;  // of sent, when it was posted
    struct call *next;
};

struct arrival {
    uint64_t id, ticket;
    int status;
    struct arrival *next;
};

// The functions of one server's streams.
struct queue {
    struct call *pending, **pending_end;  // in the order of their ids
    struct arrival *arrivals, **arrivals_end;
    uint64_t sent;            // weight of what was sent while functions were pending
    uint64_t blocking_after;  // the last function in any stream that waits for the legacy one
    int server;
    bool started;
};

int gp_hosts_pending;
static __thread bool serving;  // this thread runs the functions of a server
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct queue queues[GP_SERVERS_MAX];

bool gp_in_host_function(void) { return serving; }

static struct queue *queue_here(void) { return &queues[gp_here()]; }

static struct queue *queue_of(const struct gp_handle *handle) {
    return &queues[gp_server_of(handle->device)];
}

// --- running --------------------------------------------------------------------------------------

void gp_host_arrived(int server, uint64_t id, int status, uint64_t ticket) {
    struct arrival *made = malloc(sizeof *made);
    if (made == NULL) return;  // its stream stands still, as it would without memory anywhere
    *made = (struct arrival){id, ticket, status, NULL};
    pthread_mutex_lock(&lock);
    struct queue *queue = &queues[server];
    if (queue->arrivals_end == NULL) queue->arrivals_end = &queue->arrivals;
    *queue->arrivals_end = made;
    queue->arrivals_end = &made->next;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static bool find(const struct queue *queue, uint64_t id, struct call *found) {
    if (id & GP_NODE_NUMBER) {
        *found = (struct call){.id = id};
        return gp_host_node_at(id, &found->function, &found->data);
    }
    pthread_mutex_lock(&lock);
    struct call *at = queue->pending;
    while (at != NULL && at->id != id) at = at->next;
    if (at != NULL) *found = *at;
    pthread_mutex_unlock(&lock);
    return at != NULL;
}

uint64_t gp_host_oldest(int server) {
    pthread_mutex_lock(&lock);
    const struct call *first = queues[server].pending;
    uint64_t id = first == NULL ? UINT64_MAX : first->id;
    pthread_mutex_unlock(&lock);
    return id;
}

static void take_out(struct queue *queue, uint64_t id) {
    pthread_mutex_lock(&lock);
    struct call **at = &queue->pending;
    while (*at != NULL && (*at)->id != id) at = &(*at)->next;
    struct call *found = *at;
    if (found != NULL) {
        *at = found->next;
        if (queue->pending_end == &found->next) queue->pending_end = at;
        __atomic_fetch_sub(&gp_hosts_pending, 1, __ATOMIC_RELAXED);
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    free(found);
    gp_host_nodes_end(queue->server);
}

// After an error CUDA does not run host functions any more; callbacks get to know of it.
static void run(const struct call *call, int status) {
    if (call->callback != NULL) {
        call->callback(call->stream, status, call->data);
    } else if (call->function != NULL && status == GP_SUCCESS) {
        call->function(call->data);
    }
}

static void answer(struct queue *queue, const struct arrival *arrival) {
    struct call call;
    if (find(queue, arrival->id, &call)) run(&call, arrival->status);
    if (arrival->ticket != 0) {
        // What the function wrote where kernels read it goes first.
        if (__atomic_load_n(&gp_mapped_count, __ATOMIC_RELAXED)) gp_push_mapped();
        uint64_t values[1] = {arrival->ticket};
        memcpy(gp_open(GP_HOST_DONE, 0, sizeof values), values, sizeof values);
        gp_close();
        gp_flush();
    }
    if (!(arrival->id & GP_NODE_NUMBER)) take_out(queue, arrival->id);
}

static struct arrival *next_arrival(struct queue *queue) {
    pthread_mutex_lock(&lock);
    // Without pending functions nothing is announced, and nobody needs to read.
    while (queue->arrivals == NULL && queue->pending == NULL) pthread_cond_wait(&changed, &lock);
    struct arrival *found = queue->arrivals;
    if (found != NULL) {
        queue->arrivals = found->next;
        if (queue->arrivals == NULL) queue->arrivals_end = &queue->arrivals;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static void *serve(void *argument) {
    struct queue *queue = argument;
    serving = true;
    GP_ROUTE(gp_first_device(queue->server));
    for (;;) {
        struct arrival *arrival = next_arrival(queue);
        if (arrival != NULL) {
            answer(queue, arrival);
            free(arrival);
        } else if (!gp_is_lost()) {
            gp_await_host();
        } else {
            pthread_mutex_lock(&lock);
            struct call *call = queue->pending;
            pthread_mutex_unlock(&lock);
            if (call == NULL) continue;
            run(call, GP_DEVICE_UNAVAILABLE);
            take_out(queue, call->id);
        }
    }
    return NULL;
}

// --- waiting --------------------------------------------------------------------------------------

// How much of a stream's queue a record takes, or ALONE when it may wait for the GPU itself.
static uint64_t weight_of(int op, uint64_t size) {
    switch (op) {
        case GP_QUERY_STREAM: case GP_QUERY_EVENT: case GP_DRAIN: case GP_TENSOR_MAP:
        case GP_MEMORY_INFO: case GP_FUNCTION_ATTRIBUTES: case GP_OCCUPANCY: case GP_MAP_FREE:
        case GP_CALL_cuStreamDestroy_v2:  // a thread may be joined by a function that is pending
            return 0;
        case GP_SET_DEVICE: case GP_LAUNCH: case GP_LAUNCH_EX: case GP_FREE: case GP_FREE_ASYNC:
        case GP_RECORD_EVENT: case GP_WAIT_EVENT: case GP_BEGIN_CAPTURE: case GP_END_CAPTURE:
        case GP_CONTEXT_EVENT: case GP_STREAM_VALUES: case GP_COPY_3D: case GP_HOST_NODE: case GP_HOST_DONE:
        case GP_SYNC_STREAM: case GP_SYNC_EVENT: case GP_SYNC_DEVICE:
        case GP_BEGIN_CAPTURE_TO: case GP_CAPTURE_DEPENDENCIES: case GP_CAPTURE_COPY:
        case GP_GRAPH_CREATE: case GP_GRAPH_NODE: case GP_GRAPH_EDGES: case GP_GRAPH_READ:
        case GP_GRAPH_DESTROY: case GP_GRAPH_EXEC_DESTROY:  // which end behind their launches
            return 1;
        case GP_DOWNLOAD: case GP_COPY_OUT: case GP_ALLOCATE_ASYNC:
            return 2;
        case GP_HOST_CALL: return HOST_CALL_WEIGHT;
        case GP_GRAPH_LAUNCH: return 4;
        case GP_COPY_IN: return size == 0 ? 1 : 8 * (1 + size / STAGING_SIZE);
        default: return op >= GP_FIRST_CALL ? 4 : ALONE;
    }
}

static void wait_changed(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    pthread_cond_timedwait(&changed, &lock, &until);
}

void gp_host_gate(int op, uint64_t size) {
    // Those are sent with a lock held that the serving thread may need as well.
    bool locked = op == GP_MAP_WRITE || op == GP_MAP_HOST || op == GP_MANAGED_WRITE ||
                  op == GP_MANAGED_READ;
    if (serving || locked) return;
    uint64_t weight = weight_of(op, size);
    struct queue *queue = queue_here();
    bool flushed = false;
    pthread_mutex_lock(&lock);
    while (queue->pending != NULL && !gp_is_lost()) {
        // A record that is heavier than the whole queue goes alone.
        bool fits = weight != ALONE && queue->sent - queue->pending->mark + weight <= AHEAD_MAX;
        if (fits) break;
        if (!flushed) {
            pthread_mutex_unlock(&lock);
            gp_flush();
            pthread_mutex_lock(&lock);
            flushed = true;
            continue;
        }
        wait_changed();
    }
    if (weight != ALONE) queue->sent += weight;
    pthread_mutex_unlock(&lock);
}

static uint64_t later(uint64_t one, uint64_t other) { return one > other ? one : other; }

static bool waits_for_legacy(const struct gp_handle *stream) { return !(stream->flags & 1); }

// The last host function that what is added to a stream now comes behind.
static uint64_t after(const struct gp_handle *stream) {
    uint64_t own = __atomic_load_n(&stream->after, __ATOMIC_RELAXED);
    if (!waits_for_legacy(stream)) return own;
    return later(own, __atomic_load_n(&queue_of(stream)->blocking_after, __ATOMIC_RELAXED));
}

static void set_after(struct gp_handle *stream, uint64_t id) {
    __atomic_store_n(&stream->after, id, __ATOMIC_RELAXED);
    if (!waits_for_legacy(stream)) return;
    __atomic_store_n(&queue_of(stream)->blocking_after, id, __ATOMIC_RELAXED);
}

void gp_host_recorded(struct gp_handle *event, const struct gp_handle *stream) {
    __atomic_store_n(&event->after, after(stream), __ATOMIC_RELAXED);
}

void gp_host_waits(struct gp_handle *stream, const struct gp_handle *event) {
    uint64_t id = later(after(stream), __atomic_load_n(&event->after, __ATOMIC_RELAXED));
    set_after(stream, id);
}

void gp_host_settle(const struct gp_handle *stream) {
    uint64_t last = after(stream);
    const struct queue *queue = queue_of(stream);
    GP_ROUTE(stream->device);
    bool flushed = false;
    pthread_mutex_lock(&lock);
    while (!serving && queue->pending != NULL && queue->pending->id <= last && !gp_is_lost()) {
        if (flushed) {
            wait_changed();
            continue;
        }
        pthread_mutex_unlock(&lock);
        gp_flush();
        pthread_mutex_lock(&lock);
        flushed = true;
    }
    pthread_mutex_unlock(&lock);
}

// --- adding ---------------------------------------------------------------------------------------

static int start(struct queue *queue) {
    int failed = 0;
    pthread_mutex_lock(&lock);
    if (!queue->started) {
        queue->server = (int)(queue - queues);
        queue->pending_end = &queue->pending;
        if (queue->arrivals_end == NULL) queue->arrivals_end = &queue->arrivals;
        // By this signal it is noticed that a function touches managed memory.
        failed = gp_start_thread(serve, queue, SIGSEGV);
        queue->started = failed == 0;
    }
    pthread_mutex_unlock(&lock);
    return failed ? GP_OUT_OF_MEMORY : GP_SUCCESS;
}

static int add(struct call call, struct gp_handle *stream) {
    struct call *made = malloc(sizeof *made);
    if (made == NULL) return GP_OUT_OF_MEMORY;
    struct queue *queue = queue_of(stream);
    int status = start(queue);
    if (status != GP_SUCCESS) {
        free(made);
        return status;
    }
    if (__atomic_load_n(&gp_mapped_count, __ATOMIC_RELAXED)) gp_push_mapped();
    bool waits = call.function != NULL || call.callback != NULL;
    // Known here before the worker hears of it, and in the line's order.
    unsigned char *at = gp_open(GP_HOST_CALL, 0, 3 * 8);
    call.id = gp_new_id();
    pthread_mutex_lock(&lock);
    call.mark = queue->sent;
    *made = call;
    *queue->pending_end = made;
    queue->pending_end = &made->next;
    __atomic_fetch_add(&gp_hosts_pending, 1, __ATOMIC_RELAXED);
    set_after(stream, call.id);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    uint64_t values[3] = {stream->id, call.id, waits};
    memcpy(at, values, sizeof values);
    gp_close();
    return GP_SUCCESS;
}

int gp_host_start(void) { return start(queue_here()); }

int gp_host_launched(void *stream) {
    GP_ON(stream);
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    return gp_capture_of_handle(handle) ? GP_SUCCESS : add((struct call){0}, handle);
}

GP_EXPORT int cuLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
    GP_ENTER_ON(stream);
    GP_ON(stream);
    if (function == NULL) return GP_INVALID_VALUE;
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    if (!gp_capture_of_handle(handle)) {
        return add((struct call){.function = function, .data = data}, handle);
    }
    uint64_t values[2] = {handle->id, 0};
    struct gp_handle *graph = gp_captured_graph(stream);
    if (graph == NULL) return GP_ILLEGAL_STATE;
    GP_CHECK(gp_host_node(function, data, &values[1]));
    GP_CHECK(gp_capture_call(graph, values[1]));
    return gp_post(GP_HOST_NODE, values, 2);
}

GP_EXPORT int cuStreamAddCallback(void *stream, void (*callback)(void *, int, void *), void *data,
                                  unsigned flags) {
    GP_ENTER_ON(stream);
    GP_ON(stream);
    if (callback == NULL || flags != 0) return GP_INVALID_VALUE;
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    if (gp_capture_of_handle(handle)) return GP_CAPTURE_UNSUPPORTED;
    return add((struct call){.callback = callback, .data = data, .stream = stream}, handle);
}

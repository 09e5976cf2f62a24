// Host functions: a stream calls them on this machine, between two of its operations.
//
// The server's driver comes to a function's place in its stream, waits there, and the worker says
// so. One thread here runs the functions, in the order in which they are announced, and answers
// with HOST_DONE; then the stream goes on. HOST_DONE travels behind everything sent before. Where
// the worker stands still in that, another thread of it finds the answer, but not at once. So while
// functions are pending, callers wait a moment before they send more than a stream's queue holds, or
// a call that may wait for the GPU; and no longer, for the function may be waiting for them.
//
// A function that only tells (tellers.c) keeps no stream: what is behind it on the GPU may begin before
// it runs, but no call here says that anything behind it is over before it has.
#define _GNU_SOURCE
#include "runtime.h"
#include "managed.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>

// Entries of a stream's queue behind the oldest pending function. An H200's driver (580) blocks its
// caller at 1,021 launches, copies or events.
#define AHEAD_MAX 400
// Functions that run in one turn beside the first.
#define FOLLOW_MAX 200
// Announced functions that have not run. A worker announces one for each stream and waits.
#define ARRIVALS_MAX 65536
// Bytes that the worker may have to put aside to find an answer. It takes 512 MiB (reader.py), of which
// up to 256 are what the program has changed in mapped memory since the last record.
#define AHEAD_SIZE_MAX (192ull << 20)
// So long it is hoped that a function ends, one that runs and one whose turn has not come. Where the worker
// stands still it needs 5 ms more for each, so what is quicker is worth waiting for.
#define RUN_PATIENCE_NS 100000000ll
#define TURN_PATIENCE_NS 500000000ll

struct call {
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

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct queue queues[GP_SERVERS_MAX];

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static struct queue *queue_here(void) { return &queues[gp_here()]; }

static struct queue *queue_of(const struct gp_handle *handle) {
    return &queues[gp_server_of(handle->device)];
}

// --- running --------------------------------------------------------------------------------------

static bool note_arrival(int server, uint64_t id, int status, uint64_t ticket) {
    struct arrival *made = malloc(sizeof *made);
    if (made == NULL) return true;  // its stream stands still, as it would without memory anywhere
    *made = (struct arrival){id, ticket, status, NULL};
    pthread_mutex_lock(&lock);
    struct queue *queue = &queues[server];
    if (queue->arrival_count == ARRIVALS_MAX) {
        pthread_mutex_unlock(&lock);
        free(made);
        return false;
    }
    queue->arrival_count++;
    if (queue->arrivals_end == NULL) queue->arrivals_end = &queue->arrivals;
    *queue->arrivals_end = made;
    queue->arrivals_end = &made->next;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return true;
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

// That is pending, UINT64_MAX for none.
static uint64_t oldest_call(int server) {
    pthread_mutex_lock(&lock);
    const struct call *first = queues[server].pending;
    uint64_t id = first == NULL ? UINT64_MAX : first->id;
    pthread_mutex_unlock(&lock);
    return id;
}

// Host nodes that no launch can call any more.
static void end_nodes(int server) {
    if (gp_host_nodes_ending()) gp_host_nodes_end(server, oldest_call(server));
}

void gp_host_node_drop(uint64_t id) {
    int server = gp_host_node_release(id);
    if (server >= 0) end_nodes(server);
}

static void take_out(struct queue *queue, uint64_t id) {
    pthread_mutex_lock(&lock);
    struct call **at = &queue->pending;
    while (*at != NULL && (*at)->id != id) at = &(*at)->next;
    struct call *found = *at;
    if (found != NULL) {
        *at = found->next;
        if (queue->pending_end == &found->next) queue->pending_end = at;
        if (!found->tells) __atomic_fetch_sub(&gp_hosts_holding, 1, __ATOMIC_RELAXED);
        __atomic_fetch_sub(&gp_hosts_pending, 1, __ATOMIC_RELAXED);
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    free(found);
    end_nodes(queue->server);
}

// After an error CUDA does not run host functions any more; callbacks get to know of it.
static void run(const struct call *call, int status) {
    if (call->callback != NULL) {
        call->callback(call->stream, status, call->data);
    } else if (call->function != NULL && status == GP_SUCCESS) {
        call->function(call->data);
    }
}

static void note_run(struct queue *queue, int64_t since) {
    pthread_mutex_lock(&lock);
    queue->runs_since = since;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

// The one that follows a function; or none, and then none will.
static bool next_in_turn(struct queue *queue, uint64_t id, struct call *found) {
    pthread_mutex_lock(&lock);
    struct call *at = queue->pending;
    while (at != NULL && at->id != id) at = at->next;
    bool follows = at != NULL && at->next != NULL && at->next->follows > 0;
    if (follows) *found = *at->next;
    if (at != NULL && !follows) at->closed = true;
    pthread_mutex_unlock(&lock);
    return follows;
}

static void answer(struct queue *queue, const struct arrival *arrival) {
    struct call call, next;
    uint64_t last = arrival->id;
    if (find(queue, arrival->id, &call)) {
        note_run(queue, now_ns());
        run(&call, arrival->status);
        while (!(last & GP_NODE_NUMBER) && next_in_turn(queue, last, &next)) {
            take_out(queue, last);
            last = next.id;
            note_run(queue, now_ns());
            run(&next, arrival->status);
        }
        note_run(queue, 0);
    }
    if (arrival->ticket != 0) {
        // What the function wrote where kernels read it goes first.
        gp_post_host_done(arrival->ticket);
        gp_flush();
    }
    if (!(last & GP_NODE_NUMBER)) take_out(queue, last);
}

static struct arrival *next_arrival(struct queue *queue) {
    pthread_mutex_lock(&lock);
    // Without pending functions nothing is announced, and nobody needs to read.
    while (queue->arrivals == NULL && queue->pending == NULL) pthread_cond_wait(&changed, &lock);
    struct arrival *found = queue->arrivals;
    if (found != NULL) {
        queue->arrivals = found->next;
        queue->arrival_count--;
        if (queue->arrivals == NULL) queue->arrivals_end = &queue->arrivals;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static void *serve(void *argument) {
    struct queue *queue = argument;
    gp_enter_host_functions();
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

// Wait for a change, until a time or for a second.
static void wait_changed(int64_t until_ns) {
    int64_t most = now_ns() + 1000000000ll;
    if (until_ns > most) until_ns = most;
    struct timespec until = {until_ns / 1000000000ll, until_ns % 1000000000ll};
    pthread_cond_timedwait(&changed, &lock, &until);
}

static uint64_t later(uint64_t one, uint64_t other) { return one > other ? one : other; }

// The oldest function that keeps its stream, or a graph that may call some; NULL for none.
static const struct call *first_holding(const struct queue *queue) {
    const struct call *at = queue->pending;
    while (at != NULL && at->tells) at = at->next;
    return at;
}

static bool has_room(const struct queue *queue, const struct call *first, uint64_t size) {
    uint64_t from = later(first->size_mark, queue->executed_size);
    return queue->sent_size - from + size <= AHEAD_SIZE_MAX;
}

// Learn that what was sent was executed; `lock` is held, though not meanwhile. Where the worker stands
// still this waits for the functions, behind which that is.
static void await_executed(struct queue *queue) {
    uint64_t sent = queue->sent_size;
    pthread_mutex_unlock(&lock);
    bool executed = gp_call_settle() == GP_SUCCESS;
    pthread_mutex_lock(&lock);
    if (executed) queue->executed_size = later(queue->executed_size, sent);
}

// Whether a record may go now; `lock` is held. The worker cannot take over managed memory that a function
// has written while it stands still, so where there is any, what waits for functions has to wait here.
static bool may_go(const struct queue *queue, uint64_t weight, uint64_t size) {
    const struct call *first = first_holding(queue);
    if (first == NULL || gp_is_lost()) return true;
    if (!has_room(queue, first, size)) return false;
    if (weight != GP_ALONE && queue->sent - first->mark + weight <= AHEAD_MAX) return true;
    return first->id == queue->slow && !gp_keeps_managed();
}

static int64_t hoped_until(const struct queue *queue, int64_t seen) {
    return queue->runs_since ? queue->runs_since + RUN_PATIENCE_NS : seen + TURN_PATIENCE_NS;
}

static void wait_at_gate(int op, uint64_t size, uint64_t bulk) {
    // Those are sent with a lock held that the serving thread may need as well.
    bool locked = op == GP_MAP_WRITE || op == GP_MANAGED_WRITE || op == GP_MANAGED_READ;
    uint64_t weight = gp_weight_of(op, bulk), head = 0;
    struct queue *queue = queue_here();
    int64_t seen = 0;
    bool waits = !gp_in_host_function() && !locked && op != GP_SETTLE, flushed = false;
    pthread_mutex_lock(&lock);
    while (waits && !may_go(queue, weight, size + bulk)) {
        const struct call *first = first_holding(queue);
        if (!flushed) {
            pthread_mutex_unlock(&lock);
            gp_flush();
            pthread_mutex_lock(&lock);
            flushed = true;
        } else if (!has_room(queue, first, size + bulk) && queue->executed_size < queue->sent_size) {
            await_executed(queue);
        } else if (first->id != head) {
            head = first->id;
            seen = now_ns();
        } else if (queue->slow == head) {
            wait_changed(INT64_MAX);
        } else if (now_ns() < hoped_until(queue, seen)) {
            wait_changed(hoped_until(queue, seen));
        } else {
            queue->slow = head;
        }
    }
    if (weight != GP_ALONE) queue->sent += weight;
    queue->sent_size += size + bulk;
    pthread_mutex_unlock(&lock);
}

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

// Whether a function up to `last` is pending, of those that tell or of the others; `lock` is held.
static bool is_pending(const struct queue *queue, uint64_t last, bool tells) {
    const struct call *at = queue->pending;
    while (at != NULL && at->id <= last && at->tells != tells) at = at->next;
    return at != NULL && at->id <= last;
}

static bool told(const struct queue *queue, uint64_t last, bool waits) {
    bool over, flushed = false;
    if (__atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED) == 0) return true;
    pthread_mutex_lock(&lock);
    for (;;) {
        over = gp_in_host_function() || gp_is_lost() || !is_pending(queue, last, true);
        if (over || !waits) break;
        if (flushed) {
            wait_changed(INT64_MAX);
            continue;
        }
        pthread_mutex_unlock(&lock);
        gp_flush();
        pthread_mutex_lock(&lock);
        flushed = true;
    }
    pthread_mutex_unlock(&lock);
    return over;
}

bool gp_host_told(const struct gp_handle *stream, bool waits) {
    if (__atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED) == 0) return true;
    return told(queue_of(stream), after(stream), waits);
}

bool gp_host_told_before(const struct gp_handle *event, bool waits) {
    if (__atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED) == 0) return true;
    return told(queue_of(event), __atomic_load_n(&event->after, __ATOMIC_RELAXED), waits);
}

uint64_t gp_host_last(void) {
    if (__atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED) == 0) return 0;
    uint64_t last = 0;
    pthread_mutex_lock(&lock);
    for (const struct call *at = queue_here()->pending; at != NULL; at = at->next) last = at->id;
    pthread_mutex_unlock(&lock);
    return last;
}

void gp_host_told_all(uint64_t last) { told(queue_here(), last, true); }

bool gp_host_settle(const struct gp_handle *stream, int64_t patience_ns) {
    uint64_t last = after(stream);
    const struct queue *queue = queue_of(stream);
    GP_ROUTE(stream->device);
    int64_t until = patience_ns ? now_ns() + patience_ns : INT64_MAX;
    bool over, flushed = false;
    pthread_mutex_lock(&lock);
    for (;;) {
        over = gp_in_host_function() || gp_is_lost() || !is_pending(queue, last, false);
        if (over || now_ns() >= until) break;
        if (flushed) {
            wait_changed(until);
            continue;
        }
        pthread_mutex_unlock(&lock);
        gp_flush();
        pthread_mutex_lock(&lock);
        flushed = true;
    }
    pthread_mutex_unlock(&lock);
    return over;
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

// Let a function follow the last one, where nothing lies between the two: then one turn is enough for both,
// and the worker need not hear of it.
static bool follow(struct queue *queue, struct call *made, struct gp_handle *stream) {
    uint64_t position = gp_position();
    pthread_mutex_lock(&lock);
    struct call *last = queue->pending;
    while (last != NULL && last->next != NULL) last = last->next;
    bool follows = last != NULL && last->in == stream && last->stream_id == stream->id && !last->closed &&
                   last->position == position && last->follows < FOLLOW_MAX && made->in != NULL;
    if (follows) {
        made->id = gp_new_id();
        made->follows = last->follows + 1;
        made->position = position;
        made->mark = last->mark;
        made->size_mark = last->size_mark;
        *queue->pending_end = made;
        queue->pending_end = &made->next;
        __atomic_fetch_add(&gp_hosts_pending, 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&gp_hosts_holding, 1, __ATOMIC_RELAXED);
        set_after(stream, made->id);
    }
    pthread_mutex_unlock(&lock);
    return follows;
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
    bool waits = (call.function != NULL || call.callback != NULL) && !call.tells;
    if (waits) call.in = stream;
    call.stream_id = stream->id;
    *made = call;
    if (follow(queue, made, stream)) return GP_SUCCESS;
    if (__atomic_load_n(&gp_mapped_count, __ATOMIC_RELAXED)) gp_push_mapped();
    // Known here before the worker hears of it, and in the line's order.
    unsigned char *at = gp_open_host_call();
    call.position = gp_opened_position();
    call.id = gp_new_id();
    pthread_mutex_lock(&lock);
    call.mark = queue->sent;
    call.size_mark = queue->sent_size;
    *made = call;
    *queue->pending_end = made;
    queue->pending_end = &made->next;
    __atomic_fetch_add(&gp_hosts_pending, 1, __ATOMIC_RELAXED);
    if (!call.tells) __atomic_fetch_add(&gp_hosts_holding, 1, __ATOMIC_RELAXED);
    set_after(stream, call.id);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    gp_fill_host_call(at, stream->id, call.id, waits);
    gp_close();
    if (call.tells && gp_tell_is_urgent(stream, call.position)) gp_flush();
    return GP_SUCCESS;
}

int gp_host_node(void (*function)(void *), void *data, uint64_t *id) {
    GP_CHECK(start(queue_here()));
    return gp_host_node_new(function, data, id);
}

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
        bool tells = gp_only_tells(function);
        return add((struct call){.function = function, .data = data, .tells = tells}, handle);
    }
    uint64_t call;
    struct gp_handle *graph = gp_captured_graph(stream);
    if (graph == NULL) return GP_ILLEGAL_STATE;
    GP_CHECK(gp_host_node(function, data, &call));
    GP_CHECK(gp_hooks.capture_call(graph, call));
    return gp_post_host_node(handle->id, call);
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

GP_AT_LOAD register_hooks(void) {
    gp_hooks.host_arrived = note_arrival;
    gp_hooks.host_gate = wait_at_gate;
}

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
#include "host.h"
#include "managed.h"

#include <signal.h>
#include <stdlib.h>

// Functions that run in one turn beside the first.
#define FOLLOW_MAX 200
// Announced functions that have not run. A worker announces one for each stream and waits.
#define ARRIVALS_MAX 65536

// --- running --------------------------------------------------------------------------------------

static bool note_arrival(int server, uint64_t id, int status, uint64_t ticket) {
    struct gp_host_arrival *made = malloc(sizeof *made);
    if (made == NULL) return true;  // its stream stands still, as it would without memory anywhere
    *made = (struct gp_host_arrival){id, ticket, status, NULL};
    pthread_mutex_lock(&gp_host_lock);
    struct gp_host_queue *queue = &gp_host_queues[server];
    if (queue->arrival_count == ARRIVALS_MAX) {
        pthread_mutex_unlock(&gp_host_lock);
        free(made);
        return false;
    }
    queue->arrival_count++;
    if (queue->arrivals_end == NULL) queue->arrivals_end = &queue->arrivals;
    *queue->arrivals_end = made;
    queue->arrivals_end = &made->next;
    pthread_cond_broadcast(&gp_host_changed);
    pthread_mutex_unlock(&gp_host_lock);
    return true;
}

static bool find(const struct gp_host_queue *queue, uint64_t id, struct gp_host_call *found) {
    if (id & GP_NODE_NUMBER) {
        *found = (struct gp_host_call){.id = id};
        return gp_host_node_at(id, &found->function, &found->data);
    }
    pthread_mutex_lock(&gp_host_lock);
    struct gp_host_call *at = queue->pending;
    while (at != NULL && at->id != id) at = at->next;
    if (at != NULL) *found = *at;
    pthread_mutex_unlock(&gp_host_lock);
    return at != NULL;
}

// That is pending, UINT64_MAX for none.
static uint64_t oldest_call(int server) {
    pthread_mutex_lock(&gp_host_lock);
    const struct gp_host_call *first = gp_host_queues[server].pending;
    uint64_t id = first == NULL ? UINT64_MAX : first->id;
    pthread_mutex_unlock(&gp_host_lock);
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

static void take_out(struct gp_host_queue *queue, uint64_t id) {
    pthread_mutex_lock(&gp_host_lock);
    struct gp_host_call **at = &queue->pending;
    while (*at != NULL && (*at)->id != id) at = &(*at)->next;
    struct gp_host_call *found = *at;
    if (found != NULL) {
        *at = found->next;
        if (queue->pending_end == &found->next) queue->pending_end = at;
        if (!found->tells) __atomic_fetch_sub(&gp_hosts_holding, 1, __ATOMIC_RELAXED);
        __atomic_fetch_sub(&gp_hosts_pending, 1, __ATOMIC_RELAXED);
    }
    pthread_cond_broadcast(&gp_host_changed);
    pthread_mutex_unlock(&gp_host_lock);
    free(found);
    end_nodes(queue->server);
}

// After an error CUDA does not run host functions any more; callbacks get to know of it.
static void run(const struct gp_host_call *call, int status) {
    if (call->callback != NULL) {
        call->callback(call->stream, status, call->data);
    } else if (call->function != NULL && status == GP_SUCCESS) {
        call->function(call->data);
    }
}

static void note_run(struct gp_host_queue *queue, int64_t since) {
    pthread_mutex_lock(&gp_host_lock);
    queue->runs_since = since;
    pthread_cond_broadcast(&gp_host_changed);
    pthread_mutex_unlock(&gp_host_lock);
}

// The one that follows a function; or none, and then none will.
static bool next_in_turn(struct gp_host_queue *queue, uint64_t id, struct gp_host_call *found) {
    pthread_mutex_lock(&gp_host_lock);
    struct gp_host_call *at = queue->pending;
    while (at != NULL && at->id != id) at = at->next;
    bool follows = at != NULL && at->next != NULL && at->next->follows > 0;
    if (follows) *found = *at->next;
    if (at != NULL && !follows) at->closed = true;
    pthread_mutex_unlock(&gp_host_lock);
    return follows;
}

static void answer(struct gp_host_queue *queue, const struct gp_host_arrival *arrival) {
    struct gp_host_call call, next;
    uint64_t last = arrival->id;
    if (find(queue, arrival->id, &call)) {
        note_run(queue, gp_host_now_ns());
        run(&call, arrival->status);
        while (!(last & GP_NODE_NUMBER) && next_in_turn(queue, last, &next)) {
            take_out(queue, last);
            last = next.id;
            note_run(queue, gp_host_now_ns());
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

static struct gp_host_arrival *next_arrival(struct gp_host_queue *queue) {
    pthread_mutex_lock(&gp_host_lock);
    // Without pending functions nothing is announced, and nobody needs to read.
    while (queue->arrivals == NULL && queue->pending == NULL) {
        pthread_cond_wait(&gp_host_changed, &gp_host_lock);
    }
    struct gp_host_arrival *found = queue->arrivals;
    if (found != NULL) {
        queue->arrivals = found->next;
        queue->arrival_count--;
        if (queue->arrivals == NULL) queue->arrivals_end = &queue->arrivals;
    }
    pthread_mutex_unlock(&gp_host_lock);
    return found;
}

static void *serve(void *argument) {
    struct gp_host_queue *queue = argument;
    gp_enter_host_functions();
    GP_ROUTE(gp_first_device(queue->server));
    for (;;) {
        struct gp_host_arrival *arrival = next_arrival(queue);
        if (arrival != NULL) {
            answer(queue, arrival);
            free(arrival);
        } else if (!gp_is_lost()) {
            gp_await_host();
        } else {
            pthread_mutex_lock(&gp_host_lock);
            struct gp_host_call *call = queue->pending;
            pthread_mutex_unlock(&gp_host_lock);
            if (call == NULL) continue;
            run(call, GP_DEVICE_UNAVAILABLE);
            take_out(queue, call->id);
        }
    }
    return NULL;
}

// --- adding ---------------------------------------------------------------------------------------

static int start(struct gp_host_queue *queue) {
    int failed = 0;
    pthread_mutex_lock(&gp_host_lock);
    if (!queue->started) {
        queue->server = (int)(queue - gp_host_queues);
        queue->pending_end = &queue->pending;
        if (queue->arrivals_end == NULL) queue->arrivals_end = &queue->arrivals;
        // By this signal it is noticed that a function touches managed memory.
        failed = gp_start_thread(serve, queue, SIGSEGV);
        queue->started = failed == 0;
    }
    pthread_mutex_unlock(&gp_host_lock);
    return failed ? GP_OUT_OF_MEMORY : GP_SUCCESS;
}

// Let a function follow the last one, where nothing lies between the two: then one turn is enough for both,
// and the worker need not hear of it.
static bool follow(struct gp_host_queue *queue, struct gp_host_call *made, struct gp_handle *stream) {
    uint64_t position = gp_position();
    pthread_mutex_lock(&gp_host_lock);
    struct gp_host_call *last = queue->pending;
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
        gp_host_set_after(stream, made->id);
    }
    pthread_mutex_unlock(&gp_host_lock);
    return follows;
}

static int add(struct gp_host_call call, struct gp_handle *stream) {
    struct gp_host_call *made = malloc(sizeof *made);
    if (made == NULL) return GP_OUT_OF_MEMORY;
    struct gp_host_queue *queue = gp_host_queue_of(stream);
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
    pthread_mutex_lock(&gp_host_lock);
    call.mark = queue->sent;
    call.size_mark = queue->sent_size;
    *made = call;
    *queue->pending_end = made;
    queue->pending_end = &made->next;
    __atomic_fetch_add(&gp_hosts_pending, 1, __ATOMIC_RELAXED);
    if (!call.tells) __atomic_fetch_add(&gp_hosts_holding, 1, __ATOMIC_RELAXED);
    gp_host_set_after(stream, call.id);
    pthread_cond_broadcast(&gp_host_changed);
    pthread_mutex_unlock(&gp_host_lock);
    gp_fill_host_call(at, stream->id, call.id, waits);
    gp_close();
    if (call.tells && gp_tell_is_urgent(stream, call.position)) gp_flush();
    return GP_SUCCESS;
}

int gp_host_node(void (*function)(void *), void *data, uint64_t *id) {
    GP_CHECK(start(gp_host_queue_here()));
    return gp_host_node_new(function, data, id);
}

int gp_host_launched(void *stream) {
    GP_ON(stream);
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    return gp_capture_of_handle(handle) ? GP_SUCCESS : add((struct gp_host_call){0}, handle);
}

GP_EXPORT int cuLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
    GP_ENTER_ON(stream);
    GP_ON(stream);
    if (function == NULL) return GP_INVALID_VALUE;
    struct gp_handle *handle = gp_stream_handle(stream);
    if (handle == NULL) return GP_INVALID_HANDLE;
    if (!gp_capture_of_handle(handle)) {
        bool tells = gp_only_tells(function);
        return add((struct gp_host_call){.function = function, .data = data, .tells = tells}, handle);
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
    return add((struct gp_host_call){.callback = callback, .data = data, .stream = stream}, handle);
}

GP_AT_LOAD register_hooks(void) {
    gp_hooks.host_arrived = note_arrival;
}

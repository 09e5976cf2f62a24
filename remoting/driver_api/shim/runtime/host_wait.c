// Waits for host functions: before more is sent than a stream's queue holds, and until some have run.
// host.c says how they work.
#define _GNU_SOURCE
#include "host.h"

// Entries of a stream's queue behind the oldest pending function. An H200's driver (580) blocks its
// caller at 1,021 launches, copies or events.
#define AHEAD_MAX 400
// Bytes that the worker may have to put aside to find an answer. It takes 512 MiB (reader.py), of which
// up to 256 are what the program has changed in mapped memory since the last record.
#define AHEAD_SIZE_MAX (192ull << 20)
// So long it is hoped that a function ends, one that runs and one whose turn has not come. Where the worker
// stands still it needs 5 ms more for each, so what is quicker is worth waiting for.
#define RUN_PATIENCE_NS 100000000ll
#define TURN_PATIENCE_NS 500000000ll

pthread_mutex_t gp_host_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t gp_host_changed = PTHREAD_COND_INITIALIZER;
struct gp_host_queue gp_host_queues[GP_SERVERS_MAX];

// Wait for a change, until a time or for a second.
static void wait_changed(int64_t until_ns) {
    int64_t most = gp_host_now_ns() + 1000000000ll;
    if (until_ns > most) until_ns = most;
    struct timespec until = {until_ns / 1000000000ll, until_ns % 1000000000ll};
    pthread_cond_timedwait(&gp_host_changed, &gp_host_lock, &until);
}

static uint64_t later(uint64_t one, uint64_t other) { return one > other ? one : other; }

// The oldest function that keeps its stream, or a graph that may call some; NULL for none.
static const struct gp_host_call *first_holding(const struct gp_host_queue *queue) {
    const struct gp_host_call *at = queue->pending;
    while (at != NULL && at->tells) at = at->next;
    return at;
}

static bool has_room(const struct gp_host_queue *queue, const struct gp_host_call *first, uint64_t size) {
    uint64_t from = later(first->size_mark, queue->executed_size);
    return queue->sent_size - from + size <= AHEAD_SIZE_MAX;
}

// Learn that what was sent was executed; gp_host_lock is held, though not meanwhile. Where the worker stands
// still this waits for the functions, behind which that is.
static void await_executed(struct gp_host_queue *queue) {
    uint64_t sent = queue->sent_size;
    pthread_mutex_unlock(&gp_host_lock);
    bool executed = gp_call_settle() == GP_SUCCESS;
    pthread_mutex_lock(&gp_host_lock);
    if (executed) queue->executed_size = later(queue->executed_size, sent);
}

// Whether a record may go now; gp_host_lock is held. The worker cannot take over managed memory that a
// function has written while it stands still, so where there is any, what waits for functions has to wait
// here.
static bool may_go(const struct gp_host_queue *queue, uint64_t weight, uint64_t size) {
    const struct gp_host_call *first = first_holding(queue);
    if (first == NULL || gp_is_lost()) return true;
    if (!has_room(queue, first, size)) return false;
    if (weight != GP_ALONE && queue->sent - first->mark + weight <= AHEAD_MAX) return true;
    return first->id == queue->slow && !gp_keeps_managed();
}

static int64_t hoped_until(const struct gp_host_queue *queue, int64_t seen) {
    return queue->runs_since ? queue->runs_since + RUN_PATIENCE_NS : seen + TURN_PATIENCE_NS;
}

static void wait_at_gate(int op, uint64_t size, uint64_t bulk) {
    // Those are sent with a lock held that the serving thread may need as well.
    bool locked = op == GP_MAP_WRITE || op == GP_MANAGED_WRITE || op == GP_MANAGED_READ;
    uint64_t weight = gp_weight_of(op, bulk), head = 0;
    struct gp_host_queue *queue = gp_host_queue_here();
    int64_t seen = 0;
    bool waits = !gp_in_host_function() && !locked && op != GP_SETTLE, flushed = false;
    pthread_mutex_lock(&gp_host_lock);
    while (waits && !may_go(queue, weight, size + bulk)) {
        const struct gp_host_call *first = first_holding(queue);
        if (!flushed) {
            pthread_mutex_unlock(&gp_host_lock);
            gp_flush();
            pthread_mutex_lock(&gp_host_lock);
            flushed = true;
        } else if (!has_room(queue, first, size + bulk) && queue->executed_size < queue->sent_size) {
            await_executed(queue);
        } else if (first->id != head) {
            head = first->id;
            seen = gp_host_now_ns();
        } else if (queue->slow == head) {
            wait_changed(INT64_MAX);
        } else if (gp_host_now_ns() < hoped_until(queue, seen)) {
            wait_changed(hoped_until(queue, seen));
        } else {
            queue->slow = head;
        }
    }
    if (weight != GP_ALONE) queue->sent += weight;
    queue->sent_size += size + bulk;
    pthread_mutex_unlock(&gp_host_lock);
}

static bool waits_for_legacy(const struct gp_handle *stream) { return !(stream->flags & 1); }

// The last host function that what is added to a stream now comes behind.
static uint64_t after(const struct gp_handle *stream) {
    uint64_t own = __atomic_load_n(&stream->after, __ATOMIC_RELAXED);
    if (!waits_for_legacy(stream)) return own;
    return later(own, __atomic_load_n(&gp_host_queue_of(stream)->blocking_after, __ATOMIC_RELAXED));
}

void gp_host_set_after(struct gp_handle *stream, uint64_t id) {
    __atomic_store_n(&stream->after, id, __ATOMIC_RELAXED);
    if (!waits_for_legacy(stream)) return;
    __atomic_store_n(&gp_host_queue_of(stream)->blocking_after, id, __ATOMIC_RELAXED);
}

void gp_host_recorded(struct gp_handle *event, const struct gp_handle *stream) {
    __atomic_store_n(&event->after, after(stream), __ATOMIC_RELAXED);
}

void gp_host_waits(struct gp_handle *stream, const struct gp_handle *event) {
    uint64_t id = later(after(stream), __atomic_load_n(&event->after, __ATOMIC_RELAXED));
    gp_host_set_after(stream, id);
}

// Whether a function up to `last` is pending, of those that tell or of the others; gp_host_lock is held.
static bool is_pending(const struct gp_host_queue *queue, uint64_t last, bool tells) {
    const struct gp_host_call *at = queue->pending;
    while (at != NULL && at->id <= last && at->tells != tells) at = at->next;
    return at != NULL && at->id <= last;
}

static bool told(const struct gp_host_queue *queue, uint64_t last, bool waits) {
    bool over, flushed = false;
    if (__atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED) == 0) return true;
    pthread_mutex_lock(&gp_host_lock);
    for (;;) {
        over = gp_in_host_function() || gp_is_lost() || !is_pending(queue, last, true);
        if (over || !waits) break;
        if (flushed) {
            wait_changed(INT64_MAX);
            continue;
        }
        pthread_mutex_unlock(&gp_host_lock);
        gp_flush();
        pthread_mutex_lock(&gp_host_lock);
        flushed = true;
    }
    pthread_mutex_unlock(&gp_host_lock);
    return over;
}

bool gp_host_told(const struct gp_handle *stream, bool waits) {
    if (__atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED) == 0) return true;
    return told(gp_host_queue_of(stream), after(stream), waits);
}

bool gp_host_told_before(const struct gp_handle *event, bool waits) {
    if (__atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED) == 0) return true;
    return told(gp_host_queue_of(event), __atomic_load_n(&event->after, __ATOMIC_RELAXED), waits);
}

uint64_t gp_host_last(void) {
    if (__atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED) == 0) return 0;
    uint64_t last = 0;
    pthread_mutex_lock(&gp_host_lock);
    const struct gp_host_call *at = gp_host_queue_here()->pending;
    for (; at != NULL; at = at->next) last = at->id;
    pthread_mutex_unlock(&gp_host_lock);
    return last;
}

void gp_host_told_all(uint64_t last) { told(gp_host_queue_here(), last, true); }

bool gp_host_settle(const struct gp_handle *stream, int64_t patience_ns) {
    uint64_t last = after(stream);
    const struct gp_host_queue *queue = gp_host_queue_of(stream);
    GP_ROUTE(stream->device);
    int64_t until = patience_ns ? gp_host_now_ns() + patience_ns : INT64_MAX;
    bool over, flushed = false;
    pthread_mutex_lock(&gp_host_lock);
    for (;;) {
        over = gp_in_host_function() || gp_is_lost() || !is_pending(queue, last, false);
        if (over || gp_host_now_ns() >= until) break;
        if (flushed) {
            wait_changed(until);
            continue;
        }
        pthread_mutex_unlock(&gp_host_lock);
        gp_flush();
        pthread_mutex_lock(&gp_host_lock);
        flushed = true;
    }
    pthread_mutex_unlock(&gp_host_lock);
    return over;
}

GP_AT_LOAD register_hooks(void) { gp_hooks.host_gate = wait_at_gate; }

// Waits that are over soon. The worker says the rest: what else it has to send, and that it is over.
#define _GNU_SOURCE  // C11 alone has no clock_gettime
#include <poll.h>
#include <string.h>
#include <time.h>

#include "generated_records.h"
#include "launcher.h"

#define NOT_READY 600
#define INVALID_HANDLE 400
#define STREAMS_MAX 64  // that are asked one by one whether they are idle: PyTorch and cuDNN have some dozens

// So long a wait is made here whatever else there is to do, and so long while the client sends nothing:
// then there is nothing else. Whoever waits longer is given a thread.
#define PATIENCE_NS 40000
#define LONG_PATIENCE_NS 1000000

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static bool client_sends(const struct launcher *launcher) {
    struct pollfd entry = {.fd = launcher->connection, .events = POLLIN};
    return launcher->connection < 0 || poll(&entry, 1, 0) != 0;
}

// Whether all of these come to an end soon. Not where one has failed either, as the caller will find.
static bool over_soon(const struct launcher *launcher, int (*query)(void *), void *const *handles,
                      size_t count, bool alone) {
    int64_t since = now_ns();
    for (size_t at = 0; at < count;) {
        int status = query(handles[at]);
        if (status == 0) {
            at++;
            continue;
        }
        int64_t waited = now_ns() - since;
        if (status != NOT_READY || waited > LONG_PATIENCE_NS) return false;
        if (waited > PATIENCE_NS && (!alone || client_sends(launcher))) return false;
    }
    return true;
}

EXPORT int gpupool_launcher_idle(const struct launcher *launcher, const uint64_t *streams, size_t count) {
    void *handles[STREAMS_MAX];
    if (launcher->driver.query == NULL || count > STREAMS_MAX) return 0;
    for (size_t at = 0; at < count; at++) handles[at] = (void *)(uintptr_t)streams[at];
    return over_soon(launcher, launcher->driver.query, handles, count, false);
}

// What is asked of all streams; none where there are too many.
static size_t all_streams(const struct launcher *launcher, void **handles) {
    const struct table *table = &launcher->streams;
    size_t count = 0;
    if (table->used > STREAMS_MAX) return 0;
    for (size_t at = 0; at < table->room; at++) {
        if (table->entries[at].id != 0) handles[count++] = (void *)(uintptr_t)table->entries[at].handle;
    }
    return count;
}

static void note_elapsed(const struct launcher *launcher, uint64_t from, void *end, struct outcome *outcome) {
    void *start;
    float elapsed = 0;
    int status = INVALID_HANDLE;
    if (get(&launcher->events, from, &start)) status = launcher->driver.elapsed(&elapsed, start, end);
    outcome->body[0] = (uint64_t)status;
    if (status == 0) memcpy(&outcome->body[1], &elapsed, sizeof elapsed);
    outcome->body_size = sizeof outcome->body;
}

// What a query finds is no synchronization: memory that was freed in a stream would still count as in use
// (CUDA driver API, cuMemPoolTrimTo). So each of these synchronizes too.
static bool wait_for(const struct launcher *launcher, uint16_t op, const uint64_t *words, bool alone,
                     struct outcome *outcome) {
    const struct driver *driver = &launcher->driver;
    void *handle, *all[STREAMS_MAX];
    switch (op) {
        case GP_SYNC_STREAM:
            if (driver->query == NULL || driver->synchronize_stream == NULL) return false;
            if (!get(&launcher->streams, words[1], &handle)) return false;
            outcome->ended = GAVE_UP;
            if (!over_soon(launcher, driver->query, &handle, 1, alone)) return false;
            outcome->status = driver->synchronize_stream(handle);
            return true;
        case GP_SYNC_DEVICE: {
            if (driver->query == NULL || driver->synchronize == NULL) return false;
            if (is_kept(launcher)) return false;  // it answers once what was freed is free
            size_t count = all_streams(launcher, all);
            if (count == 0 || !launcher->plain || words[1] != launcher->device) return false;
            outcome->ended = GAVE_UP;
            if (!over_soon(launcher, driver->query, all, count, alone)) return false;
            outcome->status = driver->synchronize();
            return true;
        }
        case GP_SYNC_EVENT:
        case GP_END_EVENT:
            if (driver->query_event == NULL || driver->synchronize_event == NULL) return false;
            if (driver->elapsed == NULL || !get(&launcher->events, words[1], &handle)) return false;
            outcome->ended = GAVE_UP;
            if (!over_soon(launcher, driver->query_event, &handle, 1, alone)) return false;
            outcome->status = driver->synchronize_event(handle);
            if (op == GP_END_EVENT && outcome->status == 0) note_elapsed(launcher, words[2], handle, outcome);
            return true;
        default: return false;
    }
}

bool wait_soon(const struct launcher *launcher, const unsigned char *at, struct head head, bool alone,
               struct outcome *outcome) {
    const struct shared *shared = launcher->shared;
    size_t least = head.op == GP_END_EVENT ? 24 : 16, size = head.size - sizeof head;
    uint64_t words[3] = {0};  // the request, and what is waited for
    if (shared == NULL || size < least) return false;
    // A query would end a capture, and a failure is told first.
    if (__atomic_load_n(&shared->failed, __ATOMIC_ACQUIRE) || shared->capturing) return false;
    memcpy(words, at, least);
    int64_t since = now_ns();
    if (!wait_for(launcher, head.op, words, alone, outcome)) return false;
    outcome->ended = OVER;
    outcome->request = words[0];
    outcome->waited_ns = (uint64_t)(now_ns() - since);
    return true;
}

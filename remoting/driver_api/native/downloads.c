// Small downloads: copied to pinned memory here, until the worker takes and sends those that are over.
//
// Larger ones have buffers of their own (executor/sync_waiter.py). While one of those is on its way no new
// one is taken here, so these all came before those: of two to one place the last must arrive last.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "generated_records.h"
#include "launcher.h"

#define NOT_READY 600
#define DATA 2  // of answers, as serve.py has it
#define SLOT_SIZE 4096
#define SLOTS_MAX 64

// As ANSWER of serve.py.
struct answer {
    uint32_t kind;
    int32_t status;
    uint64_t request;
    uint32_t body;
    int32_t failed;
    uint64_t bulk;
};
_Static_assert(sizeof(struct answer) == 32, "as it travels");

struct download {
    uint64_t number;
    uint32_t size, slot;
};

struct downloads {
    pthread_mutex_t lock;
    uint64_t device;
    unsigned char *bytes;
    void *events[SLOTS_MAX];
    uint32_t free[SLOTS_MAX], free_count;
    struct download pending[SLOTS_MAX];  // in their order
    uint32_t count;
};

EXPORT int gpupool_downloads_begin(struct launcher *launcher, uint64_t device, unsigned char *bytes,
                                   const uint64_t *events) {
    struct downloads *made = calloc(1, sizeof *made);
    if (made == NULL) return 0;
    pthread_mutex_init(&made->lock, NULL);
    made->device = device;
    made->bytes = bytes;
    for (uint32_t at = 0; at < SLOTS_MAX; at++) {
        made->events[at] = (void *)(uintptr_t)events[at];
        made->free[at] = at;
    }
    made->free_count = SLOTS_MAX;
    launcher->downloads = made;
    return 1;
}

static bool add(const struct launcher *launcher, struct downloads *downloads, const uint64_t *words,
                void *stream, int *status) {
    bool room = downloads->free_count > 0;
    if (!room) return false;
    uint32_t slot = downloads->free[downloads->free_count - 1];
    const struct driver *driver = &launcher->driver;
    *status = driver->copy_out(downloads->bytes + (size_t)slot * SLOT_SIZE, words[0], words[1], stream);
    if (*status == 0) *status = driver->record(downloads->events[slot], stream);
    if (*status != 0) return true;
    downloads->free_count--;
    downloads->pending[downloads->count++] = (struct download){words[3], (uint32_t)words[1], slot};
    __atomic_fetch_add(&launcher->shared->small, 1, __ATOMIC_RELEASE);
    return true;
}

// All that a download takes until it is sent.
static bool has_calls(const struct driver *driver) {
    return driver->copy_out != NULL && driver->record != NULL && driver->query_event != NULL &&
           driver->synchronize_event != NULL;
}

bool issue_download(const struct launcher *launcher, const unsigned char *at, struct head head, int *status) {
    struct downloads *downloads = launcher->downloads;
    struct shared *shared = launcher->shared;
    uint64_t words[4];  // source, size, stream, number
    void *stream;
    if (downloads == NULL || shared == NULL || !launcher->plain || launcher->device != downloads->device) {
        return false;
    }
    if (head.size - sizeof head < sizeof words || !has_calls(&launcher->driver)) return false;
    memcpy(words, at, sizeof words);
    if (words[1] == 0 || words[1] > SLOT_SIZE || shared->capturing) return false;
    if (__atomic_load_n(&shared->large, __ATOMIC_ACQUIRE) != 0) return false;
    if (!get(&launcher->streams, words[2], &stream)) return false;
    pthread_mutex_lock(&downloads->lock);
    bool added = add(launcher, downloads, words, stream, status);
    pthread_mutex_unlock(&downloads->lock);
    return added;
}

// Take those that are over, as answers one behind the other; returns the bytes, and in count how many
// there were. An error of the driver's, in status, comes before anything is taken.
EXPORT size_t gpupool_downloads_take(const struct launcher *launcher, unsigned char *into, uint32_t *count,
                                     int *status) {
    struct downloads *downloads = launcher->downloads;
    bool over[SLOTS_MAX];
    size_t used = 0;
    uint32_t left = 0;
    *count = 0;
    *status = 0;
    pthread_mutex_lock(&downloads->lock);
    for (uint32_t at = 0; at < downloads->count && *status == 0; at++) {
        int found = launcher->driver.query_event(downloads->events[downloads->pending[at].slot]);
        over[at] = found == 0;
        if (found != NOT_READY) *status = found;
    }
    for (uint32_t at = 0; at < downloads->count && *status == 0; at++) {
        struct download one = downloads->pending[at];
        if (!over[at]) {
            downloads->pending[left++] = one;
            continue;
        }
        struct answer head = {.kind = DATA, .request = one.number, .bulk = one.size};
        memcpy(into + used, &head, sizeof head);
        memcpy(into + used + sizeof head, downloads->bytes + (size_t)one.slot * SLOT_SIZE, one.size);
        used += sizeof head + one.size;
        downloads->free[downloads->free_count++] = one.slot;
        ++*count;
    }
    if (*status == 0) downloads->count = left;
    pthread_mutex_unlock(&downloads->lock);
    return used;
}

// So many of those that were taken are sent, or lie in front of all that is sent from now on.
EXPORT void gpupool_downloads_sent(const struct launcher *launcher, uint32_t count) {
    __atomic_fetch_sub(&launcher->shared->small, count, __ATOMIC_RELEASE);
}

// Wait for all that have been asked for.
EXPORT int gpupool_downloads_await(const struct launcher *launcher) {
    struct downloads *downloads = launcher->downloads;
    void *events[SLOTS_MAX];
    pthread_mutex_lock(&downloads->lock);
    uint32_t count = downloads->count;
    for (uint32_t at = 0; at < count; at++) events[at] = downloads->events[downloads->pending[at].slot];
    pthread_mutex_unlock(&downloads->lock);
    int status = 0;
    for (uint32_t at = 0; at < count && status == 0; at++) {
        status = launcher->driver.synchronize_event(events[at]);
    }
    return status;
}

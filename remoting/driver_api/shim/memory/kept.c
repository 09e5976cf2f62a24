// Memory that was freed and is kept for a moment: the next allocation of its size costs no round trip.
//
// Allocators that empty their caches, and programs without one, free and allocate the same sizes in
// each step. gp_keep() takes over what cuMemFree would have the worker free, and gp_take_kept() gives
// it to a cuMemAlloc of the same size in the same context.
//
// CUDA's cuMemFree returns when the device is done with all that came before, so that no stream still
// works on what another one gets. So does gp_keep(): it keeps nothing before the device is known to have
// come so far. If it is not, one wait tells (AWAIT_DEVICE), for all that is freed next. The wait is worth
// it only where memory is taken again: `credit` counts allocations of sizes that were freed just before,
// and what was kept in vain takes from it.
//
// Nothing must show that memory is kept. What nobody has taken after GP_KEPT_NS, a thread frees. What the
// device has got since may wait for a later call of the program, which CUDA's cuMemFree would hold, so the
// thread first waits as gp_keep() does. All is freed before a call that allocates in another way, that says
// how much memory there is, that has a stream wait for a value, or that ends a context. It is little beside what the program may have (KEPT_PART), as other processes
// of the lease may want it. Nothing is kept that other processes know, nor while a stream is captured,
// which a wait would end, nor while host functions are pending, which a wait would wait for.
#define _GNU_SOURCE
#include "core.h"

#include <stdlib.h>
#include <time.h>

#define KEPT_MAX 32
#define KEPT_BYTES_MAX (256u << 20)
#define KEPT_PART 16  // of a device's memory, one of so many
#define FREED_MAX 32
#define CREDIT_MAX 8
#define LOOKS_MAX 4  // of the thread at a device that always has something to do

struct kept {
    struct gp_range range;
    const void *context;
    int64_t since;
};

static struct kept kept[KEPT_MAX];  // the oldest first
static int kept_count;
static uint64_t kept_bytes;
static bool started;
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;  // held before those of lines
static pthread_cond_t kept_some = PTHREAD_COND_INITIALIZER;

// With kept_lock: the sizes that the worker was told to free lately, in a ring, and whether waits pay.
static struct {
    uint64_t size;
    int64_t at;
} freed[FREED_MAX];
static unsigned freed_next;
static int credit;
// By device: the position of the line up to which a wait has told that all is over.
static uint64_t over[GP_DEVICES_MAX];

static void take_out(int at) {
    kept_bytes -= kept[at].range.size;
    __atomic_store_n(&kept_count, kept_count - 1, __ATOMIC_RELAXED);
    memmove(kept + at, kept + at + 1, (size_t)(kept_count - at) * sizeof *kept);
}

// Free what was kept before a moment, up to the first of another device than this one unless it is -1. The
// lock is held until the worker was told, so that whoever finds nothing kept finds the memory free.
static void free_before(int64_t moment, int device) {
    while (kept_count > 0 && kept[0].since <= moment && (device < 0 || kept[0].range.device == device)) {
        struct gp_range range = kept[0].range;
        take_out(0);
        GP_ROUTE(range.device);
        gp_give_back_addresses(&range);
        // Not by gp_post_free, which closes mapped memory: the program is in the middle of something.
        unsigned char *at = gp_open(GP_FREE, 0, sizeof range.start);
        memcpy(at, &range.start, sizeof range.start);
        gp_close();
    }
}

void gp_free_kept(void) {
    if (__atomic_load_n(&kept_count, __ATOMIC_RELAXED) == 0) return;
    pthread_mutex_lock(&kept_lock);
    free_before(INT64_MAX, -1);
    pthread_mutex_unlock(&kept_lock);
}

void gp_free_kept_first(void) {
    if (gp_knows(GP_FIRST_CALL)) gp_free_kept();
}

// Whether the device is known to be done with all that it has got.
static bool is_done(int device) {
    return gp_is_device_idle(device) ||
           __atomic_load_n(&over[device], __ATOMIC_RELAXED) == gp_position();
}

// The same of what it had got before this call; false also where it may not be waited for.
static bool await_device(int device) {
    uint64_t before = gp_position();
    if (gp_call_await_device() != GP_SUCCESS) return false;
    // The call that said so is one; anything beyond it came from another thread.
    if (gp_position() == before + 1) __atomic_store_n(&over[device], before + 1, __ATOMIC_RELAXED);
    return true;
}

// With the lock not held, as the device may wait for another thread of the program.
static void free_due(int device) {
    GP_ROUTE(device);
    for (int looks = 0; looks < LOOKS_MAX && !is_done(device); looks++) await_device(device);
    pthread_mutex_lock(&kept_lock);
    int count = kept_count;
    // CUDA would have freed it before a capture that began since.
    if (!gp_captures_any()) free_before(gp_now_ns() - GP_KEPT_NS, device);
    if (kept_count < count && credit > 0) credit--;
    pthread_mutex_unlock(&kept_lock);
}

static void *free_late(void *unused) {
    (void)unused;
    for (;;) {
        pthread_mutex_lock(&kept_lock);
        while (kept_count == 0) pthread_cond_wait(&kept_some, &kept_lock);
        int64_t left = kept[0].since + GP_KEPT_NS - gp_now_ns();
        int device = kept[0].range.device;
        pthread_mutex_unlock(&kept_lock);
        if (left <= 0 && !gp_captures_any()) {
            free_due(device);
            continue;
        }
        const struct timespec pause = {.tv_nsec = left > 0 ? left : GP_KEPT_NS};
        nanosleep(&pause, NULL);
    }
    return NULL;
}

static bool wanted;

static void read_wish(void) {
    const char *wish = getenv("GPUPOOL_KEEP_FREED");
    wanted = wish == NULL || strcmp(wish, "0") != 0;
}

static bool may_keep(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_wish);
    return wanted && !__atomic_load_n(&gp_shares, __ATOMIC_RELAXED) &&
           !__atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED) && !gp_captures_any() &&
           gp_knows(GP_AWAIT_DEVICE);
}

// With the lock.
static void note_freed(uint64_t size) {
    freed[freed_next].size = size;
    freed[freed_next].at = gp_now_ns();
    freed_next = (freed_next + 1) % FREED_MAX;
}

bool gp_keep(const struct gp_range *range, const void *context) {
    if (context == NULL || range->flags & GP_OF_POOL || range->waits || !may_keep()) return false;
    uint64_t most = gp.devices[range->device].memory / KEPT_PART;
    if (most > KEPT_BYTES_MAX) most = KEPT_BYTES_MAX;
    const struct gp_context *current = gp_current();
    bool fits = range->size <= most && current != NULL && current->green == NULL &&
                range->device == gp_current_device();
    pthread_mutex_lock(&kept_lock);
    bool pays = credit > 0;
    pthread_mutex_unlock(&kept_lock);
    bool keeps = fits && (is_done(range->device) || (pays && await_device(range->device)));
    pthread_mutex_lock(&kept_lock);
    keeps = keeps && kept_count < KEPT_MAX && kept_bytes <= most - range->size;
    if (keeps && !started) keeps = started = gp_start_thread(free_late, NULL, 0) == 0;
    if (keeps) {
        kept[kept_count] = (struct kept){*range, context, gp_now_ns()};
        kept_bytes += range->size;
        __atomic_store_n(&kept_count, kept_count + 1, __ATOMIC_RELAXED);
        if (kept_count == 1) pthread_cond_signal(&kept_some);
    } else if (fits) {
        note_freed(range->size);
    }
    pthread_mutex_unlock(&kept_lock);
    return keeps;
}

void gp_note_asked(uint64_t size) {
    pthread_mutex_lock(&kept_lock);
    int64_t since = gp_now_ns() - GP_KEPT_NS;
    for (int at = 0; at < FREED_MAX; at++) {
        if (freed[at].size != size || freed[at].at < since) continue;
        credit = CREDIT_MAX;
        freed[at].size = 0;
        break;
    }
    pthread_mutex_unlock(&kept_lock);
}

bool gp_take_kept(uint64_t size, struct gp_range *taken) {
    if (__atomic_load_n(&kept_count, __ATOMIC_RELAXED) == 0 || !may_keep()) return false;
    const void *context = gp_current();
    pthread_mutex_lock(&kept_lock);
    int at = kept_count - 1;
    while (at >= 0 && (kept[at].range.size != size || kept[at].context != context)) at--;
    if (at >= 0) {
        *taken = kept[at].range;
        take_out(at);
    }
    pthread_mutex_unlock(&kept_lock);
    return at >= 0;
}

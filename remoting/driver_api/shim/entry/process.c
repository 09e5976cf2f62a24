// The process: start, forks, missing functions, and the report at the end.
#define _GNU_SOURCE
#include "core.h"

#include <stdlib.h>

struct gp_lists gp_lists;

static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;
static int start_status = GP_NOT_INITIALIZED;

static void before_fork(void) {
    pthread_mutex_lock(&start_lock);
    gp_hold_handles(true);
}

static void after_fork_parent(void) {
    gp_hold_handles(false);
    pthread_mutex_unlock(&start_lock);
}

// CUDA does not survive a fork: the child gets CUDA_ERROR_NOT_INITIALIZED, and the connection
// stays the parent's alone, so that its end is seen when the parent ends.
static void after_fork_child(void) {
    if (gp_started == 1) {
        gp_started = -1;
        gp_wire_forked();
    }
    gp_hold_handles(false);
    pthread_mutex_unlock(&start_lock);
}

// From the start: a fork while another thread starts would leave the child with a lock for ever.
__attribute__((constructor)) static void heed_forks(void) {
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

static int start(unsigned flags) {
    if (flags != 0) return GP_INVALID_VALUE;
    pthread_mutex_lock(&start_lock);
    if (gp_started == 0 && start_status == GP_NOT_INITIALIZED) {
        start_status = gp_connect();
        if (start_status == GP_SUCCESS) start_status = gp_start_servers();
        if (start_status == GP_SUCCESS && gp.device_count == 0) start_status = GP_NO_DEVICE;
        if (start_status == GP_SUCCESS) {
            __atomic_store_n(&gp_started, 1, __ATOMIC_RELEASE);
        }
    }
    int status = gp_started < 0 ? GP_NOT_INITIALIZED : start_status;
    pthread_mutex_unlock(&start_lock);
    return status;
}

GP_EXPORT int cuInit(unsigned flags) { return start(flags); }

GP_EXPORT int cuDriverGetVersion(int *version) {
    if (version == NULL) return GP_INVALID_VALUE;
    // Asked for before cuInit by every runtime; opening the session here keeps the answer honest.
    int status = start(0);
    *version = status == GP_SUCCESS ? gp.version : GP_CUDA_INTERFACE;
    return GP_SUCCESS;
}

int gp_missing(int index) {
    unsigned long before = __atomic_fetch_add(&gp_lists.missing_calls[index], 1, __ATOMIC_RELAXED);
    if (before == 0 && gp_verbose()) gp_say("%s is not supported", gp_lists.missing_names[index]);
    gp_log("%s is not supported by the CUDA door", gp_lists.missing_names[index]);
    return GP_NOT_SUPPORTED;
}

__attribute__((destructor)) static void report(void) {
    // The runtime's own destructors run later and still call us, so nothing is closed here.
    if (__atomic_load_n(&gp_started, __ATOMIC_ACQUIRE) == 1) gp_leave();
    if (!gp_verbose()) return;
    for (int at = 0; at < gp_lists.missing_count; at++) {
        unsigned long calls = __atomic_load_n(&gp_lists.missing_calls[at], __ATOMIC_RELAXED);
        if (calls) gp_say("not supported: %s, called %lu times", gp_lists.missing_names[at], calls);
    }
    for (int op = 0; op < GP_WAITS && gp_verbosity() > 1; op++) {
        unsigned long times = __atomic_load_n(&gp_waits[op], __ATOMIC_RELAXED);
        if (times) gp_say("waited for the server %lu times: record %d of table.py", times, op);
    }
}

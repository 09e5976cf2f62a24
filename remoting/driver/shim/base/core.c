// Starting, handles, and what is said at the end.
#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096ull

struct gp_state gp;

static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;
// 0: not yet; 1: ready; -1: this is a fork of a process that was ready.
static int started;
static int start_status = GP_NOT_INITIALIZED;
static int verbosity = -1;

static pthread_mutex_t handle_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gp_handle *free_handles, *moved_handles;
static uint64_t next_id = 64;  // below are streams with a meaning of their own

static int said_verbosity(void) {
    int known = __atomic_load_n(&verbosity, __ATOMIC_RELAXED);
    if (known < 0) {
        const char *text = getenv("GPUPOOL_VERBOSE");
        known = text == NULL ? 0 : atoi(text);
        __atomic_store_n(&verbosity, known, __ATOMIC_RELAXED);
    }
    return known;
}

bool gp_verbose(void) { return said_verbosity() != 0; }

bool gp_launches_block(void) {
    static int known = -1;
    if (known < 0) {
        const char *text = getenv("CUDA_LAUNCH_BLOCKING");
        known = text != NULL && atoi(text) != 0;
    }
    return known != 0;
}

void gp_say(const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "gpupool: %s\n", text);
}

static void before_fork(void) {
    pthread_mutex_lock(&start_lock);
    pthread_mutex_lock(&handle_lock);
}

static void after_fork_parent(void) {
    pthread_mutex_unlock(&handle_lock);
    pthread_mutex_unlock(&start_lock);
}

// CUDA does not survive a fork: the child gets CUDA_ERROR_NOT_INITIALIZED, and the connection
// stays the parent's alone, so that its end is seen when the parent ends.
static void after_fork_child(void) {
    if (started == 1) {
        started = -1;
        gp_wire_forked();
    }
    pthread_mutex_unlock(&handle_lock);
    pthread_mutex_unlock(&start_lock);
}

// From the start: a fork while another thread starts would leave the child with a lock for ever.
__attribute__((constructor)) static void heed_forks(void) {
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

int gp_ready(void) {
    if (__builtin_expect(__atomic_load_n(&started, __ATOMIC_ACQUIRE) != 1, 0)) {
        return GP_NOT_INITIALIZED;
    }
    return gp_all_lost() ? GP_DEVICE_UNAVAILABLE : GP_SUCCESS;
}

int gp_enter(void) {
    GP_CHECK(gp_ready());
    if (__builtin_expect(gp_current() != NULL, 1)) {
        return gp_several && gp_is_lost() ? GP_DEVICE_UNAVAILABLE : GP_SUCCESS;
    }
    // The thread of host functions never has a context.
    return gp_in_host_function() ? GP_NOT_PERMITTED : GP_INVALID_CONTEXT;
}

static int start(unsigned flags) {
    if (flags != 0) return GP_INVALID_VALUE;
    pthread_mutex_lock(&start_lock);
    if (started == 0 && start_status == GP_NOT_INITIALIZED) {
        start_status = gp_connect();
        if (start_status == GP_SUCCESS) start_status = gp_wire_start();
        if (start_status == GP_SUCCESS && gp.device_count == 0) start_status = GP_NO_DEVICE;
        if (start_status == GP_SUCCESS) {
            __atomic_store_n(&started, 1, __ATOMIC_RELEASE);
        }
    }
    int status = started < 0 ? GP_NOT_INITIALIZED : start_status;
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

uint64_t gp_new_id(void) { return gp_new_ids(1); }

uint64_t gp_new_ids(unsigned count) {
    return __atomic_fetch_add(&next_id, count, __ATOMIC_RELAXED);
}

struct gp_handle *gp_make(enum gp_kind kind) {
    pthread_mutex_lock(&handle_lock);
    struct gp_handle *handle = free_handles;
    if (handle != NULL) free_handles = handle->next;
    pthread_mutex_unlock(&handle_lock);
    if (handle == NULL) handle = malloc(sizeof *handle);
    if (handle == NULL) return NULL;
    memset(handle, 0, sizeof *handle);
    handle->magic = GP_MAGIC;
    handle->kind = kind;
    handle->id = gp_new_id();
    handle->device = gp_current_device();
    handle->context = gp_current();
    return handle;
}

void gp_end(struct gp_handle *handle) {
    handle->magic = 0;
    if (handle->kind == GP_STREAM) free(handle->detail);  // its attributes
    pthread_mutex_lock(&handle_lock);
    if (handle->moved) {
        struct gp_handle **at = &moved_handles;
        while (*at != handle) at = &(*at)->next;
        *at = handle->next;
    } else {
        handle->next = free_handles;
        free_handles = handle;
    }
    pthread_mutex_unlock(&handle_lock);
}

// Take a page in which handles lie that were moved; it stays, as the server may use addresses again.
static bool take_page(uint64_t start) {
    static struct page {
        uint64_t start;
        struct page *next;
    } *pages;
    const struct page *at = pages;
    while (at != NULL && at->start != start) at = at->next;
    if (at != NULL) return true;
    struct page *made = malloc(sizeof *made);
    if (made == NULL) return false;
    void *wanted = (void *)(uintptr_t)start;
    void *got = mmap(wanted, PAGE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (got != wanted) {
        if (got != MAP_FAILED) munmap(got, PAGE);  // a kernel before 4.17 takes it as a wish
        free(made);
        return false;
    }
    *made = (struct page){start, pages};
    pages = made;
    return true;
}

struct gp_handle *gp_move(struct gp_handle *handle, uint64_t address) {
    uint64_t last = address + sizeof *handle - 1;
    struct gp_handle *to = (void *)(uintptr_t)address;
    if (address < PAGE || (address & 7) != 0 || last < address) return NULL;
    pthread_mutex_lock(&handle_lock);
    bool is_free = take_page(address & -PAGE) && take_page(last & -PAGE);
    for (const struct gp_handle *at = moved_handles; at != NULL && is_free; at = at->next) {
        is_free = (uintptr_t)at > last || (uintptr_t)(at + 1) <= address;
    }
    if (is_free) {
        *to = *handle;
        to->moved = true;
        to->next = moved_handles;
        moved_handles = to;
    }
    pthread_mutex_unlock(&handle_lock);
    if (!is_free) return NULL;
    gp_end(handle);
    return to;
}

int gp_start_thread(void *(*run)(void *), void *argument, int signal_taken) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigset_t masked, before;
    sigfillset(&masked);
    if (signal_taken) sigdelset(&masked, signal_taken);
    pthread_sigmask(SIG_SETMASK, &masked, &before);
    int failed = pthread_create(&thread, &attributes, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return failed;
}

int gp_check(const void *handle, enum gp_kind kind) {
    const struct gp_handle *known = handle;
    // Small values are constants or nonsense, and no address of ours is odd.
    if ((uintptr_t)known < 4096 || ((uintptr_t)known & 7) != 0) return GP_INVALID_HANDLE;
    return known->magic == GP_MAGIC && known->kind == kind ? GP_SUCCESS : GP_INVALID_HANDLE;
}

int gp_missing(int index) {
    unsigned long before = __atomic_fetch_add(&gp_missing_calls[index], 1, __ATOMIC_RELAXED);
    if (before == 0 && gp_verbose()) gp_say("%s is not supported", gp_missing_names[index]);
    gp_log("%s is not supported by the CUDA door", gp_missing_names[index]);
    return GP_NOT_SUPPORTED;
}

__attribute__((destructor)) static void report(void) {
    // The runtime's own destructors run later and still call us, so nothing is closed here.
    if (__atomic_load_n(&started, __ATOMIC_ACQUIRE) == 1) gp_leave();
    if (!gp_verbose()) return;
    for (int at = 0; at < gp_missing_count; at++) {
        unsigned long calls = __atomic_load_n(&gp_missing_calls[at], __ATOMIC_RELAXED);
        if (calls) gp_say("not supported: %s, called %lu times", gp_missing_names[at], calls);
    }
    for (int op = 0; op < GP_WAITS && said_verbosity() > 1; op++) {
        unsigned long times = __atomic_load_n(&gp_waits[op], __ATOMIC_RELAXED);
        if (times) gp_say("waited for the server %lu times: record %d of table.py", times, op);
    }
}

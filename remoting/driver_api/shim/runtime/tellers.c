// Host functions that only tell threads of the program that a stream has come to them.
//
// A stream waits for a host function, as what follows may read what the function writes, or what others
// do while it waits. XLA's functions do neither: each ends a wait of one of XLA's own threads, or gives
// memory back (BlockHostUntilDoneWithHostCallback in xla/pjrt/gpu, ThenExecuteCallback in xla/pjrt). So
// the GPU goes on behind them, which saves a round trip for each. GPUPOOL_HOST_FUNCTIONS=wait has
// streams wait for all functions.
#define _GNU_SOURCE
#include "runtime.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

#define KNOWN_MAX 16
#define TELL_PAUSE_NS 40000
#define NEAR 4  // records

// The libraries that JAX's plugins for CUDA put XLA in.
static const char *const LIBRARIES[] = {"xla_cuda_plugin.so"};

static bool is_teller(void (*function)(void *)) {
    const char *wish = getenv("GPUPOOL_HOST_FUNCTIONS");
    if (wish != NULL && strcmp(wish, "wait") == 0) return false;
    const void *address;
    memcpy(&address, &function, sizeof address);
    Dl_info found;
    if (dladdr(address, &found) == 0 || found.dli_fname == NULL) return false;
    const char *name = strrchr(found.dli_fname, '/');
    name = name == NULL ? found.dli_fname : name + 1;
    for (size_t at = 0; at < sizeof LIBRARIES / sizeof *LIBRARIES; at++) {
        if (strcmp(name, LIBRARIES[at]) == 0) return true;
    }
    return false;
}

bool gp_only_tells(void (*function)(void *)) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct {
        void (*function)(void *);
        bool tells;
    } known[KNOWN_MAX];
    static unsigned count;
    // dladdr looks through all libraries, so what it said is kept; the last ones are looked up again.
    pthread_mutex_lock(&lock);
    unsigned at = 0;
    while (at < count && known[at].function != function) at++;
    if (at == count) {
        if (count == KNOWN_MAX) at = KNOWN_MAX - 1;
        known[at].function = function;
        known[at].tells = is_teller(function);
        count = at + 1;
    }
    bool tells = known[at].tells;
    pthread_mutex_unlock(&lock);
    return tells;
}

// Somebody waits for a function that only tells, most likely for that behind a download, whose bytes that
// thread needs. Of others there may be many in a row; so close to one that was sent at once, the next goes
// with what else there is, soon after.
bool gp_tell_is_urgent(const struct gp_handle *stream, uint64_t position) {
    static int64_t sent;
    uint64_t downloaded = __atomic_load_n(&stream->downloaded, __ATOMIC_RELAXED);
    if (downloaded != 0 && position - downloaded <= NEAR) return true;
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    int64_t now = (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
    if (now - __atomic_load_n(&sent, __ATOMIC_RELAXED) < TELL_PAUSE_NS) return false;
    __atomic_store_n(&sent, now, __ATOMIC_RELAXED);
    return true;
}

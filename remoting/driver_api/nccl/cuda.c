// The way to gpupool's libcuda.so.1, which has the connections to the workers.
#define _GNU_SOURCE
#include "nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static struct {
    int (*device)(void), (*server)(int), (*lost)(void);
    unsigned long long (*number)(void);
    int (*ask)(int, const uint64_t *, const void *, size_t, void *, size_t);
    int (*post)(const int *, uint64_t *, unsigned);
    int (*allocate)(unsigned long long *, size_t), (*free)(unsigned long long);
} cuda;

static bool there;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static __thread char noted[1024];

void nc_note(const char *text) { snprintf(noted, sizeof noted, "%s", text); }

const char *nc_noted(void) { return noted; }

static void find(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL) return;
#define FIND(name, symbol) \
    if ((*(void **)&cuda.name = dlsym(library, symbol)) == NULL) return
    FIND(device, "gpupool_nccl_device");
    FIND(server, "gpupool_nccl_server");
    FIND(lost, "gpupool_nccl_lost");
    FIND(number, "gpupool_nccl_number");
    FIND(ask, "gpupool_nccl_ask");
    FIND(post, "gpupool_nccl_post");
    FIND(allocate, "cuMemAlloc_v2");
    FIND(free, "cuMemFree_v2");
#undef FIND
    there = true;
}

static bool ready(void) {
    pthread_once(&once, find);
    if (!there) nc_note("gpupool's libcuda.so.1 is not the one that this program has");
    return there;
}

int nc_device(void) { return ready() ? cuda.device() : -1; }

int nc_server(int device) { return ready() ? cuda.server(device) : -1; }

bool nc_lost(void) { return ready() && cuda.lost(); }

uint64_t nc_number(void) { return ready() ? cuda.number() : 0; }

static int result_of(int status) {
    if (status == 0) return SUCCESS;
    char text[200];
    if (status == 46) {
        nc_note("a server of the lease is lost");
        return REMOTE_ERROR;
    }
    snprintf(text, sizeof text, status == 801 ? "a server of the lease is too old for NCCL"
                                              : "CUDA error %d", status);
    nc_note(text);
    return CUDA_ERROR;
}

int nc_ask(int device, const uint64_t values[4], const void *data, size_t size,
           struct answer *answer) {
    memset(answer, 0, sizeof *answer);
    if (!ready()) return SYSTEM_ERROR;
    int status = cuda.ask(device, values, data, size, answer, sizeof *answer - 1);
    if (status != 0) return result_of(status);
    if (answer->result != SUCCESS && answer->text[0]) nc_note(answer->text);
    return answer->result;
}

int nc_post(const int *devices, struct operation *operations, unsigned count) {
    if (!ready()) return SYSTEM_ERROR;
    return result_of(cuda.post(devices, (uint64_t *)operations, count));
}

int nc_allocate(void **address, size_t size) {
    unsigned long long got = 0;
    if (!ready()) return SYSTEM_ERROR;
    int result = result_of(cuda.allocate(&got, size));
    *address = (void *)(uintptr_t)got;
    return result;
}

int nc_free(void *address) {
    return !ready() ? SYSTEM_ERROR : result_of(cuda.free((uintptr_t)address));
}

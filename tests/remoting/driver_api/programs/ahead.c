// What a program calls while one of its host functions waits for that. Arguments: an image with the
// kernels of fake_cuda/kernels/test_kernels.cu, and for how many milliseconds a function waits; then
// the call is said to be kept. A third argument is how long it waits for the last few calls, which
// CUDA's driver keeps until all kernels are over.
#include <errno.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

int cuLaunchHostFunc(void *, void (*)(void *), void *);
int cuMemHostAlloc(void **, size_t, unsigned), cuMemFreeHost(void *);
int cuMemHostRegister_v2(void *, size_t, unsigned), cuMemHostUnregister(void *);
int cuMemHostGetDevicePointer_v2(uint64_t *, void *, unsigned);
int cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, void *);
int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *);
int cuMemsetD8Async(uint64_t, unsigned char, size_t, void *);
int cuEventCreate(void **, unsigned), cuEventRecord(void *, void *), cuEventQuery(void *);
int cuEventSynchronize(void *), cuEventDestroy_v2(void *), cuStreamQuery(void *);
int cuStreamWaitEvent(void *, void *, unsigned);
int cuStreamBeginCapture_v2(void *, int), cuStreamEndCapture(void *, void **);
int cuGraphInstantiateWithFlags(void **, void *, unsigned long long), cuGraphLaunch(void *, void *);
int cuGraphExecDestroy(void *), cuGraphDestroy(void *);
int cuStreamWaitValue32_v2(void *, uint64_t, unsigned, unsigned);
int cuStreamWriteValue32_v2(void *, uint64_t, unsigned, unsigned);

enum { PINNED = 1024, LARGE = 24 << 20 };
#define NOT_READY 600

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool runs, told, late;
} state = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false, false};

static const char *image;
static long limit_ms;
static void *module, *increment, *held, *other;
static uint64_t device, large;
static int *pinned, later, held_launches;
static char *pageable;

// The host function.
static void wait_for_main(void *write) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += limit_ms % 1000 * 1000000;
    until.tv_sec += limit_ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&state.lock);
    state.runs = true;
    pthread_cond_broadcast(&state.changed);
    int status = 0;
    while (!state.told && status != ETIMEDOUT) {
        status = pthread_cond_timedwait(&state.changed, &state.lock, &until);
    }
    state.late = !state.told;
    if (write != NULL) *(int *)write = 41;
    pthread_mutex_unlock(&state.lock);
}

static void count(void *number) { ++*(int *)number; }

static void add_one(void *stream, uint64_t where) {
    int one = 1;
    launch(increment, 1, (void *[]){&where, &one}, stream);
}

static int value_at(uint64_t address) {
    int value;
    CHECK(cuMemcpyDtoHAsync_v2(&value, address, sizeof value, other));
    return value;
}

// --- what is called ---------------------------------------------------------------------------------

static void launches_behind(void) {
    for (int at = 0; at < 900; at++) add_one(held, device);
    held_launches += 900;
}

static void launches_beside(void) {
    CHECK(cuMemsetD8Async(device + 64, 0, 4, other));
    for (int at = 0; at < 3000; at++) add_one(other, device + 64);
    CHECK(cuStreamSynchronize(other));
    NEED(value_at(device + 64) == 3000);
}

static void allocations(void) {
    uint64_t memory;
    for (int at = 0; at < 20; at++) {
        CHECK(cuMemAlloc_v2(&memory, 1 << 20));
        CHECK(cuMemsetD8Async(memory, 1, 1 << 20, other));
        CHECK(cuStreamSynchronize(other));
        CHECK(cuMemFreeAsync(memory, other));
        CHECK(cuMemAllocAsync(&memory, 1 << 20, other));
        CHECK(cuMemFreeAsync(memory, other));
    }
    NEED(left() > 0);
}

static void copies(void) {
    for (int round = 0; round < 10; round++) {
        memset(pageable, round, LARGE);
        CHECK(cuMemcpyHtoDAsync_v2(large, pageable, LARGE, other));
    }
    CHECK(cuStreamSynchronize(other));
    memset(pageable, 0, LARGE);
    CHECK(cuMemcpyDtoHAsync_v2(pageable, large, LARGE, other));
    NEED(pageable[0] == 9 && pageable[LARGE - 1] == 9);
    pinned[1] = 0;
    CHECK(cuMemcpyDtoHAsync_v2(pinned + 1, large, 4, other));
    CHECK(cuStreamSynchronize(other));
    NEED(pinned[1] == 0x09090909);
}

static void events(void) {
    void *behind, *beside, *made;
    CHECK(cuEventCreate(&behind, 2));
    CHECK(cuEventCreate(&beside, 2));
    CHECK(cuEventRecord(behind, held));
    CHECK(cuEventRecord(beside, other));
    NEED(cuEventQuery(behind) == NOT_READY);
    NEED(cuStreamQuery(held) == NOT_READY);
    CHECK(cuEventSynchronize(beside));
    CHECK(cuEventQuery(beside));
    CHECK(cuStreamCreate(&made, 1));
    CHECK(cuStreamWaitEvent(made, behind, 0));
    CHECK(cuStreamDestroy_v2(made));
    CHECK(cuEventDestroy_v2(behind));
    CHECK(cuEventDestroy_v2(beside));
}

static void graph(void) {
    void *made, *exec;
    CHECK(cuStreamBeginCapture_v2(other, 2));
    CHECK(cuMemsetD8Async(device + 128, 0, 4, other));
    for (int at = 0; at < 5; at++) add_one(other, device + 128);
    CHECK(cuStreamEndCapture(other, &made));
    CHECK(cuGraphInstantiateWithFlags(&exec, made, 0));
    CHECK(cuGraphDestroy(made));
    for (int at = 0; at < 100; at++) CHECK(cuGraphLaunch(exec, other));
    CHECK(cuStreamSynchronize(other));
    NEED(value_at(device + 128) == 5);
    CHECK(cuGraphExecDestroy(exec));
}

static void other_functions(void) {
    for (int at = 0; at < 50; at++) {
        CHECK(cuLaunchHostFunc(other, count, &later));
        add_one(other, device + 192);
    }
}

// The function writes what the copy behind it reads.
static void upload_behind(void) {
    pinned[0] = 1;
    CHECK(cuMemcpyHtoDAsync_v2(device + 256, pinned, 4, held));
}

static void upload_pageable_behind(void) {
    int value = 5;
    CHECK(cuMemcpyHtoDAsync_v2(device + 320, &value, 4, held));
    value = 6;
}

static void module_load(void) {
    void *again, *function;
    uint64_t where = device + 384;
    int one = 1;
    CHECK(cuModuleLoad(&again, image));
    CHECK(cuModuleGetFunction(&function, again, "increment"));
    CHECK(cuMemsetD8Async(where, 0, 4, other));
    launch(function, 1, (void *[]){&where, &one}, other);
    CHECK(cuStreamSynchronize(other));
    NEED(value_at(where) == 1);
}

static void module_unload(void) {
    static void *loaded;
    CHECK(cuModuleUnload(module));
    CHECK(cuModuleLoad(&loaded, image));
    module = loaded;
    CHECK(cuModuleGetFunction(&increment, module, "increment"));
}

static void frees(void) { CHECK(cuMemFree_v2(large)); }

static void mapped(void) {
    int *both;
    uint64_t seen;
    CHECK(cuMemHostAlloc((void **)&both, 64, 2));
    both[0] = 10;
    CHECK(cuMemHostGetDevicePointer_v2(&seen, both, 0));
    add_one(other, seen);
    CHECK(cuStreamSynchronize(other));
    NEED(both[0] == 11);
    CHECK(cuMemHostRegister_v2(pageable, 1 << 20, 0));
    CHECK(cuMemHostGetDevicePointer_v2(&seen, pageable, 0));
}

static void unmapped(void) { CHECK(cuMemHostUnregister(pageable)); }

// A function whose turn comes only after what the program calls next.
static void turn(void) {
    int calls = 0;
    CHECK(cuStreamWaitValue32_v2(held, device + 448, 1, 0));
    CHECK(cuLaunchHostFunc(held, count, &calls));
    launches_beside();
    allocations();
    CHECK(cuStreamWriteValue32_v2(other, device + 448, 1, 0));
    CHECK(cuStreamSynchronize(held));
    NEED(calls == 1);
}

// --- one after the other ----------------------------------------------------------------------------

static void during(const char *name, void (*call)(void), void *written) {
    state.runs = state.told = state.late = false;
    CHECK(cuLaunchHostFunc(held, wait_for_main, written));
    add_one(held, device);
    held_launches++;
    pthread_mutex_lock(&state.lock);
    while (!state.runs) pthread_cond_wait(&state.changed, &state.lock);
    pthread_mutex_unlock(&state.lock);
    call();
    pthread_mutex_lock(&state.lock);
    state.told = true;
    pthread_cond_broadcast(&state.changed);
    pthread_mutex_unlock(&state.lock);
    CHECK(cuStreamSynchronize(held));
    CHECK(cuStreamSynchronize(other));
    printf("%s %s\n", name, state.late ? "kept" : "goes on");
    fflush(stdout);
}

int main(int words, char **word) {
    NEED(words == 3 || words == 4);
    image = word[1];
    limit_ms = atol(word[2]);
    start(0);
    CHECK(cuModuleLoad(&module, image));
    CHECK(cuModuleGetFunction(&increment, module, "increment"));
    CHECK(cuMemAlloc_v2(&device, 4096));
    CHECK(cuMemsetD8_v2(device, 0, 4096));
    CHECK(cuMemAlloc_v2(&large, LARGE));
    CHECK(cuMemHostAlloc((void **)&pinned, PINNED, 0));
    CHECK(cuStreamCreate(&held, 1));
    CHECK(cuStreamCreate(&other, 1));
    NEED(posix_memalign((void **)&pageable, 4096, LARGE) == 0);
    add_one(other, device + 64);  // what is loaded at the first launch is there
    CHECK(cuCtxSynchronize());
    during("launches behind", launches_behind, NULL);
    during("launches beside", launches_beside, NULL);
    during("allocations", allocations, NULL);
    during("copies", copies, NULL);
    during("events", events, NULL);
    during("graph", graph, NULL);
    during("other functions", other_functions, NULL);
    NEED(later == 50);
    for (int round = 0; round < 3; round++) {
        during("upload behind", upload_behind, pinned);
        NEED(value_at(device + 256) == 41);
    }
    during("pageable upload behind", upload_pageable_behind, NULL);
    NEED(value_at(device + 320) == 5);
    during("mapped memory", mapped, NULL);
    NEED(value_at(device) == held_launches);
    turn();
    if (words == 4) limit_ms = atol(word[3]);
    during("module load", module_load, NULL);
    during("module unload", module_unload, NULL);
    during("free", frees, NULL);
    during("unregister", unmapped, NULL);
    puts("results right");
    return 0;
}

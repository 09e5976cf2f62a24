// Many threads at a time, each with a stream of its own: uploads, launches, downloads, allocations, events
// and streams that come and go. Arguments: an image with the kernels of
// fake_cuda/kernels/test_kernels.cu, how many devices there are, and for how many milliseconds.
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *);
int cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, void *);
int cuEventCreate(void **, unsigned), cuEventRecord(void *, void *), cuEventQuery(void *);
int cuEventSynchronize(void *), cuEventDestroy_v2(void *), cuStreamWaitEvent(void *, void *, unsigned);
int cuMemHostAlloc(void **, size_t, unsigned), cuMemFreeHost(void *), cuStreamQuery(void *);

enum { THREADS = 16, N = 20000, SMALL = 100, DEVICES_MAX = 8, READY = 0, NOT_READY = 600 };

static void *contexts[DEVICES_MAX], *increments[DEVICES_MAX];
static char image[1 << 20];
static int devices;
static struct timespec end;
static unsigned rounds;

static bool over(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec > end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec > end.tv_nsec);
}

// One round: numbers go up, are counted up, and come back, to pinned or to pageable memory.
static void turn(void *increment, int n, int seed, int *source, int *back) {
    void *stream, *other, *event;
    uint64_t memory;
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuStreamCreate(&other, 1));
    CHECK(cuEventCreate(&event, 2));
    CHECK(cuMemAlloc_v2(&memory, (size_t)n * 4));
    for (int at = 0; at < n; at++) source[at] = seed + at;
    CHECK(cuMemcpyHtoDAsync_v2(memory, source, (size_t)n * 4, stream));
    void *parameters[] = {&memory, &n};
    for (int at = 0; at < 3; at++) launch(increment, (unsigned)n, parameters, stream);
    CHECK(cuEventRecord(event, stream));
    CHECK(cuStreamWaitEvent(other, event, 0));
    launch(increment, (unsigned)n, parameters, other);
    CHECK(cuMemcpyDtoHAsync_v2(back, memory, (size_t)n * 4, other));
    int code = cuEventQuery(event);
    NEED(code == READY || code == NOT_READY);
    CHECK(cuStreamSynchronize(other));
    for (int at = 0; at < n; at++) NEED(back[at] == seed + at + 4);
    CHECK(cuMemFree_v2(memory));
    CHECK(cuEventDestroy_v2(event));
    CHECK(cuStreamDestroy_v2(other));
    CHECK(cuStreamDestroy_v2(stream));
}

static void *work(void *argument) {
    int which = (int)(intptr_t)argument, device = which % devices;
    CHECK(cuCtxSetCurrent(contexts[device]));
    int *pageable = malloc(2 * N * 4);
    for (int round = 0; !over(); round++) {
        int n = (which + round) % 3 ? SMALL : N, seed = which << 20 | round;
        void *pinned;
        CHECK(cuMemHostAlloc(&pinned, 2 * N * 4, 0));
        int *numbers = round % 2 ? pinned : pageable;
        turn(increments[device], n, seed, numbers, numbers + N);
        CHECK(cuMemFreeHost(pinned));
        __atomic_fetch_add(&rounds, 1, __ATOMIC_RELAXED);
    }
    free(pageable);
    return NULL;
}

int main(int count, char **arguments) {
    CHECK(cuInit(0));
    FILE *file = count == 4 ? fopen(arguments[1], "rb") : NULL;
    if (file == NULL || fread(image, 1, sizeof image - 1, file) == 0) return 2;
    fclose(file);
    devices = atoi(arguments[2]);
    for (int at = 0; at < devices; at++) {
        void *module;
        CHECK(cuDevicePrimaryCtxRetain(&contexts[at], at));
        CHECK(cuCtxSetCurrent(contexts[at]));
        CHECK(cuModuleLoadData(&module, image));
        CHECK(cuModuleGetFunction(&increments[at], module, "increment"));
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    long until = end.tv_nsec + atol(arguments[3]) * 1000000;
    end.tv_sec += until / 1000000000;
    end.tv_nsec = until % 1000000000;
    pthread_t threads[THREADS];
    for (intptr_t at = 0; at < THREADS; at++) pthread_create(&threads[at], NULL, work, (void *)at);
    for (int at = 0; at < THREADS; at++) pthread_join(threads[at], NULL);
    if (getenv("CROWD_COUNT") != NULL) fprintf(stderr, "%u rounds\n", rounds);
    puts("results right");
    return 0;
}

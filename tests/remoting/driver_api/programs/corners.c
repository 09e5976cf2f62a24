// What programs seldom do. Arguments: what, several in one word if wanted, and an image with the kernels of
// fake_cuda/kernels/test_kernels.cu.
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

int cuMemAllocPitch_v2(uint64_t *, size_t *, size_t, size_t, unsigned);
int cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, void *);
int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *);
int cuMemHostAlloc(void **, size_t, unsigned), cuMemFreeHost(void *);
int cuMemHostGetDevicePointer_v2(uint64_t *, void *, unsigned);
int cuMemsetD32_v2(uint64_t, unsigned, size_t), cuCtxGetCurrent(void **);
int cuStreamAddCallback(void *, void (*)(void *, int, void *), void *, unsigned);

enum { THREADS = 8, ROUNDS = 40, MANY = 70000, PIECE = 1 << 20, LARGE = 100 << 20, N = 1 << 14 };

static char image[1 << 20];
static void *context, *increment, *out_of_bounds, *wait_for_flag, *sleep_us;

static void sizes_that_no_memory_has(void) {
    uint64_t address;
    size_t pitch;
    NEED(cuMemAllocPitch_v2(&address, &pitch, SIZE_MAX, 1, 4) == 2);
    NEED(cuMemAllocPitch_v2(&address, &pitch, 512, SIZE_MAX / 2, 4) == 2);
}

static void many_downloads(void) {
    uint64_t memory;
    int *back;
    CHECK(cuMemAlloc_v2(&memory, 4));
    CHECK(cuMemHostAlloc((void **)&back, MANY * 4, 0));
    CHECK(cuMemsetD32_v2(memory, 7, 1));
    for (int at = 0; at < MANY; at++) CHECK(cuMemcpyDtoHAsync_v2(back + at, memory, 4, NULL));
    CHECK(cuCtxSynchronize());
    for (int at = 0; at < MANY; at++) NEED(back[at] == 7);
    CHECK(cuMemFreeHost(back));
}

static void a_large_download(void) {
    uint64_t memory;
    unsigned char *back;
    CHECK(cuMemAlloc_v2(&memory, LARGE));
    CHECK(cuMemHostAlloc((void **)&back, LARGE, 0));
    CHECK(cuMemsetD8_v2(memory, 9, LARGE));
    CHECK(cuMemcpyDtoHAsync_v2(back, memory, LARGE, NULL));
    CHECK(cuCtxSynchronize());
    for (int at = 0; at < LARGE; at++) NEED(back[at] == 9);
}

// Memory is freed while what was on its way there arrives, perhaps read by another thread.
static void *free_early(void *argument) {
    CHECK(cuCtxSetCurrent(context));
    uint64_t memory, seen;
    void *stream;
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuMemAlloc_v2(&memory, PIECE));
    for (int round = 0; round < ROUNDS; round++) {
        void *back;
        int n = N;
        CHECK(cuMemHostAlloc(&back, PIECE, 0));
        if ((intptr_t)argument % 2) {
            CHECK(cuMemcpyDtoHAsync_v2(back, memory, PIECE, stream));
        } else {
            CHECK(cuMemHostGetDevicePointer_v2(&seen, back, 0));
            void *parameters[] = {&seen, &n};
            launch(increment, N, parameters, stream);
        }
        CHECK(cuMemFreeHost(back));
        CHECK(cuStreamSynchronize(stream));
    }
    return NULL;
}

static void memory_that_is_freed_early(void) {
    pthread_t threads[THREADS];
    for (intptr_t at = 0; at < THREADS; at++) {
        pthread_create(&threads[at], NULL, free_early, (void *)at);
    }
    for (int at = 0; at < THREADS; at++) pthread_join(threads[at], NULL);
}

static unsigned char arrived[LARGE];

static void *fail_meanwhile(void *out_of_bounds) {
    CHECK(cuCtxSetCurrent(context));
    void *stream, *nowhere[1] = {&(uint64_t){0}};
    CHECK(cuStreamCreate(&stream, 1));
    while (*(volatile unsigned char *)arrived == 0) usleep(100);
    CHECK(cuLaunchKernel(out_of_bounds, 1, 1, 1, 1, 1, 1, 0, stream, nowhere, NULL));
    NEED(cuStreamSynchronize(stream) == 700);
    return NULL;
}

// A kernel of another thread fails while bytes arrive: they are all there, or the copy says so.
static void a_failure_during_a_download(void *out_of_bounds) {
    uint64_t memory;
    pthread_t thread;
    CHECK(cuMemAlloc_v2(&memory, LARGE));
    CHECK(cuMemsetD8_v2(memory, 9, LARGE));
    pthread_create(&thread, NULL, fail_meanwhile, out_of_bounds);
    int code = cuMemcpyDtoH_v2(arrived, memory, LARGE);
    NEED(code == 0 || code == 700);
    for (int at = 0; at < LARGE && code == 0; at++) NEED(arrived[at] == 9);
    pthread_join(thread, NULL);
}

static void finish(int number) {
    (void)number;
    exit(0);
}

// A handler that ends the program, as many have, though it may come in the middle of anything.
static void an_end_by_a_signal(void) {
    uint64_t memory;
    CHECK(cuMemAlloc_v2(&memory, 4));
    signal(SIGALRM, finish);
    const struct itimerval soon = {.it_value = {.tv_usec = 5000}};
    setitimer(ITIMER_REAL, &soon, NULL);
    for (;;) CHECK(cuMemsetD32_v2(memory, 7, 1));
}

static void *upload(void *argument) {
    (void)argument;
    CHECK(cuCtxSetCurrent(context));
    static char bytes[64 << 20];
    uint64_t memory;
    CHECK(cuMemAlloc_v2(&memory, sizeof bytes));
    for (;;) cuMemcpyHtoDAsync_v2(memory, bytes, sizeof bytes, NULL);
}

// The server takes nothing any more, because its buffers are full.
static void an_end_among_transfers(void) {
    uint64_t flag;
    CHECK(cuMemAlloc_v2(&flag, 4));
    CHECK(cuMemsetD32_v2(flag, 0, 1));
    void *parameters[] = {&flag};
    CHECK(cuLaunchKernel(wait_for_flag, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    pthread_t thread;
    pthread_create(&thread, NULL, upload, NULL);
    sleep(1);
}


static volatile int called_with;

static void be_called(void *stream, int status, void *data) {
    (void)stream, (void)data;
    called_with = status;
}

// The error is what everything says from then on, and nothing waits for what never comes.
static void after_a_failure(bool by_callback) {
    enum { UPLOAD = 16 << 20, ILLEGAL_ADDRESS = 700 };
    long long microseconds = 3000;
    uint64_t memory, more;
    void *stream, *bytes = calloc(1, UPLOAD), *slept[] = {&microseconds}, *parameters[] = {&memory};
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuMemAlloc_v2(&memory, UPLOAD));
    launch(sleep_us, 1, slept, stream);
    launch(out_of_bounds, 1, parameters, stream);
    if (by_callback) {
        CHECK(cuStreamAddCallback(stream, be_called, NULL, 0));
    } else {
        cuMemcpyHtoDAsync_v2(memory, bytes, UPLOAD, stream);
    }
    NEED(cuStreamSynchronize(stream) == ILLEGAL_ADDRESS);
    NEED(cuMemAlloc_v2(&more, 64) == ILLEGAL_ADDRESS);
    NEED(cuCtxSynchronize() == ILLEGAL_ADDRESS);
    NEED(cuMemcpyDtoH_v2(bytes, memory, UPLOAD) == ILLEGAL_ADDRESS);
    // The callback has a thread of its own, which nothing waits for where the GPU has failed.
    while (by_callback && called_with == 0) usleep(100);
    NEED(called_with == (by_callback ? ILLEGAL_ADDRESS : 0));
    free(bytes);
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    const char *what = arguments[1];
    FILE *file = fopen(arguments[2], "rb");
    if (file == NULL || fread(image, 1, sizeof image - 1, file) == 0) return 2;
    fclose(file);
    start(0);
    void *module;
    CHECK(cuCtxGetCurrent(&context));
    CHECK(cuModuleLoadData(&module, image));
    CHECK(cuModuleGetFunction(&increment, module, "increment"));
    CHECK(cuModuleGetFunction(&wait_for_flag, module, "wait_for_flag"));
    CHECK(cuModuleGetFunction(&out_of_bounds, module, "out_of_bounds"));
    CHECK(cuModuleGetFunction(&sleep_us, module, "sleep_us"));
    if (strstr(what, "upload") != NULL) after_a_failure(false);
    if (strstr(what, "callback") != NULL) after_a_failure(true);
    if (strstr(what, "sizes") != NULL) sizes_that_no_memory_has();
    if (strstr(what, "many") != NULL) many_downloads();
    if (strstr(what, "large") != NULL) a_large_download();
    if (strstr(what, "early") != NULL) memory_that_is_freed_early();
    if (strstr(what, "fails") != NULL) a_failure_during_a_download(out_of_bounds);
    if (strstr(what, "signal") != NULL) an_end_by_a_signal();
    if (strstr(what, "transfers") != NULL) an_end_among_transfers();
    puts("results right");
    return 0;
}

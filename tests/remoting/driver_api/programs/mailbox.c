// Mapped memory in which one thread writes words beside those that kernels write, while another thread
// launches these and synchronises. Arguments: an image with the kernels of
// fake_cuda/kernels/test_kernels.cu, how many rounds, and how many bytes of memory.
#include <pthread.h>

#include "check.h"

int cuMemHostAlloc(void **, size_t, unsigned);
int cuMemsetD32Async(uint64_t, unsigned, size_t, void *);

#define MAPPED 2  // CU_MEMHOSTALLOC_DEVICEMAP

static void *context, *increment;
static volatile int *box;
static volatile bool over;
static uint64_t beside;
static int rounds;

static uint64_t of(volatile void *address) { return (uint64_t)(uintptr_t)address; }

// The GPU's words are 0 and 2.
static void *kernels(void *unused) {
    (void)unused;
    void *stream;
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&stream, 1));
    for (int round = 1; round <= rounds; round++) {
        for (int at = 0; at <= 2; at += 2) {
            uint64_t where = of(box + at);
            int one = 1;
            launch(increment, 1, (void *[]){&where, &one}, stream);
        }
        CHECK(cuStreamSynchronize(stream));
        NEED(box[0] == round);
        NEED(box[2] == round);
    }
    over = true;
    return NULL;
}

// The program's are 1 and 3.
static void *writes(void *unused) {
    (void)unused;
    void *stream;
    int last = 0;
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&stream, 1));
    while (!over) {
        box[1] = ++last;
        box[3] = -last;
        CHECK(cuMemsetD32Async(beside, 1, 1, stream));
        NEED(box[1] == last);
        NEED(box[3] == -last);
        if (last % 16 == 0) CHECK(cuStreamSynchronize(stream));
    }
    uint64_t where = of(box + 1), far = of(box + 3);
    int one = 1;
    launch(increment, 1, (void *[]){&where, &one}, stream);
    launch(increment, 1, (void *[]){&far, &one}, stream);
    CHECK(cuStreamSynchronize(stream));
    NEED(box[1] == last + 1);  // the GPU has what was written last
    NEED(box[3] == 1 - last);
    return NULL;
}

int main(int count, char **arguments) {
    void *module, *memory;
    NEED(count == 4);
    start(0);
    rounds = atoi(arguments[2]);
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuModuleLoad(&module, arguments[1]));
    CHECK(cuModuleGetFunction(&increment, module, "increment"));
    CHECK(cuMemHostAlloc(&memory, (size_t)atoi(arguments[3]), MAPPED));
    memset(memory, 0, (size_t)atoi(arguments[3]));
    box = memory;
    CHECK(cuMemAlloc_v2(&beside, 4));
    pthread_t threads[2];
    pthread_create(&threads[0], NULL, kernels, NULL);
    pthread_create(&threads[1], NULL, writes, NULL);
    for (int at = 0; at < 2; at++) pthread_join(threads[at], NULL);
    puts("results right");
    return 0;
}

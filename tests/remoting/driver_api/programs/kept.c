// Memory that is freed and allocated again: the library keeps it for a moment, and nothing shows it.
// Arguments: an image with the kernels of fake_cuda/kernels/test_kernels.cu, and what to do.
#include "check.h"

#include <pthread.h>
#include <unistd.h>

int cuStreamBeginCapture_v2(void *, int), cuStreamEndCapture(void *, void **), cuGraphDestroy(void *);
int cuLaunchHostFunc(void *, void (*)(void *), void *), cuDevicePrimaryCtxReset_v2(int);
int cuCtxCreate_v2(void **, unsigned, int), cuCtxDestroy_v2(void *);
int cuPointerGetAttribute(void *, int, uint64_t), cuPointerSetAttribute(const void *, int, uint64_t);
struct properties {
    int type, handles, location_type, location;
    void *windows;
    unsigned char flags[8];
};
int cuMemCreate(uint64_t *, size_t, const struct properties *, unsigned long long), cuMemRelease(uint64_t);
int cuThreadExchangeStreamCaptureMode(int *);

enum { PIECE = 1 << 20, LARGE = 4 << 20, MANY = 40, ROUNDS = 200, SYNC_MEMOPS = 6, BUFFER_ID = 7, LATER_US = 100000 };

static void *one, *other, *increment, *sleep_us;

// As an allocator does that empties its cache in each step: four sizes, and work with each.
static void rounds(void) {
    int n = 256, found[256];
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t pieces[4];
        for (int at = 0; at < 4; at++) {
            CHECK(cuMemAlloc_v2(&pieces[at], PIECE / 4 * (at + 1)));
            CHECK(cuMemsetD8_v2(pieces[at], 0, 1024));
            launch(increment, 256, (void *[]){&pieces[at], &n}, NULL);
        }
        if (round % 50 == 0) {
            CHECK(cuMemcpyDtoH_v2(found, pieces[3], sizeof found));
            NEED(found[0] == 1 && found[255] == 1);
        }
        for (int at = 0; at < 4; at++) CHECK(cuMemFree_v2(pieces[at]));
    }
}

// A stream that is not done with freed memory, when another one begins with what has its place.
static void order(void) {
    long long wait = 50000;
    int n = 256, found[256];
    for (int round = 0; round < 3; round++) {
        uint64_t first, second;
        CHECK(cuMemAlloc_v2(&first, PIECE));
        launch(sleep_us, 1, (void *[]){&wait}, one);
        launch(increment, 256, (void *[]){&first, &n}, one);
        CHECK(cuMemFree_v2(first));
        NEED(cuMemFree_v2(first) == 1);
        CHECK(cuMemAlloc_v2(&second, PIECE));
        CHECK(cuMemsetD8_v2(second, 7, 1024));
        CHECK(cuStreamSynchronize(NULL));
        launch(increment, 256, (void *[]){&second, &n}, other);
        CHECK(cuStreamSynchronize(other));
        CHECK(cuCtxSynchronize());
        CHECK(cuMemcpyDtoH_v2(found, second, sizeof found));
        NEED(found[0] == 0x07070708 && found[255] == 0x07070708);
        CHECK(cuMemFree_v2(second));
    }
}

int cuStreamWaitValue32_v2(void *, uint64_t, uint32_t, unsigned), cuStreamWriteValue32_v2(void *, uint64_t, uint32_t, unsigned);

int cuMemsetD32Async(uint64_t, unsigned, size_t, void *);
struct operation {
    uint32_t kind, padding;
    uint64_t address, value, flags, alias, rest;
};
int cuStreamBatchMemOp_v2(void *, unsigned, const struct operation *, unsigned);

static uint64_t flag;

static void *write_flag(void *unused) {
    start(0);
    usleep(LATER_US);
    CHECK(cuStreamWriteValue32_v2(other, flag, 1, 0));
    return unused;
}

// A stream waits for what comes later, from another thread during a free.
static void later(void) {
    pthread_t thread;
    uint64_t piece;
    CHECK(cuMemAlloc_v2(&flag, PIECE / 2));
    CHECK(cuMemsetD8_v2(flag, 0, 4));
    CHECK(cuMemAlloc_v2(&piece, PIECE));
    CHECK(cuCtxSynchronize());
    CHECK(cuStreamWaitValue32_v2(one, flag, 1, 1));
    NEED(pthread_create(&thread, NULL, write_flag, NULL) == 0);
    CHECK(cuMemFree_v2(piece));
    CHECK(cuStreamSynchronize(one));
    NEED(pthread_join(thread, NULL) == 0);
    CHECK(cuMemFree_v2(flag));
}

// The same from this thread after a free, of which the worker hears late, or the device; so it must not wait.
static void after(const char *how, void *wait_for_flag) {
    bool kernel = strcmp(how, "kernel") == 0;
    const struct operation wait = {.kind = 1, .address = flag, .value = 1};
    uint64_t piece, another;
    CHECK(cuMemAlloc_v2(&piece, PIECE));
    if (strcmp(how, "busy") == 0) CHECK(cuMemsetD8_v2(piece, 0, PIECE));
    else CHECK(cuCtxSynchronize());
    CHECK(cuMemFree_v2(piece));
    if (kernel) launch(wait_for_flag, 1, (void *[]){&flag}, one);
    else if (strcmp(how, "several") == 0) CHECK(cuStreamBatchMemOp_v2(one, 1, &wait, 0));
    else CHECK(cuStreamWaitValue32_v2(one, flag, 1, 0));
    if (strcmp(how, "busy") != 0) usleep(LATER_US);
    CHECK(cuMemAlloc_v2(&another, 2 * PIECE));
    if (kernel) CHECK(cuMemsetD32Async(flag, 1, 1, other));
    else CHECK(cuStreamWriteValue32_v2(other, flag, 1, 0));
    CHECK(cuCtxSynchronize());
}

// What is kept counts as free, whoever asks and in whatever way memory is allocated.
static void room(void) {
    size_t before = left(), most = before / LARGE * LARGE;
    const struct properties properties = {1, 1, 1, 0, NULL, {0}};
    uint64_t piece, large, physical;
    unsigned long long first, second;
    CHECK(cuMemAlloc_v2(&piece, PIECE));
    CHECK(cuPointerGetAttribute(&first, BUFFER_ID, piece));
    CHECK(cuMemFree_v2(piece));
    NEED(left() == before);
    CHECK(cuMemAlloc_v2(&piece, 2 * PIECE));
    CHECK(cuMemFree_v2(piece));
    CHECK(cuMemAlloc_v2(&large, most));
    NEED(cuMemAlloc_v2(&piece, LARGE) == 2);
    CHECK(cuMemFree_v2(large));
    CHECK(cuMemAlloc_v2(&piece, 2 * PIECE));
    CHECK(cuMemFree_v2(piece));
    CHECK(cuMemCreate(&physical, most, &properties, 0));
    CHECK(cuMemRelease(physical));
    CHECK(cuMemAlloc_v2(&piece, PIECE));
    CHECK(cuPointerGetAttribute(&second, BUFFER_ID, piece));
    NEED(first != second);
    CHECK(cuMemFree_v2(piece));
    NEED(left() == before);
}

static int capturing = 1;

static void *allocate_meanwhile(void *unused) {
    uint64_t piece;
    start(0);
    while (__atomic_load_n(&capturing, __ATOMIC_RELAXED)) {
        CHECK(cuMemAlloc_v2(&piece, PIECE));
        CHECK(cuMemFree_v2(piece));
    }
    return unused;
}

// Another thread captures, and its captures stay what they are.
static void captures(void) {
    pthread_t thread;
    int n = 256;
    uint64_t piece;
    CHECK(cuMemAlloc_v2(&piece, PIECE));
    NEED(pthread_create(&thread, NULL, allocate_meanwhile, NULL) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        void *graph;
        CHECK(cuStreamBeginCapture_v2(one, 2));
        launch(increment, 256, (void *[]){&piece, &n}, one);
        launch(increment, 256, (void *[]){&piece, &n}, one);
        CHECK(cuStreamEndCapture(one, &graph));
        CHECK(cuGraphDestroy(graph));
    }
    __atomic_store_n(&capturing, 0, __ATOMIC_RELAXED);
    NEED(pthread_join(thread, NULL) == 0);
    CHECK(cuMemFree_v2(piece));
}

static void nothing(void *unused) { (void)unused; }

// Where nothing may be kept, or taken again.
static void exceptions(void) {
    int on = 1, mode = 2;
    uint64_t piece, again;
    void *graph, *context;
    CHECK(cuMemAlloc_v2(&piece, PIECE));
    CHECK(cuPointerSetAttribute(&on, SYNC_MEMOPS, piece));
    CHECK(cuMemFree_v2(piece));
    CHECK(cuMemAlloc_v2(&piece, PIECE));
    on = 9;
    CHECK(cuPointerGetAttribute(&on, SYNC_MEMOPS, piece));
    NEED(on == 0);
    CHECK(cuMemFree_v2(piece));
    CHECK(cuThreadExchangeStreamCaptureMode(&mode));
    CHECK(cuStreamBeginCapture_v2(one, 2));
    CHECK(cuMemAlloc_v2(&piece, PIECE));
    CHECK(cuMemFree_v2(piece));
    CHECK(cuMemAlloc_v2(&piece, PIECE));
    CHECK(cuStreamEndCapture(one, &graph));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuMemFree_v2(piece));
    CHECK(cuLaunchHostFunc(one, nothing, NULL));
    CHECK(cuMemAlloc_v2(&piece, PIECE));
    CHECK(cuMemFree_v2(piece));
    CHECK(cuCtxSynchronize());
    CHECK(cuCtxCreate_v2(&context, 0, 0));
    CHECK(cuMemAlloc_v2(&again, PIECE));
    CHECK(cuMemFree_v2(again));
    CHECK(cuCtxDestroy_v2(context));
    CHECK(cuMemAlloc_v2(&piece, PIECE));
    CHECK(cuMemFree_v2(piece));
    CHECK(cuDevicePrimaryCtxReset_v2(0));
    usleep(LATER_US);
}

int main(int count, char **arguments) {
    void *module, *wait_for_flag;
    NEED(count == 3 || count == 4);
    start(0);
    CHECK(cuModuleLoad(&module, arguments[1]));
    CHECK(cuModuleGetFunction(&increment, module, "increment"));
    CHECK(cuModuleGetFunction(&sleep_us, module, "sleep_us"));
    CHECK(cuStreamCreate(&one, 1));
    CHECK(cuStreamCreate(&other, 1));
    if (strcmp(arguments[2], "rounds") == 0) {
        rounds();
        CHECK(cuCtxSynchronize());
    } else if (count == 4 && strcmp(arguments[3], "during") == 0) {
        later();
    } else if (count == 4) {
        CHECK(cuModuleGetFunction(&wait_for_flag, module, "wait_for_flag"));
        CHECK(cuMemAlloc_v2(&flag, PIECE));
        CHECK(cuMemsetD8_v2(flag, 0, 4));
        after(arguments[3], wait_for_flag);
    } else {
        order();
        if (getenv("GPUPOOL_AGENT") != NULL) room();  // alone in its partition
        // More than are kept, and none later on.
        uint64_t pieces[MANY];
        for (int at = 0; at < MANY; at++) CHECK(cuMemAlloc_v2(&pieces[at], 4096));
        for (int at = 0; at < MANY; at++) CHECK(cuMemFree_v2(pieces[at]));
        usleep(LATER_US);
        captures();
        // In a worker that knows the first records only, the free waits for what comes after it.
        if (strcmp(arguments[2], "former") != 0) later();
        exceptions();
    }
    puts("results right");
    return 0;
}

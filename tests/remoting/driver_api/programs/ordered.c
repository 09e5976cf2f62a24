// What copies, kernels and events see of each other without the program's waiting in between. Argument:
// an image with the kernels of fake_cuda/kernels/test_kernels.cu.
#include <pthread.h>
#include <unistd.h>

#include "check.h"

int cuMemHostAlloc(void **, size_t, unsigned), cuMemFreeHost(void *);
int cuMemHostRegister_v2(void *, size_t, unsigned), cuMemHostUnregister(void *);
int cuFuncGetName(const char **, void *);
int cuMemHostGetDevicePointer_v2(uint64_t *, void *, unsigned), cuCtxGetCurrent(void **);
int cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, void *);
int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *);
int cuMemcpyDtoDAsync_v2(uint64_t, uint64_t, size_t, void *);
int cuMemsetD32Async(uint64_t, unsigned, size_t, void *);
int cuEventCreate(void **, unsigned), cuEventRecord(void *, void *), cuEventQuery(void *);
int cuEventSynchronize(void *), cuEventElapsedTime_v2(float *, void *, void *);
int cuCtxRecordEvent(void *, void *), cuStreamBeginCapture_v2(void *, int);
int cuStreamEndCapture(void *, void **), cuGraphLaunch(void *, void *), cuGraphDestroy(void *);
int cuGraphInstantiateWithFlags(void **, void *, unsigned long long), cuGraphExecDestroy(void *);

enum { COUNT = 16, BYTES = COUNT * 4, INVALID_VALUE = 1, NOT_READY = 600, ALREADY_REGISTERED = 712 };

static void *context, *stream, *increment_function, *sleep_function, *wait_function, *event;
static uint64_t device, other;

static void increment(uint64_t address, void *on) {
    int count = COUNT;
    void *parameters[] = {&address, &count};
    launch(increment_function, COUNT, parameters, on);
}

static void busy(long long microseconds) {
    void *parameters[] = {&microseconds};
    launch(sleep_function, 1, parameters, stream);
}

static int downloaded(uint64_t from) {
    int values[COUNT];
    CHECK(cuMemcpyDtoH_v2(values, from, BYTES));
    for (int at = 1; at < COUNT; at++) NEED(values[at] == values[0]);
    return values[0];
}

static void fill(int *values, int value) {
    for (int at = 0; at < COUNT; at++) values[at] = value;
}

// Kernels write pinned memory and read it, as do copies before them and behind them.
static void of_one_memory(size_t size, unsigned flags) {
    int *pinned;
    CHECK(cuMemHostAlloc((void **)&pinned, size, flags));
    uint64_t seen = (uint64_t)(uintptr_t)pinned;
    CHECK(cuMemsetD32Async(device, 1, COUNT, stream));
    busy(1000);
    CHECK(cuMemcpyDtoHAsync_v2(pinned, device, BYTES, stream));
    increment(seen, stream);  // which has to wait for those bytes if it is what makes a mirror of them
    CHECK(cuMemcpyHtoDAsync_v2(other, pinned, BYTES, stream));
    increment(seen, stream);
    CHECK(cuStreamSynchronize(stream));
    NEED(downloaded(other) == 2 && pinned[0] == 3 && pinned[COUNT - 1] == 3);
    fill(pinned, 10);
    increment(seen, stream);
    CHECK(cuMemcpyHtoDAsync_v2(device, pinned, BYTES, stream));
    CHECK(cuStreamSynchronize(stream));
    NEED(downloaded(device) == 11);
    fill(pinned, 20);
    increment(seen, NULL);
    CHECK(cuMemcpyHtoD_v2(device, pinned, BYTES));
    fill(pinned, 0);  // as soon as a synchronous copy has returned
    increment(seen, NULL);
    NEED(downloaded(device) == 21);
    CHECK(cuMemsetD32Async(device, 30, COUNT, stream));
    CHECK(cuMemcpyDtoHAsync_v2(pinned, device, BYTES, stream));
    increment(seen, stream);
    CHECK(cuMemcpyDtoDAsync_v2(other, seen, BYTES, stream));
    CHECK(cuStreamSynchronize(stream));
    NEED(pinned[0] == 31 && downloaded(other) == 31);
    CHECK(cuMemcpyDtoH_v2(pinned, device, BYTES));
    NEED(pinned[0] == 30 && pinned[COUNT - 1] == 30);
    CHECK(cuMemFreeHost(pinned));
}

// Within a graph, and around one that was made before kernels could see the memory.
static void of_graphs(bool mapped) {
    int *pinned;
    void *graph, *executable;
    CHECK(cuMemHostAlloc((void **)&pinned, BYTES, 0));
    uint64_t seen;
    if (mapped) CHECK(cuMemHostGetDevicePointer_v2(&seen, pinned, 0));
    CHECK(cuStreamBeginCapture_v2(stream, 2));
    CHECK(cuMemcpyHtoDAsync_v2(other, pinned, BYTES, stream));
    increment(other, stream);
    CHECK(cuMemcpyDtoHAsync_v2(pinned, other, BYTES, stream));
    if (mapped) increment((uint64_t)(uintptr_t)pinned, stream);
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    fill(pinned, 1);
    increment((uint64_t)(uintptr_t)pinned, stream);
    CHECK(cuGraphLaunch(executable, stream));
    increment((uint64_t)(uintptr_t)pinned, stream);
    CHECK(cuStreamSynchronize(stream));
    NEED(pinned[0] == (mapped ? 5 : 4) && downloaded(other) == 3);
    CHECK(cuGraphExecDestroy(executable));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuMemFreeHost(pinned));
}

// More launches than the worker has room for what they bring back.
static void many_launches(void) {
    enum { LARGE = 32 << 20, LAUNCHES = 20 };
    void *graph, *executable, *pinned;
    uint64_t memory;
    CHECK(cuMemAlloc_v2(&memory, LARGE));
    CHECK(cuMemHostAlloc(&pinned, LARGE, 0));
    CHECK(cuStreamBeginCapture_v2(stream, 2));
    CHECK(cuMemcpyDtoHAsync_v2(pinned, memory, LARGE, stream));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    for (int at = 0; at < LAUNCHES; at++) CHECK(cuGraphLaunch(executable, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuGraphExecDestroy(executable));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuMemFreeHost(pinned));
    CHECK(cuMemFree_v2(memory));
}

// An event that is over says so of everything before it, however one asks.
static void by_elapsed_time(void) {
    int *pinned, status;
    void *end;
    float milliseconds;
    CHECK(cuMemHostAlloc((void **)&pinned, BYTES, 0));
    CHECK(cuEventCreate(&end, 0));
    CHECK(cuEventRecord(event, stream));
    CHECK(cuMemsetD32Async(device, 3, COUNT, stream));
    busy(3000);
    CHECK(cuMemcpyDtoHAsync_v2(pinned, device, BYTES, stream));
    CHECK(cuEventRecord(end, stream));
    while ((status = cuEventElapsedTime_v2(&milliseconds, event, end)) == NOT_READY) usleep(100);
    CHECK(status);
    NEED(pinned[0] == 3 && pinned[COUNT - 1] == 3);
    CHECK(cuMemFreeHost(pinned));
}

static volatile bool stop;
static volatile int asked;

static void *ask(void *unused) {
    CHECK(cuCtxSetCurrent(context));
    for (; !stop; asked++) {
        int status = cuEventQuery(event);
        NEED(status == 0 || status == NOT_READY);
    }
    return unused;
}

// Whoever asks while it is recorded anew must not have others told of its former end.
static void recorded_again(void) {
    enum { SIZE = 8 << 20 };  // which is compared before each record
    char *memory = aligned_alloc(4096, SIZE);
    const char *name;
    uint64_t seen;
    pthread_t thread;
    NEED(memory != NULL);
    memset(memory, 1, SIZE);
    CHECK(cuMemHostRegister_v2(memory + 4096, SIZE - 4096, 2));
    NEED(cuMemHostRegister_v2(memory, SIZE, 2) == ALREADY_REGISTERED);
    NEED(cuMemHostUnregister(memory + 8192) == INVALID_VALUE);
    NEED(cuFuncGetName(&name, NULL) == INVALID_VALUE);
    CHECK(cuMemHostGetDevicePointer_v2(&seen, memory + 4096, 0));
    volatile int *flag;
    CHECK(cuMemHostAlloc((void **)&flag, 4096, 2));
    void *parameters[] = {&flag};
    CHECK(cuEventRecord(event, stream));
    CHECK(cuEventSynchronize(event));
    launch(wait_function, 1, parameters, NULL);
    CHECK(cuCtxRecordEvent(context, event));
    NEED(cuEventQuery(event) == NOT_READY);
    *flag = 1;
    CHECK(cuCtxSynchronize());
    CHECK(cuEventCreate(&event, 0));
    NEED(pthread_create(&thread, NULL, ask, NULL) == 0);
    for (int round = 0; round < 10; round++) {
        *flag = 0;
        launch(wait_function, 1, parameters, stream);
        CHECK(cuEventRecord(event, stream));
        for (int before = asked; asked < before + 2;) usleep(100);
        NEED(cuEventQuery(event) == NOT_READY);
        *flag = 1;
        CHECK(cuEventSynchronize(event));
    }
    stop = true;
    pthread_join(thread, NULL);
    CHECK(cuMemHostUnregister(memory + 4096));
    free(memory);
}

int main(int words, char **word) {
    void *module;
    NEED(words == 2);
    start(0);
    CHECK(cuCtxGetCurrent(&context));
    CHECK(cuModuleLoad(&module, word[1]));
    CHECK(cuModuleGetFunction(&increment_function, module, "increment"));
    CHECK(cuModuleGetFunction(&sleep_function, module, "sleep_us"));
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuEventCreate(&event, 0));
    CHECK(cuModuleGetFunction(&wait_function, module, "wait_for_flag"));
    CHECK(cuMemAlloc_v2(&device, BYTES));
    CHECK(cuMemAlloc_v2(&other, BYTES));
    of_one_memory(4096, 0);
    of_one_memory(1 << 20, 0);
    of_one_memory(4096, 2);
    of_one_memory(1 << 20, 2);
    of_graphs(false);
    of_graphs(true);
    many_launches();
    by_elapsed_time();
    recorded_again();
    puts("results right");
    return 0;
}

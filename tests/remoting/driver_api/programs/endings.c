// A program whose session ends while its threads wait in every way there is, and which then calls
// on: how long each thread takes to get its error, and what later calls say.
// Arguments: a cubin with the kernels of fake_cuda/kernels/test_kernels.cu; how to wait, or "all".
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int cuEventCreate(void **, unsigned), cuEventRecord(void *, void *), cuEventSynchronize(void *);
int cuEventQuery(void *), cuStreamQuery(void *), cuEventDestroy_v2(void *);
int cuEventElapsedTime(float *, void *, void *), cuStreamWaitEvent(void *, void *, unsigned);
int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *), cuMemFreeHost(void *);
int cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, void *);
int cuMemHostAlloc(void **, size_t, unsigned), cuMemAllocManaged(uint64_t *, size_t, unsigned);
int cuLaunchHostFunc(void *, void (*)(void *), void *), cuDevicePrimaryCtxRelease_v2(int);
int cuGraphCreate(void **, unsigned), cuGraphLaunch(void *, void *);
int cuGraphInstantiateWithFlags(void **, void *, unsigned long long);
int cuStreamBeginCapture_v2(void *, int), cuStreamEndCapture(void *, void **);
int cuMemGetAddressRange_v2(uint64_t *, size_t *, uint64_t), cuDeviceTotalMem_v2(size_t *, int);
int cuMemcpyDtoDAsync_v2(uint64_t, uint64_t, size_t, void *);
int cuMemsetD8Async(uint64_t, unsigned char, size_t, void *);
int cuLibraryLoadData(void **, const void *, void *, void *, unsigned, void *, void *, unsigned);
int cuMemHostRegister_v2(void *, size_t, unsigned), cuCtxGetCurrent(void **), cuCtxGetDevice(int *);
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *, void *, int, size_t);
int cuFuncGetAttribute(int *, int, void *), cuPointerGetAttribute(void *, int, uint64_t);
int cuModuleGetLoadingMode(int *), cuMemPoolCreate(void **, const void *), cuCtxDestroy_v2(void *);
int cuCtxCreate_v2(void **, unsigned, int);

enum { BIG = 32 << 20, NOT_READY = 600, THREADS = 16 };

static char image[1 << 20];
static void *context, *module, *function, *stream, *other, *third, *event, *graph_exec;
static uint64_t data;
static void *pinned;
static char *pageable;
static volatile int over;
static int parent;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void function_never(void *unused) { (void)unused; }
static void function_long(void *unused) {
    (void)unused;
    while (!over) usleep(10000);
}

static int stream_synchronize(void) { return cuStreamSynchronize(stream); }
static int context_synchronize(void) { return cuCtxSynchronize(); }
static int event_synchronize(void) { return cuEventSynchronize(event); }
static int download(void) { return cuMemcpyDtoH_v2(pageable, data, 1 << 20); }
static int host_function(void) { return cuStreamSynchronize(other); }
static int running_function(void) { return cuStreamSynchronize(third); }
static int query_stream(void) {
    int code;
    while ((code = cuStreamQuery(stream)) == NOT_READY) usleep(1000);
    return code;
}
static int query_event(void) {
    int code;
    while ((code = cuEventQuery(event)) == NOT_READY) {}
    return code;
}
static int upload(void) {
    int code;
    while ((code = cuMemcpyHtoDAsync_v2(data, pageable, BIG, stream)) == 0) {}
    return code;
}
static int upload_pinned(void) {
    int code;
    while ((code = cuMemcpyHtoDAsync_v2(data, pinned, BIG, stream)) == 0) {}
    return code;
}
static int load(void) {
    void *another;
    int code;
    while ((code = cuModuleLoadData(&another, image)) == 0) usleep(1000);
    return code;
}
static int launches(void) {
    long long zero = 0;
    void *parameters[] = {&zero};
    int code;
    while ((code = cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL)) == 0) {}
    return code;
}
static int allocate(void) {
    uint64_t found;
    int code;
    while ((code = cuMemAlloc_v2(&found, 1 << 20)) == 0) {
        if ((code = cuMemFree_v2(found)) != 0) break;
    }
    return code;
}

static struct way {
    const char *name;
    int (*wait)(void);
    pthread_t thread;
    int code;
    double ended;
} ways[] = {
    {.name = "stream", .wait = stream_synchronize},
    {.name = "context", .wait = context_synchronize},
    {.name = "event", .wait = event_synchronize},
    {.name = "download", .wait = download},
    {.name = "function", .wait = host_function},
    {.name = "running", .wait = running_function},
    {.name = "query-stream", .wait = query_stream},
    {.name = "query-event", .wait = query_event},
    {.name = "upload", .wait = upload},
    {.name = "upload-pinned", .wait = upload_pinned},
    {.name = "load", .wait = load},
    {.name = "launches", .wait = launches},
    {.name = "allocate", .wait = allocate},
};
enum { WAYS = sizeof ways / sizeof *ways };

static void *wait_one(void *argument) {
    struct way *way = argument;
    CHECK(cuCtxSetCurrent(context));
    way->code = way->wait();
    way->ended = now();
    return NULL;
}

// Copies between two devices until one fails; those of two servers may lose each other alone.
static int copy_on(bool busy) {
    uint64_t there;
    void *second, *nap, *there_module;
    long long microseconds = 8000000;
    void *parameters[] = {&microseconds};
    int code;
    CHECK(cuDevicePrimaryCtxRetain(&second, 1));
    CHECK(cuCtxSetCurrent(second));
    CHECK(cuModuleLoadData(&there_module, image));
    CHECK(cuModuleGetFunction(&nap, there_module, "sleep_us"));
    CHECK(cuMemAlloc_v2(&there, BIG));
    CHECK(cuMemcpy(there, data, BIG));
    if (busy) CHECK(cuLaunchKernel(nap, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    printf("waiting\n");
    fflush(stdout);
    do code = cuMemcpy(there, data, BIG);
    while (code == 0);
    double started = now();
    int again = cuMemcpy(there, data, BIG), back = cuMemcpyDtoH_v2(pageable, there, 1 << 20);
    CHECK(cuCtxSetCurrent(context));
    printf("copies: %d, then %d; downloads: %d, %d%s\n", code, again, back,
           cuMemcpyDtoH_v2(pageable, data, 1 << 20), now() - started > 4 ? "; slow" : "");
    return 1;
}

// A kernel that fails for good, and uploads behind it: they must not end the session.
static int after_a_sticky_error(void) {
    void *bad, *parameters[] = {&data};
    CHECK(cuModuleGetFunction(&bad, module, "out_of_bounds"));
    CHECK(cuLaunchKernel(bad, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    int first = cuMemcpyHtoDAsync_v2(data, pageable, BIG, stream), second = cuCtxSynchronize();
    int third_ = cuMemcpyHtoDAsync_v2(data, pinned, BIG, stream);
    printf("sticky: %d, %d, %d, %d\n", first, second, third_, cuCtxSynchronize());
    return 1;
}

static void slow(const char *name, int code, double started) {
    double took = now() - started;
    if (took > 2) printf("slow: %s took %.2f s\n", name, took);
    if (code != 46) printf("%s gave %d\n", name, code);
}

#define LATER(call)                                                                                \
    do {                                                                                           \
        double started_ = now();                                                                   \
        slow(#call, (call), started_);                                                             \
    } while (0)

static void call_on(void) {
    void *made;
    uint64_t address;
    size_t size;
    int number;
    float ms;
    long long zero = 0;
    void *parameters[] = {&zero};
    LATER(cuCtxSynchronize());
    LATER(cuStreamSynchronize(stream));
    LATER(cuStreamSynchronize(NULL));
    LATER(cuStreamQuery(stream));
    LATER(cuEventQuery(event));
    LATER(cuEventSynchronize(event));
    LATER(cuEventRecord(event, stream));
    LATER(cuEventElapsedTime(&ms, event, event));
    LATER(cuStreamWaitEvent(stream, event, 0));
    LATER(cuMemAlloc_v2(&address, 1 << 20));
    LATER(cuMemAllocAsync(&address, 1 << 20, stream));
    LATER(cuMemAllocManaged(&address, 1 << 20, 1));
    LATER(cuMemHostAlloc(&made, 1 << 20, 0));
    LATER(cuMemHostRegister_v2(pageable, 1 << 20, 0));
    LATER(cuMemFree_v2(data));
    LATER(cuMemFreeAsync(data, stream));
    LATER(cuMemGetInfo_v2(&size, &size));
    LATER(cuMemGetAddressRange_v2(&address, &size, data));
    LATER(cuMemcpyHtoD_v2(data, pageable, BIG));
    LATER(cuMemcpyHtoDAsync_v2(data, pageable, BIG, stream));
    LATER(cuMemcpyDtoH_v2(pageable, data, BIG));
    LATER(cuMemcpyDtoHAsync_v2(pageable, data, BIG, stream));
    LATER(cuMemcpyDtoDAsync_v2(data, data + BIG / 2, 100, stream));
    LATER(cuMemcpy(data, data + BIG / 2, 100));
    LATER(cuMemsetD8Async(data, 1, 100, stream));
    LATER(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    LATER(cuLaunchHostFunc(stream, function_never, NULL));
    LATER(cuGraphLaunch(graph_exec, stream));
    LATER(cuGraphCreate(&made, 0));
    LATER(cuStreamBeginCapture_v2(stream, 0));
    LATER(cuStreamEndCapture(stream, &made));
    LATER(cuModuleLoadData(&made, image));
    LATER(cuLibraryLoadData(&made, image, NULL, NULL, 0, NULL, NULL, 0));
    LATER(cuModuleGetFunction(&made, module, "increment"));
    LATER(cuFuncGetAttribute(&number, 0, function));
    LATER(cuOccupancyMaxActiveBlocksPerMultiprocessor(&number, function, 32, 0));
    LATER(cuStreamCreate(&made, 0));
    LATER(cuEventCreate(&made, 0));
    LATER(cuPointerGetAttribute(&number, 2, data));
    LATER(cuDevicePrimaryCtxRetain(&made, 0));
    LATER(cuCtxCreate_v2(&made, 0, 0));
    LATER(cuDeviceTotalMem_v2(&size, 0));
    LATER(cuMemFreeHost(pinned));
    LATER(cuEventDestroy_v2(event));
    LATER(cuStreamDestroy_v2(stream));
    LATER(cuModuleUnload(module));
}

static void at_exit(void) {
    if (getpid() != parent) return;
    LATER(cuCtxSynchronize());
    LATER(cuStreamDestroy_v2(other));
    LATER(cuDevicePrimaryCtxRelease_v2(0));
}

static void child(const char *when) {
    fflush(stdout);
    int pid = fork();
    if (pid == 0) {
        int code = cuCtxSynchronize();
        printf("a child %s: %d, %d, %d\n", when, cuInit(0), code, cuMemFree_v2(data));
        exit(0);
    }
    double started = now();
    int status;
    waitpid(pid, &status, 0);
    double took = now() - started;
    if (status != 0 || took > 5) printf("child: status %d in %.2f s\n", status, took);
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    FILE *file = fopen(arguments[1], "rb");
    if (file == NULL || fread(image, 1, sizeof image - 1, file) == 0) return 2;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuModuleLoadData(&module, image));
    CHECK(cuModuleGetFunction(&function, module, "sleep_us"));
    CHECK(cuStreamCreate(&stream, 0));
    CHECK(cuStreamCreate(&other, 0));
    CHECK(cuStreamCreate(&third, 1));
    CHECK(cuEventCreate(&event, 0));
    CHECK(cuMemAlloc_v2(&data, BIG));
    CHECK(cuMemHostAlloc(&pinned, BIG, 0));
    pageable = malloc(BIG);
    memset(pageable, 1, BIG);
    void *graph;
    CHECK(cuStreamBeginCapture_v2(stream, 0));
    CHECK(cuMemsetD8Async(data, 0, 100, stream));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&graph_exec, graph, 0));
    CHECK(cuCtxSynchronize());
    if (strncmp(arguments[2], "copies", 6) == 0) return copy_on(arguments[2][6] != 0);
    if (strcmp(arguments[2], "sticky") == 0) return after_a_sticky_error();
    parent = getpid();
    atexit(at_exit);
    long long microseconds = 60000000;
    void *parameters[] = {&microseconds};
    bool all = strcmp(arguments[2], "all") == 0;
    if (all || strcmp(arguments[2], "running") == 0) {
        CHECK(cuLaunchHostFunc(third, function_long, NULL));
    }
    CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    CHECK(cuEventRecord(event, stream));
    CHECK(cuStreamWaitEvent(other, event, 0));
    if (all || strcmp(arguments[2], "function") == 0) {
        CHECK(cuLaunchHostFunc(other, function_never, NULL));
    }
    child("before");
    for (int at = 0; at < WAYS; at++) {
        if (!all && strcmp(arguments[2], ways[at].name) != 0) continue;
        pthread_create(&ways[at].thread, NULL, wait_one, &ways[at]);
    }
    usleep(300000);
    printf("waiting\n");
    fflush(stdout);
    double said = now(), first = 0;
    for (int at = 0; at < WAYS; at++) {
        if (ways[at].thread == 0) continue;
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 20;
        if (pthread_timedjoin_np(ways[at].thread, NULL, &until) != 0) {
            printf("%s hangs\n", ways[at].name);
            fflush(stdout);
            continue;
        }
        if (ways[at].ended > said && (first == 0 || ways[at].ended < first)) first = ways[at].ended;
    }
    for (int at = 0; at < WAYS; at++) {
        if (ways[at].thread == 0 || ways[at].ended == 0) continue;
        double late = ways[at].ended - first;
        const char *when = ways[at].ended < said ? " before" : "";
        if (ways[at].code != 46) printf("%s: %d%s\n", ways[at].name, ways[at].code, when);
        if (late > 4) printf("%s %.1f s later\n", ways[at].name, late);
    }
    over = 1;
    printf("over\n");
    fflush(stdout);
    call_on();
    child("after");
    printf("done\n");
    return 1;
}

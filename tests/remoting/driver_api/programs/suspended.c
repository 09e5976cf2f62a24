// A program that is suspended in mid-run: it computes in steps, and prints what all of its memory has.
//
// Arguments: an image with the kernels of fake_cuda/kernels/test_kernels.cu, how many steps at most, one of
// the words below, another image, and a file with which the steps end.
// "kinds": a graph, two streams with events, pinned, mapped and managed memory;
// "variable": the same, beside a managed variable of another image, which follows;
// "shares": another process has opened memory of this one.
#include "graphs.h"

#include <fcntl.h>
#include <unistd.h>

int cuMemHostAlloc(void **, size_t, unsigned), cuMemAllocManaged(uint64_t *, size_t, unsigned);
int cuLibraryLoadFromFile(void **, const char *, void *, void *, unsigned, void *, void *, unsigned);
int cuLibraryGetManaged(uint64_t *, size_t *, void *, const char *);
struct ipc_handle {
    char bytes[64];
};
int cuIpcGetMemHandle(struct ipc_handle *, uint64_t);
int cuIpcOpenMemHandle_v2(uint64_t *, struct ipc_handle, unsigned);

enum { N = 5000, BYTES = N * 4, MAPPED = 2, PAUSE_US = 10000 };

static void *increment, *stream, *other, *done, *graph_exec;
static const char *end_file = "";
static uint64_t numbers;
static int *pinned, *mapped, *managed;

static void add_one(uint64_t address, void *on) {
    int count = N;
    launch(increment, N, (void *[]){&address, &count}, on);
}

static uint64_t of(const void *address) { return (uint64_t)(uintptr_t)address; }

static void prepare(void) {
    void *graph;
    uint64_t address;
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuStreamCreate(&other, 1));
    CHECK(cuEventCreate(&done, 0));
    CHECK(cuMemAlloc_v2(&numbers, BYTES));
    CHECK(cuMemsetD8_v2(numbers, 0, BYTES));
    CHECK(cuMemAllocHost_v2((void **)&pinned, BYTES));
    CHECK(cuMemHostAlloc((void **)&mapped, BYTES, MAPPED));
    CHECK(cuMemAllocManaged(&address, BYTES, 1));
    managed = (int *)(uintptr_t)address;
    for (int at = 0; at < N; at++) mapped[at] = managed[at] = at * 7;
    CHECK(cuStreamBeginCapture_v2(stream, 0));
    add_one(numbers, stream);
    add_one(numbers, stream);
    CHECK(cuMemcpyDtoHAsync_v2(pinned, numbers, BYTES, stream));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&graph_exec, graph, 0));
    CHECK(cuCtxSynchronize());
}

static uint64_t hashed(uint64_t hash, const int *data) {
    for (int at = 0; at < N; at++) hash = (hash ^ (uint32_t)data[at]) * 0x100000001b3;
    return hash;
}

static void step(int number) {
    int copy[N];
    mapped[number % N] += number;
    managed[(number * 31) % N] -= number;
    CHECK(cuGraphLaunch(graph_exec, stream));
    add_one(of(mapped), stream);
    CHECK(cuEventRecord(done, stream));
    CHECK(cuStreamWaitEvent(other, done, 0));
    add_one(of(managed), other);
    CHECK(cuStreamSynchronize(other));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemcpyDtoH_v2(copy, numbers, BYTES));
    uint64_t hash = hashed(hashed(hashed(hashed(0xcbf29ce484222325, copy), pinned), mapped), managed);
    printf("%d %016llx\n", number, (unsigned long long)hash);
}

// What another process has in its memory, again and again, by a handle that comes first.
static void watch(void) {
    struct ipc_handle handle;
    uint64_t address;
    int value;
    NEED(read(0, &handle, sizeof handle) == sizeof handle);
    start(0);
    CHECK(cuIpcOpenMemHandle_v2(&address, handle, 1));
    while (read(0, &value, 1) == 1) {
        CHECK(cuMemcpyDtoH_v2(&value, address, sizeof value));
        NEED(write(1, &value, sizeof value) == sizeof value);
    }
}

// The program has another step, unless somebody wants it to end.
static bool goes_on(int number, int steps) { return number <= steps && access(end_file, F_OK) != 0; }

static void share(int steps) {
    int down[2], up[2];
    uint64_t address;
    struct ipc_handle handle;
    NEED(pipe2(down, O_CLOEXEC) == 0 && pipe2(up, O_CLOEXEC) == 0);
    if (fork() == 0) { // It begins anew: CUDA does not go through a fork.
        NEED(dup2(down[0], 0) == 0 && dup2(up[1], 1) == 1);
        execl("/proc/self/exe", "suspended", "", "0", "watches", NULL);
        exit(1);
    }
    close(down[0]), close(up[1]);
    start(0);
    CHECK(cuMemAlloc_v2(&address, BYTES));
    CHECK(cuIpcGetMemHandle(&handle, address));
    NEED(write(down[1], &handle, sizeof handle) == sizeof handle);
    for (int number = 1, value; goes_on(number, steps); number++) {
        CHECK(cuMemsetD8_v2(address, (unsigned char)number, sizeof value));
        CHECK(cuCtxSynchronize());
        NEED(write(down[1], "x", 1) == 1 && read(up[0], &value, sizeof value) == sizeof value);
        printf("%d %08x\n", number, (unsigned)value);
        usleep(PAUSE_US);
    }
}

// A managed variable of a module, which the driver itself keeps, and another image has.
static void load_variable(const char *image) {
    void *library;
    uint64_t address;
    size_t size;
    CHECK(cuLibraryLoadFromFile(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    CHECK(cuLibraryGetManaged(&address, &size, library, "counters"));
}

static void compute(const char *image, int steps) {
    void *module;
    CHECK(cuModuleLoad(&module, image));
    CHECK(cuModuleGetFunction(&increment, module, "increment"));
    prepare();
    for (int number = 1; goes_on(number, steps); number++) {
        step(number);
        usleep(PAUSE_US);
    }
}

int main(int count, char **words) {
    NEED(count >= 4);
    setvbuf(stdout, NULL, _IOLBF, 0);
    int steps = atoi(words[2]);
    if (count > 5) end_file = words[5];
    if (strcmp(words[3], "shares") == 0) {
        share(steps);
    } else if (strcmp(words[3], "watches") == 0) {
        watch();
    } else {
        start(0);
        if (strcmp(words[3], "variable") == 0) load_variable(words[4]);
        compute(words[1], steps);
    }
    return 0;
}

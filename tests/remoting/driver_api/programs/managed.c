// Managed memory behind the door; two devices with partitions of 64 MiB.
#include "check.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct location {
    int type, id;
};

int cuMemAllocManaged(uint64_t *, size_t, unsigned);
int cuMemPrefetchAsync_v2(uint64_t, size_t, struct location, unsigned, void *);
int cuMemAdvise_v2(uint64_t, size_t, int, struct location);
int cuMemRangeGetAttribute(void *, size_t, int, uint64_t, size_t);
int cuMemRangeGetAttributes(void **, const size_t *, const int *, size_t, uint64_t, size_t);
int cuStreamAttachMemAsync(void *, uint64_t, size_t, unsigned);
int cuPointerGetAttribute(void *, int, uint64_t), cuMemGetAddressRange_v2(uint64_t *, size_t *,
                                                                           uint64_t);
int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *);
int cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, void *);
int cuCtxGetCurrent(void **), cuLibraryUnload(void *);
int cuLibraryLoadFromFile(void **, const char *, void *, void *, unsigned, void *, void *, unsigned);
int cuLibraryGetManaged(uint64_t *, size_t *, void *, const char *);
int cuLaunchHostFunc(void *, void (*)(void *), void *);
int cuMemsetD8Async(uint64_t, unsigned char, size_t, void *);

#define MIB ((size_t)1 << 20)
#define INTS MIB

static void *increment;

static void *managed(size_t size) {
    uint64_t address;
    CHECK(cuMemAllocManaged(&address, size, 1));
    return (void *)(uintptr_t)address;
}

static uint64_t number(const void *address) { return (uint64_t)(uintptr_t)address; }

static void add_one(int *data, int count, void *stream) {
    uint64_t address = number(data);
    launch(increment, (unsigned)count, (void *[]){&address, &count}, stream);
}

// Both sides write in turn.
static void in_turn(void *stream) {
    int *data = managed(INTS * sizeof *data);
    for (size_t at = 0; at < INTS; at++) NEED(data[at] == 0);
    for (size_t at = 0; at < INTS; at++) data[at] = (int)at * 3;
    add_one(data, INTS, stream);
    CHECK(cuStreamSynchronize(stream));
    for (size_t at = 0; at < INTS; at++) NEED(data[at] == (int)at * 3 + 1);
    data[12345] = -7;  // one page
    add_one(data, INTS, stream);
    CHECK(cuStreamSynchronize(stream));  // it is non-blocking: nothing else orders the two kernels
    add_one(data, INTS, NULL);
    CHECK(cuCtxSynchronize());
    NEED(data[12345] == -5 && data[12346] == 12346 * 3 + 3 && data[INTS - 1] == 3145728);
    for (int turn = 0; turn < 20; turn++) {
        data[turn * 50000] = turn;
        add_one(data, INTS, stream);
        CHECK(cuStreamSynchronize(stream));
        NEED(data[turn * 50000] == turn + 1);
    }
    CHECK(cuMemFree_v2(number(data)));
}

// Copies may take it for either kind of memory.
static void copies(void *stream) {
    unsigned char *one = managed(3 * MIB), *two = managed(300000);
    unsigned char *plain = malloc(3 * MIB), *back = malloc(3 * MIB);
    uint64_t device;
    CHECK(cuMemAlloc_v2(&device, 3 * MIB));
    for (size_t at = 0; at < 3 * MIB; at++) plain[at] = (unsigned char)(at * 13 >> 2);
    memcpy(one, plain, 3 * MIB);
    CHECK(cuMemcpyHtoD_v2(device, one, 3 * MIB));
    CHECK(cuMemcpyDtoH_v2(back, device, 3 * MIB));
    NEED(memcmp(plain, back, 3 * MIB) == 0);
    CHECK(cuMemcpyDtoH_v2(two, device + 5, 300000));
    NEED(memcmp(two, plain + 5, 300000) == 0);
    CHECK(cuMemcpy(number(two), number(plain + 9), 300000));
    NEED(memcmp(two, plain + 9, 300000) == 0);
    two[7] = 99;
    CHECK(cuMemcpy(number(back), number(two), 300000));
    NEED(back[7] == 99 && back[8] == plain[17]);
    CHECK(cuMemsetD8Async(number(one), 0x5a, 1000, stream));
    CHECK(cuMemcpyDtoHAsync_v2(one + 2000, device, 100, stream));
    CHECK(cuMemcpyHtoDAsync_v2(number(one) + 3000, plain, 100, stream));
    CHECK(cuMemcpyHtoDAsync_v2(device, one, 4000, stream));
    CHECK(cuStreamSynchronize(stream));
    NEED(one[0] == 0x5a && one[999] == 0x5a && one[1000] == plain[1000]);
    NEED(memcmp(one + 2000, plain, 100) == 0 && memcmp(one + 3000, plain, 100) == 0);
    CHECK(cuMemcpyDtoH_v2(back, device, 4000));
    NEED(memcmp(one, back, 4000) == 0);
    CHECK(cuMemFree_v2(device));
    CHECK(cuMemFree_v2(number(one)));
    CHECK(cuMemFree_v2(number(two)));
    free(plain), free(back);
}

// Structures that point to each other, and to the parameters of a kernel.
struct node {
    struct node *next;
    uint64_t data;
    int count;
};

static void structures(void) {
    struct node *list = NULL;
    size_t before = left();
    for (int at = 0; at < 3000; at++) {
        struct node *made = managed(sizeof *made);
        *made = (struct node){list, at == 2999 ? number(managed(4096)) : 0, 1024};
        list = made;
    }
    OURS(left() == before - 2 * MIB);  // small ones share
    launch(increment, 1024, (void *[]){&list->data, &list->count}, NULL);
    CHECK(cuCtxSynchronize());
    NEED(((int *)(uintptr_t)list->data)[1023] == 1);
    CHECK(cuMemFree_v2(list->data));
    int count = 0;
    for (struct node *next; list != NULL; list = next, count++) {
        next = list->next;
        CHECK(cuMemFree_v2(number(list)));
    }
    CHECK(cuCtxSynchronize());
    OURS(count == 3000 && left() == before);
}

static void hints(void *stream) {
    struct location gpu = {1, 0}, cpu = {2, 0}, none = {1, 5};
    uint64_t address, base;
    size_t size, sizes[2] = {4, 12};
    int value = 9, both[3], kinds[2] = {1, 3};
    void *values[2] = {&value, both};
    CHECK(cuDeviceGetAttribute(&value, 83, 0));  // CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY
    NEED(value == 1);
    CHECK(cuDeviceGetAttribute(&value, 89, 0));  // ..._CONCURRENT_MANAGED_ACCESS
    OURS(value == 0);
    NEED(cuMemAllocManaged(&address, 8, 3) == 1);
    OURS(cuMemAllocManaged(&address, 128 * MIB, 1) == 2);
    char *data = managed(5000);
    address = number(data);
    CHECK(cuPointerGetAttribute(&value, 8, address + 100));  // ..._IS_MANAGED
    NEED(value == 1);
    CHECK(cuMemGetAddressRange_v2(&base, &size, address + 4999));
    NEED(base == address && size == 5000);
    CHECK(cuMemRangeGetAttribute(&value, 4, 2, address, 5000));
    NEED(value == -2);
    CHECK(cuMemAdvise_v2(address, 5000, 3, cpu));
    CHECK(cuMemRangeGetAttribute(&value, 4, 2, address, 5000));
    NEED(value == -1);
    CHECK(cuMemAdvise_v2(address, 5000, 1, none));
    CHECK(cuMemAdvise_v2(address, 5000, 5, gpu));
    CHECK(cuMemRangeGetAttributes(values, sizes, kinds, 2, address, 5000));
    NEED(value == 1 && both[0] == 0 && both[1] == -2 && both[2] == -2);
    NEED(cuMemAdvise_v2(address, 6000, 1, gpu) == 1);
    NEED(cuMemAdvise_v2(address, 5000, 5, none) == 101);
    data[4] = 5;
    CHECK(cuMemPrefetchAsync_v2(address, 5000, gpu, 0, stream));
    CHECK(cuMemPrefetchAsync_v2(address, 5000, cpu, 0, stream));
    CHECK(cuMemRangeGetAttribute(&value, 4, 4, address, 5000));
    NEED(value == -1 && data[4] == 5);
    CHECK(cuStreamAttachMemAsync(stream, address, 0, 4));
    NEED(cuStreamAttachMemAsync(stream, address + 1, 0, 4) == 1);
    CHECK(cuMemFree_v2(address));
    NEED(cuMemFree_v2(address) == 1);
}

static void write_slowly(void *data) {
    usleep(120000);
    ((int *)data)[1] += ((int *)data)[0];
}

// The driver keeps copies of managed memory while it waits to free something or to unload it.
static void slow_functions(void *stream, const char *image) {
    int *data = managed(2 * MIB);
    void *again;
    uint64_t memory;
    data[0] = 1;
    data[1] = 0;
    CHECK(cuMemAlloc_v2(&memory, 64));
    CHECK(cuLaunchHostFunc(stream, write_slowly, data));
    CHECK(cuMemFree_v2(memory));
    CHECK(cuModuleLoad(&again, image));
    CHECK(cuLaunchHostFunc(stream, write_slowly, data));
    CHECK(cuModuleUnload(again));
    CHECK(cuStreamSynchronize(stream));
    NEED(data[1] == 2);
    CHECK(cuMemFree_v2(number(data)));
}

static void *sum(void *of) {
    int *data = of;
    long total = 0;
    for (size_t at = 0; at < INTS; at++) total += data[at];
    return (void *)total;
}

// A host function reads what its stream has made, and writes what it makes of it.
static int *checked;

static void check(void *data) {
    (void)data;
    checked[1] = checked[0] == 41 ? 1 : -1;
}

static void host_functions(void *stream) {
    checked = managed(2 * MIB);
    checked[0] = 40;
    add_one(checked, 1, stream);
    CHECK(cuLaunchHostFunc(stream, check, NULL));
    CHECK(cuStreamSynchronize(stream));
    add_one(checked, 2, stream);
    CHECK(cuStreamSynchronize(stream));
    NEED(checked[0] == 42 && checked[1] == 2);
    CHECK(cuMemFree_v2(number(checked)));
}

static void threads(void) {
    int *data = managed(INTS * sizeof *data);
    pthread_t others[3];
    void *total;
    for (int turn = 0; turn < 3; turn++) {
        add_one(data, INTS, NULL);
        CHECK(cuCtxSynchronize());
        for (int at = 0; at < 3; at++) NEED(!pthread_create(&others[at], NULL, sum, data));
        for (int at = 0; at < 3; at++) {
            pthread_join(others[at], &total);
            NEED((long)total == (long)INTS * (turn + 1));
        }
    }
    CHECK(cuMemFree_v2(number(data)));
}

// A module's variable that both sides have.
static void variable(const char *image) {
    void *module, *count;
    uint64_t address;
    size_t size;
    CHECK(cuModuleLoad(&module, image));
    CHECK(cuModuleGetFunction(&count, module, "count"));
    CHECK(cuModuleGetGlobal_v2(&address, &size, module, "counters"));
    NEED(size == 4096);
    int *counters = (int *)(uintptr_t)address;
    NEED(counters[5] == 0);
    for (int at = 0; at < 1024; at++) counters[at] = 1000;
    launch(count, 1024, (void *[]){&(int){500}}, NULL);
    CHECK(cuCtxSynchronize());
    NEED(counters[0] == 1001 && counters[499] == 1500 && counters[500] == 1000);
    CHECK(cuModuleUnload(module));

    // Runtimes ask for such variables before they make a context current.
    void *library, *context;
    CHECK(cuCtxGetCurrent(&context));
    CHECK(cuCtxSetCurrent(NULL));
    CHECK(cuLibraryLoadFromFile(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    CHECK(cuLibraryGetManaged(&address, &size, library, "counters"));
    NEED(size == 4096);
    CHECK(cuCtxSetCurrent(context));
    counters = (int *)(uintptr_t)address;
    counters[1000] = 7;
    CHECK(cuMemcpyDtoH_v2(&size, address + 4000, 4));
    NEED((int)size == 7);
    CHECK(cuLibraryUnload(library));
}

// Three in one page, and the last in many: the driver puts variables side by side.
static void small_variables(void) {
    static const char PTX[] = ".version 8.0\n.target sm_50\n.address_size 64\n"
                              ".global .attribute(.managed) .align 4 .u32 first = 10;\n"
                              ".global .attribute(.managed) .align 4 .u32 second = 100;\n"
                              ".global .attribute(.managed) .align 4 .b8 third[100000];\n";
    for (int turn = 0; turn < 2; turn++) {
        void *module;
        uint64_t at[3];
        CHECK(cuModuleLoadData(&module, PTX));
        CHECK(cuModuleGetGlobal_v2(&at[0], NULL, module, "first"));
        int *first = (int *)(uintptr_t)at[0];
        NEED(*first == 10);
        *first += 1;  // its block is open when the next variable comes to it
        CHECK(cuModuleGetGlobal_v2(&at[1], NULL, module, "second"));
        CHECK(cuModuleGetGlobal_v2(&at[2], NULL, module, "third"));
        int *second = (int *)(uintptr_t)at[1], *third = (int *)(uintptr_t)at[2];
        NEED(at[1] - at[0] == 512 && at[2] - at[0] == 1024);
        NEED(*second == 100 && third[0] == 0 && third[24999] == 0);
        third[24999] = 7;
        add_one(first, 1, NULL);
        add_one(second, 1, NULL);
        add_one(third, 25000, NULL);
        CHECK(cuCtxSynchronize());
        NEED(*first == 12 && *second == 101 && third[0] == 1 && third[24999] == 8);
        *second = 5;
        int told[2];
        CHECK(cuMemcpyDtoH_v2(&told[0], at[0], 4));
        CHECK(cuMemcpyDtoH_v2(&told[1], at[1], 4));
        NEED(told[0] == 12 && told[1] == 5);
        CHECK(cuModuleUnload(module));
    }
}

static sigjmp_buf after;
static volatile int caught;

static void on_fault(int signal_number) {
    caught++;
    siglongjmp(after, signal_number);
}

// Faults that are not ours go to the program's handler, even if it came later.
static void faults(void) {
    int *volatile data = managed(MIB);
    struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};
    void *closed = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sigaction(SIGSEGV, &action, NULL);
    for (volatile int turn = 1; turn < 3; turn++) {
        if (sigsetjmp(after, 1) == 0) *(volatile int *)closed = 1;
        NEED(caught == turn);
        add_one(data, 1000, NULL);
        CHECK(cuCtxSynchronize());
        int *other = managed(2 * MIB);  // takes the handler back
        other[0] = data[0];
        NEED(other[0] == turn && caught == turn);
        CHECK(cuMemFree_v2(number(other)));
    }
    action.sa_handler = SIG_DFL;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        sigaction(SIGSEGV, &action, NULL);
        _exit(data[0]);  // a child has no managed memory
    }
    int status;
    NEED(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    CHECK(cuMemFree_v2(number(data)));
}

int main(int count, char **arguments) {
    void *module, *stream;
    NEED(count == 3);
    start(0);
    CHECK(cuModuleLoad(&module, arguments[1]));
    CHECK(cuModuleGetFunction(&increment, module, "increment"));
    CHECK(cuStreamCreate(&stream, 1));
    size_t all = left();
    in_turn(stream);
    copies(stream);
    structures();
    hints(stream);
    host_functions(stream);
    slow_functions(stream, arguments[1]);
    CHECK(cuStreamCreate(&stream, 0));  // one that the legacy stream waits for
    host_functions(stream);
    threads();
    variable(arguments[2]);
    small_variables();
    faults();
    CHECK(cuCtxSynchronize());
    OURS(left() == all);
    puts("results right");
    return 0;
}

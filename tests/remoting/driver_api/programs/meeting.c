// Memory in which kernels of two processes, and by two addresses of one, wait for each other: a file
// that is named and mapped as NCCL's are. Argument: a cubin with the kernels of test_kernels.cu.
#include "check.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

int cuMemHostRegister_v2(void *, size_t, unsigned), cuMemHostUnregister(void *);
int cuMemHostGetDevicePointer_v2(uint64_t *, void *, unsigned);
int cuMemcpyDtoD_v2(uint64_t, uint64_t, size_t), cuMemsetD32_v2(uint64_t, unsigned, size_t);

enum { MANY = 100, SIZE = 3 << 20, INTS = SIZE / 4, FIRST = 1 << 18, SECOND = 2 << 18 };

struct place {
    int *here;
    uint64_t there;
};

static struct place enter(int file) {
    struct place made;
    made.here = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    NEED(made.here != MAP_FAILED);
    CHECK(cuMemHostRegister_v2(made.here, SIZE, 3));
    CHECK(cuMemHostGetDevicePointer_v2(&made.there, made.here, 0));
    return made;
}

static int read_int(struct place place, int at) {
    uint64_t memory;
    int value;
    CHECK(cuMemAlloc_v2(&memory, 4));
    CHECK(cuMemcpyDtoD_v2(memory, place.there + (uint64_t)at * 4, 4));
    CHECK(cuMemcpyDtoH_v2(&value, memory, 4));
    CHECK(cuMemFree_v2(memory));
    return value;
}

// Have a kernel wait until somebody else has written here.
static void wait_at(const char *image, struct place place, int at) {
    void *module, *wait;
    uint64_t flag = place.there + (uint64_t)at * 4;
    void *parameters[] = {&flag};
    CHECK(cuModuleLoad(&module, image));
    CHECK(cuModuleGetFunction(&wait, module, "wait_for_flag"));
    launch(wait, 1, parameters, NULL);
    CHECK(cuCtxSynchronize());
}

static void set(struct place place, int at, int value) {
    CHECK(cuMemsetD32_v2(place.there + (uint64_t)at * 4, (unsigned)value, 1));
    CHECK(cuCtxSynchronize());
}

static int other(const char *image, int file) {
    start(0);
    struct place place = enter(file);
    set(place, 1, 41);
    wait_at(image, place, FIRST);
    NEED(read_int(place, FIRST) == 7);
    set(place, SECOND, 1);
    CHECK(cuMemHostUnregister(place.here));
    return 0;
}

int main(int count, char **arguments) {
    char name[] = "/dev/shm/nccl-XXXXXX";
    NEED(count == 2);
    int file = mkstemp(name), status;
    NEED(file >= 0 && ftruncate(file, SIZE) == 0);
    pid_t child = fork();
    if (child == 0) return other(arguments[1], file);
    start(0);
    struct place one = enter(file), two = enter(file);
    // More than mirrors may take together: NCCL has such a file for each way of each channel.
    struct place many[MANY];
    for (int at = 0; at < MANY; at++) many[at] = enter(file);
    for (int at = 0; at < MANY; at++) CHECK(cuMemHostUnregister(many[at].here));
    unlink(name);
    set(one, FIRST, 7);
    wait_at(arguments[1], two, SECOND);
    NEED(read_int(two, 1) == 41 && read_int(one, 1) == 41 && read_int(two, FIRST) == 7);
    NEED(one.here[FIRST] == 0);  // nothing of it comes here
    CHECK(cuMemHostUnregister(one.here));
    NEED(read_int(two, 1) == 41);
    CHECK(cuMemHostUnregister(two.here));
    NEED(waitpid(child, &status, 0) == child && status == 0);
    puts("results right");
    return 0;
}

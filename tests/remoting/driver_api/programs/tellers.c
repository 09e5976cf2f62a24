// Host functions of a library that only tell: they run in their order, and nothing is over before them.
// Arguments: an image with the kernels of fake_cuda/kernels/test_kernels.cu, the library.
#include <dlfcn.h>

#include "check.h"

int cuLaunchHostFunc(void *, void (*)(void *), void *);
int cuEventCreate(void **, unsigned), cuEventRecord(void *, void *), cuEventQuery(void *);
int cuEventSynchronize(void *), cuStreamQuery(void *), cuStreamWaitEvent(void *, void *, unsigned);
int cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, void *);

enum { ROUNDS = 50, MANY = 400 };

static void *increment;
static void (*tell)(void *), (*tell_late)(void *);

static void *find(void *library, const char *name) {
    void *found = dlsym(library, name);
    NEED(found != NULL);
    return found;
}

static void add_one(uint64_t where, void *stream) {
    launch(increment, 1, (void *[]){&where, &(int){1}}, stream);
}

int main(int count, char **arguments) {
    void *module, *stream, *other, *event, *library;
    uint64_t memory;
    int told = 0, sum = 0;
    NEED(count == 3);
    NEED((library = dlopen(arguments[2], RTLD_NOW)) != NULL);
    void *first = find(library, "tell"), *second = find(library, "tell_late");
    memcpy(&tell, &first, sizeof tell);
    memcpy(&tell_late, &second, sizeof tell_late);
    start(0);
    CHECK(cuModuleLoad(&module, arguments[1]));
    CHECK(cuModuleGetFunction(&increment, module, "increment"));
    CHECK(cuMemAlloc_v2(&memory, 64));
    CHECK(cuMemsetD8_v2(memory, 0, 64));
    CHECK(cuCtxSynchronize());
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuStreamCreate(&other, 1));
    CHECK(cuEventCreate(&event, 2));

    for (int at = 0; at < ROUNDS; at++) {
        add_one(memory, stream);
        CHECK(cuLaunchHostFunc(stream, tell, &told));
    }
    CHECK(cuStreamSynchronize(stream));
    NEED(told == ROUNDS);
    CHECK(cuMemcpyDtoH_v2(&sum, memory, 4));
    printf("told %d, sum %d\n", told, sum);

    // What is asked is answered as if the stream had waited.
    CHECK(cuLaunchHostFunc(stream, tell_late, &told));
    CHECK(cuEventRecord(event, stream));
    NEED(cuStreamQuery(stream) == 600 && cuEventQuery(event) == 600);
    NEED(told == ROUNDS);
    CHECK(cuEventSynchronize(event));
    NEED(told == ROUNDS + 1);
    NEED(cuStreamQuery(stream) == 0 && cuEventQuery(event) == 0);

    // Also of a stream that waits for the event, of the device, and of a copy to the host.
    CHECK(cuLaunchHostFunc(stream, tell_late, &told));
    CHECK(cuEventRecord(event, stream));
    CHECK(cuStreamWaitEvent(other, event, 0));
    CHECK(cuStreamSynchronize(other));
    NEED(told == ROUNDS + 2);
    CHECK(cuLaunchHostFunc(stream, tell_late, &told));
    CHECK(cuCtxSynchronize());
    NEED(told == ROUNDS + 3);
    CHECK(cuLaunchHostFunc(stream, tell_late, &told));
    CHECK(cuMemcpyDtoHAsync_v2(&sum, memory, 4, stream));
    NEED(told == ROUNDS + 4);
    CHECK(cuLaunchHostFunc(NULL, tell_late, &told));
    CHECK(cuMemcpyDtoH_v2(&sum, memory, 4));
    NEED(told == ROUNDS + 5);

    // Many in a row, of which none is waited for.
    for (int at = 0; at < MANY; at++) CHECK(cuLaunchHostFunc(stream, tell, &told));
    CHECK(cuStreamSynchronize(stream));
    NEED(told == ROUNDS + 5 + MANY);
    puts("results right");
    return 0;
}

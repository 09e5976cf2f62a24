// Results that the host needs, one after the other: small downloads, waits, and times.
// Argument: an image with the kernels of fake_cuda/kernels/test_kernels.cu.
#include "check.h"

int cuMemAllocHost_v2(void **, size_t), cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, void *);
int cuEventCreate(void **, unsigned), cuEventRecord(void *, void *), cuEventSynchronize(void *);
int cuEventElapsedTime(float *, void *, void *), cuEventQuery(void *), cuStreamWaitEvent(void *, void *, unsigned);

enum { ROUNDS = 50, MANY = 150, LARGE = 2048 };

static void *increment;

static void add_one(uint64_t where, void *stream) {
    launch(increment, 1, (void *[]){&where, &(int){1}}, stream);
}

// The value on the host after each kind of wait.
static void items(void *stream, uint64_t memory, int *host) {
    void *first, *last;
    float time = -1;
    CHECK(cuEventCreate(&first, 0));
    CHECK(cuEventCreate(&last, 0));
    for (int at = 1; at <= 4 * ROUNDS; at++) {
        if (at % 4 == 2) CHECK(cuEventRecord(first, stream));
        add_one(memory, stream);
        CHECK(cuMemcpyDtoHAsync_v2(&host[at % 3], memory, 4, stream));
        if (at % 4 == 0) CHECK(cuStreamSynchronize(stream));
        if (at % 4 == 1) CHECK(cuCtxSynchronize());
        if (at % 4 > 1) CHECK(cuEventRecord(last, stream));
        if (at % 4 > 1) CHECK(cuEventSynchronize(last));
        if (at % 4 == 2) CHECK(cuEventElapsedTime(&time, first, last));
        NEED(host[at % 3] == at);
        NEED(at % 4 != 2 || (time >= 0 && time < 5000));
    }
}

// More of them than are held at a time, to one place: what comes last is there in the end.
static void one_place(void *stream, void *other, uint64_t memory, int *host) {
    int first = host[4 * ROUNDS % 3];
    void *event;
    CHECK(cuEventCreate(&event, 2));
    for (int at = 1; at <= MANY; at++) {
        add_one(memory, stream);
        size_t size = at % 40 == 39 ? LARGE * sizeof(int) : 4;
        CHECK(cuMemcpyDtoHAsync_v2(host, memory, size, stream));
    }
    CHECK(cuStreamSynchronize(stream));
    NEED(host[0] == first + MANY);
    // One stream's come when another waits for it, and does not give back what came later.
    add_one(memory, stream);
    CHECK(cuMemcpyDtoHAsync_v2(host, memory, 4, stream));
    CHECK(cuEventRecord(event, stream));
    CHECK(cuStreamWaitEvent(other, event, 0));
    add_one(memory, other);
    CHECK(cuMemcpyDtoHAsync_v2(host, memory, 8192, other));
    add_one(memory, other);
    CHECK(cuMemcpyDtoHAsync_v2(&host[1], memory, 4, other));
    CHECK(cuStreamSynchronize(other));
    NEED(host[0] == first + MANY + 2 && host[1] == first + MANY + 3);
}

int main(int count, char **arguments) {
    void *module, *stream, *other;
    uint64_t memory;
    int *host;
    NEED(count == 2);
    start(0);
    CHECK(cuModuleLoad(&module, arguments[1]));
    CHECK(cuModuleGetFunction(&increment, module, "increment"));
    CHECK(cuMemAlloc_v2(&memory, LARGE * sizeof(int)));
    CHECK(cuMemsetD8_v2(memory, 0, LARGE * sizeof(int)));
    CHECK(cuMemAllocHost_v2((void **)&host, LARGE * sizeof(int)));
    CHECK(cuStreamCreate(&stream, 0));
    CHECK(cuStreamCreate(&other, 1));
    items(stream, memory, host);
    one_place(stream, other, memory, host);
    CHECK(cuMemFree_v2(memory));
    puts("results right");
    return 0;
}

// Two processes of one lease share memory, an event and a pool; with "open", what another has written
// into a file is refused.
#include "sharing.h"

struct shared {
    struct ipc_handle memory, event;
};

#define INTS 10000

// So often something is shared and ends: more than may be at a time, if one has the time.
static int turns;

// What the contexts of both take may be measured meanwhile, and the books differ by much more then.
static bool same(size_t now, size_t then) {
    return now == then || llabs((long long)(now - then)) > 200LL << 20;
}

static void *increment_of(const char *image) {
    void *module, *function;
    CHECK(cuModuleLoad(&module, image));
    CHECK(cuModuleGetFunction(&function, module, "increment"));
    return function;
}

// A pool, whose memory the other process imports one by one.
static void give_pool(int line) {
    struct pool_properties properties = {1, 1, 1, 0, NULL, 0, {0}}, plain = {.type = 1, .location = 1};
    struct ipc_handle data, again;
    void *pool, *other;
    uint64_t memory, more;
    int file;
    char byte;
    size_t before = left();
    CHECK(cuMemPoolCreate(&pool, &properties));
    CHECK(cuMemPoolCreate(&other, &plain));
    NEED(cuMemPoolExportToShareableHandle(&file, other, 1, 0) == 1);
    NEED(cuMemPoolExportToShareableHandle(&file, pool, 8, 0) == 801);
    CHECK(cuMemAllocFromPoolAsync(&memory, 2 * MIB, other, NULL));
    NEED(cuMemPoolExportPointer(&data, memory) == 1);
    CHECK(cuMemFreeAsync(memory, NULL));
    CHECK(cuMemPoolDestroy(other));
    CHECK(cuMemPoolExportToShareableHandle(&file, pool, 1, 0));
    send_file(line, file);
    close(file);
    CHECK(cuMemAllocFromPoolAsync(&memory, 4 * MIB, pool, NULL));
    CHECK(cuMemsetD8_v2(memory, 0x11, 4 * MIB));
    CHECK(cuMemPoolExportPointer(&data, memory));
    CHECK(cuMemPoolExportPointer(&again, memory));
    NEED(memcmp(&data, &again, sizeof data) == 0);
    CHECK(cuCtxSynchronize());
    NEED(before - left() >= 4 * MIB);
    NEED(write(line, &data, sizeof data) == (ssize_t)sizeof data);
    NEED(read(line, &byte, 1) == 1);
    NEED(byte_at(memory) == 0x22 && byte_at(memory + 4 * MIB - 1) == 0x22);
    CHECK(cuMemFreeAsync(memory, NULL));
    // What is freed is shared no more.
    for (int turn = 0; turn < turns; turn++) {
        CHECK(cuMemAllocFromPoolAsync(&more, 2 * MIB, pool, NULL));
        CHECK(cuMemPoolExportPointer(&again, more));
        CHECK(cuMemFreeAsync(more, NULL));
    }
    CHECK(cuCtxSynchronize());
    NEED(write(line, &again, sizeof again) == (ssize_t)sizeof again);
    NEED(read(line, &byte, 1) == 1);
    CHECK(cuMemPoolDestroy(pool));
    CHECK(cuCtxSynchronize());
    NEED(same(left(), before));
}

static void take_pool(int line) {
    struct ipc_handle data, wrong;
    void *pool, *own;
    uint64_t memory, same, none;
    int file = receive_file(line), flags = 0, device[2] = {1, 0};
    NEED(cuMemImportFromShareableHandle(&none, (void *)(intptr_t)file, 1) == 1);
    CHECK(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)file, 1, 0));
    NEED(cuMemPoolImportFromShareableHandle(&own, (void *)(intptr_t)line, 1, 0) == 1);
    close(file);
    CHECK(cuMemPoolGetAccess(&flags, pool, device));
    NEED(flags == 3);
    NEED(cuMemAllocFromPoolAsync(&none, MIB, pool, NULL) == 1);
    CHECK(cuDeviceGetDefaultMemPool(&own, 0));
    NEED(read(line, &data, sizeof data) == (ssize_t)sizeof data);
    wrong = data;
    wrong.bytes[20] ^= 1;
    NEED(cuMemPoolImportPointer(&none, pool, &wrong) == 1);
    NEED(cuMemPoolImportPointer(&none, own, &data) == 1);
    size_t before = left();
    CHECK(cuMemPoolImportPointer(&memory, pool, &data));
    CHECK(cuMemPoolImportPointer(&same, pool, &data));
    NEED(same == memory && left() == before);
    NEED(byte_at(memory) == 0x11 && cuIpcGetMemHandle(&wrong, memory) == 1);
    CHECK(cuMemFreeAsync(memory, NULL));  // one of the two
    CHECK(cuMemsetD8_v2(memory, 0x22, 4 * MIB));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemFree_v2(memory));
    NEED(cuMemFree_v2(memory) == 1);
    CHECK(cuCtxSynchronize());
    NEED(write(line, "", 1) == 1);
    NEED(read(line, &data, sizeof data) == (ssize_t)sizeof data);
    NEED(cuMemPoolImportPointer(&none, pool, &data) == 1);  // it was freed
    CHECK(cuMemPoolDestroy(pool));
    CHECK(cuCtxSynchronize());
    NEED(write(line, "", 1) == 1);
}

// The one that allocates.
static void give(int line, const char *image, const char *path) {
    struct properties properties = {1, 1, 1, 0, NULL, {0}}, plain = {1, 0, 1, 0, NULL, {0}};
    struct shared shared, again;
    uint64_t memory, physical, other, opened;
    void *stream, *event;
    int *numbers = calloc(INTS, sizeof *numbers), file;
    char byte;
    start(0);
    void *increment = increment_of(image);
    CHECK(cuMemAlloc_v2(&memory, INTS * sizeof(int)));
    CHECK(cuMemsetD8_v2(memory, 0, INTS * sizeof(int)));
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuEventCreate(&event, 6));
    CHECK(cuIpcGetMemHandle(&shared.memory, memory));
    CHECK(cuIpcGetMemHandle(&again.memory, memory + 4));
    NEED(memcmp(&shared.memory, &again.memory, 64) == 0);
    NEED(cuIpcOpenMemHandle_v2(&opened, shared.memory, 1) == 201);  // this process's own
    NEED(cuIpcGetMemHandle(&again.memory, 4096) == 1);
    CHECK(cuIpcGetEventHandle(&shared.event, event));
    FILE *left_behind = fopen(path, "wb");
    NEED(fwrite(&shared, sizeof shared, 1, left_behind) == 1 && fclose(left_behind) == 0);
    CHECK(cuCtxSynchronize());
    launch(increment, INTS, (void *[]){&memory, &(int){INTS}}, stream);
    CHECK(cuEventRecord(event, stream));
    NEED(write(line, &shared, sizeof shared) == (ssize_t)sizeof shared);
    NEED(read(line, &byte, 1) == 1);  // it has added one as well
    CHECK(cuMemcpyDtoH_v2(numbers, memory, INTS * sizeof(int)));
    NEED(numbers[0] == 2 && numbers[INTS - 1] == 2);

    for (int turn = 0; turn < turns; turn++) {
        CHECK(cuEventCreate(&event, 6));
        CHECK(cuIpcGetEventHandle(&again.event, event));
        CHECK(cuEventDestroy_v2(event));
    }
    size_t before = left();
    CHECK(cuMemCreate(&physical, 2 * MIB, &properties, 0));
    CHECK(cuMemExportToShareableHandle(&file, physical, 1, 0));
    send_file(line, file);
    close(file);
    uint64_t address = map(physical);
    NEED(read(line, &byte, 1) == 1);
    CHECK(cuMemcpyDtoH_v2(numbers, address, 8));
    NEED(numbers[0] == 0x2a2a2a2a);
    NEED(same(left(), before - 2 * MIB));  // the other process did not pay for it
    CHECK(cuMemCreate(&other, 2 * MIB, &plain, 0));
    NEED(cuMemExportToShareableHandle(&file, other, 1, 0) == 1);
    NEED(cuMemExportToShareableHandle(&file, physical, 8, 0) == 801);
    NEED(write(line, "", 1) == 1);
    CHECK(cuMemRelease(other));
    // What has ended can be opened no more, and is nobody's.
    before = left();
    for (int turn = 0; turn < turns; turn++) {
        CHECK(cuMemCreate(&other, 2 * MIB, &properties, 0));
        CHECK(cuMemExportToShareableHandle(&file, other, 1, 0));
        CHECK(cuMemRelease(other));
        if (turn < turns - 1) close(file);
    }
    NEED(same(left(), before));
    send_file(line, file);
    close(file);
    NEED(read(line, &byte, 1) == 1);
    give_pool(line);
}

// The one that opens what the other has.
static void take(int line, const char *image) {
    struct properties properties;
    struct shared shared, wrong;
    uint64_t memory, physical;
    void *stream, *event;
    start(0);
    void *increment = increment_of(image);
    CHECK(cuStreamCreate(&stream, 1));
    NEED(read(line, &shared, sizeof shared) == (ssize_t)sizeof shared);
    wrong = shared;
    wrong.memory.bytes[20] ^= 1;
    NEED(cuIpcOpenMemHandle_v2(&memory, wrong.memory, 1) == 1);
    NEED(cuIpcOpenMemHandle_v2(&memory, shared.event, 1) == 1);
    CHECK(cuIpcOpenMemHandle_v2(&memory, shared.memory, 1));
    CHECK(cuIpcOpenEventHandle(&event, shared.event));
    NEED(cuMemFree_v2(memory) == 1);
    CHECK(cuStreamWaitEvent(stream, event, 0));
    launch(increment, INTS, (void *[]){&memory, &(int){INTS}}, stream);
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuEventSynchronize(event));
    NEED(write(line, "", 1) == 1);
    CHECK(cuIpcCloseMemHandle(memory));
    NEED(cuIpcCloseMemHandle(memory) == 1);

    int file = receive_file(line);
    CHECK(cuMemImportFromShareableHandle(&physical, (void *)(intptr_t)file, 1));
    CHECK(cuMemGetAllocationPropertiesFromHandle(&properties, physical));
    NEED(properties.type == 1 && properties.location == 1 && properties.device == 0);
    NEED(cuMemImportFromShareableHandle(&physical, (void *)(intptr_t)line, 1) == 1);
    close(file);
    uint64_t address = map(physical);
    CHECK(cuMemsetD8_v2(address, 0x2a, 2 * MIB));
    CHECK(cuCtxSynchronize());
    NEED(write(line, "", 1) == 1);
    NEED(read(line, &shared, 1) == 1);
    CHECK(cuMemUnmap(address, 2 * MIB));
    CHECK(cuMemRelease(physical));
    file = receive_file(line);
    NEED(cuMemImportFromShareableHandle(&physical, (void *)(intptr_t)file, 1) == 1);
    close(file);
    NEED(write(line, "", 1) == 1);
    take_pool(line);
}

int main(int count, char **arguments) {
    NEED(count == 5);
    turns = atoi(arguments[4]);
    if (strcmp(arguments[1], "open") == 0) {
        struct shared shared;
        uint64_t memory;
        void *event;
        FILE *found = fopen(arguments[3], "rb");
        NEED(found != NULL && fread(&shared, sizeof shared, 1, found) == 1);
        start(0);
        printf("%d", cuIpcOpenMemHandle_v2(&memory, shared.memory, 1));
        printf(" %d\n", cuIpcOpenEventHandle(&event, shared.event));
        return 0;
    }
    int lines[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, lines) == 0);
    pid_t child = fork();  // before CUDA starts in either
    if (child == 0) {
        close(lines[0]);
        take(lines[1], arguments[2]);
        return 0;
    }
    close(lines[1]);
    give(lines[0], arguments[2], arguments[3]);
    int status;
    NEED(waitpid(child, &status, 0) == child && status == 0);
    puts("results right");
    fflush(stdout);
    alarm(110);
    while (access(arguments[3], F_OK) == 0) usleep(10000);  // what is shared lives so long
    return 0;
}

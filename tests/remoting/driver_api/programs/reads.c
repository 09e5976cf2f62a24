// System calls that write to memory which kernels see. Arguments: an image with the kernels of
// fake_cuda/kernels/test_kernels.cu, a file to make, and how often to go round.
#include <dirent.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

int cuMemHostAlloc(void **, size_t, unsigned), cuMemFreeHost(void *);
int cuMemAllocManaged(uint64_t *, size_t, unsigned);

enum { N = 1 << 18, PART = 5000 };  // ints

static void *increment, *stream;
static int file;

static void add_one(void *memory, int n) {
    uint64_t where = (uint64_t)(uintptr_t)memory;
    launch(increment, (unsigned)n, (void *[]){&where, &n}, stream);
}

// Files go into memory that was just allocated, and nothing else of it is sent.
static void fresh(const char *path, bool managed) {
    void *memory;
    uint64_t address;
    size_t size = 4 * N * sizeof(int);
    if (managed) {
        CHECK(cuMemAllocManaged(&address, size, 1));
        memory = (void *)(uintptr_t)address;
    } else {
        CHECK(cuMemHostAlloc(&memory, size, 2));
    }
    int *numbers = memory, *middle = numbers + 2 * N + 77;
    NEED(pread(file, numbers, N * sizeof(int), 0) == (ssize_t)(N * sizeof(int)));
    FILE *again = path == NULL ? fdopen(dup(file), "rb") : fopen(path, "rb");
    NEED(fseek(again, 0, SEEK_SET) == 0 && fread(middle, sizeof(int), N, again) == N);
    fclose(again);
    add_one(numbers, 4 * N);
    CHECK(cuStreamSynchronize(stream));
    for (int at = 0; at < 4 * N; at++) {
        int in = at < N ? at : at - (2 * N + 77);
        int expected = at < N || (in >= 0 && in < N) ? in + 1 : 1;
        NEED(numbers[at] == expected);
    }
    NEED(pwrite(file, numbers, 4096, N * sizeof(int)) == 4096);  // what was touched may be read
    CHECK(managed ? cuMemFree_v2(address) : cuMemFreeHost(memory));
}

// Memory that the program has filled before is filled again after each synchronisation.
static void again_and_again(int rounds) {
    int lines[2], *numbers, *sent = malloc(PART * sizeof(int));
    CHECK(cuMemHostAlloc((void **)&numbers, N * sizeof(int), 2));
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, lines) == 0);
    for (int round = 0; round < rounds; round++) {
        for (int at = 0; at < PART; at++) sent[at] = round * at;
        NEED(pread(file, numbers, 2 * PART * sizeof(int), 0) == 2 * PART * (ssize_t)sizeof(int));
        NEED(send(lines[0], sent, PART * sizeof(int), 0) == PART * (ssize_t)sizeof(int));
        NEED(recv(lines[1], numbers + PART, PART * sizeof(int), MSG_WAITALL) ==
             PART * (ssize_t)sizeof(int));
        for (int launches = 0; launches < 3; launches++) add_one(numbers, 2 * PART);
        CHECK(cuStreamSynchronize(stream));
        for (int at = 0; at < PART; at++) {
            NEED(numbers[at] == at + 3 && numbers[PART + at] == sent[at] + 3);
        }
        for (int idle = 0; idle < round; idle++) CHECK(cuStreamSynchronize(stream));
    }
    CHECK(cuMemFreeHost(numbers));
}

// Descriptors that a program does not know may be closed by it, and become files of its own.
static void closed_descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    struct stat before, after;
    uint64_t address;
    CHECK(cuMemAllocManaged(&address, 1 << 20, 1));
    ((int *)(uintptr_t)address)[12345] = 7;
    for (struct dirent *one; (one = readdir(folder)) != NULL;) {
        char name[64] = "", path[300];
        snprintf(path, sizeof path, "/proc/self/fd/%s", one->d_name);
        if (readlink(path, name, sizeof name - 1) < 0 || strstr(name, "managed") == NULL) continue;
        NEED(dup2(file, atoi(one->d_name)) >= 0);
    }
    closedir(folder);
    NEED(fstat(file, &before) == 0 && lseek(file, 10, SEEK_SET) == 10);
    add_one((void *)(uintptr_t)address, 1 << 18);
    CHECK(cuStreamSynchronize(stream));
    NEED(((int *)(uintptr_t)address)[12345] == 8);
    fresh(NULL, true);
    NEED(fstat(file, &after) == 0 && after.st_size == before.st_size);
    CHECK(cuMemFree_v2(address));
}

int main(int count, char **arguments) {
    void *module;
    NEED(count == 4);
    FILE *made = fopen(arguments[2], "w+b");
    for (int at = 0; at < N; at++) NEED(fwrite(&at, sizeof at, 1, made) == 1);
    NEED(fflush(made) == 0);
    file = fileno(made);
    start(0);
    CHECK(cuModuleLoad(&module, arguments[1]));
    CHECK(cuModuleGetFunction(&increment, module, "increment"));
    CHECK(cuStreamCreate(&stream, 1));
    again_and_again(atoi(arguments[3]));
    fresh(arguments[2], true);
    fresh(arguments[2], false);
    closed_descriptors();
    puts("results right");
    return 0;
}

// One process allocates and ends what it has; another has opened it, and the partition of both pays
// as long as it is there. Prints what is wrong, or that all is right.
#include "sharing.h"

#include <signal.h>

#define BALLAST (320 * MIB)  // more than what its context is measured to take can change meanwhile

struct given {
    struct ipc_handle memory, pooled;
};
struct taken {
    uint64_t memory, physical, address, pooled;
    void *pool;
};

static void say(int line) { NEED(write(line, "", 1) == 1); }

static void hear(int line) {
    char byte;
    NEED(read(line, &byte, 1) == 1);
}

// Shares 4 MiB of three kinds each, and keeps what is needed to end them.
static void give_all(int line, uint64_t *memory, uint64_t *physical, void **pool, uint64_t *pooled) {
    struct properties properties = {1, 1, 1, 0, NULL, {0}};
    struct pool_properties shareable = {1, 1, 1, 0, NULL, 0, {0}};
    struct given given;
    int files[2];
    CHECK(cuMemAlloc_v2(memory, 4 * MIB));
    CHECK(cuMemsetD8_v2(*memory, 1, 4 * MIB));
    CHECK(cuIpcGetMemHandle(&given.memory, *memory));
    CHECK(cuMemCreate(physical, 2 * MIB, &properties, 0));
    CHECK(cuMemExportToShareableHandle(&files[0], *physical, 1, 0));
    CHECK(cuMemPoolCreate(pool, &shareable));
    CHECK(cuMemPoolExportToShareableHandle(&files[1], *pool, 1, 0));
    CHECK(cuMemAllocFromPoolAsync(pooled, 4 * MIB, *pool, NULL));
    CHECK(cuMemsetD8_v2(*pooled, 3, 4 * MIB));
    CHECK(cuMemPoolExportPointer(&given.pooled, *pooled));
    CHECK(cuCtxSynchronize());
    NEED(write(line, &given, sizeof given) == (ssize_t)sizeof given);
    for (int at = 0; at < 2; at++) {
        send_file(line, files[at]);
        close(files[at]);
    }
}

static void end_all(uint64_t memory, uint64_t physical, void *pool, uint64_t pooled) {
    CHECK(cuMemFree_v2(memory));
    CHECK(cuMemRelease(physical));
    CHECK(cuMemFreeAsync(pooled, NULL));
    CHECK(cuMemPoolDestroy(pool));
    CHECK(cuCtxSynchronize());
}

static struct taken take_all(int line) {
    struct taken taken;
    struct given given;
    NEED(read(line, &given, sizeof given) == (ssize_t)sizeof given);
    CHECK(cuIpcOpenMemHandle_v2(&taken.memory, given.memory, 1));
    int file = receive_file(line);
    CHECK(cuMemImportFromShareableHandle(&taken.physical, (void *)(intptr_t)file, 1));
    close(file);
    taken.address = map(taken.physical);
    CHECK(cuMemsetD8_v2(taken.address, 2, 2 * MIB));
    file = receive_file(line);
    CHECK(cuMemPoolImportFromShareableHandle(&taken.pool, (void *)(intptr_t)file, 1, 0));
    close(file);
    CHECK(cuMemPoolImportPointer(&taken.pooled, taken.pool, &given.pooled));
    return taken;
}

// Looks after its owner has let go of everything: it is there, and costs until it is closed.
static void close_all(const struct taken *taken, size_t costs) {
    NEED(byte_at(taken->memory) == 1 && byte_at(taken->memory + 4 * MIB - 1) == 1);
    NEED(byte_at(taken->address) == 2 && byte_at(taken->pooled + 4 * MIB - 1) == 3);
    size_t full = left();
    CHECK(cuIpcCloseMemHandle(taken->memory));
    NEED(left() == full + 4 * MIB);
    CHECK(cuMemRelease(taken->physical));
    NEED(left() == full + 4 * MIB);  // it is mapped
    CHECK(cuMemUnmap(taken->address, 2 * MIB));
    NEED(left() == full + 6 * MIB);
    CHECK(cuMemPoolDestroy(taken->pool));
    NEED(left() == full + 6 * MIB);  // some of it is in use
    CHECK(cuMemFreeAsync(taken->pooled, NULL));
    CHECK(cuCtxSynchronize());
    NEED(left() == full + costs);
}

static void give(int line, const char *how) {
    uint64_t memory, physical, pooled, ballast;
    void *pool;
    start(0);
    say(line);
    hear(line);  // both have their contexts
    size_t before = left();
    give_all(line, &memory, &physical, &pool, &pooled);
    size_t costs = before - left();
    NEED(costs >= 10 * MIB);
    hear(line);
    if (strcmp(how, "owner frees") == 0) {
        end_all(memory, physical, pool, pooled);
        NEED(left() == before - costs);  // the other has all of it
        NEED(write(line, &costs, sizeof costs) == (ssize_t)sizeof costs);
        hear(line);
        NEED(left() == before);
    } else if (strcmp(how, "owner dies") == 0) {
        CHECK(cuMemAlloc_v2(&ballast, BALLAST));
        NEED(left() == before - costs - BALLAST);
        NEED(write(line, &costs, sizeof costs) == (ssize_t)sizeof costs);
        hear(line);
        raise(SIGKILL);
    } else {  // the one that has opened it dies
        end_all(memory, physical, pool, pooled);
        NEED(left() == before - costs);
        say(line);
        while (left() < before) usleep(10000);
    }
}

static void take(int line, const char *how) {
    size_t costs = 0;
    start(0);
    hear(line);
    say(line);
    struct taken taken = take_all(line);
    say(line);
    if (strcmp(how, "owner frees") == 0) {
        NEED(read(line, &costs, sizeof costs) == (ssize_t)sizeof costs);
        close_all(&taken, costs);
        say(line);
    } else if (strcmp(how, "owner dies") == 0) {
        NEED(read(line, &costs, sizeof costs) == (ssize_t)sizeof costs);
        size_t before = left();
        say(line);
        while (left() < before + BALLAST) usleep(10000);
        close_all(&taken, costs);
    } else {
        hear(line);
        raise(SIGKILL);
    }
}

int main(int count, char **arguments) {
    NEED(count == 2);
    int lines[2], status;
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, lines) == 0);
    alarm(110);
    pid_t children[2];
    for (int at = 0; at < 2; at++) {
        children[at] = fork();  // before CUDA starts in any
        if (children[at] != 0) continue;
        alarm(110);
        close(lines[1 - at]);
        (at == 0 ? give : take)(lines[at], arguments[1]);
        return 0;
    }
    close(lines[0]);
    close(lines[1]);
    for (int at = 0; at < 2; at++) {
        NEED(waitpid(children[at], &status, 0) == children[at]);
        bool killed = strcmp(arguments[1], at == 0 ? "owner dies" : "other dies") == 0;
        NEED(killed ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : status == 0);
    }
    puts("results right");
    return 0;
}

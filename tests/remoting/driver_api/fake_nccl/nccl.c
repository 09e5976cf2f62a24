// An NCCL without GPUs: ranks meet in files of a folder, $FAKE_NCCL, and copy with memcpy.
//
// Operations are executed when they are called, by the fake driver's copies: the program waits for
// its streams before. Each rank writes what it has under the communicator's name, a number and its rank, and reads what the
// others wrote.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
struct id { char internal[128]; };
struct comm { char name[100]; int rank, count, step, sent[16], taken[16]; float scale; volatile int aborted; };
enum { FLOAT = 7, OPERATIONS_MAX = 64 };

// A copy from a device's memory to the host's, to be freed; and the other way.
static void *fetched(const void *source, size_t size) {
    int (*copy)(void *, uint64_t, size_t) =
        (int (*)(void *, uint64_t, size_t))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemcpyDtoH_v2");
    void *made = malloc(size);
    if (copy(made, (uintptr_t)source, size) != 0) abort();
    return made;
}

static void stored(void *target, const void *bytes, size_t size) {
    int (*copy)(uint64_t, const void *, size_t) =
        (int (*)(uint64_t, const void *, size_t))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemcpyHtoD_v2");
    if (copy((uintptr_t)target, bytes, size) != 0) abort();
}

static void path_of(char path[400], const struct comm *comm, const char *kind, int step, int from,
                    int to) {
    snprintf(path, 400, "%s/%s-%s-%d-%d-%d", getenv("FAKE_NCCL"), comm->name, kind, step, from, to);
}

static int put(const char *path, const void *bytes, size_t size) {
    char fresh[500];
    snprintf(fresh, sizeof fresh, "%s.fresh", path);
    int file = open(fresh, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    if (file < 0 || write(file, bytes, size) != (ssize_t)size) return 2;
    close(file);
    return rename(fresh, path) ? 2 : 0;
}

static int take(const struct comm *comm, const char *path, void *bytes, size_t size) {
    int file = -1;
    for (int turn = 0; turn < 20000 && !comm->aborted && (file = open(path, O_RDONLY)) < 0; turn++) {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    if (file < 0 || read(file, bytes, size) != (ssize_t)size) return 6;
    close(file);
    return 0;
}

EXPORT int ncclGetVersion(int *version) { *version = 22800; return 0; }

EXPORT int ncclGetUniqueId(struct id *id) {
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "comm%d-%ld", getpid(), random());
    return 0;
}

// Every rank's bytes, one behind the other.
static int meet(struct comm *comm, const void *mine, size_t size, char *all) {
    char path[400];
    int step = comm->step++, failed = 0;
    path_of(path, comm, "all", step, comm->rank, 0);
    failed = put(path, mine, size);
    for (int at = 0; at < comm->count && !failed; at++) {
        path_of(path, comm, "all", step, at, 0);
        failed = take(comm, path, all + (size_t)at * size, size);
    }
    return failed;
}

EXPORT int ncclCommInitRankConfig(struct comm **made, int count, struct id id, int rank,
                                  const void *config) {
    (void)config;
    char ranks[64];
    *made = calloc(1, sizeof **made);
    snprintf((*made)->name, sizeof (*made)->name, "%.90s", id.internal);
    (*made)->rank = rank;
    (*made)->count = count;
    return meet(*made, "x", 1, ranks);
}

EXPORT int ncclCommSplit(struct comm *comm, int color, int key, struct comm **made, const void *config) {
    (void)config;
    int mine[2] = {color, key}, all[16][2];
    int failed = meet(comm, mine, sizeof mine, (char *)all);
    *made = NULL;
    if (failed || color < 0) return failed;
    *made = calloc(1, sizeof **made);
    snprintf((*made)->name, sizeof (*made)->name, "%.60s.%d.%d", comm->name, comm->step, color);
    for (int at = 0; at < comm->count; at++) {
        if (all[at][0] != color) continue;
        (*made)->count++;
        (*made)->rank += all[at][1] < key || (all[at][1] == key && at < comm->rank);
    }
    return 0;
}

EXPORT int ncclCommFinalize(struct comm *comm) { (void)comm; return 0; }
EXPORT int ncclCommDestroy(struct comm *comm) { free(comm); return 0; }
EXPORT int ncclCommAbort(struct comm *comm) { comm->aborted = 1; return 0; }  // it may be in use
EXPORT int ncclCommGetAsyncError(struct comm *comm, int *state) { (void)comm; *state = 0; return 0; }
EXPORT int ncclCommCount(struct comm *comm, int *count) { *count = comm->count; return 0; }
EXPORT int ncclCommUserRank(struct comm *comm, int *rank) { *rank = comm->rank; return 0; }
EXPORT const char *ncclGetLastError(struct comm *comm) { (void)comm; return "fake"; }

EXPORT int ncclRedOpCreatePreMulSum(int *made, void *scalar, int type, int residence, struct comm *comm) {
    (void)type, (void)residence;
    comm->scale = *(float *)scalar;
    *made = 5;
    return 0;
}

EXPORT int ncclRedOpDestroy(int made, struct comm *comm) { (void)made, (void)comm; return 0; }

// All ranks' arrays of a device, one behind the other.
static int gathered(const void *source, size_t count, struct comm *comm, float *all) {
    void *mine = fetched(source, count * 4);
    int failed = meet(comm, mine, count * 4, (char *)all);
    free(mine);
    return failed;
}

static int reduced(const float *source, float *to, size_t count, size_t first, size_t wanted,
                   int reduction, struct comm *comm) {
    float *all = malloc(count * 4 * (size_t)comm->count), *target = malloc(wanted * 4);
    int failed = gathered(source, count, comm, all);
    for (size_t at = 0; at < wanted && !failed; at++) {
        float sum = 0;
        for (int rank = 0; rank < comm->count; rank++) sum += all[(size_t)rank * count + first + at];
        target[at] = reduction == 5 ? sum * comm->scale : reduction == 4 ? sum / (float)comm->count : sum;
    }
    if (!failed && to != NULL) stored(to, target, wanted * 4);
    free(target);
    free(all);
    return failed;
}

// In a capture, what each rank has goes to its own target, which shows when the graph is launched.
static int captured(const void *source, void *target, size_t size, void *stream) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    int (*capturing)(void *, int *) = (int (*)(void *, int *))dlsym(library, "cuStreamIsCapturing");
    int (*copy)(uint64_t, uint64_t, size_t, void *) =
        (int (*)(uint64_t, uint64_t, size_t, void *))dlsym(library, "cuMemcpyDtoDAsync_v2");
    int status = 0;
    if (capturing(stream, &status) != 0 || status != 1) return 0;
    if (copy((uintptr_t)target, (uintptr_t)source, size, stream) != 0) abort();
    return 1;
}

EXPORT int ncclAllReduce(const void *source, void *target, size_t count, int type, int reduction,
                         struct comm *comm, void *stream) {
    if (captured(source, target, count * 4, stream)) return 0;
    return type != FLOAT ? 4 : reduced(source, target, count, 0, count, reduction, comm);
}

EXPORT int ncclReduce(const void *source, void *target, size_t count, int type, int reduction,
                      int root, struct comm *comm, void *stream) {
    (void)stream;
    float *to = comm->rank == root ? target : NULL;
    return type != FLOAT ? 4 : reduced(source, to, count, 0, count, reduction, comm);
}

EXPORT int ncclReduceScatter(const void *source, void *target, size_t count, int type, int reduction,
                             struct comm *comm, void *stream) {
    (void)stream;
    size_t all = count * (size_t)comm->count, first = count * (size_t)comm->rank;
    return type != FLOAT ? 4 : reduced(source, target, all, first, count, reduction, comm);
}

EXPORT int ncclBroadcast(const void *source, void *target, size_t count, int type, int root,
                         struct comm *comm, void *stream) {
    (void)stream;
    float *all = malloc(count * 4 * (size_t)comm->count);
    int failed = type != FLOAT ? 4 : gathered(comm->rank == root ? source : target, count, comm, all);
    if (!failed) stored(target, all + (size_t)root * count, count * 4);
    free(all);
    return failed;
}

EXPORT int ncclAllGather(const void *source, void *target, size_t count, int type, struct comm *comm,
                         void *stream) {
    (void)stream;
    float *all = malloc(count * 4 * (size_t)comm->count);
    int failed = type != FLOAT ? 4 : gathered(source, count, comm, all);
    if (!failed) stored(target, all, count * 4 * (size_t)comm->count);
    free(all);
    return failed;
}

// Receipts of a group wait until all that is sent in it is on its way.
static struct receipt { const struct comm *comm; char path[400]; void *target; size_t size; } receipts[OPERATIONS_MAX];
static int depth, waiting;

EXPORT int ncclGroupStart(void) { depth++; return 0; }

EXPORT int ncclGroupEnd(void) {
    if (--depth > 0) return 0;
    int failed = 0, count = waiting;
    waiting = 0;
    for (int at = 0; at < count && !failed; at++) {
        void *got = malloc(receipts[at].size);
        failed = take(receipts[at].comm, receipts[at].path, got, receipts[at].size);
        if (!failed) stored(receipts[at].target, got, receipts[at].size);
        free(got);
    }
    return failed;
}

EXPORT int ncclSend(const void *source, size_t count, int type, int peer, struct comm *comm, void *stream) {
    (void)stream;
    char path[400];
    path_of(path, comm, "one", comm->sent[peer]++, comm->rank, peer);
    void *mine = fetched(source, count * 4);
    int failed = type != FLOAT ? 4 : put(path, mine, count * 4);
    free(mine);
    return failed;
}

EXPORT int ncclRecv(void *target, size_t count, int type, int peer, struct comm *comm, void *stream) {
    (void)stream;
    ncclGroupStart();
    (void)type;
    struct receipt *one = &receipts[waiting++];
    path_of(one->path, comm, "one", comm->taken[peer]++, peer, comm->rank);
    one->comm = comm;
    one->target = target;
    one->size = count * 4;
    return ncclGroupEnd();
}

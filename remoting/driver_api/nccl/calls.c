// Collectives, and what needs no worker.
#define _GNU_SOURCE
#include "nccl.h"

#include <stdlib.h>

static size_t size_of(int type) {
    static const unsigned char sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && type < (int)sizeof sizes ? sizes[type] : 0;
}

static int add(struct comm *comm, int kind, const void *source, void *target, size_t count,
               int type, int reduction, int peer, void *stream) {
    if (!nc_is_comm(comm) || size_of(type) == 0 || reduction < 0) return INVALID_ARGUMENT;
    if (peer < 0 || peer >= comm->count) return INVALID_ARGUMENT;
    const struct operation made = {
        comm->number, (uint64_t)kind, (uintptr_t)source, (uintptr_t)target, count, (uint64_t)type,
        (uint64_t)reduction, (uint64_t)peer, (uintptr_t)stream,
    };
    return nc_add(comm, &made);
}

NC_EXPORT int ncclAllReduce(const void *source, void *target, size_t count, int type, int reduction,
                            struct comm *comm, void *stream) {
    return add(comm, ALL_REDUCE, source, target, count, type, reduction, 0, stream);
}

NC_EXPORT int ncclBroadcast(const void *source, void *target, size_t count, int type, int root,
                            struct comm *comm, void *stream) {
    return add(comm, BROADCAST, source, target, count, type, 0, root, stream);
}

NC_EXPORT int ncclBcast(void *buffer, size_t count, int type, int root, struct comm *comm,
                        void *stream) {
    return add(comm, BROADCAST, buffer, buffer, count, type, 0, root, stream);
}

NC_EXPORT int ncclReduce(const void *source, void *target, size_t count, int type, int reduction,
                         int root, struct comm *comm, void *stream) {
    return add(comm, REDUCE, source, target, count, type, reduction, root, stream);
}

NC_EXPORT int ncclAllGather(const void *source, void *target, size_t count, int type,
                            struct comm *comm, void *stream) {
    return add(comm, ALL_GATHER, source, target, count, type, 0, 0, stream);
}

NC_EXPORT int ncclReduceScatter(const void *source, void *target, size_t count, int type,
                                int reduction, struct comm *comm, void *stream) {
    return add(comm, REDUCE_SCATTER, source, target, count, type, reduction, 0, stream);
}

NC_EXPORT int ncclSend(const void *source, size_t count, int type, int peer, struct comm *comm,
                       void *stream) {
    return add(comm, SEND, source, NULL, count, type, 0, peer, stream);
}

NC_EXPORT int ncclRecv(void *target, size_t count, int type, int peer, struct comm *comm,
                       void *stream) {
    return add(comm, RECEIVE, NULL, target, count, type, 0, peer, stream);
}

// --- what newer versions have, of sends and receipts --------------------------------------------

// Pieces to and from ranks: all of them, or, where there is a root, those to and from it.
static int exchange(struct comm *comm, const char *source, char *target, size_t count, int type,
                    int receiver, int sender, void *stream) {
    if (!nc_is_comm(comm)) return INVALID_ARGUMENT;
    size_t step = count * size_of(type);
    int result = nc_group_start();
    for (int at = 0; at < comm->count && result == SUCCESS; at++) {
        bool sends = (receiver < 0 || at == receiver) && (sender < 0 || sender == comm->rank);
        bool takes = (sender < 0 || at == sender) && (receiver < 0 || receiver == comm->rank);
        const char *from = source + (receiver < 0 ? at * step : 0);
        char *to = target + (sender < 0 ? at * step : 0);
        if (sends) result = ncclSend(from, count, type, at, comm, stream);
        if (takes && result == SUCCESS) result = ncclRecv(to, count, type, at, comm, stream);
    }
    int ended = nc_group_end();
    return result != SUCCESS ? result : ended;
}

NC_EXPORT int ncclAlltoAll(const void *source, void *target, size_t count, int type,
                           struct comm *comm, void *stream) {
    return exchange(comm, source, target, count, type, -1, -1, stream);
}

NC_EXPORT int ncclGather(const void *source, void *target, size_t count, int type, int root,
                         struct comm *comm, void *stream) {
    return root < 0 ? INVALID_ARGUMENT
                    : exchange(comm, source, target, count, type, root, -1, stream);
}

NC_EXPORT int ncclScatter(const void *source, void *target, size_t count, int type, int root,
                          struct comm *comm, void *stream) {
    return root < 0 ? INVALID_ARGUMENT
                    : exchange(comm, source, target, count, type, -1, root, stream);
}

// --- groups ---------------------------------------------------------------------------------------

NC_EXPORT int ncclGroupStart(void) { return nc_group_start(); }

NC_EXPORT int ncclGroupEnd(void) { return nc_group_end(); }

NC_EXPORT int ncclGroupSimulateEnd(void *info) {
    (void)info;
    return INVALID_USAGE;
}

// --- texts, memory, and what is refused -----------------------------------------------------------

NC_EXPORT const char *ncclGetErrorString(int result) {
    static const char *const texts[] = {
        "no error",
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "internal error - please report this issue to the NCCL developers",
        "invalid argument (run with NCCL_DEBUG=WARN for details)",
        "invalid usage (run with NCCL_DEBUG=WARN for details)",
        "remote process exited or there was a network error",
        "NCCL operation in progress",
    };
    return result >= 0 && result < 8 ? texts[result] : "unknown result code";
}

NC_EXPORT int ncclMemAlloc(void **address, size_t size) {
    return address == NULL ? INVALID_ARGUMENT : nc_allocate(address, size);
}

NC_EXPORT int ncclMemFree(void *address) { return nc_free(address); }

// Registration makes copies shorter; without it they are right as well.
NC_EXPORT int ncclCommRegister(struct comm *comm, void *buffer, size_t size, void **handle) {
    (void)size;
    if (!nc_is_comm(comm) || handle == NULL) return INVALID_ARGUMENT;
    *handle = buffer;
    return SUCCESS;
}

NC_EXPORT int ncclCommDeregister(struct comm *comm, void *handle) {
    (void)handle;
    return nc_is_comm(comm) ? SUCCESS : INVALID_ARGUMENT;
}

// nccl.h: no window where there is no support for them.
NC_EXPORT int ncclCommWindowRegister(struct comm *comm, void *buffer, size_t size, void **window,
                                     int flags) {
    (void)buffer, (void)size, (void)flags;
    if (!nc_is_comm(comm) || window == NULL) return INVALID_ARGUMENT;
    *window = NULL;
    return SUCCESS;
}

NC_EXPORT int ncclCommWindowDeregister(struct comm *comm, void *window) {
    (void)window;
    return nc_is_comm(comm) ? SUCCESS : INVALID_ARGUMENT;
}

NC_EXPORT void ncclResetDebugInit(void) {}

#define REFUSED(name) \
    NC_EXPORT int name(void); \
    NC_EXPORT int name(void) { \
        nc_note(#name " is not there between servers"); \
        return INVALID_USAGE; \
    }

REFUSED(ncclCommDump)
REFUSED(ncclCommShrink)
REFUSED(ncclCommGrow)
REFUSED(ncclCommRevoke)
REFUSED(ncclCommSuspend)
REFUSED(ncclCommResume)
REFUSED(ncclCommMemStats)
REFUSED(ncclCommGetUniqueId)
REFUSED(ncclCommInitRankMultiRoot)
REFUSED(ncclCommQueryProperties)
REFUSED(ncclDevCommCreate)
REFUSED(ncclDevCommDestroy)
REFUSED(ncclGetLsaMultimemDevicePointer)
REFUSED(ncclGetLsaDevicePointer)
REFUSED(ncclGetPeerDevicePointer)
REFUSED(ncclWinGetUserPtr)
REFUSED(ncclPutSignal)
REFUSED(ncclSignal)
REFUSED(ncclWaitSignal)

// Communicators, as the program holds them; each is one of a worker's.
#define _GNU_SOURCE
#include "nccl.h"

#include <stdlib.h>
#include <string.h>

#define COMM_MAGIC 0x676e63636cull
#define CONFIG_MAGIC 0xcafebeefu
#define DEVICES_MAX 64

bool nc_is_comm(const struct comm *comm) {
    return comm != NULL && ((uintptr_t)comm & 7) == 0 && comm->magic == COMM_MAGIC;
}

struct settings nc_settings(const struct config *config) {
    struct settings found = {UNDEFINED, UNDEFINED, UNDEFINED, UNDEFINED};
    if (config == NULL || config->magic != CONFIG_MAGIC) return found;
    if (config->size >= offsetof(struct config, net)) {
        found.cluster = config->cluster;
        found.least = config->least;
        found.most = config->most;
    }
    if (config->size >= offsetof(struct config, shares) + sizeof(int)) found.shares = config->shares;
    return found;
}

static int ask(const struct comm *comm, int what, uint64_t first, uint64_t second,
               const void *data, size_t size, struct answer *answer) {
    const uint64_t values[4] = {(uint64_t)what, comm->number, first, second};
    return nc_ask(comm->device, values, data, size, answer);
}

static struct comm *make(int device, int rank, int count) {
    struct comm *made = calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    *made = (struct comm){COMM_MAGIC, nc_number(), device, rank, count, SUCCESS};
    return made;
}

static int begin(struct comm **comm, int count, const struct id *id, int rank, int device,
                 const struct config *config) {
    if (comm == NULL || count < 1 || rank < 0 || rank >= count) return INVALID_ARGUMENT;
    if (device < 0) {
        nc_note("there is no GPU");
        return CUDA_ERROR;
    }
    struct comm *made = make(device, rank, count);
    if (made == NULL) return SYSTEM_ERROR;
    return nc_begin((struct begin){comm, made, *id, nc_settings(config), SUCCESS});
}

NC_EXPORT int ncclGetUniqueId(struct id *id) {
    struct answer answer;
    const uint64_t values[4] = {UNIQUE_ID};
    if (id == NULL) return INVALID_ARGUMENT;
    int result = nc_ask(nc_device(), values, NULL, 0, &answer);
    if (result == SUCCESS) memcpy(id->internal, answer.text, ID_SIZE);
    return result;
}

NC_EXPORT int ncclCommInitRank(struct comm **comm, int count, struct id id, int rank) {
    return begin(comm, count, &id, rank, nc_device(), NULL);
}

NC_EXPORT int ncclCommInitRankConfig(struct comm **comm, int count, struct id id, int rank,
                                     const struct config *config) {
    return begin(comm, count, &id, rank, nc_device(), config);
}

// Of several roots any will do: a communicator has the first one's.
NC_EXPORT int ncclCommInitRankScalable(struct comm **comm, int count, int rank, int ids,
                                       const struct id *id, const struct config *config) {
    if (ids < 1 || id == NULL) return INVALID_ARGUMENT;
    return begin(comm, count, id, rank, nc_device(), config);
}

NC_EXPORT int ncclCommInitAll(struct comm **comms, int count, const int *devices) {
    struct id id;
    if (comms == NULL || count < 1 || count > DEVICES_MAX) return INVALID_ARGUMENT;
    int result = ncclGetUniqueId(&id);
    if (result != SUCCESS) return result;
    nc_group_start();
    for (int at = 0; at < count && result == SUCCESS; at++) {
        result = begin(&comms[at], count, &id, at, devices == NULL ? at : devices[at], NULL);
    }
    int ended = nc_group_end();
    return result != SUCCESS ? result : ended;
}

NC_EXPORT int ncclCommSplit(struct comm *comm, int color, int key, struct comm **made,
                            const struct config *config) {
    if (!nc_is_comm(comm) || made == NULL) return INVALID_ARGUMENT;
    if (nc_in_group()) return INVALID_USAGE;
    *made = NULL;
    struct comm *fresh = make(comm->device, 0, 0);
    if (fresh == NULL) return SYSTEM_ERROR;
    struct {
        int32_t key;
        struct settings settings;
        int32_t unused;
    } data = {key, nc_settings(config), 0};
    struct answer answer;
    int result = ask(comm, SPLIT, fresh->number, (uint64_t)(int64_t)color, &data, sizeof data, &answer);
    if (result != SUCCESS || !answer.third) {
        free(fresh);
        return result;
    }
    fresh->rank = answer.first;
    fresh->count = answer.second;
    *made = fresh;
    return SUCCESS;
}

NC_EXPORT int ncclCommFinalize(struct comm *comm) {
    struct answer answer;
    return nc_is_comm(comm) ? ask(comm, FINALIZE, 0, 0, NULL, 0, &answer) : INVALID_ARGUMENT;
}

static int end(struct comm *comm, int what) {
    struct answer answer;
    if (comm == NULL) return SUCCESS;
    if (!nc_is_comm(comm)) return INVALID_ARGUMENT;
    int result = nc_lost() ? SUCCESS : ask(comm, what, 0, 0, NULL, 0, &answer);
    comm->magic = 0;
    free(comm);
    return result;
}

NC_EXPORT int ncclCommDestroy(struct comm *comm) { return end(comm, DESTROY); }

NC_EXPORT int ncclCommAbort(struct comm *comm) { return end(comm, ABORT); }

NC_EXPORT int ncclCommGetAsyncError(struct comm *comm, int *state) {
    struct answer answer;
    if (!nc_is_comm(comm) || state == NULL) return INVALID_ARGUMENT;
    if (!comm->failed && nc_lost()) {
        nc_note("a server of the lease is lost");
        comm->failed = REMOTE_ERROR;
    }
    if (!comm->failed) {
        int result = ask(comm, STATE, 0, 0, NULL, 0, &answer);
        comm->failed = result != SUCCESS ? result : answer.first == IN_PROGRESS ? 0 : answer.first;
    }
    *state = comm->failed;
    return SUCCESS;
}

NC_EXPORT const char *ncclGetLastError(struct comm *comm) {
    static __thread char text[1024];
    struct answer answer;
    if (nc_is_comm(comm) && !nc_lost() && ask(comm, TEXT, 0, 0, NULL, 0, &answer) == SUCCESS) {
        memcpy(text, answer.text, sizeof text);
        if (text[0]) return text;
    }
    return nc_noted();
}

static int tell(const struct comm *comm, int *value, int known) {
    if (!nc_is_comm(comm) || value == NULL) return INVALID_ARGUMENT;
    *value = known;
    return SUCCESS;
}

NC_EXPORT int ncclCommCount(const struct comm *comm, int *count) {
    return tell(comm, count, nc_is_comm(comm) ? comm->count : 0);
}

NC_EXPORT int ncclCommCuDevice(const struct comm *comm, int *device) {
    return tell(comm, device, nc_is_comm(comm) ? comm->device : 0);
}

NC_EXPORT int ncclCommUserRank(const struct comm *comm, int *rank) {
    return tell(comm, rank, nc_is_comm(comm) ? comm->rank : 0);
}

NC_EXPORT int ncclGetVersion(int *version) {
    struct answer answer;
    const uint64_t values[4] = {VERSION};
    if (version == NULL) return INVALID_ARGUMENT;
    int result = nc_ask(nc_device(), values, NULL, 0, &answer);
    *version = answer.first;
    return result;
}

// scalar: on the host (residence 1) its bytes travel, on the device (0) its address.
NC_EXPORT int ncclRedOpCreatePreMulSum(int *made, void *scalar, int type, int residence,
                                       struct comm *comm) {
    static const unsigned char sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    struct answer answer;
    if (made == NULL || !nc_is_comm(comm) || type < 0 || type >= (int)sizeof sizes) {
        return INVALID_ARGUMENT;
    }
    uint64_t data = 0;
    if (residence == 0) {
        data = (uintptr_t)scalar;
    } else {
        memcpy(&data, scalar, sizes[type]);
    }
    int result = ask(comm, SCALED, (uint64_t)type, (uint64_t)residence, &data, sizeof data, &answer);
    *made = answer.first;
    return result;
}

NC_EXPORT int ncclRedOpDestroy(int reduction, struct comm *comm) {
    struct answer answer;
    if (!nc_is_comm(comm)) return INVALID_ARGUMENT;
    return ask(comm, UNSCALED, (uint64_t)reduction, 0, NULL, 0, &answer);
}

// What NCCL's interface has, as nccl.h of versions 2.18 to 2.28 says.
#ifndef GP_NCCL_H
#define GP_NCCL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NC_EXPORT __attribute__((visibility("default")))
#define ID_SIZE 128
#define UNDEFINED INT32_MIN
#define NO_COLOR (-1)

enum {
    SUCCESS = 0, CUDA_ERROR, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE,
    REMOTE_ERROR, IN_PROGRESS,
};

// What is asked of the worker, and the kinds of operations: see executor/rare/collectives.py.
enum { VERSION, UNIQUE_ID, INIT, SPLIT, FINALIZE, DESTROY, ABORT, STATE, TEXT, SCALED, UNSCALED };
enum { ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, SEND, RECEIVE };

struct id { char internal[ID_SIZE]; };

struct config {
    size_t size;
    unsigned magic, version;
    int blocking, cluster, least, most;
    const char *net;
    int shares;
};

struct settings { int32_t cluster, least, most, shares; };

struct answer {
    int32_t result, first, second, third;
    char text[1024];
};

struct comm {
    uint64_t magic, number;
    int device, rank, count;
    int failed;  // sticky
};

struct operation {  // as it travels
    uint64_t comm, kind, source, target, count, type, reduction, peer, stream;
};

// cuda.c: the CUDA library, looked up when it is first needed
int nc_device(void);
int nc_server(int device);
bool nc_lost(void);
uint64_t nc_number(void);
int nc_ask(int device, const uint64_t values[4], const void *data, size_t size,
           struct answer *answer);  // NCCL's result
int nc_post(const int *devices, struct operation *operations, unsigned count);
int nc_allocate(void **address, size_t size);
int nc_free(void *address);
void nc_note(const char *text);  // the thread's last error
const char *nc_noted(void);

// comm.c
bool nc_is_comm(const struct comm *comm);
struct settings nc_settings(const struct config *config);

// group.c
int nc_add(struct comm *comm, const struct operation *operation);
bool nc_in_group(void);
int nc_group_start(void);
int nc_group_end(void);
struct begin {
    struct comm **target;
    struct comm *made;
    struct id id;
    struct settings settings;
    int result;
};
int nc_begin(struct begin begin);  // now, or at the end of the group

#endif

// What the files of the worker's launcher share; launch.c says what it does.
#ifndef GP_LAUNCHER_H
#define GP_LAUNCHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef int launch_kernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                          void *stream, void **parameters, void **extra);

// As cuda.h has it.
struct config {
    uint32_t grid[3], block[3], shared;
    void *stream;
    const void *attributes;
    uint32_t count;
};

// What is called, in the order of CALLED in launcher.py; NULL where the driver does not have it.
struct driver {
    launch_kernel *launch;
    int (*launch_together)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                           unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                           void *stream, void **parameters);
    int (*launch_ex)(const struct config *config, void *function, void **parameters, void **extra);
    int (*record)(void *event, void *stream);
    int (*wait)(void *stream, void *event, unsigned flags);
    int (*copy_in)(uint64_t target, const void *source, size_t size, void *stream);
    int (*copy)(uint64_t target, uint64_t source, size_t size, void *stream);
    int (*fill8)(uint64_t target, unsigned char value, size_t count, void *stream);
    int (*fill32)(uint64_t target, unsigned value, size_t count, void *stream);
    int (*query)(void *stream);
    int (*set_node)(void *executable, void *node, const void *params);
    int (*launch_graph)(void *executable, void *stream);
    int (*add_callback)(void *stream, void (*callback)(void *, int, void *), void *data, unsigned flags);
    int (*copy_out)(void *target, uint64_t source, size_t size, void *stream);
    int (*synchronize_stream)(void *stream);
    int (*synchronize)(void);
    int (*query_event)(void *event);
    int (*synchronize_event)(void *event);
    int (*elapsed)(float *milliseconds, void *start, void *end);
    int (*create_event)(void **event, unsigned flags);
    int (*destroy_event)(void *event);
};

// The head of a record, as the shim's wire/send.c writes it.
struct head {
    uint16_t op, flags;
    uint32_t size;
};

struct entry {
    uint64_t id;  // 0: free
    uint64_t handle;
    unsigned char *bytes;  // of the parameters
    void **pointers;
    uint32_t length;
    bool kernel;  // of a library, and no function of a module
    bool own;     // made here: the worker asks for its handle when it needs it
};

// Open addressing; a power of two, at most half full. Numbers are never used again.
struct table {
    struct entry *entries;
    size_t room, used;
};

// What both this library and the worker's Python look at; see shared_state.py.
struct shared {
    uint32_t keeping;    // calls of the driver that keep others while they free memory
    uint32_t failed;     // a failure of which the client has not heard
    uint32_t capturing;  // streams
    uint32_t large;      // downloads that Python has
    uint32_t small;      // that were taken here, and are not sent
};

// What came of a frame's records.
struct outcome {
    int32_t status;  // of the driver, for the last that was issued
    uint32_t issued;
    uint32_t ended;  // an enum ended, of a wait that is the last
    uint32_t body_size;
    uint64_t request, waited_ns, body[2];  // of that wait: who asked, and what else the answer says
};
enum ended { NO_WAIT, OVER, GAVE_UP };

// Of one device: whether its lease has the turn there, and how many records came by; see
// worker/launch_gate.py. A closed one is opened by another thread.
struct gate {
    uint32_t closed, unused;
    uint64_t passed, padding[6];
};

struct turns;
struct downloads;

struct launcher {
    struct driver driver;
    // By the client's numbers; contexts by their devices, counted from one.
    struct table functions, streams, events, nodes, executables, contexts;
    uint64_t device;  // the current one
    bool plain;       // so is its own context, and no green one
    int connection;   // a descriptor that the client's bytes come to, -1 where that is not known
    struct shared *shared;
    struct gate *gates;           // by device; NULL where nobody takes turns
    struct turns *turns;          // NULL until there is a thread that tells the client of them
    struct downloads *downloads;  // NULL until there is memory for them
};

// launch.c
struct entry *find(const struct table *table, uint64_t id);
bool get(const struct table *table, uint64_t id, void **handle);

bool keep_entry(struct table *table, struct entry entry);
void forget_entry(struct table *table, uint64_t id);

// Each of these issues a record whose fields lie at `at`, and returns whether it did; the driver's
// answer is in status.
bool issue_graph(const struct launcher *launcher, const unsigned char *at, struct head head, int *status);
bool issue_download(const struct launcher *launcher, const unsigned char *at, struct head head, int *status);
bool issue_host_call(const struct launcher *launcher, const unsigned char *at, struct head head,
                     int *status);
bool issue_event(struct launcher *launcher, const unsigned char *at, struct head head, int *status);

// Wait for what a record asks for, if that is over soon; alone: no other record has come yet. Returns
// whether it is over; outcome->ended is GAVE_UP if that was waited for in vain.
bool wait_soon(const struct launcher *launcher, const unsigned char *at, struct head head, bool alone,
               struct outcome *outcome);

// Whether a call that may have to wait for host functions would keep what they wait for.
static inline bool is_kept(const struct launcher *launcher) {
    const struct shared *shared = launcher->shared;
    return shared == NULL || __atomic_load_n(&shared->keeping, __ATOMIC_ACQUIRE) != 0;
}

#endif

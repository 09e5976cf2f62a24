// The interface of base/: results, handles, devices, ranges, routes, hooks.
#ifndef GP_BASE_H
#define GP_BASE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "generated_records.h"

#define GP_EXPORT __attribute__((visibility("default")))
// Another name of an exported function of the same file. Nothing in the library calls an exported
// function, in whose place a program may have put its own: the work is in gp_* and static ones.
#define GP_ALIAS(name, of) GP_EXPORT extern __typeof__(of) name __attribute__((alias(#of)))
#define GP_DEVICES_MAX 64  // of all servers of the lease
#define GP_SERVERS_MAX GP_DEVICES_MAX
#define GP_SERVER_DEVICES_MAX 16  // that one server gives to one session
#define GP_ATTRIBUTES_MAX 192  // device attributes in the snapshot
#define GP_STACK_MAX 64        // contexts pushed by one thread
#define GP_STREAM_THREAD_MAX GP_DEVICES_MAX
#define GP_DISABLE_TIMING 2  // CU_EVENT_DISABLE_TIMING
#define GP_LEGACY_STREAM 1  // its identifier; the worker knows it by this number

// CUresult, by the names of cuda.h.
enum {
    GP_SUCCESS = 0,
    GP_INVALID_VALUE = 1,
    GP_OUT_OF_MEMORY = 2,
    GP_NOT_INITIALIZED = 3,
    GP_DEVICE_UNAVAILABLE = 46,
    GP_NO_DEVICE = 100,
    GP_INVALID_DEVICE = 101,
    GP_INVALID_IMAGE = 200,
    GP_INVALID_CONTEXT = 201,
    GP_PEER_ACCESS_UNSUPPORTED = 217,
    GP_FILE_NOT_FOUND = 301,
    GP_OPERATING_SYSTEM = 304,
    GP_INVALID_HANDLE = 400,
    GP_LOSSY_QUERY = 402,
    GP_NOT_FOUND = 500,
    GP_NOT_READY = 600,
    GP_PEER_ACCESS_NOT_ENABLED = 705,
    GP_HOST_ALREADY_REGISTERED = 712,
    GP_HOST_NOT_REGISTERED = 713,
    GP_NOT_PERMITTED = 800,
    GP_NOT_SUPPORTED = 801,
    GP_CAPTURE_UNSUPPORTED = 900,
    GP_CAPTURE_INVALIDATED = 901,
    GP_CAPTURE_UNMATCHED = 903,
    GP_CAPTURE_IMPLICIT = 906,
    GP_INVALID_CLUSTER_SIZE = 912,
    GP_ILLEGAL_STATE = 401,
    GP_UNKNOWN = 999,
};

enum gp_kind {
    GP_STREAM = 1,
    GP_EVENT,
    GP_GRAPH,
    GP_GRAPH_EXEC,
    GP_POOL,
    GP_FUNCTION,  // a CUfunction or a CUkernel: callers pass either as the other
    GP_MODULE,    // a CUmodule or a CUlibrary
    GP_CONTEXT,
    GP_PHYSICAL,  // a CUmemGenericAllocationHandle
    GP_LINK,      // a CUlinkState
    GP_ARRAY,
    GP_MIPMAP,    // a CUmipmappedArray
    GP_NODE,      // a CUgraphNode
    GP_USER_OBJECT,
    GP_TEXTURE_REFERENCE,
    GP_SURFACE_REFERENCE,
    GP_DESCRIPTION,  // a CUdevResourceDesc
    GP_GREEN,        // a CUgreenCtx
};

#define GP_MAGIC 0x67706f6fU

// A handle as it was: it is still the same while its id is, and, of an event, while `begun` is.
struct gp_mark {
    struct gp_handle *handle;
    uint64_t id, begun;
};

// What a CUstream, CUevent and so on point to. The identifier names the object on the wire.
struct gp_handle {
    uint32_t magic;
    uint32_t kind;
    uint64_t id;
    struct gp_handle *next;  // in a list of free ones, or of moved ones
    int device;              // the ordinal of its context
    unsigned flags;
    int priority;            // event: how often it was recorded
    uint64_t capture;        // stream, event: the capture that it belongs to, 0 for none
    uint64_t clean;          // stream: the position of the line up to which it is known idle;
                             // event: the record, counted from one, that is known to be over
    uint64_t after;          // stream, event: the last host function before what it has got
    uint64_t place;          // stream: the position of the line up to which it is known to have come;
                             // event: that of its record, 0 where none is known
    uint64_t copied;         // stream: the position up to which it has nothing but copies behind `clean`
    uint64_t downloaded;     // stream: the position of the last download to pinned memory, 0 for none
    uint64_t begun;          // event: how many records of it were made
    uint64_t timed;          // event: the record, counted by `begun`, for which `elapsed` is known
    uint32_t elapsed;        // event: the time since the one before, as CUDA's float
    struct gp_mark on;       // event: the stream of its record
    struct gp_mark before;   // stream: the last event with a time; event: the one before it in its stream
    const void *context;     // that was current when it was made
    bool moved;              // to an address of the server's
    void *detail;
};

#define GP_UUID_TEXT 48

// What a device is called; empty where that is not known.
struct gp_names {
    char known[GP_UUID_TEXT];  // by gpupool run and NVML: GPU-..., or MIG-... for a part of one
    char uuid[GP_UUID_TEXT];   // by CUDA on the server
};

struct gp_device {
    char name[256];
    struct gp_names names;
    unsigned char uuid[16];
    int pci[3];  // domain, bus, device
    uint64_t memory;
    uint64_t granularity[2];  // minimum, recommended
    int priorities[2];        // least, greatest
    int attributes[GP_ATTRIBUTES_MAX];
    unsigned char known[GP_ATTRIBUTES_MAX];
    int links;   // NVLinks, where all devices of its session are connected by such
    int server;  // of the lease, counted from zero
    int index;   // in that server's session
    unsigned char peers[GP_SERVER_DEVICES_MAX];  // by their index, on the same server
};

struct gp_local {
    struct gp_local *next;
    const void *key;
    void *value;
    void (*destroy)(void *context, void *key, void *value);
};

struct gp_context {
    struct gp_handle handle;
    int references;  // of the primary context
    int attached;    // by cuCtxAttach, and not detached
    unsigned flags;
    uint64_t serial;
    bool primary;
    struct gp_local *locals;
    void *green;               // green.c; NULL for any other
    int place;                 // of a green one: what SET_DEVICE calls it
    struct gp_handle *legacy;  // of a green one: its own
};

struct gp_state {
    int version;  // as programs see it: the oldest server's driver, or GP_CUDA_INTERFACE if that is less
    int device_count, server_count;
    struct gp_device devices[GP_DEVICES_MAX];
    struct gp_context primaries[GP_DEVICES_MAX];
};

// What lower layers call in higher ones, which register it as the library is loaded. No layer calls
// another above it in any other way.
struct gp_hooks {
    // Of runtime/host.c. A function's turn has come, false when too many have that nobody ran; and,
    // while functions are pending, wait until a record may be sent, with so many bytes of its own and
    // so many behind its frame.
    bool (*host_arrived)(int server, uint64_t id, int status, uint64_t ticket);
    void (*host_gate)(int op, uint64_t size, uint64_t bulk);
    // Of hostmem/mapped.c. Send what the program wrote to memory that kernels see, if
    // gp_mapped_count; and take over what kernels wrote: of all bytes without a mask.
    void (*push_mapped)(void);
    void (*mapped_arrived)(uint64_t id, uint64_t offset, const unsigned char *bytes,
                           const unsigned char *mask, size_t size);
    // Where bytes of an answer go that are meant for the program's memory, and that they are there.
    unsigned char *(*mapped_alias)(void *target);
    void (*mapped_filled)(const void *target, size_t size);
    // Of hostmem: whether a fault was one of memory that the library had closed, and is open now.
    bool (*mapped_fault)(uint64_t address);
    bool (*managed_fault)(uint64_t address, const void *context);
    // Of graph: work of a stream that is captured, which the worker alone cannot capture.
    int (*capture_box)(const void *copy, void *stream);  // a CUDA_MEMCPY3D; one side is the host's
    int (*capture_allocate)(uint64_t *address, size_t size, void *stream);
    int (*capture_free)(uint64_t address, void *stream);
    int (*capture_call)(struct gp_handle *graph, uint64_t id);  // takes over its reference
    // Of wire/open_lanes.c: a struct line has carried enough for further connections to pay.
    void (*open_lanes)(void *line);
    // Of rare/reference.c: references to what is in a module that is unloaded end.
    void (*module_unloaded)(const void *module);
};
#define GP_AT_LOAD __attribute__((constructor)) static void

// state.c
extern struct gp_state gp;
extern struct gp_hooks gp_hooks;
int64_t gp_now_ns(void);  // of a clock that nobody sets
extern bool gp_several;      // the devices are of several servers
extern bool gp_many;         // there is more than one device
extern int gp_started;       // 1: by cuInit; -1: this is a fork of a process that had started
extern int gp_servers_left;  // those that are not lost
extern bool gp_reached[GP_SERVERS_MAX];  // by server: it is used, and not lost
extern int gp_hosts_pending;  // host functions
extern int gp_hosts_holding;  // those of them for which streams wait
extern int gp_shares;  // memory or events with other processes
extern int gp_mapped_count;   // pieces of memory that are looked through before a launch
extern int gp_managed_count;  // regions there are; zero lets every copy and launch skip the search

#define GP_CHECK(call)                       \
    do {                                     \
        int gp_check_status = (call);        \
        if (gp_check_status != GP_SUCCESS)   \
            return gp_check_status;          \
    } while (0)

// ready.c
int gp_ready(void);   // initialised, not forked, not lost
int gp_enter(void);   // and there is a current context

// say.c
int gp_verbosity(void);
bool gp_verbose(void);
bool gp_launches_block(void);  // CUDA_LAUNCH_BLOCKING
// Put a question mark in place of every byte that would move a terminal's cursor or change its
// colours: what a server sends is not written to the user's terminal as it is.
void gp_make_visible(char *text, size_t size);
void gp_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
// Start a thread of ours, which runs with argument; 0, or pthread_create's error. The program's
// signals are for its own threads, so all are masked but signal_taken, if that is not 0.
int gp_start_thread(void *(*run)(void *), void *argument, int signal_taken);

// handle.c
uint64_t gp_new_id(void);
uint64_t gp_new_ids(unsigned count);  // the first of as many
void gp_hold_handles(bool hold);  // while the process forks
struct gp_handle *gp_make(enum gp_kind kind);
void gp_end(struct gp_handle *handle);
// The same handle where the server's lies, so that both have one value; NULL if something else is there.
struct gp_handle *gp_move(struct gp_handle *handle, uint64_t address);
void gp_begin_context(struct gp_context *context, int device);  // a new one, all else of it 0
static inline int gp_check(const void *handle, enum gp_kind kind) {
    const struct gp_handle *known = (const struct gp_handle *)handle;
    // Small values are constants or nonsense, and no address of ours is odd.
    if ((uintptr_t)known < 4096 || ((uintptr_t)known & 7) != 0) return GP_INVALID_HANDLE;
    return known->magic == GP_MAGIC && known->kind == kind ? GP_SUCCESS : GP_INVALID_HANDLE;
}

static inline int gp_check_device(int ordinal) {
    return ordinal >= 0 && ordinal < gp.device_count ? GP_SUCCESS : GP_INVALID_DEVICE;
}
// Its index in its server's session.
static inline int gp_server_device(int ordinal) { return gp.devices[ordinal].index; }

// errors.c
const char *gp_error_name(int code);  // as cuda.h has it; NULL for no error of CUDA's
const char *gp_error_text(int code);
// From the snapshot; where they end there, NULL when they do not end well.
const unsigned char *gp_take_errors(const unsigned char *at, const unsigned char *end,
                                    uint32_t count);

// current.c
extern __thread int gp_routed;  // a device where the scope sends calls, -1 for nowhere else
struct gp_context *gp_current(void);
int gp_current_device(void);  // an ordinal, -1 for none
int gp_place(void);  // where calls go to, as SET_DEVICE names it: a device or a green context; or -1
bool gp_borrow_context(int device);  // that none is current on this thread; -1: of no device
void gp_end_borrowing(const bool *borrowed);
int gp_device_of(const void *context);
int gp_context_of(const void *context, struct gp_context **found);
int gp_push(struct gp_context *context);
struct gp_context *gp_pop(void);  // NULL: there is none
bool gp_in_host_function(void);
void gp_enter_host_functions(void);  // for good: this thread runs nothing else

// logs.c
void gp_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
void gp_log_status(int status, bool earlier);

// visible.c: which devices the program sees
bool gp_is_named(const struct gp_names *names, const char *word);  // begins with that word
// CUDA_VISIBLE_DEVICES: how many of count devices it names, and which; -1 if it names one twice.
int gp_choose_visible(const struct gp_names *names, int count, int chosen[GP_DEVICES_MAX]);
bool gp_fastest_first(void);  // as CUDA_DEVICE_ORDER asks
void gp_order_devices(const int64_t *speeds, int count, int order[GP_DEVICES_MAX]);

// ranges.c
struct gp_range {
    uint64_t start, size;
    int kind;  // one of the following
    int device;
    unsigned flags;
    uint64_t serial;
    void *detail;
    bool waits;  // copies of it are to wait, as the program has said, which is all that this does
};
enum {
    GP_DEVICE_MEMORY = 1,
    GP_HOST_MEMORY,
    GP_MANAGED_MEMORY,
    GP_GLOBAL_MEMORY,
    GP_VIRTUAL_MEMORY,  // mapped by cuMemMap; the host's is GP_HOST_MEMORY
    GP_SHARED_MEMORY,   // another process's
};
#define GP_RESERVED 1  // in the flags of a range: nothing else of the program gets its addresses
#define GP_OF_POOL 2   // the same addresses come again and again
#define GP_VIRTUAL_HOST 0x20000000u  // the host's memory, mapped by cuMemMap
bool gp_find_range(uint64_t address, struct gp_range *found);
bool gp_set_waits(uint64_t address, bool waits);  // false where no range is
// Memory that ends with the context in which it was allocated, which is the current one for gp_own.
void gp_own(uint64_t start);
const void *gp_owner_of(uint64_t start);  // NULL for what belongs to none
bool gp_find_owned(const void *context, struct gp_range *found);
bool gp_range_within(uint64_t start, uint64_t size);  // whether any address of these is of a range
int gp_add_range(struct gp_range range);
int gp_remove_range(uint64_t start, struct gp_range *removed);
void gp_give_back_addresses(const struct gp_range *removed);  // that were reserved for it
extern uint64_t gp_pinned_low, gp_pinned_high;
static inline bool gp_may_be_pinned(uint64_t address) {
    return address < __atomic_load_n(&gp_pinned_high, __ATOMIC_RELAXED) &&
           address >= __atomic_load_n(&gp_pinned_low, __ATOMIC_RELAXED);
}

// route.c: which server a call is for. A thread's calls go to the server of its current context,
// unless a scope sends them elsewhere: to that of a handle, or of an address. With one server all of
// this is nothing.
int gp_route_to(int device);      // what was there before
int gp_route_to_stream(const void *stream);
int gp_here(void);                // the server that calls go to now
int gp_server_of(int device);     // gp_here() for -1
bool gp_reaches(int device);      // calls go to its server now; true for -1
int gp_device_at(uint64_t address);         // that has this memory; -1 for the host's and unknown
int gp_handle_device(const void *handle);   // -1 for what is no handle, or of no device
int gp_first_device(int server);
static inline bool gp_is_lost_at(int server) {
    return !__atomic_load_n(&gp_reached[server], __ATOMIC_RELAXED);
}
bool gp_is_lost(void);            // the server that calls go to now
static inline int gp_route(int device) {
    return __builtin_expect(gp_several, 0) ? gp_route_to(device) : -1;
}
static inline void gp_unroute(const int *before) {
    if (__builtin_expect(gp_many, 0)) gp_routed = *before;
}
// To the end of the scope. A device of -1 changes nothing.
#define GP_JOINED(a, b) a##b
#define GP_NAMED(line) GP_JOINED(gp_routed_at_, line)
#define GP_ROUTE(device) \
    __attribute__((cleanup(gp_unroute), unused)) const int GP_NAMED(__LINE__) = gp_route(device)
#define GP_ON(handle) GP_ROUTE(gp_several ? gp_handle_device(handle) : -1)
#define GP_ON_ADDRESS(address) GP_ROUTE(gp_several ? gp_device_at(address) : -1)
// For what the worker waits for by events of its own: these must be of the stream's device, which may be
// another one than that of the current context.
#define GP_ON_STREAM(stream)                                                        \
    __attribute__((cleanup(gp_unroute), unused)) const int GP_NAMED(__LINE__) =     \
        __builtin_expect(gp_many, 0) ? gp_route_to_stream(stream) : -1
// A stream with a meaning of its own, such as NULL, is that of the server that has the memory.
#define GP_ON_EITHER(stream, address) \
    GP_ROUTE(!gp_several ? -1 : gp_handle_device(stream) >= 0 ? gp_handle_device(stream) \
                                                              : gp_device_at(address))
// What else a call names must be on the same server.
#define GP_REACH(handle) \
    GP_CHECK(!gp_several || gp_reaches(gp_handle_device(handle)) ? GP_SUCCESS : GP_INVALID_HANDLE)
#define GP_REACH_ADDRESS(address) \
    GP_CHECK(!gp_several || gp_reaches(gp_device_at(address)) ? GP_SUCCESS : GP_INVALID_VALUE)

// --- the beginning of an exported function -------------------------------------------------------

#define GP_ENTER() GP_CHECK(gp_enter())
// The same for what needs no current context, because it has a handle of some context: as with CUDA,
// streams but for the default ones, events, functions, executable graphs, memory to be freed.
#define GP_ENTER_OF(device)                                                                         \
    __attribute__((cleanup(gp_end_borrowing), unused)) const bool gp_borrowed =                     \
        __builtin_expect(gp_current() == NULL, 0) && gp_borrow_context(device);                     \
    GP_ENTER()
#define GP_ENTER_ON(handle) GP_ENTER_OF(gp_handle_device(handle))
#define GP_ENTER_AT(address) GP_ENTER_OF(gp_device_at(address))
#define GP_ENTER_DEVICE() GP_CHECK(gp_ready())

#endif

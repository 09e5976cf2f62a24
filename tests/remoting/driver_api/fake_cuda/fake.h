/* What the fake driver's files share: objects, work queues, memory regions, entry bookkeeping. */
#ifndef FAKE_CUDA_FAKE_H
#define FAKE_CUDA_FAKE_H

#include "abi.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#define API __attribute__((visibility("default")))
#define DEVICES_MAX 16
#define KIB ((size_t)1024)
#define MIB ((size_t)1024 * KIB)
#define GIB ((size_t)1024 * MIB)

/* ---- the control block: shared with the test, which may be another process (control.py) ---- */

#define CONTROL_MAGIC 0x46434431u /* "FCD1" */
#define FAULTS_MAX 16
#define COUNTERS_MAX 1024
#define PROCESSES_MAX 64
#define NAME_MAX_BYTES 64

enum fault_kind {
    FAULT_RETURN = 0, /* the call returns the error and does nothing else */
    FAULT_STICKY = 1, /* the same, and every later call in the context returns it too */
    FAULT_LATER = 2   /* the call succeeds; its work fails on the stream, and the context with it */
};

struct fault {
    _Atomic uint32_t active;
    int32_t error;
    _Atomic uint32_t after; /* calls that still pass before the fault begins */
    _Atomic uint32_t times; /* calls that still fail; 0 means for ever */
    uint32_t kind;
    uint32_t delay_us; /* the call first sleeps this long, whatever it returns */
    char name[NAME_MAX_BYTES];
};

struct counter {
    char name[NAME_MAX_BYTES];
    _Atomic uint64_t calls;
};

struct process_use {
    _Atomic int32_t pid;
    _Atomic uint32_t state; /* of cuCheckpointProcessGetState */
    _Atomic uint64_t used[DEVICES_MAX];
    _Atomic int32_t place[DEVICES_MAX]; /* the device that each of its devices is by now */
    _Atomic uint32_t managed, imported; /* allocations of these kinds that it has */
};

struct control {
    uint32_t magic, size;
    _Atomic uint32_t paused;      /* streams begin no work while this is not zero */
    _Atomic uint32_t fault_count; /* faults ever set; zero lets every call skip the search */
    _Atomic uint64_t launches, missing_calls;
    struct fault faults[FAULTS_MAX];
    struct process_use processes[PROCESSES_MAX];
    struct counter counters[COUNTERS_MAX];
};

extern struct control *control;

/* ---- entry of every exported function ---- */

struct entry {
    const char *name;
    struct counter *counter;
};

CUresult entry_begin(struct entry *entry, const char *name);
void note_missing(const char *name);

/* Counts the call, applies injected faults, and refuses what comes before cuInit or after fork. */
#define ENTER()                                                                                    \
    do {                                                                                           \
        static struct entry entry_;                                                                \
        CUresult entered_ = entry_begin(&entry_, __func__);                                        \
        if (entered_ != CUDA_SUCCESS)                                                              \
            return entered_;                                                                       \
    } while (0)

/* ENTER, then the current context in `ctx`, or its sticky error. */
#define ENTER_CONTEXT(ctx)                                                                         \
    CUcontext ctx = NULL;                                                                          \
    ENTER();                                                                                       \
    do {                                                                                           \
        CUresult current_ = context_current(&ctx);                                                 \
        if (current_ != CUDA_SUCCESS)                                                              \
            return current_;                                                                       \
    } while (0)

#define TRY(expression)                                                                            \
    do {                                                                                           \
        CUresult tried_ = (expression);                                                            \
        if (tried_ != CUDA_SUCCESS)                                                                \
            return tried_;                                                                         \
    } while (0)

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return CUDA_ERROR_INVALID_VALUE;                                                       \
    } while (0)

#define REQUIRE_HANDLE(condition)                                                                  \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return CUDA_ERROR_INVALID_HANDLE;                                                      \
    } while (0)

/* Destroyed objects stay allocated with MAGIC_DEAD, so that using one is an error, not chance. */
enum magic {
    MAGIC_DEAD = 0x0badf00d, MAGIC_CONTEXT = 0x43545831, MAGIC_STREAM = 0x53545231,
    MAGIC_EVENT = 0x45565431, MAGIC_MODULE = 0x4d4f4431, MAGIC_FUNCTION = 0x46554e31,
    MAGIC_LIBRARY = 0x4c494231, MAGIC_KERNEL = 0x4b524e31, MAGIC_GRAPH = 0x47524831,
    MAGIC_NODE = 0x4e4f4431, MAGIC_EXEC = 0x45584531, MAGIC_POOL = 0x504f4f31,
    MAGIC_ARRAY = 0x41525231, MAGIC_MIPMAP = 0x4d495031, MAGIC_LINK = 0x4c4e4b31,
    MAGIC_GREEN = 0x47524e31, MAGIC_TEXREF = 0x54524631, MAGIC_SURFREF = 0x53524631
};

#define IS(object, kind) ((object) != NULL && (object)->magic == (kind))

void *zeroed(size_t bytes); /* calloc that ends the process when there is no memory */
uint64_t now_ns(void);
bool exit_begun(void);

/* ---- devices (device.c) ---- */

struct device {
    int ordinal; /* of the machine, before CUDA_VISIBLE_DEVICES */
    CUuuid uuid;
    int pci_domain, pci_bus, pci_device;
    size_t memory;
    _Atomic size_t used; /* bytes of this process */
    struct CUctx_st *primary;
    unsigned primary_uses, primary_flags;
    CUmemoryPool default_pool, current_pool;
};

extern struct process_use *own_use; /* this process's part of the control block, or NULL */
extern struct device devices[DEVICES_MAX];
extern int device_count;
void devices_open(void);
int device_attribute(int dev, CUdevice_attribute attribute, int *value);
size_t device_used(int dev); /* of all live processes that share the control file */
CUresult device_charge(int dev, size_t bytes);
int device_place(int dev); /* the ordinal of the device that a device is by now */
struct process_use *use_slot(void); /* this process's part, which it has from now on; or NULL */
void wait_while_locked(void); /* returns once this process is not suspended (checkpoint.c) */
void device_refund(int dev, size_t bytes);

/* ---- contexts (context.c) ---- */

#define LIMITS_MAX 16
struct local_value { /* one entry of the runtime's context-local storage */
    struct local_value *next;
    void *key, *value;
    void (*drop)(CUcontext, void *, void *);
};

struct CUctx_st {
    uint32_t magic;
    int dev;
    unsigned flags, api_version;
    uint64_t id;
    bool primary, alive;
    _Atomic CUresult error; /* sticky */
    CUstream legacy, streams;
    struct local_value *locals;
    size_t limits[LIMITS_MAX];
    CUfunc_cache cache;
    CUsharedconfig shared;
    CUmodule modules;
    unsigned peers; /* bit per device that this context may access */
    unsigned attached;
    CUgreenCtx green; /* of a context that stands for a green one: it, and the device's own */
    CUcontext base;
};

CUresult context_current(CUcontext *ctx); /* 201 when there is none, else its sticky error */
CUcontext context_peek(void);             /* NULL when there is none */
CUcontext context_top(void); /* the same; a green one is itself, not its device's */
CUcontext context_green(int dev, CUgreenCtx green);
struct CUgreenCtx_st { /* green.c */
    uint32_t magic;
    int count; /* of multiprocessors */
    CUcontext context;
    CUstream legacy;
};
CUcontext context_primary(int dev);
CUresult context_wait(CUcontext ctx); /* until all its streams are idle; spoils captures */
CUresult context_wait_to_free(CUcontext ctx); /* the same, but for relaxed captures, as cuMemFree does */
CUresult context_drain(CUcontext ctx); /* the same, and leaves captures alone */
CUresult context_keep(CUcontext ctx, CUresult (*wait)(CUcontext)); /* and other threads' calls wait */
void context_kept(void); /* until no other thread's call keeps this one */
void context_fail(CUcontext ctx, CUresult error);
CUresult context_local_put(CUcontext, void *key, void *value,
                           void (*drop)(CUcontext, void *, void *));
CUresult context_local_delete(CUcontext, void *key);
CUresult context_local_get(void **value, CUcontext, void *key);

/* ---- memory (memory.c) ---- */

enum region_kind {
    REGION_DEVICE, REGION_MANAGED, REGION_HOST, REGION_REGISTERED, REGION_RESERVED
};

struct backing { /* physical memory: cuMemCreate, or what an allocation stands on */
    uint64_t id;
    size_t size;
    off_t offset; /* in the memory file */
    int dev, uses;
    CUmemAllocationProp prop;
    bool imported; /* it is another process's, in the file of `descriptor` */
    bool shared;   /* another process may have it, and its bytes then, whatever happens here */
    int descriptor;
};

struct ipc_memory { /* where memory lies in a process's memory file */
    int64_t offset;
    uint64_t size;
    int dev;
};

int memory_descriptor(void);
/* Of memory of cuMemAlloc, or of such a pool. */
bool memory_share(CUdeviceptr pointer, CUmemoryPool pool, struct ipc_memory *memory);
bool memory_share_backing(CUmemGenericAllocationHandle handle, struct ipc_memory *memory);
bool memory_import(CUcontext ctx, CUmemoryPool pool, int descriptor,
                   const struct ipc_memory *memory, CUdeviceptr *pointer);
CUmemGenericAllocationHandle memory_import_backing(int descriptor,
                                                   const struct ipc_memory *memory);
bool memory_close(CUdeviceptr pointer);

struct mapping {
    struct mapping *next;
    size_t offset, size;
    struct backing *backing;
    unsigned access;
};

struct region {
    CUdeviceptr base;
    size_t size, charged;
    char *storage; /* where the fake itself reads and writes it */
    enum region_kind kind;
    int dev;
    unsigned flags;
    uint64_t id;
    CUcontext ctx;
    CUmemoryPool pool;
    struct backing *backing;
    struct mapping *mappings; /* REGION_RESERVED only */
    bool internal;            /* a module's globals: cuMemFree refuses it */
    bool graph, live;         /* of an allocation node; a launch makes it live, a free ends that */
    bool imported;            /* opened from another process */
};

struct CUmemPoolHandle_st {
    uint32_t magic;
    int dev;
    uint64_t attributes[16];
    size_t cached; /* bytes freed into the pool and still charged to the device */
    size_t size_max; /* 0: no limit but the device's */
    CUmemAccess_flags access[DEVICES_MAX];
    int number;      /* of this process's pools */
    bool shareable;  /* with other processes; then it gives nothing back before its end */
    uint64_t origin; /* of an imported pool: the socket of its process, else 0 */
};

void memory_open(void);
CUresult memory_allocate(CUcontext ctx, size_t bytes, CUmemoryPool pool, bool internal,
                         CUdeviceptr *pointer);
bool memory_make_room(size_t bytes); /* for the managed variables of a module that come next */
CUresult memory_allocate_managed(CUcontext ctx, size_t bytes, unsigned flags, bool internal,
                                 CUdeviceptr *pointer);
CUresult memory_release(CUdeviceptr pointer, bool internal);
void memory_release_context(CUcontext ctx);
bool memory_find(CUdeviceptr pointer, struct region *copy);
/* Gives where `bytes` at a device pointer are stored, or NULL. */
char *memory_storage(CUdeviceptr pointer, size_t bytes);
/* The same for a pointer of either side: what is in no region is plain host memory. */
char *memory_any(CUdeviceptr pointer, size_t bytes);
bool memory_is_pageable(const void *pointer);
CUmemoryPool pool_new(int dev);
CUresult memory_graph(CUdeviceptr pointer, bool live); /* becomes or is an allocation node's */
size_t memory_graph_bytes(int dev, bool live_only);

struct CUarray_st {
    uint32_t magic;
    int dev;
    size_t width_bytes, height, depth, size; /* height and depth at least 1 */
    char *storage;
    CUDA_ARRAY3D_DESCRIPTOR description;
    bool level; /* of a mipmapped array, which owns it */
};
CUresult array_create(CUcontext ctx, CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *wanted);
void array_free(CUarray array);
CUarray array_level(CUmipmappedArray array, unsigned level); /* NULL when there is none */

/* A texture or surface object (texture.c). */
struct texture {
    uint32_t magic;
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC texture;
    CUDA_RESOURCE_VIEW_DESC view;
};
#define MAGIC_TEXTURE 0x54455831
#define MAGIC_SURFACE 0x53555231
CUresult texture_of(unsigned long long handle, uint32_t magic, struct texture **out);

/* ---- images (image.c) ---- */

struct param {
    uint32_t offset, size;
};

struct kernel_info {
    char *name;
    struct param *params;
    unsigned param_count, param_bytes;
    int registers, shared_bytes, const_bytes, local_bytes, threads_max, cluster[3];
};

struct global_info {
    char *name;
    size_t size, align;
    bool managed;
    const unsigned char *data; /* initial bytes; NULL means zeros */
    size_t data_bytes;
};

struct reference_info { /* of a texture or a surface */
    char *name;
    bool surface;
};

struct image {
    struct kernel_info *kernels;
    struct global_info *globals;
    struct reference_info *references;
    unsigned kernel_count, global_count, reference_count;
    int arch, ptx_version; /* 90 for sm_90; 0 where unknown */
    bool from_ptx;
    unsigned char *owned; /* decompressed or copied bytes that the above point into */
};

/* Parses a fatbin wrapper, a fatbin, a cubin or PTX text, which carry no length. */
CUresult image_parse(const void *bytes, int arch, struct image **out);
CUresult image_parse_ptx(const char *text, size_t length, int arch, struct image *out);
CUresult image_parse_cubin(const unsigned char *elf, size_t length, int arch, struct image *out);
size_t image_cubin_bytes(const unsigned char *elf);
struct kernel_info *image_add_kernel(struct image *image, const char *name, size_t length);
struct global_info *image_add_global(struct image *image, const char *name, size_t length);
void image_add_reference(struct image *image, const char *name, size_t length, bool surface);
void image_add_param(struct kernel_info *kernel, unsigned index, uint32_t offset, uint32_t size);

/* ---- modules (module.c) ---- */

#define FUNCTION_ATTRIBUTES 20
struct CUfunc_st {
    uint32_t magic;
    CUmodule module;
    struct CUkern_st *kernel; /* NULL when it came from cuModuleLoad */
    const struct kernel_info *info;
    int settings[FUNCTION_ATTRIBUTES]; /* of cuFuncSetAttribute; INT_MIN where not set */
    struct old_launch *old;            /* old_launch.c */
};

struct module_global {
    const struct global_info *info;
    CUdeviceptr pointer;
};

struct CUmod_st {
    uint32_t magic;
    CUcontext ctx;
    CUlibrary library; /* NULL when it came from cuModuleLoad */
    struct image *image;
    struct CUfunc_st *functions; /* one for each kernel of the image */
    struct module_global *globals;
    struct reference *references;
    CUmodule next;
};

struct CUkern_st {
    uint32_t magic;
    CUlibrary library;
    unsigned index;
    int settings[DEVICES_MAX][FUNCTION_ATTRIBUTES];
};

struct CUlib_st {
    uint32_t magic;
    struct image *image;
    struct CUkern_st *kernels;
    CUmodule modules; /* one for each context that used it, linked by library_next */
    CUmodule per_device[DEVICES_MAX];
};

/* Accepts a CUfunction, or a CUkernel cast to one, as the driver does. */
CUresult function_resolve(CUfunction handle, CUcontext ctx, CUfunction *function);
CUresult function_attribute(CUfunction function, CUfunction_attribute attribute, int *value);

/* A texture or surface reference (reference.c). */
struct reference {
    uint32_t magic;
    const char *name; /* NULL when no module has it */
    bool bound;
    int format, channels;
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC texture;
};
void references_make(CUmodule module);
const struct reference *references_copy(CUmodule module);

void jit_say(CUresult result, unsigned count, const CUjit_option *options, void **values);
CUdeviceptr module_global_find(CUmodule module, const char *name, size_t *bytes);
void modules_unload_context(CUcontext ctx);

/* ---- work: what streams run and graphs hold ---- */

enum work_kind {
    WORK_KERNEL, WORK_COPY, WORK_FILL, WORK_HOST, WORK_CALLBACK, WORK_EMPTY, WORK_RECORD,
    WORK_WAIT, WORK_ALLOCATE, WORK_RELEASE, WORK_GRAPH, WORK_WAIT_VALUE, WORK_WRITE_VALUE,
    WORK_BATCH, WORK_CONDITIONAL
};

struct launch {
    CUfunction function;
    unsigned grid[3], block[3], cluster[3], shared_bytes;
    bool cooperative;
    unsigned char *params; /* packed at the offsets of the image; owned */
    size_t param_bytes;
    const struct reference *references; /* as they were at the launch; never freed */
};

struct endpoint {
    CUmemorytype type; /* host, device, array or unified */
    CUdeviceptr pointer;
    CUarray array;
    size_t x, y, z, pitch, height;
};

struct copy {
    struct endpoint source, target;
    size_t width, height, depth;
    unsigned char *snapshot; /* pageable source bytes, packed; owned */
    bool flat;               /* made by a one-dimensional call */
};

struct fill {
    CUdeviceptr target;
    size_t pitch, width, height;
    unsigned value, element;
};

struct work {
    enum work_kind kind;
    CUcontext ctx;
    CUresult fault; /* an injected error that running it gives */
    union {
        struct launch launch;
        struct copy copy;
        struct fill fill;
        struct { CUhostFn call; void *data; } host;
        struct { CUstreamCallback call; void *data; CUstream stream; } callback;
        struct { CUevent event; uint64_t ticket; } record;
        struct { CUdeviceptr pointer; size_t bytes; } memory;
        struct { CUdeviceptr pointer; uint64_t value; unsigned flags, bytes; } value;
        struct { CUstreamBatchMemOpParams *items; unsigned count; } batch; /* owned */
        struct { struct condition *condition; unsigned type, size; CUgraphExec *bodies; } conditional;
        CUgraphExec graph;
    };
};

CUresult work_run(struct work *work);
void work_drop(struct work *work); /* frees what it owns */
void work_clone(struct work *to, const struct work *from);
CUresult kernel_run(struct launch *launch); /* kernels.c */
CUresult launch_prepare(CUfunction function, void **params, void **extra, struct launch *launch);
CUresult launch_check(CUcontext ctx, const struct launch *launch);
void launch_record(const struct launch *launch, uint64_t stream_id);
void printed_flush(void);                   /* what kernels have printed, to standard output */
CUresult graph_run(CUgraphExec exec);
CUresult copy_check(struct copy *copy);
CUresult copy_run(const struct copy *copy);
CUresult copy_from_3d(const CUDA_MEMCPY3D *from, struct copy *copy);
void copy_to_3d(const struct copy *from, CUDA_MEMCPY3D *to);
CUresult fill_run(const struct fill *fill);
CUresult fill_check(const struct fill *fill);

/* ---- streams and events (stream.c) ---- */

struct dependency {
    CUstream stream;
    uint64_t ticket;
};

struct operation {
    struct operation *next;
    struct work work;
    struct dependency *waits;
    unsigned wait_count;
    unsigned entries; /* of the stream's queue */
};

struct capture;

struct CUstream_st {
    uint32_t magic;
    CUcontext ctx;
    unsigned flags;
    int priority;
    uint64_t id;
    bool legacy, closing, started;
    CUgreenCtx green; /* whose stream it is */
    pthread_cond_t wake, done;
    struct operation *first, *last;
    uint64_t submitted, completed;
    uint64_t queued; /* entries that the operations which are not over take together */
    struct dependency *extra_waits; /* of cuStreamWaitEvent, for the next operation */
    unsigned extra_count;
    struct capture *capture;
    CUgraphNode *front; /* what the next captured work depends on */
    unsigned front_count;
    CUstream next; /* in the context */
};

struct CUevent_st {
    uint32_t magic;
    CUcontext ctx;
    unsigned flags;
    CUstream stream; /* of the last record; NULL before it */
    uint64_t ticket;
    _Atomic uint64_t time_ns;
    struct shared_event *shared; /* of an event that other processes may see */
    struct ipc_memory where;     /* its offset is the number of the event's file */
    struct capture *capture; /* where the last record was captured, if it was */
    CUgraphNode *captured;
    unsigned captured_count;
};

struct shared_event { /* how often it was recorded, and which record is over */
    _Atomic uint64_t recorded, completed;
};

CUresult event_share(CUevent event); /* ipc.c */

extern _Atomic bool frees_unseen; /* memory was freed in a stream, and nobody has synchronized since */
extern pthread_mutex_t engine; /* guards streams, events, captures, graphs */
extern _Thread_local bool per_thread_default; /* set while a _ptsz or _ptds variant runs */
extern _Thread_local bool in_callback;
extern _Thread_local CUresult fault_for_work; /* an injected FAULT_LATER for what is submitted */

/* Turns 0, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD into streams of the context. */
CUresult stream_resolve(CUcontext ctx, CUstream handle, CUstream *stream);
/* Queues the work, or adds it to the graph that the stream captures. Takes what it owns. */
CUresult stream_submit(CUstream stream, struct work *work);
CUresult stream_submit_and_wait(CUstream stream, struct work *work);
CUresult stream_wait(CUstream stream);
CUstream stream_new(CUcontext ctx, unsigned flags, int priority);
void streams_close_context(CUcontext ctx);
void event_finish(CUevent event, uint64_t ticket);

/* ---- graphs (graph.c) ---- */

struct capture {
    CUgraph graph;
    CUstream origin;
    CUstreamCaptureStatus status;
    CUstreamCaptureMode mode;
    uint64_t id;
    unsigned streams; /* how many streams are in it */
};

struct condition { /* what a conditional handle stands for */
    unsigned initial, value;
    bool assigned; /* the initial value is set at each launch */
};

#define NODE_ATTRIBUTES 20
struct CUgraphNode_st {
    uint32_t magic;
    CUgraph graph;
    struct work work;
    CUgraph child;        /* of a WORK_GRAPH node */
    CUgraph *bodies;      /* of a WORK_CONDITIONAL node */
    CUgraphNode original; /* that this one was cloned from */
    CUgraphNode *dependencies;
    unsigned dependency_count;
    CUkernelNodeAttrValue attributes[NODE_ATTRIBUTES];
    void **param_pointers; /* what cuGraphKernelNodeGetParams gives */
};

struct CUgraph_st {
    uint32_t magic;
    CUgraphNode *nodes; /* in the order of their making */
    unsigned node_count;
    uint64_t id;
    bool moved; /* into a node */
};

struct exec_node {
    CUgraphNode source;
    bool disabled;
    struct work work;
};

struct CUgraphExec_st {
    uint32_t magic;
    struct exec_node *nodes; /* in an order that respects the dependencies */
    unsigned node_count;
    uint64_t flags;
    _Atomic bool uploaded;
    char more[192]; /* no driver's is so small that the door's own could not lie where it does */
};

CUresult capture_add(CUstream stream, struct work *work); /* called with `engine` held */
CUresult capture_record(CUstream stream, CUevent event);
CUresult capture_wait(CUstream stream, CUevent event);

#endif

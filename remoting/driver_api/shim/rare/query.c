// Questions that few programs ask: about arrays, atomics and limits, and settings without an effect here.
#define _GNU_SOURCE
#include "core.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define ATOMIC_OPERATIONS 13           // of CUatomicOperation
#define ATOMICS_MAX 256

// --- arrays ---------------------------------------------------------------------------------------

// What is asked of an array or of an array of arrays, as arrays.py in the worker counts it. The answers, 32 and 48 bytes,
// are the driver's, which refuses most arrays.
enum { MEMORY, SPARSE };
#define MEMORY_SIZE 32  // of CUDA_ARRAY_MEMORY_REQUIREMENTS
#define SPARSE_SIZE 48  // of CUDA_ARRAY_SPARSE_PROPERTIES

static int ask(void *answer, const void *array, enum gp_kind kind, int what, int device) {
    GP_ENTER();
    GP_CHECK(gp_check(array, kind));
    if (answer == NULL) return GP_INVALID_VALUE;
    GP_ON(array);
    if (what == MEMORY) GP_CHECK(gp_check_device(device));
    uint64_t place = what == MEMORY ? (uint64_t)gp_server_device(device) : 0;
    unsigned char found[SPARSE_SIZE];
    size_t size = what == MEMORY ? MEMORY_SIZE : SPARSE_SIZE;
    GP_CHECK(gp_call_array_ask(((const struct gp_handle *)array)->id, what, place, found, size));
    memcpy(answer, found, size);
    return GP_SUCCESS;
}

// --- devices and contexts -------------------------------------------------------------------------

GP_EXPORT int cuCtxGetExecAffinity(void *affinity, int type) {
    GP_ENTER();
    if (affinity == NULL || type != 0) return GP_INVALID_VALUE;  // CU_EXEC_AFFINITY_TYPE_SM_COUNT
    uint32_t found[2] = {0, (uint32_t)gp.devices[gp_current_device()].attributes[16]};
    memcpy(affinity, found, sizeof found);
    return GP_SUCCESS;
}

static int check_atomics(const unsigned *capabilities, const int *operations, unsigned count) {
    if (capabilities == NULL || operations == NULL || count == 0) return GP_INVALID_VALUE;
    for (unsigned at = 0; at < count; at++) {
        if (operations[at] < 0 || operations[at] >= ATOMIC_OPERATIONS) return GP_INVALID_VALUE;
    }
    return GP_SUCCESS;
}

// The host's memory and a kernel's copy of it are never the same while it runs, so no operation is atomic for both.
GP_EXPORT int cuDeviceGetHostAtomicCapabilities(unsigned *capabilities, const int *operations,
                                                unsigned count, int device) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check_device(device));
    GP_CHECK(check_atomics(capabilities, operations, count));
    memset(capabilities, 0, count * sizeof *capabilities);
    return GP_SUCCESS;
}

GP_EXPORT int cuDeviceGetP2PAtomicCapabilities(unsigned *capabilities, const int *operations,
                                               unsigned count, int device, int peer) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check_device(device));
    GP_CHECK(gp_check_device(peer));
    if (device == peer) return GP_INVALID_DEVICE;
    GP_CHECK(check_atomics(capabilities, operations, count));
    if (count > ATOMICS_MAX) return GP_INVALID_VALUE;
    memset(capabilities, 0, count * sizeof *capabilities);
    if (gp.devices[device].server != gp.devices[peer].server) return GP_SUCCESS;
    GP_ROUTE(device);
    struct gp_request request = {.body = capabilities, .capacity = count * sizeof *capabilities};
    return gp_exchange_peer_atomics(&request, gp_server_device(device), gp_server_device(peer),
                                    count, operations);
}

// A symbol that host and device call alike is for devices with unified function pointers, and no device here is one.
GP_EXPORT int cuLibraryGetUnifiedFunction(void **function, void *library, const char *symbol) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(library, GP_MODULE));
    if (gp_module_here(library) == GP_SUCCESS) return GP_INVALID_HANDLE;
    return function == NULL || symbol == NULL ? GP_INVALID_VALUE : GP_NOT_FOUND;
}

// --- notifications, which nothing here ever sends -------------------------------------------------

struct notified {
    struct notified *next;
    int device;
};

static pthread_mutex_t notified_lock = PTHREAD_MUTEX_INITIALIZER;
static struct notified *notified;

GP_EXPORT int cuDeviceRegisterAsyncNotification(int device, void *function, void *data,
                                                void **handle) {
    (void)data;
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check_device(device));
    if (function == NULL || handle == NULL) return GP_INVALID_VALUE;
    struct notified *made = malloc(sizeof *made);
    if (made == NULL) return GP_OUT_OF_MEMORY;
    pthread_mutex_lock(&notified_lock);
    *made = (struct notified){notified, device};
    notified = made;
    pthread_mutex_unlock(&notified_lock);
    *handle = made;
    return GP_SUCCESS;
}

GP_EXPORT int cuDeviceUnregisterAsyncNotification(int device, void *handle) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check_device(device));
    pthread_mutex_lock(&notified_lock);
    struct notified **at = &notified, *found;
    while (*at != NULL && ((void *)*at != handle || (*at)->device != device)) at = &(*at)->next;
    found = *at;
    if (found != NULL) *at = found->next;
    pthread_mutex_unlock(&notified_lock);
    free(found);
    return found != NULL ? GP_SUCCESS : GP_INVALID_VALUE;
}

GP_EXPORT int cuProfilerInitialize(const char *config, const char *output, int mode) {
    (void)config, (void)output, (void)mode;
    GP_CHECK(gp_ready());
    return GP_NOT_SUPPORTED;  // as drivers since CUDA 11 say
}

// --- core dumps, which no server writes -----------------------------------------------------------

// By CUcoredumpSettings: four switches, two names and a word of flags.
enum { ON_EXCEPTION = 1, TRIGGER_HOST, LIGHTWEIGHT, USER_TRIGGER, DUMP_FILE, DUMP_PIPE, DUMP_FLAGS };
#define DUMP_NAME_MAX 1023
#define LIGHT_FLAGS 0x2f  // CU_COREDUMP_LIGHTWEIGHT_FLAGS

struct dumps {
    bool on[USER_TRIGGER + 1];
    char names[2][DUMP_NAME_MAX + 1];
    unsigned flags;
    bool said[DUMP_FLAGS + 1];  // by the program, for this context
};

static pthread_mutex_t dump_lock = PTHREAD_MUTEX_INITIALIZER;
static struct dumps all_dumps, dumps_of[GP_DEVICES_MAX];
static bool dumps_begun;

// With dump_lock held.
static void begin_dumps(void) {
    if (dumps_begun) return;
    dumps_begun = true;
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    all_dumps.on[TRIGGER_HOST] = true;
    snprintf(all_dumps.names[0], DUMP_NAME_MAX, "core.cuda.%s.%d", host, (int)getpid());
    snprintf(all_dumps.names[1], DUMP_NAME_MAX, "corepipe.cuda.%s.%d", host, (int)getpid());
}

static size_t dump_size(int attribute) {
    return attribute <= USER_TRIGGER ? sizeof(bool)
                                     : attribute == DUMP_FLAGS ? sizeof(unsigned) : DUMP_NAME_MAX + 1;
}

static void *dump_value(struct dumps *dumps, int attribute) {
    if (attribute <= USER_TRIGGER) return &dumps->on[attribute];
    return attribute == DUMP_FLAGS ? (void *)&dumps->flags : dumps->names[attribute - DUMP_FILE];
}

static int get_dump(int attribute, void *value, size_t *size, int device) {
    if (attribute < ON_EXCEPTION || attribute > DUMP_FLAGS || size == NULL) return GP_INVALID_VALUE;
    size_t whole = dump_size(attribute);
    if (value == NULL) {
        *size = whole;
        return GP_SUCCESS;
    }
    pthread_mutex_lock(&dump_lock);
    begin_dumps();
    bool own = device >= 0 && dumps_of[device].said[attribute];
    const void *from = dump_value(own ? &dumps_of[device] : &all_dumps, attribute);
    bool text = attribute == DUMP_FILE || attribute == DUMP_PIPE;
    size_t needed = text ? strlen(from) + 1 : whole;
    bool fits = *size >= needed;
    if (fits) memcpy(value, from, needed);
    pthread_mutex_unlock(&dump_lock);
    return fits ? GP_SUCCESS : GP_INVALID_VALUE;
}

static int set_dump(int attribute, const void *value, const size_t *size, int device) {
    if (attribute < ON_EXCEPTION || attribute > DUMP_FLAGS) return GP_INVALID_VALUE;
    if (value == NULL || size == NULL) return GP_INVALID_VALUE;
    bool text = attribute == DUMP_FILE || attribute == DUMP_PIPE;
    size_t used = text ? strnlen(value, *size) : dump_size(attribute);
    if (text ? used > DUMP_NAME_MAX : *size < used) return GP_INVALID_VALUE;
    pthread_mutex_lock(&dump_lock);
    begin_dumps();
    struct dumps *dumps = device >= 0 ? &dumps_of[device] : &all_dumps;
    unsigned char *to = dump_value(dumps, attribute);
    memcpy(to, value, used);
    if (text) to[used] = 0;
    dumps->said[attribute] = true;
    if (attribute == LIGHTWEIGHT && dumps->on[LIGHTWEIGHT]) {
        dumps->flags |= LIGHT_FLAGS;
        dumps->said[DUMP_FLAGS] = true;
    }
    pthread_mutex_unlock(&dump_lock);
    return GP_SUCCESS;
}

GP_EXPORT int cuCoredumpGetAttribute(int attribute, void *value, size_t *size) {
    GP_ENTER();
    return get_dump(attribute, value, size, gp_current_device());
}

GP_EXPORT int cuCoredumpSetAttribute(int attribute, const void *value, const size_t *size) {
    GP_ENTER();
    return set_dump(attribute, value, size, gp_current_device());
}

// --- decompression by the device ------------------------------------------------------------------

struct decompression {
    size_t source_size, target_size;
    uint64_t written, source, target;
    int algorithm;
    unsigned char padding[20];
};

_Static_assert(sizeof(struct decompression) == 64, "as in cuda.h");
#define DECOMPRESSIONS_MAX 4096

GP_EXPORT int cuMemBatchDecompressAsync(const struct decompression *operations, size_t count,
                                        unsigned flags, size_t *failed, void *stream) {
    GP_ENTER_ON(stream);
    GP_ON_STREAM(stream);
    uint64_t id;
    GP_CHECK(gp_stream_id(stream, &id));
    if (failed != NULL) *failed = SIZE_MAX;
    if (operations == NULL || count == 0 || flags != 0) return GP_INVALID_VALUE;
    if (count > DECOMPRESSIONS_MAX) return GP_OUT_OF_MEMORY;
    struct decompression *seen = malloc(count * sizeof *seen);
    if (seen == NULL) return GP_OUT_OF_MEMORY;
    memcpy(seen, operations, count * sizeof *seen);
    int status = GP_SUCCESS;
    for (size_t at = 0; at < count && status == GP_SUCCESS; at++) {
        status = gp_see(&seen[at].source);
        if (status == GP_SUCCESS) status = gp_see(&seen[at].target);
        if (status == GP_SUCCESS) status = gp_see(&seen[at].written);
        if (status != GP_SUCCESS && failed != NULL) *failed = at;
    }
    if (status == GP_SUCCESS) {
        if (__atomic_load_n(&gp_mapped_count, __ATOMIC_RELAXED)) gp_push_mapped();
        // The driver's status and index, since a refusal has no body.
        uint64_t reply[2] = {0, SIZE_MAX};
        struct gp_request request = {.body = reply, .capacity = sizeof reply};
        status = gp_exchange_decompress(&request, id, count, seen);
        if (status == GP_SUCCESS) status = (int)reply[0];
        if (failed != NULL) *failed = reply[1];
    }
    free(seen);
    return status;
}

#define GP_FORWARDS_QUERY
#include "generated_forwards.h"

/* Start, the control block, entry bookkeeping, errors, cuGetProcAddress. */
#define _GNU_SOURCE
#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct control *control;
_Thread_local CUresult fault_for_work;

static bool initialised, forked, exiting, trace;
static int driver_version = 13000;
static pthread_once_t opened = PTHREAD_ONCE_INIT;
static pthread_mutex_t counters_lock = PTHREAD_MUTEX_INITIALIZER;

static void die(const char *what) {
    fprintf(stderr, "fake libcuda: %s: %s\n", what, strerror(errno));
    abort();
}

void *zeroed(size_t bytes) {
    void *memory = calloc(1, bytes ? bytes : 1);
    if (memory == NULL)
        die("out of host memory");
    return memory;
}

uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

bool exit_begun(void) { return exiting; }

/* The control block is a file when a test in another process wants to steer and watch this one. */
static void control_open(void) {
    const char *path = getenv("FAKE_CUDA_CONTROL");
    int descriptor = -1, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    if (path != NULL && *path != '\0') {
        descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (descriptor < 0 || ftruncate(descriptor, sizeof *control) != 0)
            die(path);
        flags = MAP_SHARED;
    }
    control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, flags, descriptor, 0);
    if (control == MAP_FAILED)
        die("mmap of the control block");
    if (descriptor >= 0)
        close(descriptor);
    control->magic = CONTROL_MAGIC;
    control->size = sizeof *control;
}

static void child_after_fork(void) { forked = true; }
static void begin_exit(void) { exiting = true; }

/* FAKE_CUDA_FAULTS="cuMemAlloc=2,after=3,times=1;cuLaunchKernel=719,kind=later" */
static void faults_from_environment(void);

static void open_once(void) {
    const char *version = getenv("FAKE_CUDA_DRIVER_VERSION");
    if (version != NULL)
        driver_version = atoi(version);
    trace = getenv("FAKE_CUDA_TRACE") != NULL;
    control_open();
    faults_from_environment();
    pthread_atfork(NULL, NULL, child_after_fork);
    atexit(begin_exit);
}

__attribute__((constructor)) static void on_load(void) { pthread_once(&opened, open_once); }

/* ---- counters and faults ---- */

static struct counter *counter_for(const char *name) {
    static struct counter overflow;
    struct counter *found = &overflow;
    pthread_mutex_lock(&counters_lock);
    for (unsigned i = 0; i < COUNTERS_MAX; i++) {
        struct counter *counter = &control->counters[i];
        if (counter->name[0] == '\0')
            snprintf(counter->name, sizeof counter->name, "%s", name);
        if (strcmp(counter->name, name) == 0) {
            found = counter;
            break;
        }
    }
    pthread_mutex_unlock(&counters_lock);
    return found;
}

/* A fault for cuMemAlloc also fits cuMemAlloc_v2, and one for cuLaunchKernel its _ptsz variant. */
static bool fault_fits(const char *fault, const char *symbol) {
    size_t length = strlen(fault);
    if (strncmp(fault, symbol, length) != 0)
        return false;
    const char *rest = symbol + length;
    while (rest[0] == '_' && (rest[1] == 'v' || strncmp(rest, "_pt", 3) == 0)) {
        rest++;
        rest += strcspn(rest, "_");
    }
    return *rest == '\0';
}

static bool take(_Atomic uint32_t *counter) {
    uint32_t left = atomic_load(counter);
    while (left > 0)
        if (atomic_compare_exchange_weak(counter, &left, left - 1))
            return true;
    return false;
}

static CUresult faults_apply(const char *symbol) {
    for (unsigned i = 0; i < FAULTS_MAX; i++) {
        struct fault *fault = &control->faults[i];
        if (!atomic_load(&fault->active) || !fault_fits(fault->name, symbol))
            continue;
        if (take(&fault->after))
            continue;
        if (atomic_load(&fault->times) > 0) {
            if (!take(&fault->times))
                continue;
            if (atomic_load(&fault->times) == 0)
                atomic_store(&fault->active, 0);
        }
        if (fault->delay_us > 0)
            usleep(fault->delay_us);
        if (fault->error == CUDA_SUCCESS)
            continue;
        if (fault->kind == FAULT_LATER) {
            fault_for_work = (CUresult)fault->error;
            return CUDA_SUCCESS;
        }
        if (fault->kind == FAULT_STICKY && context_peek() != NULL)
            context_fail(context_peek(), (CUresult)fault->error);
        return (CUresult)fault->error;
    }
    return CUDA_SUCCESS;
}

CUresult entry_begin(struct entry *entry, const char *name) {
    if (entry->name == NULL) {
        entry->counter = counter_for(name);
        entry->name = name;
    }
    atomic_fetch_add_explicit(&entry->counter->calls, 1, memory_order_relaxed);
    if (trace)
        fprintf(stderr, "fake libcuda: %s\n", name);
    if (forked || !initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    wait_while_locked();
    fault_for_work = CUDA_SUCCESS;
    if (atomic_load_explicit(&control->fault_count, memory_order_relaxed) == 0)
        return CUDA_SUCCESS;
    return faults_apply(name);
}

void note_missing(const char *name) {
    atomic_fetch_add(&counter_for(name)->calls, 1);
    atomic_fetch_add(&control->missing_calls, 1);
    fprintf(stderr, "fake libcuda: %s is not implemented\n", name);
}

/* Sets a fault; the same fields as struct fault. Returns its slot, or -1 when all are taken. */
API int fakeCudaSetFault(const char *name, int error, unsigned after, unsigned times, unsigned kind,
                         unsigned delay_us) {
    for (int i = 0; i < FAULTS_MAX; i++) {
        struct fault *fault = &control->faults[i];
        if (atomic_load(&fault->active))
            continue;
        snprintf(fault->name, sizeof fault->name, "%s", name);
        fault->error = error;
        atomic_store(&fault->after, after);
        atomic_store(&fault->times, times);
        fault->kind = kind;
        fault->delay_us = delay_us;
        atomic_store(&fault->active, 1);
        atomic_fetch_add(&control->fault_count, 1);
        return i;
    }
    return -1;
}

API void fakeCudaClearFaults(void) {
    for (int i = 0; i < FAULTS_MAX; i++)
        atomic_store(&control->faults[i].active, 0);
}

API void fakeCudaPause(int paused) { atomic_store(&control->paused, paused != 0); }

/* How often an exported function was called, by its exact symbol. */
API uint64_t fakeCudaCalls(const char *symbol) { return atomic_load(&counter_for(symbol)->calls); }

API uint64_t fakeCudaMissingCalls(void) { return atomic_load(&control->missing_calls); }

static unsigned fault_kind_of(const char *word) {
    if (strcmp(word, "sticky") == 0)
        return FAULT_STICKY;
    return strcmp(word, "later") == 0 ? FAULT_LATER : FAULT_RETURN;
}

static void fault_from_text(char *text) {
    char *save = NULL, *field = strtok_r(text, ",", &save);
    char *equals = field ? strchr(field, '=') : NULL;
    if (equals == NULL)
        return;
    *equals = '\0';
    unsigned after = 0, times = 0, kind = FAULT_RETURN, delay = 0;
    const char *name = field;
    int error = atoi(equals + 1);
    while ((field = strtok_r(NULL, ",", &save)) != NULL) {
        if (strncmp(field, "after=", 6) == 0)
            after = (unsigned)atoi(field + 6);
        else if (strncmp(field, "times=", 6) == 0)
            times = (unsigned)atoi(field + 6);
        else if (strncmp(field, "delay_us=", 9) == 0)
            delay = (unsigned)atoi(field + 9);
        else if (strncmp(field, "kind=", 5) == 0)
            kind = fault_kind_of(field + 5);
        else
            die("FAKE_CUDA_FAULTS has an unknown field");
    }
    fakeCudaSetFault(name, error, after, times, kind, delay);
}

static void faults_from_environment(void) {
    const char *given = getenv("FAKE_CUDA_FAULTS");
    if (given == NULL)
        return;
    char *text = strdup(given), *save = NULL;
    for (char *one = strtok_r(text, ";", &save); one; one = strtok_r(NULL, ";", &save))
        fault_from_text(one);
    free(text);
}

/* ---- start and versions ---- */

API CUresult cuInit(unsigned int Flags) {
    /* Like the real driver, which reads CUDA_VISIBLE_DEVICES, and takes addresses, here and not when
       it is loaded. */
    static pthread_once_t found = PTHREAD_ONCE_INIT, reserved = PTHREAD_ONCE_INIT;
    pthread_once(&opened, open_once);
    if (forked)
        return CUDA_ERROR_NOT_INITIALIZED;
    REQUIRE(Flags == 0);
    pthread_once(&reserved, memory_open);
    pthread_once(&found, devices_open);
    if (device_count == 0)
        return CUDA_ERROR_NO_DEVICE;
    initialised = true;
    ENTER();
    return CUDA_SUCCESS;
}

API CUresult cuDriverGetVersion(int *driverVersion) {
    REQUIRE(driverVersion != NULL);
    *driverVersion = driver_version;
    return CUDA_SUCCESS;
}

/* ---- errors ---- */

struct error_text {
    unsigned value;
    const char *name, *words;
};

static const struct error_text known_words[] = {
    {0, "", "no error"},
    {1, "", "invalid argument"},
    {2, "", "out of memory"},
    {3, "", "initialization error"},
    {4, "", "driver shutting down"},
    {100, "", "no CUDA-capable device is detected"},
    {101, "", "invalid device ordinal"},
    {200, "", "device kernel image is invalid"},
    {201, "", "invalid device context"},
    {209, "", "no kernel image is available for execution on the device"},
    {218, "", "a PTX JIT compilation failed"},
    {400, "", "invalid resource handle"},
    {500, "", "named symbol not found"},
    {600, "", "device not ready"},
    {700, "", "an illegal memory access was encountered"},
    {701, "", "too many resources requested for launch"},
    {709, "", "context is destroyed"},
    {719, "", "unspecified launch failure"},
    {800, "", "operation not permitted"},
    {801, "", "operation not supported"},
    {999, "", "unknown error"},
};

static const struct error_text names[] = {
#define ERROR_NAME(name, value) {value, #name, NULL},
#include "exports.inc"
#undef ERROR_NAME
};

API CUresult cuGetErrorName(CUresult error, const char **pStr) {
    REQUIRE(pStr != NULL);
    *pStr = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].value == (unsigned)error)
            *pStr = names[i].name;
    return *pStr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The driver has a sentence for each error; where none is known here, the name stands for it. */
API CUresult cuGetErrorString(CUresult error, const char **pStr) {
    TRY(cuGetErrorName(error, pStr));
    for (size_t i = 0; i < sizeof known_words / sizeof *known_words; i++)
        if (known_words[i].value == (unsigned)error)
            *pStr = known_words[i].words;
    return CUDA_SUCCESS;
}

/* ---- cuGetProcAddress ---- */

struct procedure {
    const char *name;
    int per_thread, version;
    void *address;
};

#define EXPORT(symbol) extern char address_of_##symbol __asm__(#symbol);
#include "exports.inc"
#undef EXPORT

static const struct procedure procedures[] = {
#define PROC(name, per_thread, version, symbol) {name, per_thread, version, &address_of_##symbol},
#include "exports.inc"
#undef PROC
};

/* The highest entry that is not newer than the caller's version; a per-thread one where asked. */
static const struct procedure *procedure_find(const char *name, int version, bool per_thread,
                                              bool *known) {
    const struct procedure *best = NULL;
    for (size_t i = 0; i < sizeof procedures / sizeof *procedures; i++) {
        const struct procedure *one = &procedures[i];
        if (strcmp(one->name, name) != 0)
            continue;
        *known = true;
        if (one->version > version || (one->per_thread && !per_thread))
            continue;
        if (best == NULL || one->per_thread > best->per_thread ||
            (one->per_thread == best->per_thread && one->version > best->version))
            best = one;
    }
    return best;
}

API CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                 CUdriverProcAddressQueryResult *symbolStatus) {
    REQUIRE(symbol != NULL && pfn != NULL && flags <= 2);
    bool known = false;
    const struct procedure *found = procedure_find(symbol, cudaVersion, flags == 2, &known);
    *pfn = found ? found->address : NULL;
    if (symbolStatus != NULL)
        *symbolStatus = found   ? CU_GET_PROC_ADDRESS_SUCCESS
                        : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return found || symbolStatus ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags) {
    return cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, NULL);
}

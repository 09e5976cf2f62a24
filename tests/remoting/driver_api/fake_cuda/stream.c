/* Streams (a thread each, started at the first work), events, and what they run. */
#define _GNU_SOURCE
#include "fake.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Atomic bool frees_unseen;
pthread_mutex_t engine = PTHREAD_MUTEX_INITIALIZER;
_Thread_local bool per_thread_default;
_Thread_local bool in_callback;

static _Atomic uint64_t next_id = 1;

/* ---- streams ---- */

CUstream stream_new(CUcontext ctx, unsigned flags, int priority) {
    CUstream stream = zeroed(sizeof *stream);
    stream->magic = MAGIC_STREAM;
    stream->ctx = ctx;
    stream->flags = flags;
    stream->priority = priority;
    stream->id = atomic_fetch_add(&next_id, 1);
    stream->green = context_top() != NULL ? context_top()->green : NULL;
    pthread_cond_init(&stream->wake, NULL);
    pthread_cond_init(&stream->done, NULL);
    pthread_mutex_lock(&engine);
    stream->next = ctx->streams;
    ctx->streams = stream;
    pthread_mutex_unlock(&engine);
    return stream;
}

struct thread_stream { /* the per-thread default streams of this thread */
    CUcontext ctx;
    CUstream stream;
};
static _Thread_local struct thread_stream thread_streams[DEVICES_MAX * 2];

static CUstream thread_default(CUcontext ctx) {
    for (unsigned i = 0; i < DEVICES_MAX * 2; i++) {
        struct thread_stream *one = &thread_streams[i];
        if (one->ctx == ctx && IS(one->stream, MAGIC_STREAM))
            return one->stream;
        if (one->ctx == NULL || !IS(one->stream, MAGIC_STREAM)) {
            *one = (struct thread_stream){ctx, stream_new(ctx, 0, 0)};
            return one->stream;
        }
    }
    return stream_new(ctx, 0, 0);
}

static CUstream legacy_stream(CUcontext ctx) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (ctx->legacy == NULL) {
        ctx->legacy = stream_new(ctx, 0, 0);
        ctx->legacy->legacy = true;
        ctx->legacy->green = NULL;
    }
    pthread_mutex_unlock(&lock);
    return ctx->legacy;
}

CUresult stream_resolve(CUcontext ctx, CUstream handle, CUstream *stream) {
    CUcontext top = context_top();
    if (handle <= CU_STREAM_PER_THREAD && top != NULL && top->green != NULL && ctx == top->base)
        *stream = top->green->legacy;
    else if (handle == CU_STREAM_PER_THREAD || (handle == NULL && per_thread_default))
        *stream = thread_default(ctx);
    else if (handle == NULL || handle == CU_STREAM_LEGACY)
        *stream = legacy_stream(ctx);
    else
        *stream = handle;
    REQUIRE_HANDLE(IS(*stream, MAGIC_STREAM) && !(*stream)->closing);
    return CUDA_SUCCESS;
}

/* ---- running ---- */

static CUresult batch_run(const struct work *batch);

/* Memory of the host that CUDA does not know is no better than none. */
static bool value_is_known(CUdeviceptr pointer, size_t bytes) {
    return !memory_is_pageable((const void *)(uintptr_t)pointer) &&
           memory_any(pointer, bytes) != NULL;
}

CUresult work_run(struct work *work) {
    if (work->fault != CUDA_SUCCESS)
        return work->fault;
    switch (work->kind) {
    case WORK_KERNEL:
        return kernel_run(&work->launch);
    case WORK_COPY:
        return copy_run(&work->copy);
    case WORK_FILL:
        return fill_run(&work->fill);
    case WORK_HOST:
        in_callback = true;
        work->host.call(work->host.data);
        in_callback = false;
        return CUDA_SUCCESS;
    case WORK_CALLBACK:
        in_callback = true;
        work->callback.call(work->callback.stream, atomic_load(&work->ctx->error),
                            work->callback.data);
        in_callback = false;
        return CUDA_SUCCESS;
    case WORK_RECORD:
        event_finish(work->record.event, work->record.ticket);
        return CUDA_SUCCESS;
    case WORK_RELEASE:
        return memory_release(work->memory.pointer, false);
    case WORK_GRAPH:
        return graph_run(work->graph);
    case WORK_BATCH:
        return batch_run(work);
    case WORK_WRITE_VALUE: {
        char *at = memory_any(work->value.pointer, work->value.bytes);
        if (at == NULL)
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        memcpy(at, &work->value.value, work->value.bytes);
        return CUDA_SUCCESS;
    }
    case WORK_WAIT_VALUE:
        for (;;) {
            uint64_t seen = 0;
            char *at = memory_any(work->value.pointer, work->value.bytes);
            if (at == NULL)
                return CUDA_ERROR_ILLEGAL_ADDRESS;
            memcpy(&seen, at, work->value.bytes);
            uint64_t wanted = work->value.value;
            unsigned how = work->value.flags & 3; /* 0 >=, 1 ==, 2 and, 3 nor */
            if ((how == 0 && (int64_t)(seen - wanted) >= 0) || (how == 1 && seen == wanted) ||
                (how == 2 && (seen & wanted)) || (how == 3 && ~(seen | wanted)) || exit_begun())
                return CUDA_SUCCESS;
            usleep(50);
        }
    default:
        return CUDA_SUCCESS;
    }
}

void work_drop(struct work *work) {
    if (work->kind == WORK_KERNEL)
        free(work->launch.params);
    if (work->kind == WORK_COPY)
        free(work->copy.snapshot);
    if (work->kind == WORK_BATCH)
        free(work->batch.items);
}

void work_clone(struct work *to, const struct work *from) {
    *to = *from;
    if (from->kind == WORK_KERNEL) {
        to->launch.params = zeroed(from->launch.param_bytes);
        memcpy(to->launch.params, from->launch.params, from->launch.param_bytes);
    }
    if (from->kind == WORK_BATCH) {
        to->batch.items = zeroed(from->batch.count * sizeof *to->batch.items);
        memcpy(to->batch.items, from->batch.items, from->batch.count * sizeof *to->batch.items);
    }
}

static CUresult batch_run(const struct work *batch) {
    for (unsigned i = 0; i < batch->batch.count; i++) {
        const CUstreamBatchMemOpParams *p = &batch->batch.items[i];
        int operation = (int)p->operation;
        struct work one = {.kind = operation == 1 || operation == 4 ? WORK_WAIT_VALUE
                                                                    : WORK_WRITE_VALUE,
                           .ctx = batch->ctx,
                           .value = {p->writeValue.address,
                                     operation >= 4 ? p->writeValue.value64 : p->writeValue.value,
                                     p->writeValue.flags, operation >= 4 ? 8 : 4}};
        if (operation == 3 || operation == 6) /* flush of remote writes, memory barrier */
            continue;
        if (!value_is_known(one.value.pointer, one.value.bytes))
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        TRY(work_run(&one));
    }
    return CUDA_SUCCESS;
}

static void operation_wait(struct operation *operation) { /* with `engine` held */
    for (unsigned i = 0; i < operation->wait_count; i++) {
        struct dependency *wait = &operation->waits[i];
        while (wait->stream->completed < wait->ticket)
            pthread_cond_wait(&wait->stream->done, &engine);
    }
}

static void stream_unlink(CUstream stream) { /* with `engine` held */
    for (CUstream *at = &stream->ctx->streams; *at; at = &(*at)->next)
        if (*at == stream) {
            *at = stream->next;
            return;
        }
}

static void *stream_thread(void *argument) {
    CUstream stream = argument;
    pthread_mutex_lock(&engine);
    for (;;) {
        while (stream->first == NULL && !stream->closing)
            pthread_cond_wait(&stream->wake, &engine);
        struct operation *operation = stream->first;
        if (operation == NULL)
            break;
        operation_wait(operation);
        pthread_mutex_unlock(&engine);
        while (atomic_load(&control->paused) && !exit_begun())
            usleep(200);
        CUresult broken = atomic_load(&stream->ctx->error);
        CUresult result = broken ? CUDA_SUCCESS : work_run(&operation->work);
        /* Callbacks get to know of errors; host functions are not called any more. */
        bool told = operation->work.kind == WORK_CALLBACK && !getenv("FAKE_CUDA_LOSES_CALLBACKS");
        if (broken && (operation->work.kind == WORK_RECORD || told))
            work_run(&operation->work);
        if (result != CUDA_SUCCESS)
            context_fail(stream->ctx, result);
        work_drop(&operation->work);
        pthread_mutex_lock(&engine);
        stream->first = operation->next;
        if (stream->first == NULL)
            stream->last = NULL;
        stream->completed++;
        stream->queued -= operation->entries;
        pthread_cond_broadcast(&stream->done);
        free(operation->waits);
        free(operation);
    }
    stream_unlink(stream);
    pthread_mutex_unlock(&engine);
    return NULL;
}

static void stream_start(CUstream stream) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 512 * KIB);
    if (pthread_create(&thread, &attributes, stream_thread, stream) != 0)
        abort();
    pthread_attr_destroy(&attributes);
    stream->started = true;
}

static void wait_add(struct operation *operation, CUstream stream, uint64_t ticket) {
    if (stream->completed >= ticket)
        return;
    operation->waits =
        realloc(operation->waits, (operation->wait_count + 1) * sizeof *operation->waits);
    if (operation->waits == NULL)
        abort();
    operation->waits[operation->wait_count++] = (struct dependency){stream, ticket};
}

/* The legacy default stream waits for all blocking streams, and they wait for it. */
static void waits_collect(CUstream stream, struct operation *operation) {
    CUcontext ctx = stream->ctx;
    for (unsigned i = 0; i < stream->extra_count; i++)
        wait_add(operation, stream->extra_waits[i].stream, stream->extra_waits[i].ticket);
    free(stream->extra_waits);
    stream->extra_waits = NULL;
    stream->extra_count = 0;
    if (stream->flags & CU_STREAM_NON_BLOCKING)
        return;
    if (!stream->legacy) {
        if (ctx->legacy != NULL)
            wait_add(operation, ctx->legacy, ctx->legacy->submitted);
        return;
    }
    for (CUstream other = ctx->streams; other; other = other->next)
        if (other != stream && !(other->flags & CU_STREAM_NON_BLOCKING))
            wait_add(operation, other, other->submitted);
}

static bool context_captures(CUcontext ctx) { /* with `engine` held */
    for (CUstream one = ctx->streams; one; one = one->next)
        if (one->capture != NULL && !(one->flags & CU_STREAM_NON_BLOCKING))
            return true;
    return false;
}

/* A full queue blocks its caller. The figures are an H200's with driver 580: 1,021 operations of any
   kind, or 56 rounds of a host function and 5 launches, while host functions alone never fill it. So
   what comes behind a host function takes 13 more. What graphs take is a guess: as much as their
   nodes one by one. */
#define QUEUE_MAX 1021
#define BEHIND_HOST 13

static bool is_host(enum work_kind kind) { return kind == WORK_HOST || kind == WORK_CALLBACK; }

static unsigned entries_of(CUstream stream, const struct work *work) {
    if (work->kind == WORK_GRAPH) {
        unsigned entries = 0;
        for (unsigned i = 0; i < work->graph->node_count; i++)
            entries += is_host(work->graph->nodes[i].work.kind) ? BEHIND_HOST : 1;
        return entries;
    }
    if (is_host(work->kind))
        return 0;
    return stream->last != NULL && is_host(stream->last->work.kind) ? 1 + BEHIND_HOST : 1;
}

static uint64_t submit_locked(CUstream stream, struct work *work) {
    while (stream->queued >= QUEUE_MAX && !in_callback)
        pthread_cond_wait(&stream->done, &engine);
    struct operation *operation = zeroed(sizeof *operation);
    work->ctx = stream->ctx;
    work->fault = fault_for_work;
    fault_for_work = CUDA_SUCCESS;
    operation->work = *work;
    operation->entries = entries_of(stream, work);
    stream->queued += operation->entries;
    waits_collect(stream, operation);
    if (stream->last != NULL)
        stream->last->next = operation;
    else
        stream->first = operation;
    stream->last = operation;
    stream->submitted++;
    if (operation->work.kind == WORK_RECORD)
        operation->work.record.ticket = stream->submitted;
    if (!stream->started)
        stream_start(stream);
    pthread_cond_signal(&stream->wake);
    return stream->submitted;
}

/* On an H200 (driver 580) some calls wait until all kernels are over, and while one does, launches, copies,
   records of events, allocations and loads of all other threads wait as well. */
static pthread_mutex_t keeping = PTHREAD_MUTEX_INITIALIZER;

CUresult context_keep(CUcontext ctx, CUresult (*wait)(CUcontext)) {
    pthread_mutex_lock(&keeping);
    CUresult result = wait(ctx);
    pthread_mutex_unlock(&keeping);
    return result;
}

void context_kept(void) {
    pthread_mutex_lock(&keeping);
    pthread_mutex_unlock(&keeping);
}

CUresult stream_submit(CUstream stream, struct work *work) {
    CUresult result = CUDA_SUCCESS;
    if (work->kind == WORK_KERNEL || work->kind == WORK_COPY || work->kind == WORK_FILL ||
        work->kind == WORK_GRAPH)
        context_kept();
    pthread_mutex_lock(&engine);
    if (stream->capture != NULL)
        result = capture_add(stream, work);
    else if (stream->legacy && context_captures(stream->ctx))
        result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    else
        submit_locked(stream, work);
    /* A graph that is larger than the queue keeps its caller until it is over. */
    while (work->kind == WORK_GRAPH && result == CUDA_SUCCESS && stream->capture == NULL &&
           stream->queued > QUEUE_MAX)
        pthread_cond_wait(&stream->done, &engine);
    pthread_mutex_unlock(&engine);
    if (result != CUDA_SUCCESS)
        work_drop(work);
    return result;
}

/* A call that a capture does not allow also spoils it; with `engine` held. */
static bool capture_spoil(CUstream stream) {
    if (stream->capture == NULL)
        return false;
    stream->capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return true;
}

static void wait_for(CUstream stream, uint64_t ticket) { /* with `engine` held */
    while (stream->completed < ticket)
        pthread_cond_wait(&stream->done, &engine);
}

CUresult stream_submit_and_wait(CUstream stream, struct work *work) {
    context_kept();
    pthread_mutex_lock(&engine);
    bool refused = capture_spoil(stream) || (stream->legacy && context_captures(stream->ctx));
    if (!refused)
        wait_for(stream, submit_locked(stream, work));
    pthread_mutex_unlock(&engine);
    printed_flush();
    if (refused)
        work_drop(work);
    return refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : atomic_load(&stream->ctx->error);
}

CUresult stream_wait(CUstream stream) {
    pthread_mutex_lock(&engine);
    bool refused = capture_spoil(stream);
    uint64_t ticket = stream->submitted;
    if (!refused && stream->legacy)
        for (CUstream one = stream->ctx->streams; one; one = one->next)
            if (!(one->flags & CU_STREAM_NON_BLOCKING))
                wait_for(one, one->submitted);
    if (!refused) {
        for (unsigned i = 0; i < stream->extra_count; i++)
            wait_for(stream->extra_waits[i].stream, stream->extra_waits[i].ticket);
        wait_for(stream, ticket);
    }
    pthread_mutex_unlock(&engine);
    printed_flush();
    return refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : atomic_load(&stream->ctx->error);
}

CUresult context_drain(CUcontext ctx) {
    pthread_mutex_lock(&engine);
    for (CUstream one = ctx->streams; one; one = one->next)
        wait_for(one, one->submitted);
    pthread_mutex_unlock(&engine);
    printed_flush();
    return atomic_load(&ctx->error);
}

static CUresult wait_spoiling(CUcontext ctx, bool relaxed) {
    bool capturing = false;
    pthread_mutex_lock(&engine);
    for (CUstream one = ctx->streams; one; one = one->next) {
        bool spoils = relaxed || (one->capture != NULL && one->capture->mode != 2);
        capturing |= spoils && capture_spoil(one);
        wait_for(one, one->submitted);
    }
    pthread_mutex_unlock(&engine);
    printed_flush();
    return capturing ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : atomic_load(&ctx->error);
}

CUresult context_wait(CUcontext ctx) { return wait_spoiling(ctx, true); }

CUresult context_wait_to_free(CUcontext ctx) { return wait_spoiling(ctx, false); }

void streams_close_context(CUcontext ctx) {
    pthread_mutex_lock(&engine);
    for (CUstream one = ctx->streams; one; one = one->next) {
        one->capture = NULL;
        wait_for(one, one->submitted);
        one->closing = true;
        one->magic = MAGIC_DEAD;
        pthread_cond_broadcast(&one->wake);
    }
    ctx->streams = ctx->legacy = NULL;
    pthread_mutex_unlock(&engine);
}

API CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority) {
    ENTER_CONTEXT(ctx);
    REQUIRE(phStream != NULL && flags <= CU_STREAM_NON_BLOCKING);
    int clamped = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    *phStream = stream_new(ctx, flags, clamped);
    return CUDA_SUCCESS;
}

API CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags) {
    return cuStreamCreateWithPriority(phStream, Flags, 0);
}

API CUresult cuStreamDestroy_v2(CUstream hStream) {
    ENTER();
    REQUIRE_HANDLE(IS(hStream, MAGIC_STREAM) && !hStream->legacy && !hStream->closing);
    pthread_mutex_lock(&engine);
    /* What is queued still runs; the thread ends after it. */
    hStream->closing = true;
    hStream->magic = MAGIC_DEAD;
    hStream->capture = NULL;
    if (!hStream->started)
        stream_unlink(hStream);
    pthread_cond_broadcast(&hStream->wake);
    pthread_mutex_unlock(&engine);
    return CUDA_SUCCESS;
}

API CUresult cuStreamSynchronize(CUstream hStream) {
    ENTER_CONTEXT(ctx);
    CUstream stream;
    TRY(stream_resolve(ctx, hStream, &stream));
    CUresult result = stream_wait(stream);
    atomic_store(&frees_unseen, false);
    return result;
}

API CUresult cuStreamQuery(CUstream hStream) {
    ENTER_CONTEXT(ctx);
    CUstream stream;
    TRY(stream_resolve(ctx, hStream, &stream));
    pthread_mutex_lock(&engine);
    bool capturing = capture_spoil(stream);
    bool ready = stream->completed == stream->submitted;
    for (CUstream one = ctx->streams; stream->legacy && one; one = one->next)
        ready &= (one->flags & CU_STREAM_NON_BLOCKING) || one->completed == one->submitted;
    pthread_mutex_unlock(&engine);
    if (capturing)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!ready)
        return CUDA_ERROR_NOT_READY;
    return atomic_load(&ctx->error);
}

API CUresult cuStreamGetPriority(CUstream hStream, int *priority) {
    ENTER_CONTEXT(ctx);
    CUstream stream;
    REQUIRE(priority != NULL);
    TRY(stream_resolve(ctx, hStream, &stream));
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetFlags(CUstream hStream, unsigned int *flags) {
    ENTER_CONTEXT(ctx);
    CUstream stream;
    REQUIRE(flags != NULL);
    TRY(stream_resolve(ctx, hStream, &stream));
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetId(CUstream hStream, unsigned long long *streamId) {
    ENTER_CONTEXT(ctx);
    CUstream stream;
    REQUIRE(streamId != NULL);
    TRY(stream_resolve(ctx, hStream, &stream));
    *streamId = stream->id;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetCtx(CUstream hStream, CUcontext *pctx) {
    ENTER_CONTEXT(ctx);
    CUstream stream;
    REQUIRE(pctx != NULL);
    TRY(stream_resolve(ctx, hStream, &stream));
    *pctx = stream->green != NULL ? stream->green->context : stream->ctx;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetCtx_v2(CUstream hStream, CUcontext *pctx, CUgreenCtx *pGreenCtx) {
    TRY(cuStreamGetCtx(hStream, pctx));
    if (pGreenCtx != NULL)
        *pGreenCtx = (*pctx)->green;
    if ((*pctx)->base != NULL)
        *pctx = (*pctx)->base;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetDevice(CUstream hStream, CUdevice *device) {
    ENTER_CONTEXT(ctx);
    CUstream stream;
    REQUIRE(device != NULL);
    TRY(stream_resolve(ctx, hStream, &stream));
    *device = stream->ctx->dev;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetGreenCtx(CUstream hStream, CUgreenCtx *phCtx) {
    ENTER_CONTEXT(ctx);
    CUstream stream;
    REQUIRE(phCtx != NULL);
    TRY(stream_resolve(ctx, hStream, &stream));
    *phCtx = stream->green;
    return CUDA_SUCCESS;
}

API CUresult cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t length,
                                    unsigned int flags) {
    ENTER_CONTEXT(ctx);
    (void)length;
    CUstream stream;
    struct region region;
    TRY(stream_resolve(ctx, hStream, &stream));
    REQUIRE(flags != 0 && memory_find(dptr, &region));
    struct work work = {.kind = WORK_EMPTY};
    return stream_submit(stream, &work);
}

/* ---- host functions ---- */

API CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData) {
    ENTER_CONTEXT(ctx);
    CUstream stream;
    REQUIRE(fn != NULL);
    TRY(stream_resolve(ctx, hStream, &stream));
    struct work work = {.kind = WORK_HOST, .host = {fn, userData}};
    return stream_submit(stream, &work);
}

API CUresult cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void *userData,
                                 unsigned int flags) {
    ENTER_CONTEXT(ctx);
    CUstream stream;
    REQUIRE(callback != NULL && flags == 0);
    TRY(stream_resolve(ctx, hStream, &stream));
    struct work work = {.kind = WORK_CALLBACK, .callback = {callback, userData, hStream}};
    return stream_submit(stream, &work);
}

/* ---- values in memory ---- */

static CUresult value_submit(CUcontext ctx, enum work_kind kind, CUstream handle, CUdeviceptr addr,
                             uint64_t value, unsigned flags, unsigned bytes) {
    CUstream stream;
    TRY(stream_resolve(ctx, handle, &stream));
    REQUIRE(value_is_known(addr, bytes) && addr % bytes == 0);
    struct work work = {.kind = kind, .value = {addr, value, flags, bytes}};
    return stream_submit(stream, &work);
}

#define VALUES(name, kind, bits)                                                                   \
    API CUresult name##bits##_v2(CUstream stream, CUdeviceptr addr, cuuint##bits##_t value,        \
                                 unsigned int flags) {                                             \
        ENTER_CONTEXT(ctx);                                                                        \
        return value_submit(ctx, kind, stream, addr, value, flags, bits / 8);                      \
    }                                                                                              \
    API CUresult name##bits(CUstream stream, CUdeviceptr addr, cuuint##bits##_t value,             \
                            unsigned int flags) {                                                  \
        return name##bits##_v2(stream, addr, value, flags);                                        \
    }

VALUES(cuStreamWaitValue, WORK_WAIT_VALUE, 32)
VALUES(cuStreamWaitValue, WORK_WAIT_VALUE, 64)
VALUES(cuStreamWriteValue, WORK_WRITE_VALUE, 32)
VALUES(cuStreamWriteValue, WORK_WRITE_VALUE, 64)

/* ---- events ---- */

void event_finish(CUevent event, uint64_t ticket) {
    pthread_mutex_lock(&engine);
    if (ticket == 0 || event->ticket == ticket)
        atomic_store(&event->time_ns, now_ns());
    pthread_mutex_unlock(&engine);
}

API CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags) {
    ENTER_CONTEXT(ctx);
    REQUIRE(phEvent != NULL && Flags <= 7);
    REQUIRE(!(Flags & 4) || (Flags & CU_EVENT_DISABLE_TIMING)); /* interprocess needs no timing */
    CUevent event = zeroed(sizeof *event);
    event->magic = MAGIC_EVENT;
    event->ctx = ctx;
    event->flags = Flags;
    if (Flags & 4)
        TRY(event_share(event));
    *phEvent = event;
    return CUDA_SUCCESS;
}

API CUresult cuEventDestroy_v2(CUevent hEvent) {
    ENTER();
    REQUIRE_HANDLE(IS(hEvent, MAGIC_EVENT));
    hEvent->magic = MAGIC_DEAD;
    return CUDA_SUCCESS;
}

/* A record of an event that other processes see is over when its stream comes to this. */
static CUresult shared_record(CUevent event, CUstream stream) {
    uint64_t number = atomic_fetch_add(&event->shared->recorded, 1) + 1;
    struct work work = {.kind = WORK_WRITE_VALUE,
                        .value = {(CUdeviceptr)(uintptr_t)&event->shared->completed, number, 0, 8}};
    return stream_submit(stream, &work);
}

static bool shared_ready(CUevent event) {
    return atomic_load(&event->shared->completed) >= atomic_load(&event->shared->recorded);
}

API CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags) {
    ENTER_CONTEXT(ctx);
    CUstream stream;
    REQUIRE(flags <= 1);
    REQUIRE_HANDLE(IS(hEvent, MAGIC_EVENT));
    TRY(stream_resolve(ctx, hStream, &stream));
    REQUIRE_HANDLE(hEvent->ctx == stream->ctx);
    CUresult result = CUDA_SUCCESS;
    struct work work = {.kind = WORK_RECORD, .record = {hEvent, 0}};
    context_kept();
    pthread_mutex_lock(&engine);
    if (stream->capture != NULL && flags == 0)
        result = capture_record(stream, hEvent);
    else if (stream->capture != NULL)
        result = capture_add(stream, &work);
    else {
        hEvent->capture = NULL;
        hEvent->stream = stream;
        atomic_store(&hEvent->time_ns, 0);
        hEvent->ticket = submit_locked(stream, &work);
    }
    bool shared = hEvent->shared != NULL && stream->capture == NULL;
    pthread_mutex_unlock(&engine);
    return shared ? shared_record(hEvent, stream) : result;
}

API CUresult cuEventRecord(CUevent hEvent, CUstream hStream) {
    return cuEventRecordWithFlags(hEvent, hStream, 0);
}

API CUresult cuEventQuery(CUevent hEvent) {
    ENTER();
    REQUIRE_HANDLE(IS(hEvent, MAGIC_EVENT));
    pthread_mutex_lock(&engine);
    bool captured = hEvent->capture != NULL;
    bool ready = hEvent->shared != NULL ? shared_ready(hEvent)
                 : hEvent->stream == NULL || hEvent->stream->completed >= hEvent->ticket;
    pthread_mutex_unlock(&engine);
    if (captured)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (!ready)
        return CUDA_ERROR_NOT_READY;
    return atomic_load(&hEvent->ctx->error);
}

API CUresult cuEventSynchronize(CUevent hEvent) {
    ENTER();
    REQUIRE_HANDLE(IS(hEvent, MAGIC_EVENT));
    pthread_mutex_lock(&engine);
    bool captured = hEvent->capture != NULL;
    if (!captured && hEvent->stream != NULL)
        wait_for(hEvent->stream, hEvent->ticket);
    pthread_mutex_unlock(&engine);
    while (hEvent->shared != NULL && !captured && !shared_ready(hEvent) && !exit_begun())
        usleep(50);
    printed_flush();
    atomic_store(&frees_unseen, false);
    return captured ? CUDA_ERROR_CAPTURED_EVENT : atomic_load(&hEvent->ctx->error);
}

API CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags) {
    ENTER_CONTEXT(ctx);
    CUstream stream;
    REQUIRE(Flags <= 1);
    REQUIRE_HANDLE(IS(hEvent, MAGIC_EVENT));
    TRY(stream_resolve(ctx, hStream, &stream));
    if (hEvent->shared != NULL && stream->capture == NULL && hEvent->capture == NULL) {
        uint64_t number = atomic_load(&hEvent->shared->recorded);
        struct work work = {.kind = WORK_WAIT_VALUE, /* until it is at least that */
                            .value = {(CUdeviceptr)(uintptr_t)&hEvent->shared->completed, number,
                                      0, 8}};
        return stream_submit(stream, &work);
    }
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&engine);
    if (stream->capture != NULL || hEvent->capture != NULL)
        result = capture_wait(stream, hEvent);
    else if (hEvent->stream != NULL && hEvent->stream->completed < hEvent->ticket) {
        /* An empty operation carries the wait, so that what only queries the stream sees it too. */
        stream->extra_waits = realloc(stream->extra_waits, (stream->extra_count + 1) *
                                                               sizeof *stream->extra_waits);
        if (stream->extra_waits == NULL)
            abort();
        stream->extra_waits[stream->extra_count++] =
            (struct dependency){hEvent->stream, hEvent->ticket};
        struct work work = {.kind = WORK_EMPTY};
        submit_locked(stream, &work);
    }
    pthread_mutex_unlock(&engine);
    return result;
}

API CUresult cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd) {
    ENTER();
    REQUIRE(pMilliseconds != NULL);
    REQUIRE_HANDLE(IS(hStart, MAGIC_EVENT) && IS(hEnd, MAGIC_EVENT));
    REQUIRE_HANDLE(!((hStart->flags | hEnd->flags) & CU_EVENT_DISABLE_TIMING));
    REQUIRE_HANDLE(hStart->stream != NULL && hEnd->stream != NULL);
    uint64_t start = atomic_load(&hStart->time_ns), end = atomic_load(&hEnd->time_ns);
    if (start == 0 || end == 0)
        return CUDA_ERROR_NOT_READY;
    *pMilliseconds = (float)((double)(int64_t)(end - start) / 1e6);
    return CUDA_SUCCESS;
}

API CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd) {
    return cuEventElapsedTime_v2(pMilliseconds, hStart, hEnd);
}

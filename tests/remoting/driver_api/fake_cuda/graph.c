/* Graphs: made by capture or node by node, instantiated, changed, and run in order. */
#define _GNU_SOURCE
#include "kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Atomic uint64_t next_id = 1;

/* ---- lists of nodes ---- */

static CUgraphNode *nodes_copy(const CUgraphNode *nodes, unsigned count) {
    CUgraphNode *copy = zeroed(count * sizeof *copy);
    if (count > 0)
        memcpy(copy, nodes, count * sizeof *copy);
    return copy;
}

static void nodes_append(CUgraphNode **nodes, unsigned *count, CUgraphNode node) {
    for (unsigned i = 0; i < *count; i++)
        if ((*nodes)[i] == node)
            return;
    *nodes = realloc(*nodes, (*count + 1) * sizeof **nodes);
    if (*nodes == NULL)
        abort();
    (*nodes)[(*count)++] = node;
}

static void nodes_remove(CUgraphNode *nodes, unsigned *count, CUgraphNode node) {
    unsigned kept = 0;
    for (unsigned i = 0; i < *count; i++)
        if (nodes[i] != node)
            nodes[kept++] = nodes[i];
    *count = kept;
}

static bool reaches(CUgraphNode from, CUgraphNode to) {
    if (from == to)
        return true;
    for (unsigned i = 0; i < from->dependency_count; i++)
        if (reaches(from->dependencies[i], to))
            return true;
    return false;
}

static CUgraph graph_new(void) {
    CUgraph graph = zeroed(sizeof *graph);
    graph->magic = MAGIC_GRAPH;
    graph->id = atomic_fetch_add(&next_id, 1);
    return graph;
}

static CUgraphNode node_new(CUgraph graph, const struct work *work,
                            const CUgraphNode *dependencies, size_t count) {
    CUgraphNode node = zeroed(sizeof *node);
    node->magic = MAGIC_NODE;
    node->graph = graph;
    node->work = *work;
    node->dependencies = nodes_copy(dependencies, (unsigned)count);
    node->dependency_count = (unsigned)count;
    nodes_append(&graph->nodes, &graph->node_count, node);
    return node;
}

/* ---- capture; with `engine` held ---- */

static void front_set(CUstream stream, const CUgraphNode *nodes, unsigned count) {
    CUgraphNode *copy = nodes_copy(nodes, count);
    free(stream->front);
    stream->front = copy;
    stream->front_count = count;
}

CUresult capture_add(CUstream stream, struct work *work) {
    struct capture *capture = stream->capture;
    if (capture->status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (work->kind == WORK_CALLBACK || work->kind == WORK_GRAPH) {
        capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    work->ctx = stream->ctx;
    work->fault = fault_for_work;
    fault_for_work = CUDA_SUCCESS;
    CUgraphNode node = node_new(capture->graph, work, stream->front, stream->front_count);
    front_set(stream, &node, 1);
    return CUDA_SUCCESS;
}

CUresult capture_record(CUstream stream, CUevent event) {
    if (stream->capture->status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    free(event->captured);
    event->capture = stream->capture;
    event->captured = nodes_copy(stream->front, stream->front_count);
    event->captured_count = stream->front_count;
    return CUDA_SUCCESS;
}

CUresult capture_wait(CUstream stream, CUevent event) {
    if (event->capture == NULL) { /* an event from outside the capture */
        stream->capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (stream->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (stream->capture == NULL) {
        stream->capture = event->capture;
        stream->capture->streams++;
        front_set(stream, event->captured, event->captured_count);
        return CUDA_SUCCESS;
    }
    if (stream->capture != event->capture) {
        stream->capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    for (unsigned i = 0; i < event->captured_count; i++)
        nodes_append(&stream->front, &stream->front_count, event->captured[i]);
    return CUDA_SUCCESS;
}

static CUresult capture_begin(CUcontext ctx, CUstream handle, CUgraph graph,
                              const CUgraphNode *dependencies, size_t count,
                              CUstreamCaptureMode mode) {
    CUstream stream;
    REQUIRE((int)mode >= 0 && (int)mode <= 2);
    TRY(stream_resolve(ctx, handle, &stream));
    if (stream->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    CUresult result = CUDA_ERROR_ILLEGAL_STATE;
    pthread_mutex_lock(&engine);
    if (stream->capture == NULL) {
        struct capture *capture = zeroed(sizeof *capture);
        *capture = (struct capture){.graph = graph ? graph : graph_new(), .origin = stream,
                                    .status = CU_STREAM_CAPTURE_STATUS_ACTIVE, .mode = mode,
                                    .id = atomic_fetch_add(&next_id, 1), .streams = 1};
        stream->capture = capture;
        front_set(stream, dependencies, (unsigned)count);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&engine);
    return result;
}

API CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode) {
    ENTER_CONTEXT(ctx);
    return capture_begin(ctx, hStream, NULL, NULL, 0, mode);
}

API CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph,
                                         const CUgraphNode *dependencies,
                                         const CUgraphEdgeData *dependencyData,
                                         size_t numDependencies, CUstreamCaptureMode mode) {
    ENTER_CONTEXT(ctx);
    (void)dependencyData;
    REQUIRE_HANDLE(IS(hGraph, MAGIC_GRAPH));
    return capture_begin(ctx, hStream, hGraph, dependencies, numDependencies, mode);
}

/* Every stream that was drawn in must have come back: its last node is before the origin's. */
static bool capture_is_joined(struct capture *capture) {
    CUstream origin = capture->origin;
    for (CUstream one = origin->ctx->streams; one; one = one->next)
        for (unsigned i = 0; one != origin && one->capture == capture && i < one->front_count;
             i++) {
            bool joined = false;
            for (unsigned j = 0; j < origin->front_count; j++)
                joined |= reaches(origin->front[j], one->front[i]);
            if (!joined)
                return false;
        }
    return true;
}

static CUresult capture_end(CUstream stream, CUgraph *graph) {
    struct capture *capture = stream->capture;
    if (capture == NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream)
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    CUresult result = CUDA_SUCCESS;
    if (capture->status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!capture_is_joined(capture))
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    for (CUstream one = stream->ctx->streams; one; one = one->next)
        if (one->capture == capture) {
            one->capture = NULL;
            front_set(one, NULL, 0);
        }
    *graph = result == CUDA_SUCCESS ? capture->graph : NULL;
    return result; /* the capture stays, as events may still name it */
}

API CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph) {
    ENTER_CONTEXT(ctx);
    CUstream stream;
    CUgraph unwanted; /* NULL: of a capture into a graph that was given */
    TRY(stream_resolve(ctx, hStream, &stream));
    pthread_mutex_lock(&engine);
    CUresult result = capture_end(stream, phGraph ? phGraph : &unwanted);
    pthread_mutex_unlock(&engine);
    return result;
}

static bool other_captures(CUstream legacy) { /* blocking streams that capture, not relaxed */
    for (CUstream one = legacy->ctx->streams; one; one = one->next)
        if (one->capture != NULL && !(one->flags & CU_STREAM_NON_BLOCKING))
            return true;
    return false;
}

API CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus) {
    ENTER_CONTEXT(ctx);
    CUstream stream;
    REQUIRE(captureStatus != NULL);
    TRY(stream_resolve(ctx, hStream, &stream));
    pthread_mutex_lock(&engine);
    bool implicit = stream->legacy && other_captures(stream);
    *captureStatus = stream->capture ? stream->capture->status : CU_STREAM_CAPTURE_STATUS_NONE;
    pthread_mutex_unlock(&engine);
    return implicit ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

API CUresult cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                       cuuint64_t *id_out, CUgraph *graph_out,
                                       const CUgraphNode **dependencies_out,
                                       const CUgraphEdgeData **edgeData_out,
                                       size_t *numDependencies_out) {
    ENTER_CONTEXT(ctx);
    CUstream stream;
    REQUIRE(captureStatus_out != NULL);
    TRY(stream_resolve(ctx, hStream, &stream));
    pthread_mutex_lock(&engine);
    struct capture *capture = stream->capture;
    bool implicit = stream->legacy && other_captures(stream);
    *captureStatus_out = capture ? capture->status : CU_STREAM_CAPTURE_STATUS_NONE;
    if (capture != NULL) {
        if (id_out != NULL)
            *id_out = capture->id;
        if (graph_out != NULL)
            *graph_out = capture->graph;
        if (dependencies_out != NULL)
            *dependencies_out = stream->front;
        if (edgeData_out != NULL)
            *edgeData_out = NULL;
        if (numDependencies_out != NULL)
            *numDependencies_out = stream->front_count;
    }
    pthread_mutex_unlock(&engine);
    return implicit ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

API CUresult cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                       cuuint64_t *id_out, CUgraph *graph_out,
                                       const CUgraphNode **dependencies_out,
                                       size_t *numDependencies_out) {
    return cuStreamGetCaptureInfo_v3(hStream, captureStatus_out, id_out, graph_out,
                                     dependencies_out, NULL, numDependencies_out);
}

API CUresult cuStreamUpdateCaptureDependencies_v2(CUstream hStream, CUgraphNode *dependencies,
                                                  const CUgraphEdgeData *dependencyData,
                                                  size_t numDependencies, unsigned int flags) {
    ENTER_CONTEXT(ctx);
    (void)dependencyData;
    CUstream stream;
    REQUIRE(flags <= 1);
    TRY(stream_resolve(ctx, hStream, &stream));
    CUresult result = CUDA_ERROR_ILLEGAL_STATE;
    pthread_mutex_lock(&engine);
    if (stream->capture != NULL) {
        if (flags == 1) /* set, rather than add */
            front_set(stream, NULL, 0);
        for (size_t i = 0; i < numDependencies; i++)
            nodes_append(&stream->front, &stream->front_count, dependencies[i]);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&engine);
    return result;
}

API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    static _Thread_local CUstreamCaptureMode current;
    ENTER();
    REQUIRE(mode != NULL && (int)*mode >= 0 && (int)*mode <= 2);
    CUstreamCaptureMode before = current;
    current = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* ---- graphs node by node ---- */

API CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags) {
    ENTER();
    REQUIRE(phGraph != NULL && flags == 0);
    *phGraph = graph_new();
    return CUDA_SUCCESS;
}

API CUresult cuGraphDestroy(CUgraph hGraph) {
    ENTER();
    REQUIRE(IS(hGraph, MAGIC_GRAPH) && !hGraph->moved);
    hGraph->magic = MAGIC_DEAD;
    for (unsigned i = 0; i < hGraph->node_count; i++)
        hGraph->nodes[i]->magic = MAGIC_DEAD;
    return CUDA_SUCCESS;
}

static CUresult node_add(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
                         size_t count, struct work *work) {
    REQUIRE(out != NULL && (count == 0 || dependencies != NULL));
    REQUIRE(IS(graph, MAGIC_GRAPH));
    for (size_t i = 0; i < count; i++)
        REQUIRE(IS(dependencies[i], MAGIC_NODE) && dependencies[i]->graph == graph);
    if (work->ctx == NULL)
        work->ctx = context_peek();
    *out = node_new(graph, work, dependencies, count);
    return CUDA_SUCCESS;
}

static CUresult kernel_work(const CUDA_KERNEL_NODE_PARAMS_v2 *p, struct work *work) {
    CUcontext ctx = p->ctx ? p->ctx : context_peek();
    CUfunction function;
    if (!IS(ctx, MAGIC_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    TRY(function_resolve(p->func ? p->func : (CUfunction)p->kern, ctx, &function));
    *work = (struct work){.kind = WORK_KERNEL, .ctx = ctx,
                          .launch = {.grid = {p->gridDimX, p->gridDimY, p->gridDimZ},
                                     .block = {p->blockDimX, p->blockDimY, p->blockDimZ},
                                     .shared_bytes = p->sharedMemBytes}};
    TRY(launch_prepare(function, p->kernelParams, p->extra, &work->launch));
    return launch_check(ctx, &work->launch);
}

static CUDA_KERNEL_NODE_PARAMS_v2 kernel_params_widen(const CUDA_KERNEL_NODE_PARAMS_v1 *p) {
    return (CUDA_KERNEL_NODE_PARAMS_v2){.func = p->func, .gridDimX = p->gridDimX,
                                        .gridDimY = p->gridDimY, .gridDimZ = p->gridDimZ,
                                        .blockDimX = p->blockDimX, .blockDimY = p->blockDimY,
                                        .blockDimZ = p->blockDimZ,
                                        .sharedMemBytes = p->sharedMemBytes,
                                        .kernelParams = p->kernelParams, .extra = p->extra};
}

API CUresult cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
                                     const CUgraphNode *dependencies, size_t numDependencies,
                                     const CUDA_KERNEL_NODE_PARAMS_v2 *nodeParams) {
    ENTER_CONTEXT(ctx);
    REQUIRE(nodeParams != NULL);
    struct work work;
    TRY(kernel_work(nodeParams, &work));
    return node_add(phGraphNode, hGraph, dependencies, numDependencies, &work);
}

API CUresult cuGraphAddKernelNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                  const CUgraphNode *dependencies, size_t numDependencies,
                                  const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams) {
    REQUIRE(nodeParams != NULL);
    CUDA_KERNEL_NODE_PARAMS_v2 wide = kernel_params_widen(nodeParams);
    return cuGraphAddKernelNode_v2(phGraphNode, hGraph, dependencies, numDependencies, &wide);
}

static CUresult copy_work(const CUDA_MEMCPY3D *params, CUcontext ctx, struct work *work) {
    *work = (struct work){.kind = WORK_COPY, .ctx = ctx};
    TRY(copy_from_3d(params, &work->copy));
    return copy_check(&work->copy);
}

static CUresult fill_work(const CUDA_MEMSET_NODE_PARAMS *p, CUcontext ctx, struct work *work) {
    *work = (struct work){.kind = WORK_FILL, .ctx = ctx,
                          .fill = {p->dst, p->pitch, p->width, p->height, p->value,
                                   p->elementSize}};
    return fill_check(&work->fill);
}

API CUresult cuGraphAddMemcpyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                  const CUgraphNode *dependencies, size_t numDependencies,
                                  const CUDA_MEMCPY3D *copyParams, CUcontext ctx) {
    ENTER();
    struct work work;
    TRY(copy_work(copyParams, ctx, &work));
    return node_add(phGraphNode, hGraph, dependencies, numDependencies, &work);
}

API CUresult cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                  const CUgraphNode *dependencies, size_t numDependencies,
                                  const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx) {
    ENTER();
    struct work work;
    REQUIRE(memsetParams != NULL);
    TRY(fill_work(memsetParams, ctx, &work));
    return node_add(phGraphNode, hGraph, dependencies, numDependencies, &work);
}

API CUresult cuGraphAddHostNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                const CUgraphNode *dependencies, size_t numDependencies,
                                const CUDA_HOST_NODE_PARAMS *nodeParams) {
    ENTER();
    REQUIRE(nodeParams != NULL && nodeParams->fn != NULL);
    struct work work = {.kind = WORK_HOST, .host = {nodeParams->fn, nodeParams->userData}};
    return node_add(phGraphNode, hGraph, dependencies, numDependencies, &work);
}

API CUresult cuGraphAddEmptyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                 const CUgraphNode *dependencies, size_t numDependencies) {
    ENTER();
    struct work work = {.kind = WORK_EMPTY};
    return node_add(phGraphNode, hGraph, dependencies, numDependencies, &work);
}

API CUresult cuGraphAddEventRecordNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                       const CUgraphNode *dependencies, size_t numDependencies,
                                       CUevent event) {
    ENTER();
    REQUIRE(IS(event, MAGIC_EVENT));
    struct work work = {.kind = WORK_RECORD, .record = {event, 0}};
    return node_add(phGraphNode, hGraph, dependencies, numDependencies, &work);
}

API CUresult cuGraphAddEventWaitNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                     const CUgraphNode *dependencies, size_t numDependencies,
                                     CUevent event) {
    ENTER();
    REQUIRE(IS(event, MAGIC_EVENT));
    struct work work = {.kind = WORK_WAIT, .record = {event, 0}};
    return node_add(phGraphNode, hGraph, dependencies, numDependencies, &work);
}

#define CHILD_MOVES 1 /* CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE */

static CUgraph graph_clone(CUgraph graph);

API CUresult cuGraphAddChildGraphNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                      const CUgraphNode *dependencies, size_t numDependencies,
                                      CUgraph childGraph) {
    ENTER();
    REQUIRE(IS(childGraph, MAGIC_GRAPH));
    struct work work = {.kind = WORK_GRAPH};
    TRY(node_add(phGraphNode, hGraph, dependencies, numDependencies, &work));
    (*phGraphNode)->child = graph_clone(childGraph);
    return CUDA_SUCCESS;
}

/* Memory of an allocation node is there from the making of the node until the process ends; that
   a launch makes it live, and a free ends that, is only noted. */
static CUresult allocation_work(CUDA_MEM_ALLOC_NODE_PARAMS *p, struct work *work) {
    int dev = p->poolProps.location.id;
    REQUIRE(p->bytesize > 0 && dev >= 0 && dev < device_count);
    TRY(memory_allocate(devices[dev].primary, p->bytesize, NULL, false, &p->dptr));
    TRY(memory_graph(p->dptr, false));
    *work = (struct work){.kind = WORK_ALLOCATE, .memory = {p->dptr, p->bytesize}};
    return CUDA_SUCCESS;
}

API CUresult cuGraphAddMemAllocNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                    const CUgraphNode *dependencies, size_t numDependencies,
                                    CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams) {
    ENTER();
    struct work work;
    REQUIRE(nodeParams != NULL);
    TRY(allocation_work(nodeParams, &work));
    return node_add(phGraphNode, hGraph, dependencies, numDependencies, &work);
}

API CUresult cuGraphAddMemFreeNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                   const CUgraphNode *dependencies, size_t numDependencies,
                                   CUdeviceptr dptr) {
    ENTER();
    struct work work = {.kind = WORK_RELEASE, .memory = {dptr, 0}};
    return node_add(phGraphNode, hGraph, dependencies, numDependencies, &work);
}

static CUresult work_from_params(CUgraphNodeParams *p, struct work *work) {
    switch ((int)p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
        CUDA_KERNEL_NODE_PARAMS_v2 kernel;
        memcpy(&kernel, &p->kernel, sizeof kernel);
        return kernel_work(&kernel, work);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return copy_work(&p->memcpy.copyParams, p->memcpy.copyCtx, work);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        CUDA_MEMSET_NODE_PARAMS fill = {p->memset.dst, p->memset.pitch, p->memset.value,
                                        p->memset.elementSize, p->memset.width,
                                        p->memset.height};
        return fill_work(&fill, p->memset.ctx, work);
    }
    case CU_GRAPH_NODE_TYPE_HOST:
        REQUIRE(p->host.fn != NULL);
        *work = (struct work){.kind = WORK_HOST, .host = {p->host.fn, p->host.userData}};
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_GRAPH:
        REQUIRE(IS(p->graph.graph, MAGIC_GRAPH));
        REQUIRE((int)p->graph.ownership >= 0 && (int)p->graph.ownership <= CHILD_MOVES);
        REQUIRE(!p->graph.graph->moved);
        *work = (struct work){.kind = WORK_GRAPH};
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EMPTY:
        *work = (struct work){.kind = WORK_EMPTY};
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        REQUIRE(IS(p->eventWait.event, MAGIC_EVENT));
        *work = (struct work){.kind = WORK_WAIT, .record = {p->eventWait.event, 0}};
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        REQUIRE(IS(p->eventRecord.event, MAGIC_EVENT));
        *work = (struct work){.kind = WORK_RECORD, .record = {p->eventRecord.event, 0}};
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
        CUDA_MEM_ALLOC_NODE_PARAMS allocation;
        memcpy(&allocation, &p->alloc, sizeof allocation);
        TRY(allocation_work(&allocation, work));
        p->alloc.dptr = allocation.dptr;
        return CUDA_SUCCESS;
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        *work = (struct work){.kind = WORK_RELEASE, .memory = {p->free.dptr, 0}};
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        REQUIRE(p->memOp.count <= 256 && (p->memOp.count == 0 || p->memOp.paramArray != NULL));
        *work = (struct work){.kind = WORK_BATCH, .ctx = p->memOp.ctx};
        work->batch.count = p->memOp.count;
        work->batch.items = zeroed(p->memOp.count * sizeof *work->batch.items);
        memcpy(work->batch.items, p->memOp.paramArray,
               p->memOp.count * sizeof *work->batch.items);
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        REQUIRE(p->conditional.handle != 0 && p->conditional.size >= 1);
        *work = (struct work){.kind = WORK_CONDITIONAL, .ctx = p->conditional.ctx};
        work->conditional.condition = (struct condition *)(uintptr_t)p->conditional.handle;
        work->conditional.type = p->conditional.type;
        work->conditional.size = p->conditional.size;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

API CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *pHandle_out, CUgraph hGraph,
                                            CUcontext ctx, unsigned int defaultLaunchValue,
                                            unsigned int flags) {
    ENTER();
    if (ctx == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    REQUIRE(pHandle_out != NULL && IS(hGraph, MAGIC_GRAPH) && flags <= 1);
    struct condition *condition = zeroed(sizeof *condition);
    *condition = (struct condition){defaultLaunchValue, defaultLaunchValue, flags == 1};
    *pHandle_out = (CUgraphConditionalHandle)(uintptr_t)condition;
    return CUDA_SUCCESS;
}

API CUresult cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
                               const CUgraphNode *dependencies,
                               const CUgraphEdgeData *dependencyData, size_t numDependencies,
                               CUgraphNodeParams *nodeParams) {
    ENTER_CONTEXT(ctx);
    (void)dependencyData;
    struct work work;
    REQUIRE(nodeParams != NULL);
    TRY(work_from_params(nodeParams, &work));
    TRY(node_add(phGraphNode, hGraph, dependencies, numDependencies, &work));
    bool moves = work.kind == WORK_GRAPH && (int)nodeParams->graph.ownership == CHILD_MOVES;
    if (moves) {
        (*phGraphNode)->child = nodeParams->graph.graph;
        nodeParams->graph.graph->moved = true;
    } else if (work.kind == WORK_GRAPH)
        (*phGraphNode)->child = graph_clone(nodeParams->graph.graph);
    if (work.kind == WORK_CONDITIONAL) {
        CUgraph *bodies = zeroed(nodeParams->conditional.size * sizeof *bodies);
        for (unsigned i = 0; i < nodeParams->conditional.size; i++)
            bodies[i] = graph_new();
        (*phGraphNode)->bodies = nodeParams->conditional.phGraph_out = bodies;
    }
    return CUDA_SUCCESS;
}

API CUresult cuGraphAddNode_v3(CUgraphNode *phGraphNode, CUgraph hGraph,
                               const CUgraphNode *dependencies,
                               const CUgraphEdgeData *dependencyData, size_t numDependencies,
                               CUgraphNodeParams *nodeParams) {
    return cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, dependencyData, numDependencies,
                             nodeParams);
}

API CUresult cuGraphAddBatchMemOpNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                      const CUgraphNode *dependencies, size_t numDependencies,
                                      const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams) {
    REQUIRE(nodeParams != NULL);
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP};
    memcpy(&params.memOp, nodeParams, sizeof *nodeParams); /* two types of one layout */
    return cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, NULL, numDependencies, &params);
}

API CUresult cuGraphAddNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                            const CUgraphNode *dependencies, size_t numDependencies,
                            CUgraphNodeParams *nodeParams) {
    return cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, NULL, numDependencies, nodeParams);
}

API CUresult cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode *from,
                                       const CUgraphNode *to, size_t numDependencies) {
    ENTER();
    REQUIRE(IS(hGraph, MAGIC_GRAPH));
    for (size_t i = 0; i < numDependencies; i++) {
        REQUIRE(IS(to[i], MAGIC_NODE));
        nodes_remove(to[i]->dependencies, &to[i]->dependency_count, from[i]);
    }
    return CUDA_SUCCESS;
}

API CUresult cuGraphRemoveDependencies_v2(CUgraph hGraph, const CUgraphNode *from,
                                          const CUgraphNode *to, const CUgraphEdgeData *edgeData,
                                          size_t numDependencies) {
    (void)edgeData;
    return cuGraphRemoveDependencies(hGraph, from, to, numDependencies);
}

API CUresult cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                    size_t numDependencies) {
    ENTER();
    REQUIRE(IS(hGraph, MAGIC_GRAPH));
    for (size_t i = 0; i < numDependencies; i++) {
        REQUIRE(IS(from[i], MAGIC_NODE) && IS(to[i], MAGIC_NODE) && !reaches(from[i], to[i]));
        nodes_append(&to[i]->dependencies, &to[i]->dependency_count, from[i]);
    }
    return CUDA_SUCCESS;
}

API CUresult cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode *from,
                                       const CUgraphNode *to, const CUgraphEdgeData *edgeData,
                                       size_t numDependencies) {
    (void)edgeData;
    return cuGraphAddDependencies(hGraph, from, to, numDependencies);
}

API CUresult cuGraphDestroyNode(CUgraphNode hNode) {
    ENTER();
    REQUIRE(IS(hNode, MAGIC_NODE));
    CUgraph graph = hNode->graph;
    nodes_remove(graph->nodes, &graph->node_count, hNode);
    for (unsigned i = 0; i < graph->node_count; i++)
        nodes_remove(graph->nodes[i]->dependencies, &graph->nodes[i]->dependency_count, hNode);
    hNode->magic = MAGIC_DEAD;
    return CUDA_SUCCESS;
}

/* Gives up to *count nodes, and in *count how many there are. */
static CUresult nodes_answer(const CUgraphNode *from, unsigned have, CUgraphNode *to,
                             size_t *count) {
    REQUIRE(count != NULL);
    for (size_t i = 0; to != NULL && i < *count; i++)
        to[i] = i < have ? from[i] : NULL;
    if (to == NULL || have < *count)
        *count = have;
    return CUDA_SUCCESS;
}

API CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes) {
    ENTER();
    REQUIRE(IS(hGraph, MAGIC_GRAPH));
    return nodes_answer(hGraph->nodes, hGraph->node_count, nodes, numNodes);
}

API CUresult cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes) {
    ENTER();
    REQUIRE(IS(hGraph, MAGIC_GRAPH));
    CUgraphNode *roots = NULL;
    unsigned count = 0;
    for (unsigned i = 0; i < hGraph->node_count; i++)
        if (hGraph->nodes[i]->dependency_count == 0)
            nodes_append(&roots, &count, hGraph->nodes[i]);
    CUresult result = nodes_answer(roots, count, rootNodes, numRootNodes);
    free(roots);
    return result;
}

API CUresult cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to,
                                CUgraphEdgeData *edgeData, size_t *numEdges) {
    ENTER();
    REQUIRE(IS(hGraph, MAGIC_GRAPH) && numEdges != NULL);
    size_t count = 0;
    for (unsigned i = 0; i < hGraph->node_count; i++)
        for (unsigned j = 0; j < hGraph->nodes[i]->dependency_count; j++, count++)
            if (from != NULL && to != NULL && count < *numEdges) {
                from[count] = hGraph->nodes[i]->dependencies[j];
                to[count] = hGraph->nodes[i];
                if (edgeData != NULL)
                    memset(&edgeData[count], 0, sizeof *edgeData);
            }
    if (from == NULL || count < *numEdges)
        *numEdges = count;
    return CUDA_SUCCESS;
}

API CUresult cuGraphGetEdges(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to,
                             size_t *numEdges) {
    return cuGraphGetEdges_v2(hGraph, from, to, NULL, numEdges);
}

API CUresult cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode *dependencies,
                                        size_t *numDependencies) {
    ENTER();
    REQUIRE(IS(hNode, MAGIC_NODE));
    return nodes_answer(hNode->dependencies, hNode->dependency_count, dependencies,
                        numDependencies);
}

static void edges_clear(CUgraphEdgeData *data, const size_t *count) {
    if (data != NULL && count != NULL)
        memset(data, 0, *count * sizeof *data);
}

API CUresult cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode *dependencies,
                                           CUgraphEdgeData *edgeData, size_t *numDependencies) {
    edges_clear(edgeData, numDependencies);
    return cuGraphNodeGetDependencies(hNode, dependencies, numDependencies);
}

API CUresult cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode *dependentNodes,
                                          size_t *numDependentNodes) {
    ENTER();
    REQUIRE(IS(hNode, MAGIC_NODE));
    CUgraphNode *found = NULL;
    unsigned count = 0;
    for (unsigned i = 0; i < hNode->graph->node_count; i++) {
        CUgraphNode other = hNode->graph->nodes[i];
        for (unsigned j = 0; j < other->dependency_count; j++)
            if (other->dependencies[j] == hNode)
                nodes_append(&found, &count, other);
    }
    CUresult result = nodes_answer(found, count, dependentNodes, numDependentNodes);
    free(found);
    return result;
}

API CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode *dependentNodes,
                                             CUgraphEdgeData *edgeData,
                                             size_t *numDependentNodes) {
    edges_clear(edgeData, numDependentNodes);
    return cuGraphNodeGetDependentNodes(hNode, dependentNodes, numDependentNodes);
}

API CUresult cuGraphGetId(CUgraph hGraph, unsigned int *graphId) {
    ENTER();
    REQUIRE(IS(hGraph, MAGIC_GRAPH) && graphId != NULL);
    *graphId = (unsigned)hGraph->id;
    return CUDA_SUCCESS;
}

API CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type) {
    ENTER();
    static const int types[] = {
        [WORK_KERNEL] = CU_GRAPH_NODE_TYPE_KERNEL, [WORK_COPY] = CU_GRAPH_NODE_TYPE_MEMCPY,
        [WORK_FILL] = CU_GRAPH_NODE_TYPE_MEMSET, [WORK_HOST] = CU_GRAPH_NODE_TYPE_HOST,
        [WORK_CALLBACK] = CU_GRAPH_NODE_TYPE_HOST, [WORK_EMPTY] = CU_GRAPH_NODE_TYPE_EMPTY,
        [WORK_RECORD] = CU_GRAPH_NODE_TYPE_EVENT_RECORD,
        [WORK_WAIT] = CU_GRAPH_NODE_TYPE_WAIT_EVENT,
        [WORK_ALLOCATE] = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
        [WORK_RELEASE] = CU_GRAPH_NODE_TYPE_MEM_FREE, [WORK_GRAPH] = CU_GRAPH_NODE_TYPE_GRAPH,
        [WORK_WAIT_VALUE] = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
        [WORK_WRITE_VALUE] = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
        [WORK_BATCH] = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
        [WORK_CONDITIONAL] = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    REQUIRE(type != NULL && IS(hNode, MAGIC_NODE));
    *type = (CUgraphNodeType)types[hNode->work.kind];
    return CUDA_SUCCESS;
}

static CUgraph graph_clone(CUgraph graph) {
    CUgraph copy = graph_new();
    for (unsigned i = 0; i < graph->node_count; i++) {
        CUgraphNode from = graph->nodes[i];
        struct work work;
        work_clone(&work, &from->work);
        CUgraphNode to = node_new(copy, &work, NULL, 0);
        to->original = from;
        to->child = from->child ? graph_clone(from->child) : NULL;
    }
    for (unsigned i = 0; i < graph->node_count; i++)
        for (unsigned j = 0; j < graph->nodes[i]->dependency_count; j++)
            for (unsigned k = 0; k < graph->node_count; k++)
                if (graph->nodes[k] == graph->nodes[i]->dependencies[j])
                    nodes_append(&copy->nodes[i]->dependencies,
                                 &copy->nodes[i]->dependency_count, copy->nodes[k]);
    return copy;
}

API CUresult cuGraphClone(CUgraph *phGraphClone, CUgraph originalGraph) {
    ENTER();
    REQUIRE(phGraphClone != NULL && IS(originalGraph, MAGIC_GRAPH));
    *phGraphClone = graph_clone(originalGraph);
    return CUDA_SUCCESS;
}

API CUresult cuGraphNodeFindInClone(CUgraphNode *phNode, CUgraphNode hOriginalNode,
                                    CUgraph hClonedGraph) {
    ENTER();
    REQUIRE(phNode != NULL && IS(hOriginalNode, MAGIC_NODE) && IS(hClonedGraph, MAGIC_GRAPH));
    for (unsigned i = 0; i < hClonedGraph->node_count; i++)
        if (hClonedGraph->nodes[i]->original == hOriginalNode) {
            *phNode = hClonedGraph->nodes[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

/* ---- what nodes hold ---- */

API CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode hNode,
                                           CUDA_KERNEL_NODE_PARAMS_v2 *nodeParams) {
    ENTER();
    REQUIRE(IS(hNode, MAGIC_NODE) && hNode->work.kind == WORK_KERNEL && nodeParams != NULL);
    struct launch *l = &hNode->work.launch;
    const struct kernel_info *info = l->function->info;
    free(hNode->param_pointers);
    hNode->param_pointers = zeroed(info->param_count * sizeof(void *));
    for (unsigned i = 0; i < info->param_count; i++)
        hNode->param_pointers[i] = l->params + info->params[i].offset;
    *nodeParams = (CUDA_KERNEL_NODE_PARAMS_v2){
        .func = l->function, .gridDimX = l->grid[0], .gridDimY = l->grid[1],
        .gridDimZ = l->grid[2], .blockDimX = l->block[0], .blockDimY = l->block[1],
        .blockDimZ = l->block[2], .sharedMemBytes = l->shared_bytes,
        .kernelParams = hNode->param_pointers, .kern = l->function->kernel,
        .ctx = hNode->work.ctx};
    return CUDA_SUCCESS;
}

API CUresult cuGraphKernelNodeGetParams(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams) {
    CUDA_KERNEL_NODE_PARAMS_v2 wide;
    REQUIRE(nodeParams != NULL);
    TRY(cuGraphKernelNodeGetParams_v2(hNode, &wide));
    memcpy(nodeParams, &wide, sizeof *nodeParams); /* the old structure is the new one's start */
    return CUDA_SUCCESS;
}

/* The kinds of memory stay what they were; a H200's driver wants no other (580). */
static bool same_kinds(const struct work *old, const struct work *new) {
    return new->kind != WORK_COPY || (old->copy.source.type == new->copy.source.type &&
                                      old->copy.target.type == new->copy.target.type);
}

static CUresult work_replace(struct work *old, struct work *new) {
    new->ctx = new->ctx ? new->ctx : old->ctx;
    work_drop(old);
    *old = *new;
    return CUDA_SUCCESS;
}

API CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode hNode,
                                           const CUDA_KERNEL_NODE_PARAMS_v2 *nodeParams) {
    ENTER_CONTEXT(ctx);
    REQUIRE(IS(hNode, MAGIC_NODE) && hNode->work.kind == WORK_KERNEL && nodeParams != NULL);
    struct work work;
    TRY(kernel_work(nodeParams, &work));
    return work_replace(&hNode->work, &work);
}

API CUresult cuGraphKernelNodeSetParams(CUgraphNode hNode,
                                        const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams) {
    REQUIRE(nodeParams != NULL);
    CUDA_KERNEL_NODE_PARAMS_v2 wide = kernel_params_widen(nodeParams);
    return cuGraphKernelNodeSetParams_v2(hNode, &wide);
}

API CUresult cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D *nodeParams) {
    ENTER();
    REQUIRE(IS(hNode, MAGIC_NODE) && hNode->work.kind == WORK_COPY && nodeParams != NULL);
    copy_to_3d(&hNode->work.copy, nodeParams);
    return CUDA_SUCCESS;
}

API CUresult cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D *nodeParams) {
    ENTER();
    REQUIRE(IS(hNode, MAGIC_NODE) && hNode->work.kind == WORK_COPY);
    struct work work;
    TRY(copy_work(nodeParams, NULL, &work));
    return work_replace(&hNode->work, &work);
}

API CUresult cuGraphMemsetNodeGetParams(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS *nodeParams) {
    ENTER();
    REQUIRE(IS(hNode, MAGIC_NODE) && hNode->work.kind == WORK_FILL && nodeParams != NULL);
    const struct fill *fill = &hNode->work.fill;
    *nodeParams = (CUDA_MEMSET_NODE_PARAMS){fill->target, fill->pitch, fill->value,
                                            fill->element, fill->width, fill->height};
    return CUDA_SUCCESS;
}

API CUresult cuGraphMemsetNodeSetParams(CUgraphNode hNode,
                                        const CUDA_MEMSET_NODE_PARAMS *nodeParams) {
    ENTER();
    REQUIRE(IS(hNode, MAGIC_NODE) && hNode->work.kind == WORK_FILL && nodeParams != NULL);
    struct work work;
    TRY(fill_work(nodeParams, NULL, &work));
    return work_replace(&hNode->work, &work);
}

API CUresult cuGraphHostNodeGetParams(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS *nodeParams) {
    ENTER();
    REQUIRE(IS(hNode, MAGIC_NODE) && hNode->work.kind == WORK_HOST && nodeParams != NULL);
    *nodeParams = (CUDA_HOST_NODE_PARAMS){hNode->work.host.call, hNode->work.host.data};
    return CUDA_SUCCESS;
}

API CUresult cuGraphHostNodeSetParams(CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS *nodeParams) {
    ENTER();
    REQUIRE(IS(hNode, MAGIC_NODE) && hNode->work.kind == WORK_HOST && nodeParams != NULL);
    hNode->work.host.call = nodeParams->fn;
    hNode->work.host.data = nodeParams->userData;
    return CUDA_SUCCESS;
}

/* Attributes of kernel nodes are taken and given back; none changes how the fake runs. */
API CUresult cuGraphKernelNodeSetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                           const CUkernelNodeAttrValue *value) {
    ENTER();
    REQUIRE(IS(hNode, MAGIC_NODE) && hNode->work.kind == WORK_KERNEL && value != NULL);
    REQUIRE((int)attr >= 0 && (int)attr < NODE_ATTRIBUTES);
    hNode->attributes[attr] = *value;
    return CUDA_SUCCESS;
}

API CUresult cuGraphKernelNodeGetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                           CUkernelNodeAttrValue *value_out) {
    ENTER();
    REQUIRE(IS(hNode, MAGIC_NODE) && hNode->work.kind == WORK_KERNEL && value_out != NULL);
    REQUIRE((int)attr >= 0 && (int)attr < NODE_ATTRIBUTES);
    *value_out = hNode->attributes[attr];
    return CUDA_SUCCESS;
}

API CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode dst, CUgraphNode src) {
    ENTER();
    REQUIRE(IS(dst, MAGIC_NODE) && IS(src, MAGIC_NODE));
    memcpy(dst->attributes, src->attributes, sizeof dst->attributes);
    return CUDA_SUCCESS;
}

static CUresult event_of(CUgraphNode node, enum work_kind kind, CUevent *event) {
    REQUIRE(IS(node, MAGIC_NODE) && node->work.kind == kind && event != NULL);
    *event = node->work.record.event;
    return CUDA_SUCCESS;
}

API CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode hNode, CUevent *event_out) {
    ENTER();
    return event_of(hNode, WORK_RECORD, event_out);
}

API CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode hNode, CUevent *event_out) {
    ENTER();
    return event_of(hNode, WORK_WAIT, event_out);
}

API CUresult cuGraphMemAllocNodeGetParams(CUgraphNode hNode,
                                          CUDA_MEM_ALLOC_NODE_PARAMS *params_out) {
    ENTER();
    REQUIRE(IS(hNode, MAGIC_NODE) && hNode->work.kind == WORK_ALLOCATE && params_out != NULL);
    memset(params_out, 0, sizeof *params_out);
    params_out->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params_out->poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    struct region region;
    if (memory_find(hNode->work.memory.pointer, &region))
        params_out->poolProps.location.id = region.dev;
    params_out->bytesize = hNode->work.memory.bytes;
    params_out->dptr = hNode->work.memory.pointer;
    return CUDA_SUCCESS;
}

API CUresult cuGraphMemFreeNodeGetParams(CUgraphNode hNode, CUdeviceptr *dptr_out) {
    ENTER();
    REQUIRE(IS(hNode, MAGIC_NODE) && hNode->work.kind == WORK_RELEASE && dptr_out != NULL);
    *dptr_out = hNode->work.memory.pointer;
    return CUDA_SUCCESS;
}

API CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph *phGraph) {
    ENTER();
    REQUIRE(IS(hNode, MAGIC_NODE) && hNode->child != NULL && phGraph != NULL);
    *phGraph = hNode->child;
    return CUDA_SUCCESS;
}

/* ---- executable graphs ---- */

static void exec_add(CUgraphExec exec, CUgraphNode node) {
    exec->nodes = realloc(exec->nodes, (exec->node_count + 1) * sizeof *exec->nodes);
    if (exec->nodes == NULL)
        abort();
    struct exec_node *to = &exec->nodes[exec->node_count++];
    *to = (struct exec_node){.source = node};
    work_clone(&to->work, &node->work);
}

static bool exec_holds(CUgraphExec exec, CUgraphNode node) {
    for (unsigned i = 0; i < exec->node_count; i++)
        if (exec->nodes[i].source == node)
            return true;
    return false;
}

static CUgraphExec exec_new(CUgraph graph, uint64_t flags);

/* Adds a node once all it depends on is there: an order of execution. False on a cycle. */
static bool exec_fill(CUgraphExec exec, CUgraph graph) {
    for (bool moved = true; moved;) {
        moved = false;
        for (unsigned i = 0; i < graph->node_count; i++) {
            CUgraphNode node = graph->nodes[i];
            bool ready = !exec_holds(exec, node);
            for (unsigned j = 0; ready && j < node->dependency_count; j++)
                ready = exec_holds(exec, node->dependencies[j]);
            if (!ready)
                continue;
            exec_add(exec, node);
            if (node->child != NULL)
                exec->nodes[exec->node_count - 1].work.graph = exec_new(node->child, 0);
            if (node->bodies != NULL) {
                struct work *work = &exec->nodes[exec->node_count - 1].work;
                work->conditional.bodies = zeroed(work->conditional.size * sizeof(CUgraphExec));
                for (unsigned j = 0; j < work->conditional.size; j++)
                    work->conditional.bodies[j] = exec_new(node->bodies[j], 0);
            }
            moved = true;
        }
    }
    return exec->node_count == graph->node_count;
}

static CUgraphExec exec_new(CUgraph graph, uint64_t flags) {
    CUgraphExec exec = zeroed(sizeof *exec);
    exec->magic = MAGIC_EXEC;
    exec->flags = flags;
    return exec_fill(exec, graph) ? exec : NULL;
}

#define UPLOAD 2
#define DEVICE_LAUNCH 4

/* Of kernels, copies, fills and such graphs only (CUDA's programming guide, device graph creation). */
static CUresult device_launch_check(CUgraph graph) {
    for (unsigned i = 0; i < graph->node_count; i++) {
        CUgraphNode node = graph->nodes[i];
        enum work_kind kind = node->work.kind;
        if (node->child != NULL)
            TRY(device_launch_check(node->child));
        else if (kind != WORK_KERNEL && kind != WORK_COPY && kind != WORK_FILL)
            return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

void kernel_launch_graph(struct call *call) { /* (cudaGraphExec_t graph), at once */
    PARAM(CUgraphExec, graph, 0);
    bool known = IS(graph, MAGIC_EXEC) && (graph->flags & DEVICE_LAUNCH) && graph->uploaded;
    call->error = known ? graph_run(graph) : CUDA_ERROR_LAUNCH_FAILED;
}

API CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph,
                                         unsigned long long flags) {
    ENTER();
    REQUIRE(phGraphExec != NULL && IS(hGraph, MAGIC_GRAPH) && flags <= 15 && (flags & 5) != 5);
    REQUIRE(!hGraph->moved);
    if (flags & DEVICE_LAUNCH)
        TRY(device_launch_check(hGraph));
    *phGraphExec = exec_new(hGraph, flags);
    return *phGraphExec ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
                                          CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams) {
    REQUIRE(instantiateParams != NULL);
    instantiateParams->hErrNode_out = NULL;
    instantiateParams->result_out = 0;
    TRY(cuGraphInstantiateWithFlags(phGraphExec, hGraph, instantiateParams->flags));
    (*phGraphExec)->uploaded = (instantiateParams->flags & UPLOAD) != 0;
    return CUDA_SUCCESS;
}

API CUresult cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph,
                                   CUgraphNode *phErrorNode, char *logBuffer, size_t bufferSize) {
    if (phErrorNode != NULL)
        *phErrorNode = NULL;
    if (logBuffer != NULL && bufferSize > 0)
        *logBuffer = '\0';
    return cuGraphInstantiateWithFlags(phGraphExec, hGraph, 0);
}

API CUresult cuGraphExecDestroy(CUgraphExec hGraphExec) {
    ENTER();
    REQUIRE(IS(hGraphExec, MAGIC_EXEC));
    hGraphExec->magic = MAGIC_DEAD; /* launches under way still read it, so it stays */
    return CUDA_SUCCESS;
}

API CUresult cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t *flags) {
    ENTER();
    REQUIRE(IS(hGraphExec, MAGIC_EXEC) && flags != NULL);
    *flags = hGraphExec->flags;
    return CUDA_SUCCESS;
}

static CUresult wait_for_event(CUevent event) {
    pthread_mutex_lock(&engine);
    while (event->stream != NULL && event->stream->completed < event->ticket)
        pthread_cond_wait(&event->stream->done, &engine);
    pthread_mutex_unlock(&engine);
    return CUDA_SUCCESS;
}

/* No kernel of the fake sets a condition, so it has its initial value; a loop runs once. */
static CUresult conditional_run(struct work *work) {
    unsigned value = work->conditional.condition->value, size = work->conditional.size;
    unsigned body = value;
    if (work->conditional.type != 2) /* if or while, rather than switch */
        body = value != 0 ? 0 : 1;
    return body < size ? graph_run(work->conditional.bodies[body]) : CUDA_SUCCESS;
}

/* What a node waits for that another node of the same graph records has been recorded before it:
   nodes run one after the other. */
static bool records(CUgraphExec exec, CUevent event) {
    for (unsigned i = 0; i < exec->node_count; i++)
        if (exec->nodes[i].work.kind == WORK_RECORD && exec->nodes[i].work.record.event == event)
            return true;
    return false;
}

CUresult graph_run(CUgraphExec exec) {
    for (unsigned i = 0; i < exec->node_count; i++) {
        struct work *work = &exec->nodes[i].work;
        if (exec->nodes[i].disabled)
            continue;
        if (work->kind == WORK_KERNEL)
            launch_record(&work->launch, 0);
        if (work->kind == WORK_ALLOCATE) {
            TRY(memory_graph(work->memory.pointer, true));
            continue;
        }
        if (work->kind == WORK_CONDITIONAL) {
            TRY(conditional_run(work));
            continue;
        }
        if (work->kind == WORK_WAIT && records(exec, work->record.event))
            continue;
        TRY(work->kind == WORK_WAIT ? wait_for_event(work->record.event) : work_run(work));
    }
    return CUDA_SUCCESS;
}

/* Events of the graph's nodes complete with the graph, at the latest. */
static void events_recorded(CUgraphExec exec, CUstream stream) {
    pthread_mutex_lock(&engine);
    for (unsigned i = 0; i < exec->node_count && stream->capture == NULL; i++)
        if (exec->nodes[i].work.kind == WORK_RECORD) {
            exec->nodes[i].work.record.event->stream = stream;
            exec->nodes[i].work.record.event->ticket = stream->submitted;
        }
    pthread_mutex_unlock(&engine);
}

API CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream) {
    ENTER_CONTEXT(ctx);
    CUstream stream;
    REQUIRE(IS(hGraphExec, MAGIC_EXEC));
    TRY(stream_resolve(ctx, hStream, &stream));
    hGraphExec->uploaded = true;
    struct work work = {.kind = WORK_GRAPH, .graph = hGraphExec};
    TRY(stream_submit(stream, &work));
    events_recorded(hGraphExec, stream);
    return CUDA_SUCCESS;
}

API CUresult cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream) {
    ENTER_CONTEXT(ctx);
    CUstream stream;
    REQUIRE(IS(hGraphExec, MAGIC_EXEC));
    hGraphExec->uploaded = true;
    return stream_resolve(ctx, hStream, &stream);
}

static CUresult exec_find(CUgraphExec exec, CUgraphNode node, enum work_kind kind,
                          struct work **work) {
    REQUIRE(IS(exec, MAGIC_EXEC));
    for (unsigned i = 0; i < exec->node_count; i++)
        if (exec->nodes[i].source == node && exec->nodes[i].work.kind == kind) {
            *work = &exec->nodes[i].work;
            return CUDA_SUCCESS;
        } else if (exec->nodes[i].work.kind == WORK_GRAPH &&
                   exec_find(exec->nodes[i].work.graph, node, kind, work) == CUDA_SUCCESS) {
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

/* Launches already queued keep the old values in CUDA; here they must be over first. */
static CUresult exec_settle(void) {
    CUcontext ctx = context_peek();
    return ctx ? context_drain(ctx) : CUDA_SUCCESS;
}

static struct exec_node *exec_node_find(CUgraphExec exec, CUgraphNode node) {
    struct exec_node *found = NULL;
    for (unsigned i = 0; IS(exec, MAGIC_EXEC) && i < exec->node_count && !found; i++) {
        if (exec->nodes[i].source == node)
            found = &exec->nodes[i];
        else if (exec->nodes[i].work.kind == WORK_GRAPH)
            found = exec_node_find(exec->nodes[i].work.graph, node);
    }
    return found;
}

API CUresult cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode,
                                   unsigned int isEnabled) {
    ENTER();
    struct exec_node *node = exec_node_find(hGraphExec, hNode);
    REQUIRE(node != NULL);
    TRY(exec_settle());
    node->disabled = isEnabled == 0;
    return CUDA_SUCCESS;
}

API CUresult cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode,
                                   unsigned int *isEnabled) {
    ENTER();
    struct exec_node *node = exec_node_find(hGraphExec, hNode);
    REQUIRE(node != NULL && isEnabled != NULL);
    *isEnabled = !node->disabled;
    return CUDA_SUCCESS;
}

API CUresult cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                      CUgraphNodeParams *nodeParams) {
    ENTER_CONTEXT(ctx);
    struct work *old, work;
    REQUIRE(nodeParams != NULL && (int)nodeParams->type != CU_GRAPH_NODE_TYPE_GRAPH);
    TRY(work_from_params(nodeParams, &work));
    TRY(exec_find(hGraphExec, hNode, work.kind, &old));
    REQUIRE(same_kinds(old, &work));
    TRY(exec_settle());
    return work_replace(old, &work);
}

API CUresult cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams *nodeParams) {
    ENTER_CONTEXT(ctx);
    struct work work;
    REQUIRE(nodeParams != NULL && (int)nodeParams->type != CU_GRAPH_NODE_TYPE_GRAPH);
    TRY(work_from_params(nodeParams, &work));
    REQUIRE(IS(hNode, MAGIC_NODE) && hNode->work.kind == work.kind);
    return work_replace(&hNode->work, &work);
}

API CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                               const CUDA_KERNEL_NODE_PARAMS_v2 *nodeParams) {
    ENTER_CONTEXT(ctx);
    struct work *old, work;
    REQUIRE(nodeParams != NULL);
    TRY(exec_find(hGraphExec, hNode, WORK_KERNEL, &old));
    TRY(kernel_work(nodeParams, &work));
    TRY(exec_settle());
    return work_replace(old, &work);
}

API CUresult cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                            const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams) {
    REQUIRE(nodeParams != NULL);
    CUDA_KERNEL_NODE_PARAMS_v2 wide = kernel_params_widen(nodeParams);
    return cuGraphExecKernelNodeSetParams_v2(hGraphExec, hNode, &wide);
}

API CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                            const CUDA_MEMCPY3D *copyParams, CUcontext ctx) {
    ENTER();
    struct work *old, work;
    TRY(exec_find(hGraphExec, hNode, WORK_COPY, &old));
    TRY(copy_work(copyParams, ctx, &work));
    REQUIRE(same_kinds(old, &work));
    TRY(exec_settle());
    return work_replace(old, &work);
}

API CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                            const CUDA_MEMSET_NODE_PARAMS *memsetParams,
                                            CUcontext ctx) {
    ENTER();
    struct work *old, work;
    REQUIRE(memsetParams != NULL);
    TRY(exec_find(hGraphExec, hNode, WORK_FILL, &old));
    TRY(fill_work(memsetParams, ctx, &work));
    TRY(exec_settle());
    return work_replace(old, &work);
}

API CUresult cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                          const CUDA_HOST_NODE_PARAMS *nodeParams) {
    ENTER();
    struct work *old;
    REQUIRE(nodeParams != NULL && nodeParams->fn != NULL);
    TRY(exec_find(hGraphExec, hNode, WORK_HOST, &old));
    TRY(exec_settle());
    old->host.call = nodeParams->fn;
    old->host.data = nodeParams->userData;
    return CUDA_SUCCESS;
}

API CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                CUgraph childGraph) {
    ENTER();
    struct work *old;
    REQUIRE(IS(childGraph, MAGIC_GRAPH));
    TRY(exec_find(hGraphExec, hNode, WORK_GRAPH, &old));
    REQUIRE(childGraph->node_count == old->graph->node_count);
    TRY(exec_settle());
    old->graph = exec_new(childGraph, 0);
    return CUDA_SUCCESS;
}

/* ---- memory of graphs ---- */

API CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr,
                                          void *value) {
    ENTER();
    REQUIRE(device >= 0 && device < device_count && (int)attr <= 3 && value != NULL);
    /* Used now and most, reserved now and most; the fake keeps no record of the most. */
    *(cuuint64_t *)value = memory_graph_bytes(device, (int)attr <= 1);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr,
                                          void *value) {
    ENTER();
    REQUIRE(device >= 0 && device < device_count && value != NULL);
    REQUIRE(((int)attr == 1 || (int)attr == 3) && *(cuuint64_t *)value == 0);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGraphMemTrim(CUdevice device) {
    ENTER();
    REQUIRE(device >= 0 && device < device_count);
    return CUDA_SUCCESS;
}

/* The new graph must be of the same shape: the same kinds of nodes in the same order. */
API CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph,
                                  CUgraphExecUpdateResultInfo *resultInfo) {
    ENTER();
    REQUIRE(IS(hGraphExec, MAGIC_EXEC) && IS(hGraph, MAGIC_GRAPH) && resultInfo != NULL);
    CUgraphExec next = exec_new(hGraph, hGraphExec->flags);
    REQUIRE(next != NULL);
    memset(resultInfo, 0, sizeof *resultInfo);
    if (next->node_count != hGraphExec->node_count)
        resultInfo->result = 2; /* the topology changed */
    for (unsigned i = 0; (int)resultInfo->result == 0 && i < next->node_count; i++)
        if (next->nodes[i].work.kind != hGraphExec->nodes[i].work.kind) {
            resultInfo->result = 3; /* the type of a node changed */
            resultInfo->errorNode = next->nodes[i].source;
        }
    if ((int)resultInfo->result != 0)
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    TRY(exec_settle());
    for (unsigned i = 0; i < next->node_count; i++) { /* nodes keep their first graph's handles */
        work_drop(&hGraphExec->nodes[i].work);
        hGraphExec->nodes[i].work = next->nodes[i].work;
    }
    return CUDA_SUCCESS;
}

API CUresult cuGraphDebugDotPrint(CUgraph hGraph, const char *path, unsigned int flags) {
    ENTER();
    (void)flags;
    REQUIRE(IS(hGraph, MAGIC_GRAPH) && path != NULL);
    FILE *file = fopen(path, "w");
    if (file == NULL)
        return CUDA_ERROR_FILE_NOT_FOUND;
    fprintf(file, "digraph dot {\n");
    for (unsigned i = 0; i < hGraph->node_count; i++)
        fprintf(file, "  node%u [label=\"%d\"];\n", i, (int)hGraph->nodes[i]->work.kind);
    fprintf(file, "}\n");
    return fclose(file) == 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

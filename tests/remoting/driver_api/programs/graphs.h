// Of cuda.h what the programs about graphs use.
#ifndef GRAPHS_H
#define GRAPHS_H

#include "check.h"

struct box {
    size_t x, y, z, level;
    int kind;
    const void *host;
    uint64_t device;
    void *array, *reserved;
    size_t pitch, height;
};
struct copy {
    struct box source, target;
    size_t width, height, depth;
};
struct kernel_node {
    void *function;
    unsigned grid[3], block[3], shared;
    void **parameters, **extra, *kernel, *context;
};
struct memset_node {
    uint64_t target;
    size_t pitch;
    unsigned value, element;
    size_t width, height;
};
struct location {
    int type, id;
};
struct allocate_node {
    int type, handles;
    struct location location;
    void *security;
    size_t most;
    unsigned char reserved[56];
    const void *access;
    size_t access_count, size;
    uint64_t address;
};
struct operation {
    int kind;
    uint64_t address;
    uint64_t value;
    unsigned flags;
    uint64_t alias, room;
};
struct batch_node {
    void *context;
    unsigned count;
    const void *operations;
    unsigned flags;
};
struct node_params {
    int type, reserved[3];
    union {
        long long room[29];
        struct {
            uint64_t handle;
            int type;
            unsigned size;
            void **graphs, *context;
        } conditional;
        struct {
            void *graph;
            int ownership;
        } child;
    };
    long long last;
};
struct update {
    int result;
    void *node, *from;
};

int cuMemAllocHost_v2(void **, size_t), cuMemFreeHost(void *);
int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *);
int cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, void *);
int cuMemsetD8Async(uint64_t, unsigned char, size_t, void *);
int cuMemcpy2DAsync_v2(const void *, void *);
int cuArrayCreate_v2(void **, const void *), cuArrayDestroy(void *);
int cuEventCreate(void **, unsigned), cuEventDestroy_v2(void *), cuEventSynchronize(void *);
int cuEventRecord(void *, void *), cuStreamWaitEvent(void *, void *, unsigned);
int cuStreamBeginCapture_v2(void *, int), cuStreamEndCapture(void *, void **);
int cuStreamBeginCaptureToGraph(void *, void *, void **, const void *, size_t, int);
int cuStreamGetCaptureInfo_v3(void *, int *, uint64_t *, void **, void ***, void **, size_t *);
int cuStreamUpdateCaptureDependencies_v2(void *, void **, const void *, size_t, unsigned);
int cuLaunchHostFunc(void *, void (*)(void *), void *), cuStreamIsCapturing(void *, int *);
int cuGraphCreate(void **, unsigned), cuGraphDestroy(void *), cuGraphClone(void **, void *);
int cuGraphNodeFindInClone(void **, void *, void *);
int cuGraphAddKernelNode_v2(void **, void *, void **, size_t, const void *);
int cuGraphAddMemcpyNode(void **, void *, void **, size_t, const void *, void *);
int cuGraphAddMemsetNode(void **, void *, void **, size_t, const void *, void *);
int cuGraphAddEmptyNode(void **, void *, void **, size_t);
int cuGraphAddChildGraphNode(void **, void *, void **, size_t, void *);
int cuGraphAddEventRecordNode(void **, void *, void **, size_t, void *);
int cuGraphAddEventWaitNode(void **, void *, void **, size_t, void *);
int cuGraphAddMemAllocNode(void **, void *, void **, size_t, void *);
int cuGraphAddMemFreeNode(void **, void *, void **, size_t, uint64_t);
int cuGraphAddBatchMemOpNode(void **, void *, void **, size_t, const void *);
int cuGraphAddNode_v2(void **, void *, void **, const void *, size_t, void *);
int cuGraphAddDependencies(void *, void **, void **, size_t);
int cuGraphRemoveDependencies(void *, void **, void **, size_t);
int cuGraphDestroyNode(void *), cuGraphNodeGetType(void *, int *);
int cuGraphGetNodes(void *, void **, size_t *), cuGraphGetRootNodes(void *, void **, size_t *);
int cuGraphGetEdges(void *, void **, void **, size_t *);
int cuGraphNodeGetDependencies(void *, void **, size_t *);
int cuGraphNodeGetDependentNodes(void *, void **, size_t *);
int cuGraphKernelNodeGetParams_v2(void *, void *), cuGraphKernelNodeSetParams_v2(void *, const void *);
int cuGraphMemcpyNodeGetParams(void *, void *), cuGraphMemsetNodeGetParams(void *, void *);
int cuGraphMemsetNodeSetParams(void *, const void *), cuGraphMemAllocNodeGetParams(void *, void *);
int cuGraphMemFreeNodeGetParams(void *, uint64_t *), cuGraphBatchMemOpNodeGetParams(void *, void *);
int cuGraphEventRecordNodeGetEvent(void *, void **), cuGraphEventRecordNodeSetEvent(void *, void *);
int cuGraphChildGraphNodeGetGraph(void *, void **);
int cuGraphKernelNodeSetAttribute(void *, int, const void *);
int cuGraphKernelNodeGetAttribute(void *, int, void *);
int cuGraphInstantiateWithFlags(void **, void *, unsigned long long);
int cuGraphLaunch(void *, void *), cuGraphUpload(void *, void *), cuGraphExecDestroy(void *);
int cuGraphExecKernelNodeSetParams_v2(void *, void *, const void *);
int cuGraphExecMemcpyNodeSetParams(void *, void *, const void *, void *);
int cuGraphExecMemsetNodeSetParams(void *, void *, const void *, void *);
int cuGraphExecChildGraphNodeSetParams(void *, void *, void *);
int cuGraphExecUpdate_v2(void *, void *, void *);
int cuGraphNodeSetEnabled(void *, void *, unsigned), cuGraphNodeGetEnabled(void *, void *, unsigned *);
int cuGraphConditionalHandleCreate(uint64_t *, void *, void *, unsigned, unsigned);
int cuGraphDebugDotPrint(void *, const char *, unsigned);
int cuGraphRetainUserObject(void *, void *, unsigned, unsigned);
int cuUserObjectCreate(void **, void *, void (*)(void *), unsigned, unsigned);
int cuUserObjectRelease(void *, unsigned);
int cuDeviceGetGraphMemAttribute(int, int, void *), cuDeviceSetGraphMemAttribute(int, int, void *);
int cuDeviceGraphMemTrim(int);

#endif

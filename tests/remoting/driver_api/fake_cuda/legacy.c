/* Older names with the same binary interface: the unsuffixed first versions that libraries dlsym. */
#define _GNU_SOURCE
#include "fake.h"

#define SAME_AS(new, old, parameters, arguments)                                                   \
    extern CUresult new parameters;                                                                \
    API CUresult old parameters;                                                                   \
    API CUresult old parameters { return new arguments; }

SAME_AS(cuCtxDestroy_v2, cuCtxDestroy, (CUcontext ctx), (ctx))
SAME_AS(cuStreamDestroy_v2, cuStreamDestroy, (CUstream hStream), (hStream))
SAME_AS(cuEventDestroy_v2, cuEventDestroy, (CUevent hEvent), (hEvent))
SAME_AS(cuGraphInstantiate_v2, cuGraphInstantiate,
        (CUgraphExec * phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer,
         size_t bufferSize),
        (phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize))

SAME_AS(cuLinkCreate_v2, cuLinkCreate,
        (unsigned int numOptions, CUjit_option *options, void **optionValues,
         CUlinkState *stateOut),
        (numOptions, options, optionValues, stateOut))
SAME_AS(cuLinkAddData_v2, cuLinkAddData,
        (CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name,
         unsigned int numOptions, CUjit_option *options, void **optionValues),
        (state, type, data, size, name, numOptions, options, optionValues))
SAME_AS(cuLinkAddFile_v2, cuLinkAddFile,
        (CUlinkState state, CUjitInputType type, const char *path, unsigned int numOptions,
         CUjit_option *options, void **optionValues),
        (state, type, path, numOptions, options, optionValues))

extern CUresult cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
extern CUresult cuStreamGetCaptureInfo_v3(CUstream, CUstreamCaptureStatus *, cuuint64_t *,
                                          CUgraph *, const CUgraphNode **,
                                          const CUgraphEdgeData **, size_t *);
extern CUresult cuStreamUpdateCaptureDependencies_v2(CUstream, CUgraphNode *,
                                                     const CUgraphEdgeData *, size_t,
                                                     unsigned int);

API CUresult cuStreamBeginCapture(CUstream hStream) { return cuStreamBeginCapture_v2(hStream, 0); }

API CUresult cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                    cuuint64_t *id_out) {
    return cuStreamGetCaptureInfo_v3(hStream, captureStatus_out, id_out, NULL, NULL, NULL, NULL);
}

API CUresult cuStreamUpdateCaptureDependencies(CUstream hStream, CUgraphNode *dependencies,
                                               size_t numDependencies, unsigned int flags) {
    return cuStreamUpdateCaptureDependencies_v2(hStream, dependencies, NULL, numDependencies,
                                                flags);
}

/* Per-thread default stream variants: NULL means the calling thread's own stream in them. */
#define _GNU_SOURCE
#include "fake.h"

#define VARIANT(name, suffix, parameters, arguments)                                               \
    extern CUresult name parameters;                                                               \
    API CUresult name##suffix parameters;                                                          \
    API CUresult name##suffix parameters {                                                         \
        per_thread_default = true;                                                                 \
        CUresult result = name arguments;                                                          \
        per_thread_default = false;                                                                \
        return result;                                                                             \
    }
#define PTDS(name, parameters, arguments) VARIANT(name, _ptds, parameters, arguments)
#define PTSZ(name, parameters, arguments) VARIANT(name, _ptsz, parameters, arguments)

PTSZ(cuEventRecordWithFlags,
     (CUevent hEvent, CUstream hStream, unsigned int flags),
     (hEvent, hStream, flags))
PTSZ(cuEventRecord, (CUevent hEvent, CUstream hStream), (hEvent, hStream))
PTSZ(cuGraphInstantiateWithParams,
     (CUgraphExec *phGraphExec, CUgraph hGraph, CUDA_GRAPH_INSTANTIATE_PARAMS
      *instantiateParams),
     (phGraphExec, hGraph, instantiateParams))
PTSZ(cuGraphLaunch, (CUgraphExec hGraphExec, CUstream hStream), (hGraphExec, hStream))
PTSZ(cuGraphUpload, (CUgraphExec hGraphExec, CUstream hStream), (hGraphExec, hStream))
PTSZ(cuLaunchCooperativeKernel,
     (CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
      unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ, unsigned int
      sharedMemBytes, CUstream hStream, void **kernelParams),
     (f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes,
      hStream, kernelParams))
PTSZ(cuLaunchHostFunc, (CUstream hStream, CUhostFn fn, void *userData), (hStream, fn, userData))
PTSZ(cuLaunchHostFunc_v2,
     (CUstream hStream, CUhostFn fn, void *userData, unsigned int syncMode),
     (hStream, fn, userData, syncMode))
PTSZ(cuLaunchKernelEx,
     (const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra),
     (config, f, kernelParams, extra))
PTSZ(cuLaunchKernel,
     (CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
      unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ, unsigned int
      sharedMemBytes, CUstream hStream, void **kernelParams, void **extra),
     (f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes,
      hStream, kernelParams, extra))
PTSZ(cuMemAllocAsync,
     (CUdeviceptr *dptr, size_t bytesize, CUstream hStream),
     (dptr, bytesize, hStream))
PTSZ(cuMemAllocFromPoolAsync,
     (CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream),
     (dptr, bytesize, pool, hStream))
PTSZ(cuMemFreeAsync, (CUdeviceptr dptr, CUstream hStream), (dptr, hStream))
PTSZ(cuMemPrefetchAsync,
     (CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream),
     (devPtr, count, dstDevice, hStream))
PTSZ(cuMemPrefetchAsync_v2,
     (CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags, CUstream
      hStream),
     (devPtr, count, location, flags, hStream))
PTSZ(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *pCopy, CUstream hStream), (pCopy, hStream))
PTDS(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *pCopy), (pCopy))
PTDS(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *pCopy), (pCopy))
PTSZ(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *pCopy, CUstream hStream), (pCopy, hStream))
PTSZ(cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream), (pCopy, hStream))
PTDS(cuMemcpy3DPeer, (const CUDA_MEMCPY3D_PEER *pCopy), (pCopy))
PTDS(cuMemcpy3D_v2, (const CUDA_MEMCPY3D *pCopy), (pCopy))
PTSZ(cuMemcpyAsync,
     (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream),
     (dst, src, ByteCount, hStream))
PTDS(cuMemcpyAtoA_v2,
     (CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset, size_t
      ByteCount),
     (dstArray, dstOffset, srcArray, srcOffset, ByteCount))
PTDS(cuMemcpyAtoD_v2,
     (CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset, size_t ByteCount),
     (dstDevice, srcArray, srcOffset, ByteCount))
PTSZ(cuMemcpyAtoHAsync_v2,
     (void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount, CUstream
      hStream),
     (dstHost, srcArray, srcOffset, ByteCount, hStream))
PTDS(cuMemcpyAtoH_v2,
     (void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount),
     (dstHost, srcArray, srcOffset, ByteCount))
PTSZ(cuMemcpyBatchAsync,
     (CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes
      *attrs, size_t *attrsIdxs, size_t numAttrs, size_t *failIdx, CUstream hStream),
     (dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, failIdx, hStream))
PTSZ(cuMemcpyBatchAsync_v2,
     (CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes
      *attrs, size_t *attrsIdxs, size_t numAttrs, CUstream hStream),
     (dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, hStream))
PTDS(cuMemcpyDtoA_v2,
     (CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount),
     (dstArray, dstOffset, srcDevice, ByteCount))
PTSZ(cuMemcpyDtoDAsync_v2,
     (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream),
     (dstDevice, srcDevice, ByteCount, hStream))
PTDS(cuMemcpyDtoD_v2,
     (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount),
     (dstDevice, srcDevice, ByteCount))
PTSZ(cuMemcpyDtoHAsync_v2,
     (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream),
     (dstHost, srcDevice, ByteCount, hStream))
PTDS(cuMemcpyDtoH_v2,
     (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount),
     (dstHost, srcDevice, ByteCount))
PTSZ(cuMemcpyHtoAAsync_v2,
     (CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount, CUstream
      hStream),
     (dstArray, dstOffset, srcHost, ByteCount, hStream))
PTDS(cuMemcpyHtoA_v2,
     (CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount),
     (dstArray, dstOffset, srcHost, ByteCount))
PTSZ(cuMemcpyHtoDAsync_v2,
     (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream),
     (dstDevice, srcHost, ByteCount, hStream))
PTDS(cuMemcpyHtoD_v2,
     (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount),
     (dstDevice, srcHost, ByteCount))
PTSZ(cuMemcpyPeerAsync,
     (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext
      srcContext, size_t ByteCount, CUstream hStream),
     (dstDevice, dstContext, srcDevice, srcContext, ByteCount, hStream))
PTDS(cuMemcpyPeer,
     (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext
      srcContext, size_t ByteCount),
     (dstDevice, dstContext, srcDevice, srcContext, ByteCount))
PTDS(cuMemcpy, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount), (dst, src, ByteCount))
PTSZ(cuMemsetD16Async,
     (CUdeviceptr dstDevice, unsigned short value, size_t N, CUstream hStream),
     (dstDevice, value, N, hStream))
PTDS(cuMemsetD16_v2, (CUdeviceptr dstDevice, unsigned short value, size_t N), (dstDevice, value, N))
PTSZ(cuMemsetD2D16Async,
     (CUdeviceptr dstDevice, size_t dstPitch, unsigned short value, size_t Width, size_t
      Height, CUstream hStream),
     (dstDevice, dstPitch, value, Width, Height, hStream))
PTDS(cuMemsetD2D16_v2,
     (CUdeviceptr dstDevice, size_t dstPitch, unsigned short value, size_t Width, size_t
      Height),
     (dstDevice, dstPitch, value, Width, Height))
PTSZ(cuMemsetD2D32Async,
     (CUdeviceptr dstDevice, size_t dstPitch, unsigned int value, size_t Width, size_t
      Height, CUstream hStream),
     (dstDevice, dstPitch, value, Width, Height, hStream))
PTDS(cuMemsetD2D32_v2,
     (CUdeviceptr dstDevice, size_t dstPitch, unsigned int value, size_t Width, size_t
      Height),
     (dstDevice, dstPitch, value, Width, Height))
PTSZ(cuMemsetD2D8Async,
     (CUdeviceptr dstDevice, size_t dstPitch, unsigned char value, size_t Width, size_t
      Height, CUstream hStream),
     (dstDevice, dstPitch, value, Width, Height, hStream))
PTDS(cuMemsetD2D8_v2,
     (CUdeviceptr dstDevice, size_t dstPitch, unsigned char value, size_t Width, size_t
      Height),
     (dstDevice, dstPitch, value, Width, Height))
PTSZ(cuMemsetD32Async,
     (CUdeviceptr dstDevice, unsigned int value, size_t N, CUstream hStream),
     (dstDevice, value, N, hStream))
PTDS(cuMemsetD32_v2, (CUdeviceptr dstDevice, unsigned int value, size_t N), (dstDevice, value, N))
PTSZ(cuMemsetD8Async,
     (CUdeviceptr dstDevice, unsigned char value, size_t N, CUstream hStream),
     (dstDevice, value, N, hStream))
PTDS(cuMemsetD8_v2, (CUdeviceptr dstDevice, unsigned char value, size_t N), (dstDevice, value, N))
PTSZ(cuStreamAddCallback,
     (CUstream hStream, CUstreamCallback callback, void *userData, unsigned int flags),
     (hStream, callback, userData, flags))
PTSZ(cuStreamAttachMemAsync,
     (CUstream hStream, CUdeviceptr dptr, size_t length, unsigned int flags),
     (hStream, dptr, length, flags))
PTSZ(cuStreamBatchMemOp,
     (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *paramArray, unsigned
      int flags),
     (stream, count, paramArray, flags))
PTSZ(cuStreamBatchMemOp_v2,
     (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *paramArray, unsigned
      int flags),
     (stream, count, paramArray, flags))
PTSZ(cuStreamBeginCaptureToGraph,
     (CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies, const
      CUgraphEdgeData *dependencyData, size_t numDependencies, CUstreamCaptureMode mode),
     (hStream, hGraph, dependencies, dependencyData, numDependencies, mode))
PTSZ(cuStreamBeginCapture, (CUstream hStream), (hStream))
PTSZ(cuStreamBeginCapture_v2, (CUstream hStream, CUstreamCaptureMode mode), (hStream, mode))
PTSZ(cuStreamCopyAttributes, (CUstream dstStream, CUstream srcStream), (dstStream, srcStream))
PTSZ(cuStreamEndCapture, (CUstream hStream, CUgraph *phGraph), (hStream, phGraph))
PTSZ(cuStreamGetAttribute,
     (CUstream hStream, CUstreamAttrID attr, CUstreamAttrValue *value),
     (hStream, attr, value))
PTSZ(cuStreamGetCaptureInfo,
     (CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out),
     (hStream, captureStatus_out, id_out))
PTSZ(cuStreamGetCaptureInfo_v2,
     (CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out,
      CUgraph *graph_out, const CUgraphNode **dependencies_out, size_t
      *numDependencies_out),
     (hStream, captureStatus_out, id_out, graph_out, dependencies_out, numDependencies_out))
PTSZ(cuStreamGetCaptureInfo_v3,
     (CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out,
      CUgraph *graph_out, const CUgraphNode **dependencies_out, const CUgraphEdgeData
      **edgeData_out, size_t *numDependencies_out),
     (hStream, captureStatus_out, id_out, graph_out, dependencies_out, edgeData_out,
      numDependencies_out))
PTSZ(cuStreamGetCtx, (CUstream hStream, CUcontext *pctx), (hStream, pctx))
PTSZ(cuStreamGetCtx_v2,
     (CUstream hStream, CUcontext *pctx, CUgreenCtx *pGreenCtx),
     (hStream, pctx, pGreenCtx))
PTSZ(cuStreamGetDevice, (CUstream hStream, CUdevice *device), (hStream, device))
PTSZ(cuStreamGetFlags, (CUstream hStream, unsigned int *flags), (hStream, flags))
PTSZ(cuStreamGetId, (CUstream hStream, unsigned long long *streamId), (hStream, streamId))
PTSZ(cuStreamGetPriority, (CUstream hStream, int *priority), (hStream, priority))
PTSZ(cuStreamIsCapturing,
     (CUstream hStream, CUstreamCaptureStatus *captureStatus),
     (hStream, captureStatus))
PTSZ(cuStreamQuery, (CUstream hStream), (hStream))
PTSZ(cuStreamSetAttribute,
     (CUstream hStream, CUstreamAttrID attr, const CUstreamAttrValue *param),
     (hStream, attr, param))
PTSZ(cuStreamSynchronize, (CUstream hStream), (hStream))
PTSZ(cuStreamUpdateCaptureDependencies,
     (CUstream hStream, CUgraphNode *dependencies, size_t numDependencies, unsigned int
      flags),
     (hStream, dependencies, numDependencies, flags))
PTSZ(cuStreamUpdateCaptureDependencies_v2,
     (CUstream hStream, CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData,
      size_t numDependencies, unsigned int flags),
     (hStream, dependencies, dependencyData, numDependencies, flags))
PTSZ(cuStreamWaitEvent,
     (CUstream hStream, CUevent hEvent, unsigned int Flags),
     (hStream, hEvent, Flags))
PTSZ(cuStreamWaitValue32,
     (CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags),
     (stream, addr, value, flags))
PTSZ(cuStreamWaitValue32_v2,
     (CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags),
     (stream, addr, value, flags))
PTSZ(cuStreamWaitValue64,
     (CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags),
     (stream, addr, value, flags))
PTSZ(cuStreamWaitValue64_v2,
     (CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags),
     (stream, addr, value, flags))
PTSZ(cuStreamWriteValue32,
     (CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags),
     (stream, addr, value, flags))
PTSZ(cuStreamWriteValue32_v2,
     (CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags),
     (stream, addr, value, flags))
PTSZ(cuStreamWriteValue64,
     (CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags),
     (stream, addr, value, flags))
PTSZ(cuStreamWriteValue64_v2,
     (CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags),
     (stream, addr, value, flags))

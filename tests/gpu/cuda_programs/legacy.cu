// What programs of CUDA 11 and before call, and what is new since: texture references, launches by offset, batches of
// copies, green contexts, and questions that few ask. A function that the driver refuses shows its status.
#include <cuda.h>
#include <cudaProfiler.h>
#include <dlfcn.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "check.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

// nvcc compiles no references any more.
static const char *const SOURCE = R"(
.version 7.8
.target sm_52
.address_size 64
.global .texref picture;
.global .texref line;
.global .surfref canvas;
// (float *out, int width, int height, float right): what is to the right of the middle of (x, y)
.visible .entry read_reference(.param .u64 out, .param .u32 width, .param .u32 height, .param .f32 right)
{
    .reg .pred %p<2>;
    .reg .b32 %r<10>;
    .reg .f32 %f<9>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [out];
    ld.param.u32 %r1, [width];
    ld.param.u32 %r2, [height];
    ld.param.f32 %f7, [right];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r6, %r3, %r4, %r5;
    mul.lo.s32 %r7, %r1, %r2;
    setp.ge.s32 %p1, %r6, %r7;
    @%p1 bra done;
    rem.s32 %r8, %r6, %r1;
    div.s32 %r9, %r6, %r1;
    cvt.rn.f32.s32 %f1, %r8;
    cvt.rn.f32.s32 %f2, %r9;
    add.f32 %f1, %f1, 0f3F000000;
    add.f32 %f1, %f1, %f7;
    add.f32 %f2, %f2, 0f3F000000;
    tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [picture, {%f1, %f2}];
    cvta.to.global.u64 %d2, %d1;
    mul.wide.s32 %d3, %r6, 4;
    add.s64 %d2, %d2, %d3;
    st.global.f32 [%d2], %f3;
done:
    ret;
}
// (float *out, int first, int n)
.visible .entry fetch_reference(.param .u64 out, .param .u32 first, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .f32 %f<5>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [out];
    ld.param.u32 %r1, [first];
    ld.param.u32 %r2, [n];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r6, %r3, %r4, %r5;
    setp.ge.s32 %p1, %r6, %r2;
    @%p1 bra done;
    add.s32 %r7, %r6, %r1;
    tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [line, {%r7}];
    cvta.to.global.u64 %d2, %d1;
    mul.wide.s32 %d3, %r6, 4;
    add.s64 %d2, %d2, %d3;
    st.global.f32 [%d2], %f1;
done:
    ret;
}
// (int width, int height): 10 y + x
.visible .entry write_reference(.param .u32 width, .param .u32 height)
{
    .reg .pred %p<2>;
    .reg .b32 %r<11>;
    .reg .f32 %f<2>;
    ld.param.u32 %r1, [width];
    ld.param.u32 %r2, [height];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r6, %r3, %r4, %r5;
    mul.lo.s32 %r7, %r1, %r2;
    setp.ge.s32 %p1, %r6, %r7;
    @%p1 bra done;
    rem.s32 %r8, %r6, %r1;
    div.s32 %r9, %r6, %r1;
    mad.lo.s32 %r10, %r9, 10, %r8;
    cvt.rn.f32.s32 %f1, %r10;
    shl.b32 %r8, %r8, 2;
    sust.b.2d.b32.trap [canvas, {%r8, %r9}], %f1;
done:
    ret;
}
)";

// By name, in its newest form: the program links no libcuda.
static void *symbol(const char *name) {
    static void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *found = library == nullptr ? nullptr : dlsym(library, name);
    if (found == nullptr) {
        printf("no %s\n", name);
        exit(1);
    }
    return found;
}
#define NAME_OF(name) #name
#define NAME(name) NAME_OF(name)
#define CU(name) ((decltype(&name))symbol(NAME(name)))
#define NEED(call)                                                              \
    do {                                                                        \
        int status = (int)(call);                                               \
        if (status) {                                                           \
            printf("line %d: %s returned %d\n", __LINE__, #call, status);       \
            return 1;                                                           \
        }                                                                       \
    } while (0)

static const int WIDE = 64, HIGH = 40, ALL = WIDE * HIGH;

__global__ void saxpy(float a, const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}

__global__ void where(unsigned *seen) {
    unsigned place;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(place));
    long long until = clock64() + 200000;
    while (clock64() < until) {
    }
    atomicAdd(&seen[place], 1);
}

static int launch(CUfunction function, int threads, void **parameters, CUstream stream = nullptr) {
    return CU(cuLaunchKernel)(function, (threads + 255) / 256, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr);
}

static double sum(CUdeviceptr data, int n) {
    std::vector<float> values(n);
    if (CU(cuMemcpyDtoH)(values.data(), data, n * sizeof(float))) return NAN;
    double total = 0;
    for (int i = 0; i < n; i++) total += (double)values[i] * (i + 1);
    return total;
}

static int lines(CUmodule module, CUdeviceptr out) {
    CUfunction fetch;
    CUtexref line;
    CUdeviceptr one, two, bound;
    size_t offset = 7;
    std::vector<float> ones(ALL, 1), twos(ALL);
    for (int i = 0; i < ALL; i++) twos[i] = (float)i;
    NEED(CU(cuModuleGetFunction)(&fetch, module, "fetch_reference"));
    int status = CU(cuModuleGetTexRef)(&line, module, "line");
    printf("RESULT reference_found %d\n", status);
    if (status) return 0;
    NEED(CU(cuMemAlloc)(&one, ALL * 4));
    NEED(CU(cuMemAlloc)(&two, ALL * 4));
    NEED(CU(cuMemcpyHtoD)(one, ones.data(), ALL * 4));
    NEED(CU(cuMemcpyHtoD)(two, twos.data(), ALL * 4));
    printf("RESULT reference_unbound %d\n", CU(cuTexRefGetAddress)(&bound, line));
    // Each launch reads what was bound when it was made.
    for (int turn = 0; turn < 4; turn++) {
        NEED(CU(cuTexRefSetFormat)(line, CU_AD_FORMAT_FLOAT, 1));
        NEED(CU(cuTexRefSetFlags)(line, 0));
        NEED(CU(cuTexRefSetAddress)(&offset, line, turn % 2 ? two : one, ALL * 4));
        CUdeviceptr to = out + turn * 400;
        int n = 100;
        void *parameters[] = {&to, &turn, &n};
        NEED(launch(fetch, n, parameters));
    }
    printf("RESULT reference_lines %.0f %.0f %.0f %.0f, %zu\n", sum(out, 100), sum(out + 400, 100),
           sum(out + 800, 100), sum(out + 1200, 100), offset);
    status = CU(cuTexRefSetAddress)(&offset, line, two + 48, ALL * 4 - 48);
    int first = (int)offset / 4, n = 50;
    void *parameters[] = {&out, &first, &n};
    NEED(launch(fetch, n, parameters));
    printf("RESULT reference_offset %d %zu %.0f\n", status, offset, sum(out, 50));
    printf("RESULT reference_parameter %d %d\n", CU(cuParamSetTexRef)(fetch, CU_PARAM_TR_DEFAULT, line),
           CU(cuParamSetTexRef)(fetch, 0, line));
    printf("RESULT reference_refused %d %d\n", CU(cuTexRefSetFormat)(line, CU_AD_FORMAT_FLOAT, 5),
           CU(cuTexRefSetAddress)(nullptr, line, 4096, 16));
    NEED(CU(cuMemFree)(one));
    NEED(CU(cuMemFree)(two));
    return 0;
}

static int pictures(CUmodule module, CUdeviceptr out) {
    CUfunction read, paint;
    CUtexref picture;
    CUsurfref canvas;
    CUarray array, seen;
    CUDA_ARRAY3D_DESCRIPTOR wanted = {};
    wanted.Width = WIDE, wanted.Height = HIGH, wanted.Format = CU_AD_FORMAT_FLOAT;
    wanted.NumChannels = 1, wanted.Flags = CUDA_ARRAY3D_SURFACE_LDST;
    CUDA_ARRAY_DESCRIPTOR flat = {WIDE, HIGH, CU_AD_FORMAT_FLOAT, 1};
    NEED(CU(cuModuleGetFunction)(&read, module, "read_reference"));
    NEED(CU(cuModuleGetFunction)(&paint, module, "write_reference"));
    int textures = CU(cuModuleGetTexRef)(&picture, module, "picture");
    int surfaces = CU(cuModuleGetSurfRef)(&canvas, module, "canvas");
    printf("RESULT reference_pictures %d %d %d\n", textures, surfaces,
           CU(cuModuleGetTexRef)(&picture, module, "nothing"));
    if (textures || surfaces) return 0;
    NEED(CU(cuModuleGetTexRef)(&picture, module, "picture"));
    NEED(CU(cuArray3DCreate)(&array, &wanted));
    NEED(CU(cuSurfRefSetArray)(canvas, array, 0));
    NEED(CU(cuSurfRefGetArray)(&seen, canvas));
    if (seen != array) return 1;
    NEED(CU(cuTexRefSetArray)(picture, array, CU_TRSA_OVERRIDE_FORMAT));
    NEED(CU(cuTexRefSetFilterMode)(picture, CU_TR_FILTER_MODE_LINEAR));
    NEED(CU(cuTexRefSetAddressMode)(picture, 0, CU_TR_ADDRESS_MODE_BORDER));
    int wide = WIDE, high = HIGH;
    float right = 0, half = 0.5f;
    void *size[] = {&wide, &high}, *straight[] = {&out, &wide, &high, &right};
    void *between[] = {&out, &wide, &high, &half};
    NEED(launch(paint, ALL, size));
    NEED(launch(read, ALL, straight));
    double plain = sum(out, ALL);
    NEED(launch(read, ALL, between));
    printf("RESULT reference_painted %.0f %.1f\n", plain, sum(out, ALL));
    CUdeviceptr memory;
    size_t pitch;
    std::vector<float> values(ALL);
    for (int i = 0; i < ALL; i++) values[i] = (float)(i % 91);
    NEED(CU(cuMemAllocPitch)(&memory, &pitch, WIDE * 4, HIGH, 4));
    for (int row = 0; row < HIGH; row++) {
        NEED(CU(cuMemcpyHtoD)(memory + row * pitch, values.data() + row * WIDE, WIDE * 4));
    }
    NEED(CU(cuTexRefSetAddress2D)(picture, &flat, memory, pitch));
    NEED(launch(read, ALL, straight));
    printf("RESULT reference_pitched %.0f %d %d\n", sum(out, ALL),
           CU(cuTexRefSetAddress2D)(picture, &flat, memory, 7), CU(cuTexRefGetArray)(&seen, picture));
    printf("RESULT reference_flags %d\n", CU(cuTexRefSetArray)(picture, array, 0));
    NEED(CU(cuArrayDestroy)(array));
    NEED(CU(cuMemFree)(memory));
    return 0;
}

static int settings() {
    CUtexref own;
    CUarray_format format = (CUarray_format)0;
    CUaddress_mode modes[3] = {};
    CUfilter_mode filter = (CUfilter_mode)0, levels = (CUfilter_mode)0;
    int channels = 0, most = 0;
    unsigned flags = 0;
    float bias = 0, low = 0, high = 0, color[4] = {0.25f, 0.5f, 0.75f, 1}, seen[4] = {};
    int status = CU(cuTexRefCreate)(&own);
    printf("RESULT reference_made %d\n", status);
    if (status) return 0;
    int said[9] = {(int)CU(cuTexRefSetFormat)(own, CU_AD_FORMAT_UNSIGNED_INT8, 4),
                   (int)CU(cuTexRefSetAddressMode)(own, 1, CU_TR_ADDRESS_MODE_MIRROR),
                   (int)CU(cuTexRefSetFilterMode)(own, CU_TR_FILTER_MODE_LINEAR),
                   (int)CU(cuTexRefSetMipmapFilterMode)(own, CU_TR_FILTER_MODE_LINEAR),
                   (int)CU(cuTexRefSetMipmapLevelBias)(own, -1.5f),
                   (int)CU(cuTexRefSetMipmapLevelClamp)(own, 0.5f, 6.25f),
                   (int)CU(cuTexRefSetMaxAnisotropy)(own, 8),
                   (int)CU(cuTexRefSetBorderColor)(own, color),
                   (int)CU(cuTexRefSetFlags)(own, CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES)};
    printf("RESULT reference_set");
    for (int one : said) printf(" %d", one);
    int told[9] = {(int)CU(cuTexRefGetFormat)(&format, &channels, own),
                   (int)CU(cuTexRefGetAddressMode)(&modes[1], own, 1),
                   (int)CU(cuTexRefGetFilterMode)(&filter, own),
                   (int)CU(cuTexRefGetMipmapFilterMode)(&levels, own),
                   (int)CU(cuTexRefGetMipmapLevelBias)(&bias, own),
                   (int)CU(cuTexRefGetMipmapLevelClamp)(&low, &high, own),
                   (int)CU(cuTexRefGetMaxAnisotropy)(&most, own),
                   (int)CU(cuTexRefGetBorderColor)(seen, own), (int)CU(cuTexRefGetFlags)(&flags, own)};
    printf("\nRESULT reference_get");
    for (int one : told) printf(" %d", one);
    printf("\nRESULT reference_settings %d %d %d %d %d %.2f %.2f %.2f %d %.2f %.2f %.2f %.2f %u\n", (int)format,
           channels, (int)modes[1], (int)filter, (int)levels, bias, low, high, most, seen[0], seen[1], seen[2],
           seen[3], flags);
    printf("RESULT reference_ends %d\n", CU(cuTexRefDestroy)(own));
    return 0;
}

static int references() {
    CUmodule module;
    CUdeviceptr out;
    int status = CU(cuModuleLoadData)(&module, SOURCE);
    printf("RESULT references_load %d\n", status);
    if (status) return 0;
    NEED(CU(cuMemAlloc)(&out, ALL * 4));
    if (lines(module, out) || pictures(module, out) || settings()) return 1;
    NEED(CU(cuModuleUnload)(module));
    NEED(CU(cuMemFree)(out));
    return 0;
}

// --- launches -------------------------------------------------------------------------------------

static int launches() {
    CUfunction function;
    CUcontext context, same;
    CUdeviceptr x, y;
    CUstream stream;
    int n = ALL;
    float a = 3;
    std::vector<float> values(ALL, 2);
    CHECK(cudaGetFuncBySymbol(&function, (const void *)saxpy));
    NEED(CU(cuMemAlloc)(&x, ALL * 4));
    NEED(CU(cuMemAlloc)(&y, ALL * 4));
    NEED(CU(cuMemcpyHtoD)(x, values.data(), ALL * 4));
    NEED(CU(cuMemcpyHtoD)(y, values.data(), ALL * 4));
    NEED(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    NEED(CU(cuCtxSynchronize)());
    const int blocks = (ALL + 127) / 128;
    int said[8] = {(int)CU(cuFuncSetBlockShape)(function, 128, 1, 1), (int)CU(cuFuncSetSharedSize)(function, 512),
                   (int)CU(cuParamSetf)(function, 0, a), (int)CU(cuParamSetv)(function, 8, &x, 8),
                   (int)CU(cuParamSetv)(function, 16, &y, 8), (int)CU(cuParamSeti)(function, 24, ALL),
                   (int)CU(cuParamSetSize)(function, 28), (int)CU(cuLaunchGridAsync)(function, blocks, 1, stream)};
    NEED(CU(cuStreamSynchronize)(stream));
    printf("RESULT old_launch");
    for (int one : said) printf(" %d", one);
    printf("\n");
    printf("RESULT old_result %.0f\n", sum(y, ALL));
    int grid = CU(cuLaunchGrid)(function, blocks, 1), single = CU(cuLaunch)(function);
    printf("RESULT old_others %d %d %.0f\n", grid, single, sum(y, ALL));
    void *parameters[] = {&a, &x, &y, &n};
    CUDA_LAUNCH_PARAMS together = {};
    together.function = function;
    together.gridDimX = blocks, together.gridDimY = together.gridDimZ = 1;
    together.blockDimX = 128, together.blockDimY = together.blockDimZ = 1;
    together.hStream = stream;
    together.kernelParams = parameters;
    int status = CU(cuLaunchCooperativeKernelMultiDevice)(&together, 1, 0);
    NEED(CU(cuStreamSynchronize)(stream));
    printf("RESULT together %d %.0f\n", status, sum(y, ALL));
    NEED(CU(cuCtxGetCurrent)(&context));
    int attached = CU(cuCtxAttach)(&same, 0);
    printf("RESULT attached %d %d\n", attached, attached ? 0 : CU(cuCtxDetach)(same));
    NEED(CU(cuCtxSetCurrent)(context));
    NEED(CU(cuStreamDestroy)(stream));
    NEED(CU(cuMemFree)(x));
    NEED(CU(cuMemFree)(y));
    return 0;
}

// --- batches --------------------------------------------------------------------------------------

static int batches() {
    const size_t size = 1 << 20;
    CUdeviceptr one, two, managed;
    void *pinned;
    CUstream stream;
    std::vector<unsigned char> plain(size), back(size);
    for (size_t i = 0; i < size; i++) plain[i] = (unsigned char)(i * 5);
    NEED(CU(cuMemAlloc)(&one, size));
    NEED(CU(cuMemAlloc)(&two, size));
    NEED(CU(cuMemAllocManaged)(&managed, size, CU_MEM_ATTACH_GLOBAL));
    NEED(CU(cuMemAllocHost)(&pinned, size));
    NEED(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    memset(pinned, 3, size);
    CUmemcpyAttributes how[2] = {};
    how[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
    how[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    size_t first[2] = {0, 1}, sizes[2] = {size, size};
    CUdeviceptr in_to[2] = {one, two}, in_from[2] = {(CUdeviceptr)plain.data(), (CUdeviceptr)pinned};
    int in = CU(cuMemcpyBatchAsync)(in_to, in_from, sizes, 2, how, first, 2, stream);
    memset(plain.data(), 0, size);
    CUdeviceptr out_to[2] = {(CUdeviceptr)back.data(), (CUdeviceptr)pinned}, out_from[2] = {one, two};
    int out = CU(cuMemcpyBatchAsync)(out_to, out_from, sizes, 2, &how[1], first, 1, stream);
    NEED(CU(cuStreamSynchronize)(stream));
    long total = 0;
    for (size_t i = 0; i < size; i++) total += back[i] * (long)(i % 7) + ((unsigned char *)pinned)[i];
    printf("RESULT batch %d %d %ld\n", in, out, total);
    printf("RESULT batch_default %d\n", CU(cuMemcpyBatchAsync)(in_to, in_from, sizes, 2, how, first, 2, nullptr));
    how[0].srcAccessOrder = (CUmemcpySrcAccessOrder)0;
    printf("RESULT batch_refused %d\n", CU(cuMemcpyBatchAsync)(in_to, in_from, sizes, 2, how, first, 2, stream));

    CUarray array;
    CUDA_ARRAY3D_DESCRIPTOR wanted = {};
    wanted.Width = 40, wanted.Height = 30, wanted.Depth = 4, wanted.Format = CU_AD_FORMAT_FLOAT;
    wanted.NumChannels = 2;
    std::vector<float> values(40 * 30 * 4 * 2), found(1000);
    for (size_t i = 0; i < values.size(); i++) values[i] = (float)i;
    NEED(CU(cuArray3DCreate)(&array, &wanted));
    CUDA_MEMCPY3D_BATCH_OP boxes[1] = {}, part[1] = {};
    boxes[0].src.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    boxes[0].src.op.ptr.ptr = (CUdeviceptr)values.data();
    boxes[0].dst.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
    boxes[0].dst.op.array.array = array;
    boxes[0].extent = {40, 30, 4};
    boxes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
    part[0].src.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
    part[0].src.op.array = {array, {5, 6, 1}};
    part[0].dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    part[0].dst.op.ptr.ptr = (CUdeviceptr)found.data();
    part[0].dst.op.ptr.rowLength = 20;
    part[0].extent = {10, 8, 1};
    part[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    in = CU(cuMemcpy3DBatchAsync)(1, boxes, 0, stream);
    out = CU(cuMemcpy3DBatchAsync)(1, part, 0, stream);
    NEED(CU(cuStreamSynchronize)(stream));
    printf("RESULT batch_boxes %d %d %.0f %.0f %.0f\n", in, out, found[0], found[19], found[40]);
    // Devices of the door have no concurrent access to managed memory, so these differ where a native one has.
    CUmemLocation to = {};
    to.type = CU_MEM_LOCATION_TYPE_DEVICE;
    printf("RESULT batch_hints %d %d %d\n",
           CU(cuMemPrefetchBatchAsync)(&managed, sizes, 1, &to, first, 1, 0, stream),
           CU(cuMemDiscardBatchAsync)(&managed, sizes, 1, 0, stream),
           CU(cuMemDiscardAndPrefetchBatchAsync)(&managed, sizes, 1, &to, first, 1, 0, stream));
    NEED(CU(cuStreamSynchronize)(stream));
    NEED(CU(cuArrayDestroy)(array));
    for (CUdeviceptr each : {one, two, managed}) NEED(CU(cuMemFree)(each));
    NEED(CU(cuMemFreeHost)(pinned));
    NEED(CU(cuStreamDestroy)(stream));
    return 0;
}

// --- questions ------------------------------------------------------------------------------------

static void notified(CUasyncNotificationInfo *, void *, CUasyncCallbackHandle) {}

static int questions() {
    CUarray picture, plain, bright, colour;
    CUmipmappedArray mipmap;
    CUDA_ARRAY3D_DESCRIPTOR wanted = {}, seen = {};
    wanted.Width = 64, wanted.Height = 48, wanted.Format = CU_AD_FORMAT_NV12, wanted.NumChannels = 3;
    int status = CU(cuArray3DCreate)(&picture, &wanted);
    printf("RESULT planes %d", status);
    if (status == 0) {
        int one = CU(cuArrayGetPlane)(&bright, picture, 0), two = CU(cuArrayGetPlane)(&colour, picture, 1);
        printf(" %d %d", one, two);
        if (two == 0) {
            NEED(CU(cuArray3DGetDescriptor)(&seen, colour));
            printf(" %zu %zu %d %u", seen.Width, seen.Height, (int)seen.Format, seen.NumChannels);
        }
        printf(" %d", CU(cuArrayDestroy)(picture));
    }
    wanted.Format = CU_AD_FORMAT_FLOAT, wanted.NumChannels = 1;
    NEED(CU(cuArray3DCreate)(&plain, &wanted));
    NEED(CU(cuMipmappedArrayCreate)(&mipmap, &wanted, 2));
    CUDA_ARRAY_MEMORY_REQUIREMENTS memory = {}, levels = {};
    CUDA_ARRAY_SPARSE_PROPERTIES sparse;
    printf("\nRESULT requirements %d %d", CU(cuArrayGetMemoryRequirements)(&memory, plain, 0),
           CU(cuMipmappedArrayGetMemoryRequirements)(&levels, mipmap, 0));
    printf(" %zu %zu %zu\nRESULT sparse %d %d %d\n", memory.size, memory.alignment, levels.size,
           CU(cuArrayGetSparseProperties)(&sparse, plain),
           CU(cuMipmappedArrayGetSparseProperties)(&sparse, mipmap), CU(cuArrayGetPlane)(&bright, plain, 0));
    NEED(CU(cuArrayDestroy)(plain));
    NEED(CU(cuMipmappedArrayDestroy)(mipmap));
    CUexecAffinityParam affinity = {};
    printf("RESULT affinity %d\n", CU(cuCtxGetExecAffinity)(&affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT));
    unsigned found[2];
    CUatomicOperation operations[2] = {CU_ATOMIC_OPERATION_INTEGER_ADD, CU_ATOMIC_OPERATION_CAS};
    printf("RESULT atomics %d %d\n", CU(cuDeviceGetHostAtomicCapabilities)(found, operations, 2, 0),
           CU(cuDeviceGetP2PAtomicCapabilities)(found, operations, 2, 0, 0));
    CUasyncCallbackHandle handle;
    status = CU(cuDeviceRegisterAsyncNotification)(0, notified, nullptr, &handle);
    printf("RESULT notification %d %d\n", status, status ? 0 : CU(cuDeviceUnregisterAsyncNotification)(0, handle));
    printf("RESULT profiler %d\n", CU(cuProfilerInitialize)("none", "none", CU_OUT_CSV));
    bool yes = true;
    size_t one = sizeof yes, whole = 0;
    int asked = CU(cuCoredumpGetAttribute)(CU_COREDUMP_ENABLE_ON_EXCEPTION, &yes, &one);
    printf("RESULT dumps %d %d %d", asked, (int)yes,
           CU(cuCoredumpGetAttributeGlobal)(CU_COREDUMP_FILE, nullptr, &whole));
    printf(" %zu\n", whole);
    alignas(128) CUtensorMap map = {};
    cuuint64_t sizes[4] = {1024, 64, 32, 8}, strides[3] = {2048, 131072, 4194304};
    cuuint32_t steps[4] = {1, 1, 1, 1};
    CUdeviceptr data;
    NEED(CU(cuMemAlloc)(&data, 4 << 20));
    status = CU(cuTensorMapEncodeIm2colWide)(
        &map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, (void *)data, sizes, strides, -1, 1, 64, 64, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_IM2COL_WIDE_MODE_W, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    printf("RESULT im2col_wide %d\n", status);
    CUmemDecompressParams packed = {};
    packed.srcNumBytes = 100, packed.dstNumBytes = 200;
    packed.src = (void *)data, packed.dst = (void *)(data + 4096), packed.dstActBytes = (cuuint32_t *)(data + 8192);
    packed.algo = CU_MEM_DECOMPRESS_ALGORITHM_SNAPPY;
    CUstream stream;
    size_t failed = 7;
    NEED(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    printf("RESULT decompression %d\n", CU(cuMemBatchDecompressAsync)(&packed, 1, 0, &failed, stream));
    NEED(CU(cuStreamDestroy)(stream));
    NEED(CU(cuMemFree)(data));
    return 0;
}

// --- green contexts -------------------------------------------------------------------------------

static int used(const unsigned *seen) {
    std::vector<unsigned> found(1024);
    int count = 0;
    if (cudaMemcpy(found.data(), seen, 4096, cudaMemcpyDeviceToHost)) return -1;
    for (unsigned each : found) count += each != 0;
    return count;
}

static int green() {
    CUdevResource whole, groups[8], rest, mine;
    unsigned count = 0, two = 2;
    int status = CU(cuDeviceGetDevResource)(0, &whole, CU_DEV_RESOURCE_TYPE_SM);
    printf("RESULT green_whole %d %u %u %u\n", status, whole.sm.smCount, whole.sm.minSmPartitionSize,
           whole.sm.smCoscheduledAlignment);
    if (status) return 0;
    NEED(CU(cuDevSmResourceSplitByCount)(nullptr, &count, &whole, nullptr, 0, 32));
    NEED(CU(cuDevSmResourceSplitByCount)(groups, &two, &whole, &rest, 0, 32));
    printf("RESULT green_split %u %u %u %u\n", count, two, groups[1].sm.smCount, rest.sm.smCount);
    printf("RESULT green_refused %d\n", CU(cuDevSmResourceSplitByCount)(groups + 2, &two, &groups[0], nullptr, 0, 8));
    CUdevResourceDesc described;
    CUgreenCtx context, other, of;
    CUcontext as, primary, now;
    CUstream named, inside;
    CUevent event;
    NEED(CU(cuDevResourceGenerateDesc)(&described, &groups[0], 1));
    NEED(CU(cuGreenCtxCreate)(&context, described, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    NEED(CU(cuDevResourceGenerateDesc)(&described, &rest, 1));
    NEED(CU(cuGreenCtxCreate)(&other, described, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    NEED(CU(cuGreenCtxGetDevResource)(context, &mine, CU_DEV_RESOURCE_TYPE_SM));
    NEED(CU(cuCtxFromGreenCtx)(&as, context));
    NEED(CU(cuCtxGetCurrent)(&primary));
    printf("RESULT green_mine %u %d\n", mine.sm.smCount, as != primary);
    NEED(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
    int blocking = CU(cuGreenCtxStreamCreate)(&named, context, 0, 0);
    NEED(CU(cuGreenCtxStreamCreate)(&named, context, CU_STREAM_NON_BLOCKING, 0));
    printf("RESULT green_blocking %d\n", blocking);
    unsigned *seen;
    CHECK(cudaMalloc(&seen, 4096));
    CHECK(cudaMemset(seen, 0, 4096));
    CHECK(cudaDeviceSynchronize());
    CUfunction function;
    CHECK(cudaGetFuncBySymbol(&function, (const void *)where));
    void *parameters[] = {&seen};
    NEED(CU(cuLaunchKernel)(function, 2000, 1, 1, 64, 1, 1, 0, named, parameters, nullptr));
    NEED(CU(cuStreamSynchronize)(named));
    int count_named = used(seen);
    CHECK(cudaMemset(seen, 0, 4096));
    CHECK(cudaDeviceSynchronize());
    // As PyTorch does: without naming a stream while it is current, by the driver and by the runtime.
    NEED(CU(cuCtxPushCurrent)(as));
    NEED(CU(cuStreamCreate)(&inside, CU_STREAM_NON_BLOCKING));
    NEED(CU(cuLaunchKernel)(function, 2000, 1, 1, 64, 1, 1, 0, nullptr, parameters, nullptr));
    where<<<2000, 64>>>(seen);
    int launched = (int)cudaGetLastError(), of_null = CU(cuStreamGetGreenCtx)(nullptr, &of);
    printf("RESULT green_launch %d %d %d\n", launched, of_null, of == context);
    NEED(CU(cuEventRecord)(event, nullptr));
    NEED(CU(cuEventSynchronize)(event));
    NEED(CU(cuCtxPopCurrent)(&now));
    int count_null = used(seen);
    unsigned limit = mine.sm.smCount;
    printf("RESULT green_inside %d %d %d\n", now == as, count_named > 0 && count_named <= (int)limit,
           count_null > 0 && count_null <= (int)limit);
    CHECK(cudaMemset(seen, 0, 4096));
    where<<<2000, 64>>>(seen);
    CHECK(cudaDeviceSynchronize());
    printf("RESULT green_outside %d\n", used(seen) > (int)limit);
    int recorded = CU(cuGreenCtxRecordEvent)(context, event), waited = CU(cuGreenCtxWaitEvent)(other, event);
    NEED(CU(cuStreamGetGreenCtx)(inside, &of));
    int ours = of == context;
    NEED(CU(cuStreamGetCtx)(inside, &now));
    printf("RESULT green_events %d %d %d %d\n", recorded, waited, ours, now == as);
    unsigned long long id = 0, another = 0;
    NEED(CU(cuGreenCtxGetId)(context, &id));
    NEED(CU(cuGreenCtxGetId)(other, &another));
    NEED(CU(cuStreamDestroy)(named));
    NEED(CU(cuStreamDestroy)(inside));
    printf("RESULT green_ends %d %d %d\n", id != another, CU(cuGreenCtxDestroy)(context), CU(cuGreenCtxDestroy)(other));
    CHECK(cudaMemset(seen, 0, 4096));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaFree(seen));
    return 0;
}

int main() {
    CHECK(cudaSetDevice(0));
    CHECK(cudaFree(nullptr));
    setvbuf(stdout, nullptr, _IOLBF, 0);
    // What fails in one part leaves the others to be seen.
    int failed = references() + 2 * launches() + 4 * batches() + 8 * questions() + 16 * green();
    return failed;
}

// Questions that few programs ask, and decompression by the device.
#include "check.h"

struct descriptor {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};
struct decompression {
    size_t source_size, target_size;
    uint64_t written, source, target;
    int algorithm;
    unsigned char padding[20];
};

int cuArray3DCreate_v2(void **, const struct descriptor *), cuArrayDestroy(void *);
int cuArray3DGetDescriptor_v2(struct descriptor *, void *);
int cuMipmappedArrayCreate(void **, const struct descriptor *, unsigned);
int cuMipmappedArrayDestroy(void *), cuArrayGetPlane(void **, void *, unsigned);
int cuArrayGetMemoryRequirements(void *, void *, int), cuArrayGetSparseProperties(void *, void *);
int cuMipmappedArrayGetMemoryRequirements(void *, void *, int);
int cuMipmappedArrayGetSparseProperties(void *, void *);
int cuDeviceGetP2PAtomicCapabilities(unsigned *, const int *, unsigned, int, int);
int cuMemBatchDecompressAsync(struct decompression *, size_t, unsigned, size_t *, void *);
int cuMemcpyHtoA_v2(void *, size_t, const void *, size_t);
int cuMemcpyAtoH_v2(void *, void *, size_t, size_t);

static void arrays(void) {
    struct descriptor picture = {64, 48, 0, 0xb0, 3, 0}, plain = {64, 48, 0, 0x20, 1, 0}, seen;
    void *array, *bright, *colour, *same, *other, *mipmap;
    size_t memory[4];
    unsigned sparse[12];
    unsigned char row[64], back[64] = {0};
    for (int at = 0; at < 64; at++) row[at] = (unsigned char)(at + 1);
    CHECK(cuArray3DCreate_v2(&array, &picture));
    CHECK(cuArrayGetPlane(&bright, array, 0));
    CHECK(cuArrayGetPlane(&colour, array, 1));
    CHECK(cuArrayGetPlane(&same, array, 1));
    NEED(colour != bright);
    CHECK(cuArray3DGetDescriptor_v2(&seen, colour));
    printf("plane %zu %zu, %d, %u", seen.width, seen.height, seen.format, seen.channels);
    CHECK(cuMemcpyHtoA_v2(colour, 0, row, 64));
    CHECK(cuMemcpyAtoH_v2(back, bright, 0, 64));
    printf(", %d", back[9]);
    CHECK(cuMemcpyAtoH_v2(back, colour, 0, 64));
    printf(" %d, no such %d, its own %d\n", back[9], cuArrayGetPlane(&same, array, 2),
           cuArrayDestroy(colour));
    CHECK(cuArrayDestroy(array));
    printf("with it %d\n", cuArrayDestroy(colour));
    CHECK(cuArray3DCreate_v2(&other, &plain));
    CHECK(cuMipmappedArrayCreate(&mipmap, &plain, 2));
    CHECK(cuArrayGetMemoryRequirements(memory, other, 1));
    printf("takes %zu %zu, refused %d %d %d %d %d\n", memory[0], memory[1],
           cuMipmappedArrayGetMemoryRequirements(memory, mipmap, 0),
           cuArrayGetSparseProperties(sparse, other),
           cuMipmappedArrayGetSparseProperties(sparse, mipmap), cuArrayGetPlane(&same, other, 0),
           cuArrayGetSparseProperties(sparse, mipmap));
    CHECK(cuArrayDestroy(other));
    CHECK(cuMipmappedArrayDestroy(mipmap));
}

static void decompress(void *stream) {
    uint64_t memory;
    unsigned char bytes[256];
    unsigned written;
    size_t failed = 9;
    CHECK(cuMemAlloc_v2(&memory, 4096));
    CHECK(cuMemsetD8_v2(memory, 7, 4096));
    CHECK(cuMemsetD8_v2(memory + 1024, 1, 100));
    CHECK(cuCtxSynchronize());
    struct decompression two[2] = {{100, 200, memory, memory + 1024, memory + 2048, 1, {0}},
                                   {300, 200, memory, memory + 1024, memory + 2048, 1, {0}}};
    CHECK(cuMemBatchDecompressAsync(two, 1, 0, NULL, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemcpyDtoH_v2(bytes, memory + 2048, 256));
    CHECK(cuMemcpyDtoH_v2(&written, memory, 4));
    printf("written %u, %d %d\n", written, bytes[99], bytes[100]);
    int status = cuMemBatchDecompressAsync(two, 2, 0, &failed, stream);
    printf("refused %d at %zu, %d\n", status, failed,
           cuMemBatchDecompressAsync(two, 0, 0, NULL, stream));
    CHECK(cuMemFree_v2(memory));
}

int main(void) {
    const int operations[3] = {0, 9, 12}, wrong[1] = {13};
    unsigned found[3];
    void *stream;
    start(0);
    CHECK(cuStreamCreate(&stream, 1));
    arrays();
    CHECK(cuDeviceGetP2PAtomicCapabilities(found, operations, 3, 0, 1));
    printf("atomics %u %u %u, refused %d %d %d\n", found[0], found[1], found[2],
           cuDeviceGetP2PAtomicCapabilities(found, wrong, 1, 0, 1),
           cuDeviceGetP2PAtomicCapabilities(found, operations, 3, 1, 1),
           cuDeviceGetP2PAtomicCapabilities(found, operations, 0, 0, 1));
    decompress(stream);
    return 0;
}

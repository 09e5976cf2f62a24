// Arrays, copies from and to them, textures and surfaces; the partition is 64 MiB.
#include "check.h"

struct descriptor_2d {
    size_t width, height;
    int format;
    unsigned channels;
};
struct descriptor {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};
struct rectangle {
    size_t x, y;
    int kind;
    const void *host;
    uint64_t device;
    void *array;
    size_t pitch;
};
struct copy_2d {
    struct rectangle source, target;
    size_t width, height;
};
struct box {
    size_t x, y, z, level;
    int kind;
    const void *host;
    uint64_t device;
    void *array, *reserved;
    size_t pitch, height;
};
struct copy_3d {
    struct box source, target;
    size_t width, height, depth;
};
struct resource {
    int type;
    union {
        void *array;
        struct {
            uint64_t device;
            int format;
            unsigned channels;
            size_t width, height, pitch;
        } pitched;
        int reserved[32];
    };
    unsigned flags;
};
struct texture {
    int modes[3], filter;
    unsigned flags, anisotropy;
    int mipmap_filter;
    float bias, low, high, border[4];
    int reserved[12];
};

int cuArrayCreate_v2(void **, const struct descriptor_2d *), cuArrayDestroy(void *);
int cuArray3DCreate_v2(void **, const struct descriptor *), cuDeviceGetAttribute(int *, int, int);
int cuArrayGetDescriptor_v2(struct descriptor_2d *, void *);
int cuArray3DGetDescriptor_v2(struct descriptor *, void *);
int cuMipmappedArrayCreate(void **, const struct descriptor *, unsigned);
int cuMipmappedArrayGetLevel(void **, void *, unsigned), cuMipmappedArrayDestroy(void *);
int cuMemcpyHtoA_v2(void *, size_t, const void *, size_t);
int cuMemcpyAtoHAsync_v2(void *, void *, size_t, size_t, void *);
int cuMemcpyDtoA_v2(void *, size_t, uint64_t, size_t);
int cuMemcpyAtoD_v2(uint64_t, void *, size_t, size_t);
int cuMemcpyAtoA_v2(void *, size_t, void *, size_t, size_t);
int cuMemcpy2D_v2(const struct copy_2d *), cuMemcpy3D_v2(const struct copy_3d *);
int cuMemcpy3DAsync_v2(const struct copy_3d *, void *);
int cuTexObjectCreate(unsigned long long *, const struct resource *, const struct texture *,
                      const void *);
int cuTexObjectDestroy(unsigned long long);
int cuTexObjectGetResourceDesc(struct resource *, unsigned long long);
int cuTexObjectGetTextureDesc(struct texture *, unsigned long long);
int cuSurfObjectCreate(unsigned long long *, const struct resource *);
int cuSurfObjectDestroy(unsigned long long);
int cuMemAllocPitch_v2(uint64_t *, size_t *, size_t, size_t, unsigned);

#define MIB ((size_t)1 << 20)
#define WIDE 96
#define HIGH 40
#define FLOAT 0x20
enum { HOST = 1, DEVICE, ARRAY };

static void rows(void *stream) {
    struct descriptor_2d wanted = {1000, 0, 1, 2}, seen;
    unsigned char bytes[2000], back[2000] = {0};
    void *one, *two;
    uint64_t device;
    for (int at = 0; at < 2000; at++) bytes[at] = (unsigned char)(at * 7);
    CHECK(cuArrayCreate_v2(&one, &wanted));
    CHECK(cuArrayCreate_v2(&two, &wanted));
    CHECK(cuArrayGetDescriptor_v2(&seen, one));
    NEED(memcmp(&seen, &wanted, sizeof seen) == 0);
    CHECK(cuMemcpyHtoA_v2(one, 0, bytes, 2000));
    CHECK(cuMemcpyAtoA_v2(two, 1000, one, 500, 1000));
    CHECK(cuMemAlloc_v2(&device, 2000));
    CHECK(cuMemcpyAtoD_v2(device, one, 0, 2000));
    CHECK(cuMemcpyDtoA_v2(two, 0, device, 1000));
    CHECK(cuCtxSynchronize());  // the other stream waits for none
    CHECK(cuMemcpyAtoHAsync_v2(back, two, 0, 2000, stream));
    NEED(memcmp(back, bytes, 1000) == 0 && memcmp(back + 1000, bytes + 500, 1000) == 0);
    CHECK(cuMemFree_v2(device));
    CHECK(cuArrayDestroy(one));
    CHECK(cuArrayDestroy(two));
    OURS(cuArrayDestroy(two) == 400);
}

// A large volume, whose rows lie apart on the host.
static void volume(void *stream) {
    size_t width = 1100, height = 900, depth = 6, pitch = 1200, all = left();
    struct descriptor wanted = {width / 4, height, depth, FLOAT, 1, 0}, seen;
    unsigned char *bytes = malloc(pitch * height * depth), *back = calloc(pitch * height, depth);
    for (size_t at = 0; at < pitch * height * depth; at++) bytes[at] = (unsigned char)(at >> 4);
    void *array, *none;
    CHECK(cuArray3DCreate_v2(&array, &wanted));
    OURS(left() <= all - width * height * depth);
    CHECK(cuArray3DGetDescriptor_v2(&seen, array));
    NEED(memcmp(&seen, &wanted, sizeof seen) == 0);
    struct copy_3d copy = {{.kind = HOST, .host = bytes, .pitch = pitch, .height = height},
                           {.kind = ARRAY, .array = array}, width, height, depth};
    CHECK(cuMemcpy3D_v2(&copy));
    struct copy_3d part = {{.kind = ARRAY, .array = array, .x = 100, .y = 10, .z = 2},
                           {.kind = HOST, .host = back, .pitch = pitch, .height = height, .z = 1},
                           1000, 800, 3};
    CHECK(cuMemcpy3DAsync_v2(&part, stream));
    for (size_t z = 0; z < 3; z++) {
        for (size_t y = 0; y < 800; y++) {
            unsigned char *of = bytes + ((z + 2) * height + y + 10) * pitch + 100;
            NEED(memcmp(back + ((z + 1) * height + y) * pitch, of, 1000) == 0);
        }
    }
    wanted.height = 1 << 16;
    OURS(cuArray3DCreate_v2(&none, &wanted) == 2);
    wanted.flags = 0x40;
    OURS(cuArray3DCreate_v2(&none, &wanted) == 801);
    int sparse = 9, deferred = 9;
    CHECK(cuDeviceGetAttribute(&sparse, 112, 0));  // ..._SPARSE_CUDA_ARRAY_SUPPORTED
    CHECK(cuDeviceGetAttribute(&deferred, 121, 0));  // ..._DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED
    OURS(sparse == 0 && deferred == 0);
    CHECK(cuArrayDestroy(array));
    CHECK(cuCtxSynchronize());
    OURS(left() == all);
    free(bytes), free(back);
}

static void textures(const char *image) {
    struct descriptor wanted = {WIDE, HIGH, 0, FLOAT, 1, 2};
    struct texture how = {.modes = {1, 1, 1}, .high = 3}, how_seen;
    void *array, *mipmap, *level, *same, *module, *read, *write;
    uint64_t out, flat;
    unsigned long long texture, surface, other;
    float *expected = malloc(WIDE * HIGH * sizeof(float)), *found = malloc(WIDE * HIGH * 4);
    for (int at = 0; at < WIDE * HIGH; at++) expected[at] = (float)at / 4;
    CHECK(cuModuleLoad(&module, image));
    CHECK(cuModuleGetFunction(&read, module, "read_texture"));
    CHECK(cuModuleGetFunction(&write, module, "write_surface"));
    CHECK(cuMemAlloc_v2(&out, WIDE * HIGH * 4));
    CHECK(cuArray3DCreate_v2(&array, &wanted));
    struct copy_2d copy = {{.kind = HOST, .host = expected}, {.kind = ARRAY, .array = array},
                           WIDE * 4, HIGH};
    CHECK(cuMemcpy2D_v2(&copy));
    struct resource of = {.array = array}, seen;
    CHECK(cuTexObjectCreate(&texture, &of, &how, NULL));
    CHECK(cuTexObjectGetResourceDesc(&seen, texture));
    NEED(seen.type == 0 && seen.array == array);
    CHECK(cuTexObjectGetTextureDesc(&how_seen, texture));
    NEED(memcmp(&how, &how_seen, sizeof how) == 0);
    launch(read, WIDE * HIGH, (void *[]){&texture, &out, &(int){WIDE}, &(int){HIGH}}, NULL);
    CHECK(cuMemcpyDtoH_v2(found, out, WIDE * HIGH * 4));
    NEED(memcmp(expected, found, WIDE * HIGH * 4) == 0);

    CHECK(cuSurfObjectCreate(&surface, &of));
    launch(write, WIDE * HIGH, (void *[]){&surface, &(int){WIDE}, &(int){HIGH}}, NULL);
    launch(read, WIDE * HIGH, (void *[]){&texture, &out, &(int){WIDE}, &(int){HIGH}}, NULL);
    CHECK(cuMemcpyDtoH_v2(found, out, WIDE * HIGH * 4));
    NEED(found[0] == 0 && found[WIDE + 3] == 13 && found[WIDE * HIGH - 1] == 390 + 95);
    CHECK(cuSurfObjectDestroy(surface));
    CHECK(cuTexObjectDestroy(texture));
    OURS(cuTexObjectDestroy(texture) == 1);
    CHECK(cuArrayDestroy(array));
    OURS(cuTexObjectCreate(&texture, &of, &how, NULL) == 400);

    // Of memory with a pitch.
    size_t pitch;
    CHECK(cuMemAllocPitch_v2(&flat, &pitch, WIDE * 4, HIGH, 4));
    copy.target = (struct rectangle){.kind = DEVICE, .device = flat, .pitch = pitch};
    CHECK(cuMemcpy2D_v2(&copy));
    struct resource pitched = {.type = 3, .pitched = {flat, FLOAT, 1, WIDE, HIGH, pitch}};
    CHECK(cuTexObjectCreate(&texture, &pitched, &how, NULL));
    launch(read, WIDE * HIGH, (void *[]){&texture, &out, &(int){WIDE}, &(int){HIGH}}, NULL);
    CHECK(cuMemcpyDtoH_v2(found, out, WIDE * HIGH * 4));
    NEED(memcmp(expected, found, WIDE * HIGH * 4) == 0);

    // Arrays of arrays.
    CHECK(cuMipmappedArrayCreate(&mipmap, &wanted, 3));
    CHECK(cuMipmappedArrayGetLevel(&level, mipmap, 0));
    CHECK(cuMipmappedArrayGetLevel(&same, mipmap, 0));
    NEED(level == same);
    OURS(cuArrayDestroy(level) == 400);
    copy.target = (struct rectangle){.kind = ARRAY, .array = level};
    CHECK(cuMemcpy2D_v2(&copy));
    CHECK(cuMipmappedArrayGetLevel(&level, mipmap, 2));
    CHECK(cuArray3DGetDescriptor_v2(&wanted, level));
    NEED(wanted.width == WIDE / 4 && wanted.height == HIGH / 4);
    NEED(cuMipmappedArrayGetLevel(&level, mipmap, 3) == 1);
    struct resource whole = {.type = 1, .array = mipmap};
    how.flags = 2;  // CU_TRSF_NORMALIZED_COORDINATES: others have no meaning where sizes differ
    CHECK(cuModuleGetFunction(&read, module, "read_level"));
    CHECK(cuTexObjectCreate(&other, &whole, &how, NULL));
    for (int part = 1; part <= 2; part *= 2) {  // level 1 has the first quarter of level 0
        int wide = WIDE / part, high = HIGH / part, at = part - 1;
        CHECK(cuMipmappedArrayGetLevel(&copy.target.array, mipmap, (unsigned)at));
        copy.source.pitch = WIDE * 4;
        copy.width = (size_t)wide * 4;
        copy.height = (size_t)high;
        CHECK(cuMemcpy2D_v2(&copy));
        launch(read, WIDE * HIGH / part / part,
               (void *[]){&other, &out, &wide, &high, &at}, NULL);
        CHECK(cuMemcpyDtoH_v2(found, out, (size_t)(wide * high) * 4));
        for (int y = 0; y < high; y++) {
            NEED(memcmp(expected + y * WIDE, found + y * wide, (size_t)wide * 4) == 0);
        }
    }
    CHECK(cuTexObjectDestroy(other));
    CHECK(cuMipmappedArrayDestroy(mipmap));
    OURS(cuMipmappedArrayDestroy(mipmap) == 400);
    CHECK(cuMemFree_v2(out));
    CHECK(cuMemFree_v2(flat));
    CHECK(cuModuleUnload(module));
}

int main(int count, char **arguments) {
    void *stream;
    NEED(count == 2);
    start(0);
    size_t all = left();
    CHECK(cuStreamCreate(&stream, 1));
    rows(stream);
    volume(stream);
    textures(arguments[1]);
    CHECK(cuCtxSynchronize());
    OURS(left() == all);
    puts("results right");
    return 0;
}

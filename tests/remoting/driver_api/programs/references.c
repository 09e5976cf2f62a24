// Texture and surface references: bound, changed between launches, and asked for what they are.
#include "check.h"

struct descriptor {
    size_t width, height;
    int format;
    unsigned channels;
};
struct descriptor_3d {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};

int cuModuleGetTexRef(void **, void *, const char *), cuModuleGetSurfRef(void **, void *, const char *);
int cuTexRefCreate(void **), cuTexRefDestroy(void *);
int cuTexRefSetArray(void *, void *, unsigned), cuTexRefGetArray(void **, void *);
int cuTexRefSetMipmappedArray(void *, void *, unsigned), cuTexRefGetMipmappedArray(void **, void *);
int cuTexRefSetAddress_v2(size_t *, void *, uint64_t, size_t);
int cuTexRefSetAddress2D_v3(void *, const struct descriptor *, uint64_t, size_t);
int cuTexRefGetAddress_v2(uint64_t *, void *);
int cuTexRefSetFormat(void *, int, int), cuTexRefGetFormat(int *, int *, void *);
int cuTexRefSetAddressMode(void *, int, int), cuTexRefGetAddressMode(int *, void *, int);
int cuTexRefSetFilterMode(void *, int), cuTexRefGetFilterMode(int *, void *);
int cuTexRefSetMipmapFilterMode(void *, int), cuTexRefGetMipmapFilterMode(int *, void *);
int cuTexRefSetMipmapLevelBias(void *, float), cuTexRefGetMipmapLevelBias(float *, void *);
int cuTexRefSetMipmapLevelClamp(void *, float, float);
int cuTexRefGetMipmapLevelClamp(float *, float *, void *);
int cuTexRefSetMaxAnisotropy(void *, unsigned), cuTexRefGetMaxAnisotropy(int *, void *);
int cuTexRefSetBorderColor(void *, float *), cuTexRefGetBorderColor(float *, void *);
int cuTexRefSetFlags(void *, unsigned), cuTexRefGetFlags(unsigned *, void *);
int cuSurfRefSetArray(void *, void *, unsigned), cuSurfRefGetArray(void **, void *);
int cuParamSetTexRef(void *, int, void *);
int cuArray3DCreate_v2(void **, const struct descriptor_3d *), cuArrayDestroy(void *);
int cuMipmappedArrayCreate(void **, const struct descriptor_3d *, unsigned);
int cuMipmappedArrayDestroy(void *);
int cuMemcpyHtoA_v2(void *, size_t, const void *, size_t);

#define FLOAT 0x20
#define WIDE 32
#define HIGH 20
#define ALL (WIDE * HIGH)

static void *module, *read, *fetch, *paint;

static double sum(uint64_t out, int n) {
    static float values[ALL];
    double total = 0;
    CHECK(cuMemcpyDtoH_v2(values, out, (size_t)n * sizeof *values));
    for (int at = 0; at < n; at++) total += values[at] * (at + 1);
    return total;
}

// Each launch reads what was bound when it was made, though all of them run later.
static void lines(uint64_t out) {
    void *line;
    uint64_t one, two, bound;
    size_t offset = 7;
    float ones[ALL], twos[ALL];
    for (int at = 0; at < ALL; at++) ones[at] = 1, twos[at] = (float)at;
    CHECK(cuMemAlloc_v2(&one, sizeof ones));
    CHECK(cuMemAlloc_v2(&two, sizeof twos));
    CHECK(cuMemcpyHtoD_v2(one, ones, sizeof ones));
    CHECK(cuMemcpyHtoD_v2(two, twos, sizeof twos));
    CHECK(cuModuleGetTexRef(&line, module, "line"));
    printf("unbound %d\n", cuTexRefGetAddress_v2(&bound, line));
    for (int turn = 0; turn < 4; turn++) {
        CHECK(cuTexRefSetFormat(line, FLOAT, 1));
        CHECK(cuTexRefSetFlags(line, 0));
        CHECK(cuTexRefSetAddress_v2(&offset, line, turn % 2 ? two : one, sizeof ones));
        CHECK(cuParamSetTexRef(fetch, -1, line));
        uint64_t to = out + (uint64_t)turn * ALL;
        launch(fetch, 100, (void *[]){&to, &turn, &(int){100}}, NULL);
    }
    for (int turn = 0; turn < 4; turn++) printf("line %.0f\n", sum(out + (uint64_t)turn * ALL, 100));
    CHECK(cuTexRefGetAddress_v2(&bound, line));
    NEED(bound == two && offset == 0);
    // Behind the start of the memory: the kernel finds it at an offset.
    CHECK(cuTexRefSetAddress_v2(&offset, line, two + 40, sizeof twos - 40));
    int first = (int)offset / 4, n = 50;
    launch(fetch, 50, (void *[]){&out, &first, &n}, NULL);
    printf("offset %zu: %.0f\n", offset, sum(out, 50));
    printf("refused %d %d %d\n", cuTexRefSetAddress_v2(NULL, line, 4096, 16),
           cuTexRefSetFormat(line, FLOAT, 5), cuParamSetTexRef(fetch, 0, line));
    CHECK(cuTexRefSetAddress_v2(NULL, line, 0, 0));
    printf("unbound again %d\n", cuTexRefGetAddress_v2(&bound, line));
    CHECK(cuMemFree_v2(one));
    CHECK(cuMemFree_v2(two));
}

static void pictures(uint64_t out) {
    struct descriptor_3d wanted = {WIDE, HIGH, 0, FLOAT, 1, 2};
    struct descriptor flat = {WIDE, HIGH, FLOAT, 1};
    void *picture, *again, *canvas, *array, *mipmap, *seen;
    int wide = WIDE, high = HIGH;
    uint64_t memory, bound;
    float values[ALL];
    for (int at = 0; at < ALL; at++) values[at] = (float)(at % 91);
    CHECK(cuModuleGetTexRef(&picture, module, "picture"));
    CHECK(cuModuleGetTexRef(&again, module, "picture"));
    CHECK(cuModuleGetSurfRef(&canvas, module, "canvas"));
    NEED(picture == again);
    printf("none %d %d\n", cuModuleGetTexRef(&seen, module, "canvas"),
           cuModuleGetSurfRef(&seen, module, "nothing"));
    CHECK(cuArray3DCreate_v2(&array, &wanted));
    CHECK(cuSurfRefSetArray(canvas, array, 0));
    CHECK(cuSurfRefGetArray(&seen, canvas));
    NEED(seen == array);
    CHECK(cuTexRefSetArray(picture, array, 1));
    CHECK(cuTexRefGetArray(&seen, picture));
    NEED(seen == array);
    launch(paint, ALL, (void *[]){&wide, &high}, NULL);
    launch(read, ALL, (void *[]){&out, &wide, &high}, NULL);
    printf("painted %.0f\n", sum(out, ALL));
    CHECK(cuMemAlloc_v2(&memory, 512 * HIGH));
    for (int row = 0; row < HIGH; row++) {
        CHECK(cuMemcpyHtoD_v2(memory + 512u * (unsigned)row, values + row * WIDE, WIDE * 4));
    }
    CHECK(cuTexRefSetAddress2D_v3(picture, &flat, memory, 512));
    CHECK(cuTexRefGetAddress_v2(&bound, picture));
    NEED(bound == memory);
    launch(read, ALL, (void *[]){&out, &wide, &high}, NULL);
    printf("pitched %.0f, refused %d %d\n", sum(out, ALL),
           cuTexRefSetAddress2D_v3(picture, &flat, memory, 7), cuTexRefGetArray(&seen, picture));
    CHECK(cuMipmappedArrayCreate(&mipmap, &wanted, 2));
    CHECK(cuTexRefSetMipmappedArray(picture, mipmap, 1));
    CHECK(cuTexRefGetMipmappedArray(&seen, picture));
    NEED(seen == mipmap);
    printf("flags %d, not of it %d\n", cuTexRefSetArray(picture, array, 3),
           cuTexRefSetArray(picture, mipmap, 1));
    CHECK(cuMipmappedArrayDestroy(mipmap));
    CHECK(cuArrayDestroy(array));
    CHECK(cuMemFree_v2(memory));
}

static void settings(void) {
    void *own;
    int format, channels, mode[3], filter, mip_filter, most;
    unsigned flags;
    float bias, low, high, color[4] = {0.25f, 0.5f, 0.75f, 1}, seen[4] = {0};
    CHECK(cuTexRefCreate(&own));
    CHECK(cuTexRefSetFormat(own, 8, 4));
    for (int at = 0; at < 3; at++) CHECK(cuTexRefSetAddressMode(own, at, 3 - at));
    CHECK(cuTexRefSetFilterMode(own, 1));
    CHECK(cuTexRefSetMipmapFilterMode(own, 1));
    CHECK(cuTexRefSetMipmapLevelBias(own, -1.5f));
    CHECK(cuTexRefSetMipmapLevelClamp(own, 0.5f, 6.25f));
    CHECK(cuTexRefSetMaxAnisotropy(own, 8));
    CHECK(cuTexRefSetBorderColor(own, color));
    CHECK(cuTexRefSetFlags(own, 3));
    CHECK(cuTexRefGetFormat(&format, &channels, own));
    for (int at = 0; at < 3; at++) CHECK(cuTexRefGetAddressMode(&mode[at], own, at));
    CHECK(cuTexRefGetFilterMode(&filter, own));
    CHECK(cuTexRefGetMipmapFilterMode(&mip_filter, own));
    CHECK(cuTexRefGetMipmapLevelBias(&bias, own));
    CHECK(cuTexRefGetMipmapLevelClamp(&low, &high, own));
    CHECK(cuTexRefGetMaxAnisotropy(&most, own));
    CHECK(cuTexRefGetBorderColor(seen, own));
    CHECK(cuTexRefGetFlags(&flags, own));
    printf("%d %d, modes %d %d %d, filters %d %d, %.2f %.2f %.2f, %d, %.2f %.2f %.2f %.2f, %u\n",
           format, channels, mode[0], mode[1], mode[2], filter, mip_filter, bias, low, high, most,
           seen[0], seen[1], seen[2], seen[3], flags);
    printf("no such %d %d\n", cuTexRefSetAddressMode(own, 3, 0), cuTexRefSetAddressMode(own, 0, 9));
    CHECK(cuTexRefDestroy(own));
}

int main(int count, char **arguments) {
    uint64_t out;
    void *line;
    NEED(count == 2);
    start(0);
    CHECK(cuModuleLoad(&module, arguments[1]));
    CHECK(cuModuleGetFunction(&read, module, "read_reference"));
    CHECK(cuModuleGetFunction(&fetch, module, "fetch_reference"));
    CHECK(cuModuleGetFunction(&paint, module, "write_reference"));
    CHECK(cuMemAlloc_v2(&out, ALL * 4));
    lines(out);
    pictures(out);
    settings();
    CHECK(cuModuleGetTexRef(&line, module, "line"));
    printf("not to be destroyed %d\n", cuTexRefDestroy(line));
    CHECK(cuModuleUnload(module));
    printf("unloaded %d\n", cuTexRefSetFlags(line, 1));
    CHECK(cuMemFree_v2(out));
    CHECK(cuCtxSynchronize());
    return 0;
}

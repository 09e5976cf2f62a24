// Tensor maps: prints their bytes, which are the same without the door.
#include "check.h"

int cuTensorMapEncodeTiled(void *, int, unsigned, void *, const uint64_t *, const uint64_t *,
                           const uint32_t *, const uint32_t *, int, int, int, int);
int cuTensorMapEncodeIm2col(void *, int, unsigned, void *, const uint64_t *, const uint64_t *,
                            const int *, const int *, unsigned, unsigned, const uint32_t *, int,
                            int, int, int);
int cuTensorMapEncodeIm2colWide(void *, int, unsigned, void *, const uint64_t *, const uint64_t *,
                                int, int, unsigned, unsigned, const uint32_t *, int, int, int, int,
                                int);
int cuTensorMapReplaceAddress(void *, void *);

static _Alignas(128) uint64_t map[16];

static void show(const char *name) {
    printf("%s", name);
    for (int at = 0; at < 16; at++) printf(" %llx", (unsigned long long)map[at]);
    printf("\n");
}

int main(void) {
    void *address = (void *)0x7f0000000000;
    const uint64_t sizes[5] = {1024, 64, 32, 8, 2};
    const uint64_t strides[5] = {2048, 131072, 4194304, 33554432, 0};
    const uint32_t box[5] = {64, 8, 4, 1, 1}, steps[5] = {1, 1, 1, 1, 1};
    const int lower[3] = {-1, -2, 0}, upper[3] = {1, 2, 3};
    start(0);
    for (unsigned rank = 1; rank <= 5; rank++) {
        CHECK(cuTensorMapEncodeTiled(map, 6, rank, address, sizes, strides, box, steps, 0, 3, 2,
                                     0));
        show("tiled");
    }
    CHECK(cuTensorMapReplaceAddress(map, (char *)address + 4096));
    show("replaced");
    CHECK(cuTensorMapEncodeIm2col(map, 6, 4, address, sizes, strides, lower, upper, 64, 128, steps,
                                  0, 3, 2, 0));
    show("im2col");
    CHECK(cuTensorMapEncodeIm2colWide(map, 6, 4, address, sizes, strides, -3, 5, 64, 128, steps, 0,
                                      1, 3, 2, 0));
    show("wide");
    // Rank 0, and an address that is not aligned.
    printf("refused %d %d\n",
           cuTensorMapEncodeTiled(map, 6, 0, address, sizes, strides, box, steps, 0, 0, 0, 0),
           cuTensorMapEncodeTiled(map, 6, 2, (char *)address + 1, sizes, strides, box, steps, 0, 0,
                                  0, 0));
    return 0;
}

// A program for CUDA 11 with `texture<float, 1> line;` and `texture<float, 2> picture;`, registered as
// nvcc's code does that. Argument: a fat binary with fake_cuda/kernels/reference_kernels.ptx.
#include "registered.h"

struct channels {
    int x, y, z, w, kind;
};
struct texture {  // textureReference of CUDA 11
    int normalized, filter, modes[3];
    struct channels channels;
    int srgb;
    unsigned anisotropy;
    int mipmap_filter;
    float bias, low, high;
    int reserved[15];
};

int cudaMallocPitch(void **, size_t *, size_t, size_t);
int cudaMemcpy2D(void *, size_t, const void *, size_t, size_t, size_t, int);
int cudaMallocArray(void **, const struct channels *, size_t, size_t, unsigned);
int cudaMemcpy2DToArray(void *, size_t, size_t, const void *, size_t, size_t, size_t, int);
int cudaFreeArray(void *), cudaUnbindTexture(const struct texture *);
int cudaBindTexture(size_t *, const struct texture *, const void *, const struct channels *, size_t);
int cudaBindTexture2D(size_t *, const struct texture *, const void *, const struct channels *, size_t,
                      size_t, size_t);
int cudaBindTextureToArray(const struct texture *, const void *, const struct channels *);
int cudaGetTextureAlignmentOffset(size_t *, const struct texture *);
void __cudaRegisterTexture(void **, const struct texture *, const char *, const char *, int, int, int);

enum { WIDE = 50, HIGH = 12, N = WIDE * HIGH, FLOAT = 2 };

static char fetch, read;
static struct texture line = {.modes = {1, 1, 1}, .channels = {32, 0, 0, 0, FLOAT}}, picture;

static double sum(const float *out, int n) {
    static float found[N];
    double total = 0;
    CHECK(cudaMemcpy(found, out, (size_t)n * 4, 2));
    for (int at = 0; at < n; at++) total += found[at] * (at + 1);
    return total;
}

int main(int count, char **words) {
    void **handle = count == 2 ? register_image(words[1]) : NULL;
    if (handle == NULL) return 2;
    picture = line;
    __cudaRegisterTexture(handle, &line, "line", "line", 1, 0, 0);
    __cudaRegisterTexture(handle, &picture, "picture", "picture", 2, 0, 0);
    __cudaRegisterFunction(handle, &fetch, "fetch_reference", "fetch_reference", -1, NULL, NULL, NULL,
                           NULL, NULL);
    __cudaRegisterFunction(handle, &read, "read_reference", "read_reference", -1, NULL, NULL, NULL,
                           NULL, NULL);
    __cudaRegisterFatBinaryEnd(handle);
    float values[N], *out, *one, *two, *rows;
    void *array;
    size_t offset, pitch;
    int wide = WIDE, high = HIGH, n = N, first = 0;
    void *fetched[] = {&out, &first, &n}, *size[] = {&out, &wide, &high};
    for (int at = 0; at < N; at++) values[at] = (float)at;
    CHECK(cudaMalloc((void **)&out, sizeof values));
    CHECK(cudaMalloc((void **)&one, sizeof values));
    CHECK(cudaMalloc((void **)&two, sizeof values));
    CHECK(cudaMemcpy(one, values, sizeof values, 1));
    for (int at = 0; at < N; at++) values[at] = 1;
    CHECK(cudaMemcpy(two, values, sizeof values, 1));
    for (int turn = 0; turn < 2; turn++) {
        CHECK(cudaBindTexture(&offset, &line, turn ? two : one, &line.channels, sizeof values));
        CHECK(cudaLaunchKernel(&fetch, (dim3){3, 1, 1}, (dim3){256, 1, 1}, fetched, 0, NULL));
        printf("line %.0f at %zu\n", sum(out, N), offset);
    }
    CHECK(cudaUnbindTexture(&line));
    for (int at = 0; at < N; at++) values[at] = (float)(at % 37);
    CHECK(cudaMallocPitch((void **)&rows, &pitch, WIDE * 4, HIGH));
    CHECK(cudaMemcpy2D(rows, pitch, values, WIDE * 4, WIDE * 4, HIGH, 1));
    CHECK(cudaBindTexture2D(&offset, &picture, rows, &picture.channels, WIDE, HIGH, pitch));
    CHECK(cudaLaunchKernel(&read, (dim3){3, 1, 1}, (dim3){256, 1, 1}, size, 0, NULL));
    printf("rows %.0f at %zu\n", sum(out, N), offset);
    for (int at = 0; at < N; at++) values[at] = (float)(at % 41);
    CHECK(cudaMallocArray(&array, &picture.channels, WIDE, HIGH, 0));
    CHECK(cudaMemcpy2DToArray(array, 0, 0, values, WIDE * 4, WIDE * 4, HIGH, 1));
    CHECK(cudaBindTextureToArray(&picture, array, &picture.channels));
    CHECK(cudaLaunchKernel(&read, (dim3){3, 1, 1}, (dim3){256, 1, 1}, size, 0, NULL));
    printf("array %.0f\n", sum(out, N));
    CHECK(cudaFreeArray(array));
    CHECK(cudaFree(rows));
    CHECK(cudaDeviceSynchronize());
    __cudaUnregisterFatBinary(handle);
    return 0;
}

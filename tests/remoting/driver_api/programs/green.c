// Green contexts: resources, split and described; their streams, also the one without a name; events.
#include "check.h"

struct resource {
    int type;
    unsigned char own[92];
    unsigned count, smallest, aligned;
    unsigned char more[36];
};

int cuDeviceGetDevResource(int, struct resource *, int);
int cuCtxGetDevResource(void *, struct resource *, int);
int cuGreenCtxGetDevResource(void *, struct resource *, int);
int cuDevSmResourceSplitByCount(struct resource *, unsigned *, const struct resource *,
                                struct resource *, unsigned, unsigned);
int cuDevResourceGenerateDesc(void **, struct resource *, unsigned);
int cuGreenCtxCreate(void **, void *, int, unsigned), cuGreenCtxDestroy(void *);
int cuCtxFromGreenCtx(void **, void *), cuGreenCtxGetId(void *, unsigned long long *);
int cuGreenCtxStreamCreate(void **, void *, unsigned, int);
int cuGreenCtxRecordEvent(void *, void *), cuGreenCtxWaitEvent(void *, void *);
int cuStreamGetGreenCtx(void *, void **), cuStreamGetCtx_v2(void *, void **, void **);
int cuStreamGetCtx(void *, void **);
int cuCtxPushCurrent_v2(void *), cuCtxPopCurrent_v2(void **), cuCtxGetCurrent(void **);
int cuCtxGetDevice(int *), cuCtxDestroy_v2(void *), cuEventCreate(void **, unsigned);
int cuEventRecord(void *, void *), cuStreamWaitEvent(void *, void *, unsigned);
int cuEventSynchronize(void *), cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, void *);
int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *);

#define N 1000

static struct resource whole, groups[20], rest;

static void resources(void) {
    unsigned count = 0, three = 3;
    CHECK(cuDeviceGetDevResource(0, &whole, 1));
    printf("whole %d %u %u %u", whole.type, whole.count, whole.smallest, whole.aligned);
    CHECK(cuDevSmResourceSplitByCount(NULL, &count, &whole, NULL, 0, 20));
    printf(", %u of 20", count);
    CHECK(cuDevSmResourceSplitByCount(groups, &three, &whole, &rest, 0, 30));
    printf(", %u of %u, left %u", three, groups[2].count, rest.count);
    unsigned many = 20, one = 1;
    CHECK(cuDevSmResourceSplitByCount(groups, &many, &whole, NULL, 0, 0));
    printf(", %u of %u\n", many, groups[19 < many ? 19 : many - 1].count);
    struct resource wrong = whole, nothing;
    memset(&wrong.own, 0, sizeof wrong.own);
    printf("refused %d", cuDevSmResourceSplitByCount(groups, &one, &whole, NULL, 0, 1000));
    printf(" %d", cuDevSmResourceSplitByCount(groups, &one, &wrong, NULL, 0, 8));
    printf(" %d %d", cuDeviceGetDevResource(0, &nothing, 7), cuDeviceGetDevResource(9, &nothing, 1));
    CHECK(cuDevSmResourceSplitByCount(groups, &one, &whole, &rest, 0, 128));
    printf(", most %u, left %u\n", groups[0].count, rest.count);
}

static double sum(uint64_t data, void *stream) {
    static float found[N];
    double total = 0;
    CHECK(cuMemcpyDtoHAsync_v2(found, data, sizeof found, stream));
    CHECK(cuStreamSynchronize(stream));
    for (int at = 0; at < N; at++) total += found[at];
    return total;
}

static void contexts(const char *image) {
    void *described, *green, *other, *context, *seen, *module, *fill, *saxpy, *event, *primary;
    void *named, *inside, *plain, *of;
    unsigned one = 1;
    unsigned long long id, same;
    uint64_t x, y;
    int device = 9, n = N;
    float value = 2, factor = 3;
    struct resource mine;
    CHECK(cuCtxGetCurrent(&primary));
    CHECK(cuModuleLoad(&module, image));
    CHECK(cuModuleGetFunction(&fill, module, "fill"));
    CHECK(cuModuleGetFunction(&saxpy, module, "saxpy"));
    CHECK(cuMemAlloc_v2(&x, N * 4));
    CHECK(cuStreamCreate(&plain, 1));
    launch(fill, N, (void *[]){&x, &factor, &n}, NULL);
    CHECK(cuCtxSynchronize());
    CHECK(cuEventCreate(&event, 2));
    CHECK(cuDevSmResourceSplitByCount(groups, &one, &whole, &rest, 0, 32));
    CHECK(cuDevResourceGenerateDesc(&described, groups, 1));
    printf("no default stream %d", cuGreenCtxCreate(&green, described, 0, 0));
    CHECK(cuGreenCtxCreate(&green, described, 0, 1));
    CHECK(cuDevResourceGenerateDesc(&described, &rest, 1));
    CHECK(cuGreenCtxCreate(&other, described, 0, 1));
    CHECK(cuGreenCtxGetDevResource(green, &mine, 1));
    CHECK(cuGreenCtxGetId(green, &id));
    CHECK(cuGreenCtxGetId(other, &same));
    printf(", has %u, others %d\n", mine.count, id != same);
    CHECK(cuCtxFromGreenCtx(&context, green));
    CHECK(cuGreenCtxStreamCreate(&named, green, 1, 0));
    printf("blocking %d", cuGreenCtxStreamCreate(&seen, green, 0, 0));
    // As PyTorch does: make it current, and work without naming a stream.
    CHECK(cuEventRecord(event, plain));
    CHECK(cuCtxPushCurrent_v2(context));
    CHECK(cuStreamWaitEvent(NULL, event, 0));
    CHECK(cuCtxGetCurrent(&seen));
    CHECK(cuCtxGetDevice(&device));
    CHECK(cuGreenCtxGetId(NULL, &same));
    NEED(seen == context && device == 0 && id == same);
    CHECK(cuCtxGetDevResource(NULL, &mine, 1));
    CHECK(cuMemAlloc_v2(&y, N * 4));
    CHECK(cuStreamCreate(&inside, 1));
    launch(fill, N, (void *[]){&x, &value, &n}, NULL);
    launch(fill, N, (void *[]){&y, &factor, &n}, NULL);
    launch(saxpy, N, (void *[]){&factor, &x, &y, &n}, NULL);
    printf(", current %u, %.0f", mine.count, sum(y, NULL));
    CHECK(cuStreamGetGreenCtx(NULL, &of));
    NEED(of == green);
    CHECK(cuStreamGetGreenCtx(inside, &of));
    NEED(of == green);
    CHECK(cuStreamGetGreenCtx(plain, &of));
    NEED(of == NULL);
    CHECK(cuEventRecord(event, NULL));
    CHECK(cuCtxPopCurrent_v2(&seen));
    NEED(seen == context);
    CHECK(cuCtxGetCurrent(&seen));
    NEED(seen == primary);
    CHECK(cuStreamWaitEvent(plain, event, 0));
    printf(" %.0f\n", sum(y, plain));
    CHECK(cuStreamGetGreenCtx(NULL, &of));
    NEED(of == NULL);
    CHECK(cuStreamGetCtx_v2(named, &seen, &of));
    NEED(seen == primary && of == green);
    CHECK(cuStreamGetCtx(inside, &seen));
    NEED(seen == context);
    // Its streams need it not be current; one green context waits for what another has done.
    launch(saxpy, N, (void *[]){&factor, &x, &y, &n}, named);
    CHECK(cuStreamSynchronize(named));
    CHECK(cuGreenCtxRecordEvent(green, event));
    CHECK(cuGreenCtxWaitEvent(other, event));
    CHECK(cuEventSynchronize(event));
    printf("again %.0f", sum(y, inside));
    CHECK(cuStreamDestroy_v2(named));
    CHECK(cuStreamDestroy_v2(inside));
    printf(", not by cuCtxDestroy %d", cuCtxDestroy_v2(context));
    CHECK(cuGreenCtxDestroy(green));
    CHECK(cuGreenCtxDestroy(other));
    printf(", gone %d %d, memory stays %.0f\n", cuGreenCtxDestroy(green),
           cuCtxFromGreenCtx(&context, green), sum(y, NULL));
    CHECK(cuMemFree_v2(x));
    CHECK(cuMemFree_v2(y));
    CHECK(cuModuleUnload(module));
}

int main(int count, char **arguments) {
    NEED(count == 2);
    start(0);
    resources();
    contexts(arguments[1]);
    CHECK(cuCtxSynchronize());
    return 0;
}

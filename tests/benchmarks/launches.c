// Launches as fast as it can: COUNT launches of one kernel, a synchronisation, and the seconds.
#include <time.h>

#include "check.h"

int main(int count, char **arguments) {
    void *module, *increment;
    uint64_t numbers;
    struct timespec began, ended;
    NEED(count == 3);
    start(0);
    CHECK(cuModuleLoad(&module, arguments[1]));
    CHECK(cuModuleGetFunction(&increment, module, "increment"));
    CHECK(cuMemAlloc_v2(&numbers, 4096));
    void *parameters[] = {&numbers, &(int){1}};
    launch(increment, 1, parameters, NULL);
    CHECK(cuCtxSynchronize());
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (long left = atol(arguments[2]); left > 0; left--) launch(increment, 1, parameters, NULL);
    CHECK(cuCtxSynchronize());
    clock_gettime(CLOCK_MONOTONIC, &ended);
    printf("%.6f\n", (double)(ended.tv_sec - began.tv_sec) +
                         1e-9 * (double)(ended.tv_nsec - began.tv_nsec));
}

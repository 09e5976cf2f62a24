// What a kernel's failed assertion says comes to standard error before the program hears of it:
// asserts IMAGE, with kernels/assert_kernels.ptx.
#include <stdio.h>

#include "check.h"

int main(int count, char **arguments) {
    NEED(count == 2);
    start(0);
    void *module, *insist;
    CHECK(cuModuleLoad(&module, arguments[1]));
    CHECK(cuModuleGetFunction(&insist, module, "insist"));
    for (int n = 1; n >= 0; n--) {
        void *parameters[] = {&n};
        CHECK(cuLaunchKernel(insist, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
        fprintf(stderr, "waiting %d\n", n);
        int status = cuCtxSynchronize();
        fprintf(stderr, "status %d\n", status);
    }
    puts("results right");
    return 0;
}

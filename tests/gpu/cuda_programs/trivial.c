// The least that a CUDA program does: a context, memory, and bytes that come back.
#include "../../remoting/driver_api/programs/check.h"

int main(void) {
    uint64_t memory;
    unsigned char back[4] = {0};
    start(0);
    CHECK(cuMemAlloc_v2(&memory, sizeof back));
    CHECK(cuMemsetD8_v2(memory, 7, sizeof back));
    CHECK(cuMemcpyDtoH_v2(back, memory, sizeof back));
    NEED(back[3] == 7);
    return 0;
}

// Memory of a suspended program that its keeper has written to a disk, and that this process lets go.
// Only the process itself can do that, and no thread of Python may: another one may hold the
// interpreter's lock in a call of CUDA, which waits until the program is resumed.
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "launcher.h"

// ``host/suspension/spilled_memory.py`` has the same.
struct order {
    uint64_t number, what, start, size;
};

struct answer {
    uint64_t number;
    int64_t error;
};

enum { DROP, OPEN };

static bool transfer(int line, char *at, size_t left, bool in) {
    while (left > 0) {
        ssize_t done = in ? read(line, at, left) : write(line, at, left);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        at += done;
        left -= (size_t)done;
    }
    return true;
}

static int64_t carry_out(const struct order *order) {
    void *start = (void *)(uintptr_t)order->start;
    // A thread that uses this memory in the meantime fails, and does not read zeros.
    int access = order->what == OPEN ? PROT_READ | PROT_WRITE : PROT_NONE;
    if (mprotect(start, order->size, access) != 0) return errno;
    if (order->what != DROP || madvise(start, order->size, MADV_DONTNEED) == 0) return 0;
    int error = errno;
    mprotect(start, order->size, PROT_READ | PROT_WRITE);
    return error;
}

// Serves the keeper until it hangs up.
EXPORT void gpupool_spilled_serve(int line) {
    struct order order;
    while (transfer(line, (char *)&order, sizeof order, true)) {
        struct answer answer = {order.number, carry_out(&order)};
        if (!transfer(line, (char *)&answer, sizeof answer, false)) return;
    }
}

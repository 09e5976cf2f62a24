// Which pinned memory is to have large pages. With a number of MiB as argument: what downloads to new memory cost
// this process with and without them, in turns.
#include "check.h"

#include <sys/mman.h>
#include <time.h>

int cuMemAllocHost_v2(void **, size_t), cuMemFreeHost(void *);
int cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, void *);

enum { MIB = 1 << 20 };

// What madvise(2) notes of a mapping, see proc_pid_smaps(5).
static bool is_advised(const void *address) {
    char line[512];
    bool here = false, advised = false;
    FILE *maps = fopen("/proc/self/smaps", "re");
    NEED(maps != NULL);
    while (fgets(line, sizeof line, maps) != NULL) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2) {
            here = (uintptr_t)address >= start && (uintptr_t)address < end;
        } else if (here && strncmp(line, "VmFlags:", 8) == 0) {
            advised = strstr(line, " hg") != NULL;
        }
    }
    fclose(maps);
    return advised;
}

static double processor_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static void measure(size_t size) {
    uint64_t device;
    void *stream, *memory;
    CHECK(cuMemAlloc_v2(&device, size));
    CHECK(cuStreamCreate(&stream, 1));
    for (int round = 0; round < 14; round++) {
        CHECK(cuMemAllocHost_v2(&memory, size));
        if (round % 2) NEED(madvise(memory, size, MADV_NOHUGEPAGE) == 0);
        double took[2];
        for (int turn = 0; turn < 2; turn++) {
            double before = processor_ms();
            CHECK(cuMemcpyDtoHAsync_v2(memory, device, size, stream));
            CHECK(cuStreamSynchronize(stream));
            took[turn] = processor_ms() - before;
        }
        printf("%s pages: first %.1f ms, second %.1f ms\n", round % 2 ? "small" : "large", took[0], took[1]);
        CHECK(cuMemFreeHost(memory));
    }
}

int main(int words, char **word) {
    static const size_t sizes[] = {4096, MIB, 4 * MIB, 32 * MIB + 4096};
    start(0);
    if (words == 2) {
        measure((size_t)atoi(word[1]) * MIB);
        return 0;
    }
    for (int at = 0; at < 4; at++) {
        void *memory, *apart;
        CHECK(cuMemAllocHost_v2(&memory, sizes[at]));
        CHECK(cuMemAllocHost_v2(&apart, 4096));  // else two mappings could become one
        NEED(is_advised(memory) == (sizes[at] >= 4 * MIB));
        memset(memory, 1, sizes[at]);
        CHECK(cuMemFreeHost(memory));
    }
    puts("results right");
    return 0;
}

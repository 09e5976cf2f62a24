// Runs a target on the files named by the arguments, where there is no libFuzzer.
#include "input.h"

#include <stdio.h>

int main(int count, char **names) {
    static uint8_t bytes[1 << 20];
    for (int at = 1; at < count; at++) {
        FILE *file = fopen(names[at], "rb");
        if (file == NULL) return 2;
        size_t size = fread(bytes, 1, sizeof bytes, file);
        fclose(file);
        uint8_t *exact = malloc(size ? size : 1);
        if (exact == NULL) return 2;
        memcpy(exact, bytes, size);
        LLVMFuzzerTestOneInput(exact, size);
        free(exact);
    }
    return 0;
}

// Which devices each of the lists given names, and in what order CUDA_DEVICE_ORDER puts these: all
// that the library knows about them is in shim/base/visible.c. NAMES LIST...; or "order" SPEED...
#define _GNU_SOURCE
#include "core.h"

#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words) {
    static struct gp_names names[GP_DEVICES_MAX];
    int total = 0, found[GP_DEVICES_MAX];
    if (strcmp(words[1], "order") == 0) {
        int64_t speeds[GP_DEVICES_MAX] = {0};
        for (int at = 2; at < count; at++) speeds[total++] = atoll(words[at]);
        gp_order_devices(speeds, total, found);
        for (int at = 0; at < total; at++) printf("%d", found[at]);
        return 0;
    }
    // Of each device what gpupool run calls it, and behind a slash what CUDA does.
    for (char *name = strtok(words[1], ","); name != NULL; name = strtok(NULL, ",")) {
        sscanf(name, "%47[^/]/%47s", names[total].known, names[total].uuid);
        total++;
    }
    for (int at = 2; at < count; at++) {
        setenv("CUDA_VISIBLE_DEVICES", words[at], 1);
        int used = gp_choose_visible(names, total, found);
        for (int one = 0; one < used; one++) printf("%d", found[one]);
        puts(used < 0 ? "twice." : ".");
    }
    return 0;
}

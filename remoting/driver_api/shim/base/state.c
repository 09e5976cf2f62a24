// The state that all layers read: the devices, and counts of rare things, as of mapped memory.
#define _GNU_SOURCE
#include "base.h"

#include <time.h>

struct gp_state gp;
bool gp_several;
bool gp_many;
int gp_started;
int gp_servers_left;
bool gp_reached[GP_SERVERS_MAX];
int gp_hosts_pending;
int gp_hosts_holding;
int gp_shares;
int gp_mapped_count;
int gp_managed_count;
struct gp_hooks gp_hooks;

int64_t gp_now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

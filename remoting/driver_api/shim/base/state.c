// The state that all layers read: the devices, and counts of rare things, as of mapped memory.
#include "base.h"

struct gp_state gp;
bool gp_several;
int gp_started;
int gp_servers_left;
bool gp_reached[GP_SERVERS_MAX];
int gp_hosts_pending;
int gp_hosts_holding;
int gp_shares;
int gp_mapped_count;
int gp_managed_count;
struct gp_hooks gp_hooks;

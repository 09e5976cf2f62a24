// Managed memory: the state that managed.c tracks, and the questions of other files about it.
#ifndef GP_MANAGED_H
#define GP_MANAGED_H

#include "hostmem.h"

struct gp_region;

void gp_managed_release(void);  // give all of it to the GPU, with what the program has written

// Memory of the server at the same addresses here; its size is a multiple of GP_REGION_UNIT.
#define GP_REGION_UNIT ((size_t)2 << 20)
int gp_region_new(size_t size, struct gp_region **region);
void gp_region_end(struct gp_region *region);
uint64_t gp_region_start(const struct gp_region *region);
// A variable of a module, which the server has allocated already.
int gp_region_borrow(uint64_t start, size_t size, int device);
void gp_region_return(uint64_t start, int device);

// addresses.c
void *gp_find_room(size_t size);               // holds addresses that were free; NULL: there are none
void *gp_hold(uint64_t address, size_t size);  // holds these if they are free; else NULL

// faults.c
void gp_catch_faults(void);  // have faults of memory come there first

// managed_calls.c
int gp_managed_free(uint64_t address);  // GP_INVALID_VALUE: it is not managed

#endif

// The host's memory that kernels see, as layers above hostmem/ use it.
#ifndef GP_HOSTMEM_H
#define GP_HOSTMEM_H

#include "wire.h"

// sync.c
int gp_synchronize(int op, uint64_t id);
int gp_drain(const void *start, size_t size);  // until nothing is on its way there any more

// pinned.c
// Kernels see the host's pinned memory under the program's own address natively, and here where
// that is free on the server; gp_see puts the right one in its place.
int gp_see(uint64_t *address);
int gp_free_host(void *address);
int gp_unregister_host(void *address);

// mapped.c
// Where the server of this call keeps these bytes of the host, if it has a mirror of all of them. Kernels
// before a copy write there, and kernels behind it read there, so copies have to go there as well.
bool gp_mirror_of(const void *host, size_t size, uint64_t *seen);
void gp_open_wanted(void);  // a synchronisation is over, and the program may write
void gp_push_mapped(void);  // what the program wrote to memory that kernels see

// merge.c; a mask has a bit for each byte, the first one lowest
size_t gp_find_new(const unsigned char *fresh, const unsigned char *known, unsigned char *mask,
                   size_t size);  // how many bytes are
void gp_merge(unsigned char *target, const unsigned char *fresh, const unsigned char *mask,
              size_t size);

#endif

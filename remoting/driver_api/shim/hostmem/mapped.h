// Memory of the host that kernels see.
#ifndef GP_MAPPED_H
#define GP_MAPPED_H

#include "hostmem.h"

struct gp_mapped {
    struct gp_mapped *next;
    uint64_t id, device, size;
    int ordinal;  // of a device of the server whose kernels see it
    bool eager;
    bool own;     // the library's, and nobody's else: what was never touched is zeros
    bool shared;                   // with other workers, and never compared with what is here
    unsigned char *host, *shadow;  // shadow: what both sides have
    // Of memory whose writes are tracked; NULL otherwise.
    unsigned char *alias;  // the same bytes, always open
    unsigned char *dirty;  // by block: it is open to the program, or was written by an answer
    unsigned char *sent;   // those of the push under way
    size_t low, high;      // dirty blocks are between these
    unsigned char *wanted; // by group of blocks: how many more synchronisations open it
};

extern struct gp_mapped *gp_mapped_list;
extern pthread_mutex_t gp_mapped_lock;  // of the list and what its members say of blocks
extern pthread_mutex_t gp_push_lock;    // of the list as well, and of what is being sent; taken first

// Have the kernel tell of writes; all of it is open. The bytes are at alias as well. False without
// memory.
bool gp_track(struct gp_mapped *made, unsigned char *alias);
void gp_mapped_enter(struct gp_mapped *made);  // with gp_push_lock held
struct gp_mapped *gp_mapped_take(const void *host);  // out of the list, NULL for none
void gp_mapped_discard(struct gp_mapped *of);

// Whether any page of a chunk, or of less, was ever written or read: else it has no bytes but zeros.
#define GP_CHUNK ((size_t)2 << 20)
bool gp_is_touched(const unsigned char *start, size_t size);

#endif

// Tokens for memory and events that other processes of the lease may open.
#ifndef GP_IPC_H
#define GP_IPC_H

#include "base.h"

#include <sys/mman.h>

#define GP_TOKEN_WORDS 4
#define GP_INTERPROCESS 4  // CU_EVENT_INTERPROCESS

// What travels between programs in place of a handle of CUDA's, as which it has 64 bytes.
struct gp_ticket {
    char magic[8];
    uint64_t token[GP_TOKEN_WORDS];
    char kind, rest[23];
};
_Static_assert(sizeof(struct gp_ticket) == 64, "as in cuda.h");

// The kinds of what a token stands for.
enum {
    GP_SHARED_ALLOCATION = 'm',
    GP_SHARED_EVENT = 'e',
    GP_SHARED_PHYSICAL = 'p',
    GP_SHARED_POOL = 'o',
    GP_SHARED_POINTER = 'a',  // to memory of a pool
};

void gp_fill_ticket(struct gp_ticket *ticket, char kind, const uint64_t token[GP_TOKEN_WORDS]);
bool gp_is_ticket(const struct gp_ticket *ticket, char kind);
int gp_make_descriptor(int *descriptor, char kind, const uint64_t token[GP_TOKEN_WORDS]);
int gp_read_descriptor(int descriptor, char kind, uint64_t token[GP_TOKEN_WORDS]);
// What a server calls a device, as an ordinal here.
int gp_shared_device(uint64_t server_device);

#endif
